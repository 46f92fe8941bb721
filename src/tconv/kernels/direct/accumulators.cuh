// direct: the accumulators of a thread, and those that sets of warps join.
#pragma once
#include "direct/shape.cuh"

namespace tconv {

// What a thread sums up: of each of its rows, column phases, positions and output channels.
template <class Layer, class Tile>
struct DirectAccumulators {
  using Shape = DirectShape<Layer, Tile>;
  typename Shape::Accumulator values[Shape::accumulator_rows][Tile::phases][Tile::positions][Tile::channels];
};

// Adds the accumulators of a chain to all, and begins the next one.
template <class Layer, class Tile>
TCONV_DEVICE void direct_end_chain(DirectAccumulators<Layer, Tile>& chain, DirectAccumulators<Layer, Tile>& all) {
  using Shape = DirectShape<Layer, Tile>;
  const typename Shape::Accumulator* const from = &chain.values[0][0][0][0];
  typename Shape::Accumulator* const to = &all.values[0][0][0][0];
#pragma unroll
  for (int i = 0; i < Shape::thread_accumulators; ++i) to[i] += from[i];
  chain = {};
}

// Adds the accumulators of the other splits to those of the first. Called by whole blocks; `buffer` is not in use
// elsewhere.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_join(DirectAccumulators<Layer, Tile>& accumulators, int split, Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
  Accumulator* const own = &accumulators.values[0][0][0][0];
  Accumulator* const place = buffer + static_cast<int>(threadIdx.x) % Shape::position_threads;
  constexpr int items = Shape::thread_accumulators * Shape::position_threads;  // of one split
  __syncthreads();                                                     // what was in the buffer has been read
  if (split > 0) {
#pragma unroll
    for (int i = 0; i < Shape::thread_accumulators; ++i)
      place[(split - 1) * items + i * Shape::position_threads] = own[i];
  }
  __syncthreads();
  if (split == 0) {
#pragma unroll 1
    for (int other = 0; other < Tile::splits - 1; ++other) {
#pragma unroll
      for (int i = 0; i < Shape::thread_accumulators; ++i) own[i] += place[other * items + i * Shape::position_threads];
    }
  }
}

}  // namespace tconv
