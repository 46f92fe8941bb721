// col2im: from the sums of the warps to outputs.
#pragma once
#include "col2im/block_tiles.cuh"
#include "primitives/axis.cuh"
#include "primitives/block_tiles.cuh"
#include "primitives/division.cuh"
#include "primitives/epilogue.cuh"

namespace tconv {

// The taps of an axis that meet an output, by number, and their inputs. The output is position * stride + rest -
// padding.
template <class Axis>
struct Meeting {
  int first_tap, first_input;

  TCONV_DEVICE Meeting(int position, int rest)
      : first_tap(Axis::first_tap((rest + (Axis::stride - Axis::padding % Axis::stride)) % Axis::stride)),
        first_input(position + (rest - first_tap * Axis::dilation) / Axis::stride) {}
  TCONV_DEVICE explicit Meeting(int output)
      : Meeting((output + Axis::padding) / Axis::stride, (output + Axis::padding) % Axis::stride) {}
  TCONV_DEVICE int tap(int number) const { return first_tap + number * Axis::tap_period; }
  TCONV_DEVICE int input(int number) const { return first_input - number * Axis::shift_period; }
  TCONV_DEVICE bool is_there(int number, int inputs) const {
    return tap(number) < Axis::kernel && in_range(input(number), inputs);
  }
};

// The outputs of a block: from `first` on, so many on each axis, of the images and channels of the block. Along the
// width they are those of the block's own phases.
template <class Layer, class Tile, class Shape, class Program>
struct Col2imOutputs {
  using Element = typename Layer::Element;
  const float* sums;
  const Epilogue<Layer, Program>& epilogue;
  Element* y;  // of the block's group
  BlockTilePosition first_input, first;
  int depths, rows, columns;  // of the block
  int first_channel, block_phase, batch;
  int input_depth, input_height, input_width;
  int y_channels, output_depth, output_height, output_width;

  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Shape::OwnWidth;

  // Sums what the taps give to some neighbouring channels of an output: taps first and then sets of warps, always in
  // one order.
  TCONV_DEVICE void sum(int channel, int image, const Meeting<Depth>& d, const Meeting<Height>& h,
                        const Meeting<Width>& w, float (&totals)[Shape::sum_channels]) const {
#pragma unroll
    for (int k = 0; k < Shape::sum_channels; ++k) totals[k] = 0;
#pragma unroll 1
    for (int over_width = 0; over_width < Depth::taps_per_phase * Height::taps_per_phase; ++over_width) {
      const int n_h = over_width % Height::taps_per_phase, n_d = over_width / Height::taps_per_phase;
      const bool row_there = d.is_there(n_d, input_depth) && h.is_there(n_h, input_height);
      const int tap_row = (d.tap(n_d) * Height::kernel + h.tap(n_h)) * Width::kernel;
      const int position_row =
          image * Shape::run_positions +
          ((d.input(n_d) - first_input.depth) * Tile::BlockTile::rows + h.input(n_h) - first_input.row) *
              Tile::BlockTile::columns -
          first_input.column;
#pragma unroll(Width::taps_per_phase <= 2 ? 2 : 1)
      for (int n_w = 0; n_w < Width::taps_per_phase; ++n_w) {
        // What is not there is not branched around: outputs would wait for each other.
        const bool there = row_there && w.is_there(n_w, input_width);
        const int row = channel * Shape::Rows::of_channel + (tap_row + w.tap(n_w)) * Shape::Rows::of_tap;
        const float* const from = sums + (there ? row * Shape::sums_pitch + position_row + w.input(n_w) : 0);
#pragma unroll(Shape::splits* Shape::sum_channels <= 16 ? Shape::splits : 4)
        for (int split = 0; split < Shape::splits; ++split)
#pragma unroll
          for (int k = 0; k < Shape::sum_channels; ++k) {
            const float value = from[split * Shape::sums + k * (Shape::Rows::of_channel * Shape::sums_pitch)];
            totals[k] += there ? value : 0;
          }
      }
    }
  }

  // Neighbouring threads have neighbouring positions, so that they read sums side by side. Many phases are other
  // threads'.
  TCONV_DEVICE void store() const {
    constexpr int parts = Tile::channels / Shape::sum_channels, images = Tile::BlockTile::images;
    const long long plane = static_cast<long long>(output_depth) * output_height * output_width;
    const int first_position = (first.column + Width::padding) / Width::stride;
    const int positions = (first.column + columns - 1 + Width::padding) / Width::stride - first_position + 1;
    constexpr int turns = Width::stride / Shape::sum_phases;
    const int places = images * depths * rows * (columns > 0 ? positions : 0) * turns;
    const QuickDivisor by_positions(positions), by_rows(rows), by_depths(depths);
#pragma unroll 1
    for (int number = static_cast<int>(threadIdx.x); number < places * parts; number += Shape::threads) {
      int rest = number, part = 0;
      if (Tile::channels_last) part = rest % parts, rest /= parts;
      const int first_phase = rest % turns * Shape::sum_phases;
      rest /= turns;
      const int position = first_position + by_positions.divide(rest);
      const int row = first.row + (Layer::spatial_dims > 1 ? by_rows.divide(rest) : 0);
      const int depth = first.depth + (Layer::spatial_dims > 2 ? by_depths.divide(rest) : 0);
      const int image = rest % images;
      if (!Tile::channels_last) part = rest / images;
      if (first_input.image + image >= batch) continue;
      const Meeting<Depth> d(depth);
      const Meeting<Height> h(row);
      const int first_of = first_channel + part * Shape::sum_channels;
      const int first_column = position * Width::stride - Width::padding + first_phase;
      const long long of_image = static_cast<long long>(first_input.image + image) * y_channels * plane;
      const int to_column = Shape::all_phases
                                ? first_column
                                : position * Layer::Width::stride - Layer::Width::padding + block_phase + first_phase;
      const long long in_plane = (static_cast<long long>(depth) * output_height + row) * output_width + to_column;
      Element* const to_first =
          y + of_image + (Tile::channels_last ? in_plane * y_channels + first_of : first_of * plane + in_plane);
#pragma unroll
      for (int phase = 0; phase < Shape::sum_phases; ++phase) {
        if (!in_range(first_column + phase - first.column, columns)) continue;
        if (!Shape::all_phases && !in_range(to_column + phase, output_width)) continue;
        float totals[Shape::sum_channels];
        sum(part * Shape::sum_channels, image, d, h, Meeting<Width>(position, first_phase + phase), totals);
        Element* to = to_first + phase * (Tile::channels_last ? y_channels : 1);
#pragma unroll
        for (int k = 0; k < Shape::sum_channels; ++k, to += Tile::channels_last ? 1 : plane) {
          const bool there =
              Layer::group_out_channels % Tile::channels == 0 || first_of + k < Layer::group_out_channels;
          const auto of_channel = epilogue.of(there ? first_of + k : 0);
          const auto read = epilogue.program.template fetch<1>(to, there);
          const Element output = epilogue.output(of_channel.y(totals[k]), of_channel, read);
          if (there) *to = output;
        }
      }
    }
  }
};

// Stores what a block summed.
template <class Layer, class Tile, class Shape, class Program>
TCONV_DEVICE void col2im_store_outputs(const float* sums, const Epilogue<Layer, Program>& epilogue,
                                       typename Layer::Element* y_of_group,
                                       const Col2imBlockTiles<Layer, Tile, Shape>& block_tiles,
                                       const Col2imNumbers& numbers, int first_channel, int block_phase, int batch,
                                       int input_depth, int input_height, int input_width, int y_channels,
                                       int output_depth, int output_height, int output_width) {
  const BlockTilePosition first_input = block_tiles.first_input(numbers);
  const int outputs = col2im_outputs<Layer, Shape>(output_width);
  const BlockTilePosition first = {first_input.image,
                                   Shape::Depth::first_output(numbers.depth, block_tiles.depths, output_depth),
                                   Shape::Height::first_output(numbers.row, block_tiles.rows, output_height),
                                   Shape::Width::first_output(numbers.column, block_tiles.columns, outputs)};
  const Col2imOutputs<Layer, Tile, Shape, Program> of_block{
      sums,
      epilogue,
      y_of_group,
      first_input,
      first,
      Shape::Depth::first_output(numbers.depth + 1, block_tiles.depths, output_depth) - first.depth,
      Shape::Height::first_output(numbers.row + 1, block_tiles.rows, output_height) - first.row,
      Shape::Width::first_output(numbers.column + 1, block_tiles.columns, outputs) - first.column,
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
