// col2im_wgmma: inputs, from a stage to the second factor.
#pragma once
#include "col2im/copies.cuh"
#include "col2im_wgmma/shape.cuh"
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"

namespace tconv {

// Moves a thread's part of a stage's inputs to a second factor whose rows are positions, rounded.
template <class Layer, class Tile>
struct Col2imWgmmaInputs {
  using Shape = Col2imWgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Runs = Col2imRuns<Layer, Tile, Shape>;

  static TCONV_DEVICE void move(const unsigned char* stage, const Runs& runs, unsigned char* factor, int thread) {
    const int first_position = thread / 8 % Shape::eights * Shape::position_lanes + thread % Shape::position_lanes;
    const int first_vector = thread / 8 / Shape::eights * Shape::vector_lanes + thread % 8 / Shape::position_lanes;
#pragma unroll
    for (int i = 0; i < Shape::position_turns; ++i)
#pragma unroll
      for (int turn = 0; turn < Shape::vector_turns; ++turn) {
        const int position = first_position + i * Shape::eights * Shape::position_lanes;
        const int vector = first_vector + turn * Shape::vectors_at_once;
        if (position >= Shape::positions || vector >= Shape::vectors) continue;
        Vector<unsigned, 4> moved;
#pragma unroll
        for (int word = 0; word < 4; ++word) moved.values[word] = load(stage, runs, position, vector, word);
        *reinterpret_cast<Vector<unsigned, 4>*>(
            factor + swizzled(position * Shape::k_tile_bytes + vector * 16, Shape::k_tile_bytes)) = moved;
      }
  }

 private:
  // A word of a vector: a channel of 32 bits, or two of 16.
  static TCONV_DEVICE unsigned load(const unsigned char* stage, const Runs& runs, int position, int vector, int word) {
    const int channel = vector * Shape::vector_channels + word * Shape::vector_channels / 4;
    if (Shape::item_bytes == 2)
      return *item<unsigned short>(stage, runs, position, channel) |
             static_cast<unsigned>(*item<unsigned short>(stage, runs, position, channel + 1)) << 16;
    return float_bits(matrix_factor<Layer>(*item<float>(stage, runs, position, channel), 0));
  }
  // The input of a position in a channel of the k-tile.
  template <class Item>
  static TCONV_DEVICE const Item* item(const unsigned char* stage, const Runs& runs, int position, int channel) {
    if (Tile::runs)
      return runs.template at<Item>(stage, channel, position / Shape::run_positions) + position % Shape::run_positions;
    const int offset = Tile::inputs_last ? position * Shape::input_pitch + channel * Shape::item_bytes
                                         : channel * Shape::input_pitch + position * Shape::item_bytes;
    return reinterpret_cast<const Item*>(stage + offset);
  }
};

}  // namespace tconv
