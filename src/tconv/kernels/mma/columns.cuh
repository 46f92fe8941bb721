// mma: the second factors of a step, columns of positions: from shared memory to a warp's lanes. `mma.cuh` has the
// picture.
#pragma once
#include "mma/shape.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// Loads columns from `moved` bytes after `places`: `columns[plane][tile]` are the lane's two words of a position tile.
template <class Layer, class Tile>
TCONV_DEVICE void mma_load_columns(
    const unsigned char* const (&places)[MmaShape<Layer, Tile>::lane_places], int moved,
    unsigned (&columns)[MmaShape<Layer, Tile>::planes][Tile::Warps::position_tiles][2]) {
  using Shape = MmaShape<Layer, Tile>;
  if (Shape::own_words) {
    // Each lane loads its own numbers and rounds them.
    using Number = typename Shape::Accumulator;
#pragma unroll
    for (int j = 0; j < Tile::Warps::position_tiles; ++j)
#pragma unroll
      for (int half = 0; half < Shape::step_channels / 4; ++half) {
        const Number value = *reinterpret_cast<const Number*>(places[j] + moved + half * 4 * Shape::channel_bytes);
        const Number factor = matrix_factor<Layer>(value, 0);
        if (Shape::item_bytes == 8)
          columns[0][j][0] = low_word(factor), columns[0][j][1] = high_word(factor);
        else
          columns[0][j][half] = float_bits(static_cast<float>(factor));
      }
  } else {
    // Four matrices at once: two tiles of positions by two halves of 32 bytes of channels.
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane)
#pragma unroll
      for (int j = 0; j < Tile::Warps::position_tiles; j += 2) {
        unsigned words[4];
        if (Shape::by_channel)
          load_transposed_matrices(places[j / 2] + moved, words);
        else
          load_matrices(places[j / 2] + moved + plane * Shape::plane_bytes, words);
        columns[plane][j][0] = words[0], columns[plane][j][1] = words[1];
        columns[plane][j + 1][0] = words[2], columns[plane][j + 1][1] = words[3];
      }
  }
}

}  // namespace tconv
