// col2im_rows: inputs, from memory to the fragments of the first factor.
#pragma once
#include "col2im_rows/lines.cuh"
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// The inputs of a lane. Row g of a warp's fragments is input 2g of the warp, row g + 8 is input 2g + 1: so a lane has
// pairs of neighbours, of the channels that the fragment says. In channels_last it has neighbouring channels instead,
// and weights lie as that wants.
template <class Layer, class Tile>
struct Col2imRowsInputs {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  // From a position to the next one.
  static constexpr int position_items = Tile::channels_last ? Layer::groups * Layer::group_in_channels : 1;
  const Element* first;  // of the lane's column and its first channel, in row 0 of depth 0
  long long plane;       // positions of a map
  int depth;             // the position along the depth
  int depths, rows, row_items;
  bool columns_inside[2];
  int lane_channel;
  unsigned words[Tile::k_tile_steps][Shape::step_words];

  TCONV_DEVICE Col2imRowsInputs(const Element* x, int group, const Col2imRowsPart<Layer, Tile>& part, int batch,
                                int input_depth, int input_height, int input_width, int warp, int lane)
      : plane(static_cast<long long>(input_depth) * input_height * input_width),
        depth(part.depth),
        depths(input_depth),
        rows(input_height),
        row_items(input_width),
        lane_channel(lane % 4 * (Tile::channels_last ? Shape::lane_channels : Shape::lane_channels / 2)) {
    const int column = part.column + warp % Shape::line_warps * 16 + lane / 4 * 2;
    const bool image_inside = part.image < batch;
    columns_inside[0] = image_inside && column < input_width;
    columns_inside[1] = image_inside && column + 1 < input_width;
    const long long image = part.image;
    first = Tile::channels_last
                ? x + (image * plane + column) * position_items + group * Layer::group_in_channels + lane_channel
                : x + ((image * Layer::groups + group) * Layer::group_in_channels + lane_channel) * plane + column;
  }
  // Asks for a k-tile of a row of inputs.
  TCONV_DEVICE void load(int row, int k_tile) {
#pragma unroll
    for (int step = 0; step < Tile::k_tile_steps; ++step) {
      const int number = k_tile * Tile::k_tile_steps + step;
      const int shift = Shape::Depth::shifts == 1 ? 0 : number / Shape::channel_steps;
      const int first_channel = (number - shift * Shape::channel_steps) * Shape::step_channels;
      const bool inside =
          in_range(row, rows) && in_range(depth - shift, depths) && (Shape::whole_k_tiles || number < Shape::k_steps);
      const Element* const of_step = first + first_channel * (Tile::channels_last ? 1 : plane) +
                                     (static_cast<long long>(depth - shift) * rows + row) * row_items * position_items;
      if (Tile::channels_last) {
        load_channels(of_step, inside, first_channel, words[step]);
        continue;
      }
#pragma unroll
      for (int k = 0; k < Shape::lane_channels; ++k) {
        // A half of the channels lies 16 bytes of the fragment further.
        const int channel =
            k % (Shape::lane_channels / 2) + k / (Shape::lane_channels / 2) * (Shape::step_channels / 2);
        const bool there = inside && (Layer::group_in_channels % Shape::step_channels == 0 ||
                                      first_channel + lane_channel + channel < Layer::group_in_channels);
#pragma unroll
        for (int i = 0; i < 2 / Tile::vector; ++i) {
          constexpr int count = (Shape::loaded_bytes + 3) / 4;
          unsigned loaded[count];
          load_present<Shape::loaded_bytes>(of_step + channel * plane + i, there && columns_inside[i], loaded);
#pragma unroll
          for (int word = 0; word < count; ++word)
            words[step][(k * (2 / Tile::vector) + i) * count + word] = loaded[word];
        }
      }
    }
  }
  // The same of a step, in channels_last.
  TCONV_DEVICE void load_channels(const Element* of_step, bool inside, int first_channel,
                                  unsigned (&of_lane)[Shape::step_words]) const {
    constexpr int items = Shape::loaded_bytes / Shape::item_bytes, count = (Shape::loaded_bytes + 3) / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int channel = 0; channel < Shape::lane_channels; channel += items) {
        const bool there = inside && columns_inside[i] &&
                           (Layer::group_in_channels % Shape::step_channels == 0 ||
                            first_channel + lane_channel + channel < Layer::group_in_channels);
        unsigned loaded[count];
        load_present<Shape::loaded_bytes>(of_step + i * position_items + channel, there, loaded);
#pragma unroll
        for (int word = 0; word < count; ++word)
          of_lane[((i * Shape::lane_channels + channel) / items) * count + word] = loaded[word];
      }
  }
  // The fragments of a step whose inputs have come, rounded.
  TCONV_DEVICE void fragments(int step, unsigned (&of_step)[4]) const {
    const auto& own = words[step];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (Shape::item_bytes == 4)
          of_step[2 * half + i] =
              float_bits(matrix_factor<Layer>(bits_float(own[Tile::channels_last ? 2 * i + half : 2 * half + i]), 0));
        else if (Tile::channels_last)
          of_step[2 * half + i] = Shape::loaded_bytes > 2 ? own[2 * i + half]
                                                          : own[(4 * i + 2 * half) % Shape::step_words] |
                                                                own[(4 * i + 2 * half + 1) % Shape::step_words] << 16;
        else if (Tile::vector == 2)
          of_step[2 * half + i] = i == 0 ? (own[2 * half] & 0xffffu) | own[2 * half + 1] << 16
                                         : own[2 * half] >> 16 | (own[2 * half + 1] & 0xffff0000u);
        else
          of_step[2 * half + i] = own[(4 * half + i) % Shape::step_words] | own[(4 * half + 2 + i) % Shape::step_words]
                                                                                << 16;
      }
  }
};

}  // namespace tconv
