// mma: a warp's accumulators, and how sets of warps add theirs. `mma.cuh` has the picture.
#pragma once
#include "mma/shape.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// A lane's accumulators: of each tile of 16 rows by 8 positions, rows lane / 4 and lane / 4 + 8 at two neighbouring
// positions.
template <class Layer, class Tile>
struct MmaAccumulators {
  typename MmaShape<Layer, Tile>::Accumulator values[Tile::Warps::row_tiles][Tile::Warps::position_tiles][4];
};

template <class Layer, class Tile>
TCONV_DEVICE void mma_clear(MmaAccumulators<Layer, Tile>& accumulators) {
#pragma unroll
  for (int i = 0; i < Tile::Warps::row_tiles; ++i)
#pragma unroll
    for (int j = 0; j < Tile::Warps::position_tiles; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) accumulators.values[i][j][k] = 0;
}

// Sets of warps share the input channels: each has a part of each k-tile. Adds all sets' accumulators, in a fixed
// order, in the first set. Returns false in the other sets, whose work is done.
template <class Layer, class Tile>
TCONV_DEVICE bool mma_join(MmaAccumulators<Layer, Tile>& accumulators, unsigned char* shared) {
  using Shape = MmaShape<Layer, Tile>;
  if (Tile::Warps::splits == 1) return true;
  constexpr int set = 32 * Shape::warps, tiles = Tile::Warps::row_tiles * Tile::Warps::position_tiles;
  const int split = static_cast<int>(threadIdx.x) / set;
  // Neighbouring threads' vectors of a tile are neighbours in shared memory. Nobody reads the stages any more.
  using Accumulator = typename Shape::Accumulator;
  constexpr int items = 16 / static_cast<int>(sizeof(Accumulator)), vectors = 4 / items;
  using Joined = Vector<Accumulator, items>;
  Joined* const joined = reinterpret_cast<Joined*>(shared) + static_cast<int>(threadIdx.x) % set;
  if (split > 0)
#pragma unroll
    for (int n = 0; n < tiles * vectors; ++n) {
      const Accumulator(&own)[4] =
          accumulators.values[n / vectors / Tile::Warps::position_tiles][n / vectors % Tile::Warps::position_tiles];
      Joined vector;
#pragma unroll
      for (int k = 0; k < items; ++k) vector.values[k] = own[n % vectors * items + k];
      joined[((split - 1) * tiles * vectors + n) * set] = vector;
    }
  __syncthreads();
  if (split > 0) return false;
#pragma unroll 1
  for (int other = 0; other < Tile::Warps::splits - 1; ++other)
#pragma unroll
    for (int n = 0; n < tiles * vectors; ++n) {
      const Joined theirs = joined[(other * tiles * vectors + n) * set];
      Accumulator(&own)[4] =
          accumulators.values[n / vectors / Tile::Warps::position_tiles][n / vectors % Tile::Warps::position_tiles];
#pragma unroll
      for (int k = 0; k < items; ++k) own[n % vectors * items + k] += theirs.values[k];
    }
  return true;
}

}  // namespace tconv
