// col2im_rows: from the results of a row of inputs to outputs.
#pragma once
#include "col2im_rows/lines.cuh"
#include "primitives/epilogue.cuh"

namespace tconv {

// The results of an input that is not there: zeros, behind those of the others.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_rows_clear(float* results, int thread) {
  using Shape = Col2imRowsShape<Layer, Tile>;
#pragma unroll 1
  for (int column = thread; column < 2 * Shape::pitch; column += Shape::team_threads)
    results[column / Shape::pitch * Shape::buffer + Shape::team_inputs * Shape::pitch + column % Shape::pitch] = 0;
}

// What an epilogue needs of each channel of a block.
template <class Layer, class Tile, class Program>
struct Col2imRowsChannels {
  const Epilogue<Layer, Program>& epilogue;
  int first;
  typename Epilogue<Layer, Program>::Channel of[Tile::channels];

  TCONV_DEVICE Col2imRowsChannels(const Epilogue<Layer, Program>& epilogue, int first)
      : epilogue(epilogue), first(first) {
#pragma unroll
    for (int channel = 0; channel < Tile::channels; ++channel)
      of[channel] = epilogue.of(is_there(channel) ? first + channel : 0);
  }
  TCONV_DEVICE bool is_there(int channel) const {
    return Layer::group_out_channels % Tile::channels == 0 || first + channel < Layer::group_out_channels;
  }
};

// Stores the outputs of position `row` along the height, of the warp's line. The warps of a line share them; lanes have
// neighbouring outputs.
template <class Layer, class Tile, class Program>
TCONV_DEVICE void col2im_rows_store(const float* results, const Col2imRowsChannels<Layer, Tile, Program>& channels,
                                    typename Layer::Element* y_of_group, int y_channels,
                                    const Col2imRowsPart<Layer, Tile>& part, int row, int warp, int lane,
                                    int output_depth, int output_height, int output_width) {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Depth = typename Shape::Depth;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  constexpr int row_results = Width::shifts * Width::phases;
  const long long slab = static_cast<long long>(output_height) * output_width, plane = output_depth * slab;
  const int first_h = row * Height::phases - Layer::Height::padding,
            first_d = part.depth * Depth::phases - Layer::Depth::padding;
  const long long image = part.image, of_slabs = first_d * slab,
                  of_rows = static_cast<long long>(first_h) * output_width;
  Element* const of_row = Tile::channels_last
                              ? y_of_group + (image * plane + of_slabs + of_rows) * y_channels + channels.first
                              : y_of_group + (image * y_channels + channels.first) * plane + of_slabs + of_rows;
#pragma unroll 1
  for (int chunk = part.first_output + warp % Shape::line_warps * 32; chunk < part.outputs_end;
       chunk += Shape::line_warps * 32) {
    const int output = chunk + lane;
    const bool inside = output < part.outputs_end;
    const int position = (output + Layer::Width::padding) / Width::phases,
              phase = (output + Layer::Width::padding) % Width::phases;
    const float* of_shifts[Width::shifts];
#pragma unroll
    for (int shift = 0; shift < Width::shifts; ++shift) {
      const int input = position - shift - part.column;
      const bool meets = in_range(input, Tile::columns) && Width::has_tap(shift, phase);
      const int number = meets ? warp / Shape::line_warps * Tile::columns + input : Shape::team_inputs;
      of_shifts[shift] = results + number * Shape::pitch + shift * Width::phases + phase;
    }
#pragma unroll
    for (int channel = 0; channel < Tile::channels; ++channel) {
      const auto& of_channel = channels.of[channel];
#pragma unroll
      for (int phase_d = 0; phase_d < Depth::phases; ++phase_d)
#pragma unroll
        for (int phase_h = 0; phase_h < Height::phases; ++phase_h) {
          const int output_row = (channel * Depth::phases + phase_d) * Height::phases + phase_h;
          // Nothing is branched around: outputs would wait for each other.
          const bool there = inside && in_range(first_h + phase_h, output_height) &&
                             in_range(first_d + phase_d, output_depth) && channels.is_there(channel);
          float total = 0;
#pragma unroll
          for (int shift = 0; shift < Width::shifts; ++shift) total += of_shifts[shift][output_row * row_results];
          Element* const to = Tile::channels_last
                                  ? of_row + (phase_d * slab + phase_h * output_width + output) * y_channels + channel
                                  : of_row + channel * plane + phase_d * slab + phase_h * output_width + output;
          const auto read = channels.epilogue.program.template fetch<1>(to, there);
          store_present(to, channels.epilogue.output(of_channel.y(total), of_channel, read), there);
        }
    }
  }
}

}  // namespace tconv
