// col2im: from the sums of the warps to outputs, a thread has all phases of a position.
#pragma once
#include "col2im/block_tiles.cuh"
#include "primitives/block_tiles.cuh"
#include "primitives/division.cuh"
#include "primitives/epilogue.cuh"

namespace tconv {

// The positions of a block tile: from `first` on, so many on each axis, of the images and channels of the block.
template <class Layer, class Tile, class Shape, class Program>
struct Col2imPositions {
  using Element = typename Layer::Element;
  using Depth = typename Shape::Depth;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  using OwnWidth = typename Shape::OwnWidth;
  using BlockTile = typename Tile::BlockTile;
  static constexpr int channels = Shape::sum_channels, parts = ceil_div(Tile::channels, channels);
  using OfChannel = typename Epilogue<Layer, Program>::Channel;
  // Neighbouring channels of an output that are stored at once.
  static constexpr int together = greatest_common_divisor(greatest_common_divisor(channels, Layer::group_out_channels),
                                                          16 / Shape::item_bytes),
                       at_once = Tile::channels_last ? together : 1;

  const float* sums;
  const Epilogue<Layer, Program>& epilogue;
  Element* y;  // of the block's group
  BlockTilePosition first_input, first;
  int depths, rows, columns;
  int first_channel, block_phase, batch;
  int input_depth, input_height, input_width;
  int y_channels, output_depth, output_height, output_width;

  // The outputs of a position in some channels: phases along the width are the fastest.
  struct Totals {
    float values[channels][Shape::phases];
  };

  // Sums what the taps give, and the sets of warps: taps first, always in one order. `of_position` points to what tap 0
  // of the first channel makes of the input whose number is the position's. If `all_there`, so is each tap's input.
  template <bool all_there>
  TCONV_DEVICE void sum(const float* of_position, int depth, int row, int column, Totals& totals) const {
#pragma unroll
    for (int k = 0; k < channels; ++k)
#pragma unroll
      for (int phase = 0; phase < Shape::phases; ++phase) totals.values[k][phase] = 0;
#pragma unroll
    for (int d = 0; d < Layer::Depth::kernel; ++d)
#pragma unroll
      for (int h = 0; h < Layer::Height::kernel; ++h)
#pragma unroll
        for (int w = 0; w < OwnWidth::kernel; ++w) {
          const int tap = (d * Layer::Height::kernel + h) * OwnWidth::kernel + w;
          const int phase =
              (Depth::rest(d) * Layer::Height::stride + Height::rest(h)) * OwnWidth::stride + Width::rest(w);
          const int behind =
              (Depth::shift(d) * BlockTile::rows + Height::shift(h)) * BlockTile::columns + Width::shift(w);
          const bool there = all_there || (in_range(depth - Depth::shift(d), input_depth) &&
                                           in_range(row - Height::shift(h), input_height) &&
                                           in_range(column - Width::shift(w), input_width));
          const bool is_first =
              d < Layer::Depth::tap_period && h < Layer::Height::tap_period && w < OwnWidth::tap_period;
#pragma unroll
          for (int split = 0; split < Shape::splits; ++split)
#pragma unroll
            for (int k = 0; k < channels; ++k) {
              const float* const from = of_position + split * Shape::sums +
                                        (k * Shape::Rows::of_channel + tap * Shape::Rows::of_tap) * Shape::sums_pitch -
                                        behind;
              if (is_first && split == 0)
                totals.values[k][phase] = there ? *from : 0;
              else if (there)
                totals.values[k][phase] += *from;
            }
        }
  }

  // Stores `width` neighbouring outputs of a row, from phase `phase` on.
  template <int width>
  TCONV_DEVICE void put_row(Element* to, const float* values, const OfChannel& of_channel, bool there) const {
    const auto read = epilogue.program.template fetch<width>(to, there);
    Vector<Element, width> outputs;
#pragma unroll
    for (int i = 0; i < width; ++i) outputs.values[i] = epilogue.output(of_channel.y(values[i]), of_channel, read, i);
    if (there) *reinterpret_cast<Vector<Element, width>*>(to) = outputs;
  }

  // Stores `together` neighbouring channels of an output.
  TCONV_DEVICE void put_channels(Element* to, const Totals& totals, const OfChannel (&of_channels)[channels], int k,
                                 int phase, bool there) const {
    const auto read = epilogue.program.template fetch<together>(to, there);
    Vector<Element, together> outputs;
#pragma unroll
    for (int i = 0; i < together; ++i)
      outputs.values[i] =
          epilogue.output(of_channels[k + i].y(totals.values[k + i][phase]), of_channels[k + i], read, i);
    if (there) *reinterpret_cast<Vector<Element, together>*>(to) = outputs;
  }

  // Stores the outputs of a position, `width` of a row at once.
  template <int width>
  TCONV_DEVICE void put(const Totals& totals, int image, int depth, int row, int column, int channel) const {
    OfChannel of_channels[channels];
#pragma unroll
    for (int k = 0; k < channels; ++k) of_channels[k] = epilogue.of(exists(channel + k) ? channel + k : 0);
    const long long plane = static_cast<long long>(output_depth) * output_height * output_width;
    const int first_depth = depth * Layer::Depth::stride - Depth::origin,
              first_row = row * Layer::Height::stride - Height::origin;
    const int first_column = Shape::all_phases ? column * Layer::Width::stride - Width::origin
                                               : column * Layer::Width::stride - Layer::Width::padding + block_phase;
    const long long in_plane =
        (static_cast<long long>(first_depth) * output_height + first_row) * output_width + first_column;
    Element* of_channel = y + static_cast<long long>(image) * y_channels * plane +
                          (Tile::channels_last ? in_plane * y_channels + channel : channel * plane + in_plane);
#pragma unroll
    for (int k = 0; k < channels; k += at_once, of_channel += Tile::channels_last ? together : plane)
#pragma unroll
      for (int d = 0; d < Layer::Depth::stride; ++d)
#pragma unroll
        for (int h = 0; h < Layer::Height::stride; ++h) {
          const bool row_there =
              exists(channel + k) && in_range(first_depth + d, output_depth) && in_range(first_row + h, output_height);
          const long long of_row = (static_cast<long long>(d) * output_height + h) * output_width;
#pragma unroll
          for (int w = 0; w < OwnWidth::stride; w += width) {
            const bool there = row_there && in_range(first_column + w, output_width);
            const int phase = (d * Layer::Height::stride + h) * OwnWidth::stride + w;
            if (Tile::channels_last)
              put_channels(of_channel + (of_row + w) * y_channels, totals, of_channels, k, phase, there);
            else
              put_row<width>(of_channel + of_row + w, totals.values[k] + phase, of_channels[k], there);
          }
        }
  }

  static TCONV_DEVICE bool exists(int channel) {
    return Layer::group_out_channels % Tile::channels == 0 || channel < Layer::group_out_channels;
  }

  // Whether all inputs exist that so many positions of an axis read.
  template <class Span>
  static TCONV_DEVICE bool all_there(int first, int count, int inputs) {
    return first - Span::lowest - Span::overlap >= 0 && first + count - 1 - Span::lowest < inputs;
  }

  // Neighbouring threads have neighbouring positions, so that they read sums side by side.
  TCONV_DEVICE void store() const {
    const int places = BlockTile::images * depths * rows * columns;
    if (places <= 0) return;
    const bool aligned = Shape::vector > 1 && output_width % Shape::vector == 0;
    const bool whole = all_there<Depth>(first.depth, depths, input_depth) &&
                       all_there<Height>(first.row, rows, input_height) &&
                       all_there<Width>(first.column, columns, input_width);
    const QuickDivisor by_columns(columns), by_rows(rows), by_depths(depths);
#pragma unroll 1
    for (int number = static_cast<int>(threadIdx.x); number < places * parts; number += Shape::threads) {
      int rest = number;
      const int column = by_columns.divide(rest);
      const int row = Layer::spatial_dims > 1 ? by_rows.divide(rest) : 0;
      const int depth = Layer::spatial_dims > 2 ? by_depths.divide(rest) : 0;
      const int image = rest % BlockTile::images, part = rest / BlockTile::images;
      if (first.image + image >= batch) continue;
      const int place = ((image * BlockTile::depths + first.depth + depth - first_input.depth) * BlockTile::rows +
                         first.row + row - first_input.row) *
                            BlockTile::columns +
                        first.column + column - first_input.column;
      Totals totals;
      const float* const of_position = sums + part * channels * Shape::Rows::of_channel * Shape::sums_pitch + place;
      if (whole)
        sum<true>(of_position, 0, 0, 0, totals);
      else
        sum<false>(of_position, first.depth + depth, first.row + row, first.column + column, totals);
      const int channel = first_channel + part * channels;
      if (aligned)
        put<Shape::vector>(totals, first.image + image, first.depth + depth, first.row + row, first.column + column,
                           channel);
      else
        put<1>(totals, first.image + image, first.depth + depth, first.row + row, first.column + column, channel);
    }
  }
};

// Stores what a block summed, position by position.
template <class Layer, class Tile, class Shape, class Program>
TCONV_DEVICE void col2im_store_positions(const float* sums, const Epilogue<Layer, Program>& epilogue,
                                         typename Layer::Element* y_of_group,
                                         const Col2imBlockTiles<Layer, Tile, Shape>& block_tiles,
                                         const Col2imNumbers& numbers, int first_channel, int block_phase, int batch,
                                         int input_depth, int input_height, int input_width, int y_channels,
                                         int output_depth, int output_height, int output_width) {
  const int outputs = col2im_outputs<Layer, Shape>(output_width);
  const BlockTilePosition first = block_tiles.first_position(numbers, output_depth, output_height, outputs);
  const BlockTilePosition end =
      block_tiles.first_position({numbers.image + 1, numbers.depth + 1, numbers.row + 1, numbers.column + 1},
                                 output_depth, output_height, outputs);
  const Col2imPositions<Layer, Tile, Shape, Program> of_block{sums,
                                                              epilogue,
                                                              y_of_group,
                                                              block_tiles.first_input(numbers),
                                                              first,
                                                              end.depth - first.depth,
                                                              end.row - first.row,
                                                              end.column - first.column,
                                                              first_channel,
                                                              block_phase,
                                                              batch,
                                                              input_depth,
                                                              input_height,
                                                              input_width,
                                                              y_channels,
                                                              output_depth,
                                                              output_height,
                                                              output_width};
  of_block.store();
}

}  // namespace tconv
