// col2im: accumulators, and from them to sums.
#pragma once
#include "col2im/shape.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// Of each lane of a warp, for its tiles of rows and positions.
template <class Layer, class Tile>
struct Col2imAccumulators {
  using Shape = Col2imShape<Layer, Tile>;
  float values[Shape::warp_row_tiles][Shape::warp_position_tiles][4];
};

// Puts the accumulators of a warp into shared memory, as `sums[row][position]` of its set.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_put(const Col2imAccumulators<Layer, Tile>& accumulators, float* sums, int first_row_tile,
                             int first_position_tile, int lane) {
  using Shape = Col2imShape<Layer, Tile>;
#pragma unroll
  for (int i = 0; i < Shape::warp_row_tiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < Shape::warp_position_tiles; ++j)
        *reinterpret_cast<Vector<float, 2>*>(
            sums + Shape::row_of(first_row_tile + i, half * 8 + lane / 4) * Shape::sums_pitch +
            (first_position_tile + j) * 8 +
            lane % 4 * 2) = {{accumulators.values[i][j][2 * half], accumulators.values[i][j][2 * half + 1]}};
}

}  // namespace tconv
