// direct: the accumulators of a thread, and how sets of warps add theirs.
#pragma once
#include "direct/shape.cuh"

namespace tconv {

// The accumulators of a thread: one for each of its rows, column phases, positions and output channels.
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

// Adds the accumulators of the other splits to the accumulators of the first, by way of `buffer`: [split][accumulator]
// [thread]. Called by whole blocks; the buffer may lie where they read weights before.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_join(DirectAccumulators<Layer, Tile>& accumulators, int split, Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
  Accumulator* const own = &accumulators.values[0][0][0][0];
  Accumulator* const place = buffer + static_cast<int>(threadIdx.x) % Shape::position_threads;
  constexpr int items = Shape::thread_accumulators * Shape::position_threads;  // of one split
  __syncthreads();  // all threads have read what lay in the buffer
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
