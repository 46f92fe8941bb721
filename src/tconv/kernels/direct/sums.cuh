// direct: the sums of a thread, and those that sets of warps join.
#pragma once
#include "direct/shape.cuh"

namespace tconv {

// What a thread sums up: of each of its rows, column phases, positions and output channels.
template <class Layer, class Tile>
struct DirectSums {
  using Shape = DirectShape<Layer, Tile>;
  using Accumulator = typename Shape::Accumulator;
  Accumulator values[Shape::sum_rows][Tile::phases][Tile::positions][Tile::channels];

  // Calls visit(sum, number) for each sum, in one order for all uses.
  template <class Visitor>
  TCONV_DEVICE void each(Visitor visit) {
#pragma unroll
    for (int r = 0; r < Shape::sum_rows; ++r)
#pragma unroll
      for (int a = 0; a < Tile::phases; ++a)
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
          for (int c = 0; c < Tile::channels; ++c)
            visit(values[r][a][p][c], ((r * Tile::phases + a) * Tile::positions + p) * Tile::channels + c);
  }

  TCONV_DEVICE void clear() {
    each([](Accumulator& sum, int) { sum = 0; });
  }

  TCONV_DEVICE void add(const DirectSums& other) {
    const Accumulator* const others = &other.values[0][0][0][0];
    each([others](Accumulator& sum, int number) { sum += others[number]; });
  }
};

// Adds the sums of the other splits to those of the first. Called by whole blocks; `buffer` is not in use elsewhere.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_join(DirectSums<Layer, Tile>& sums, int split, Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
  const int own = static_cast<int>(threadIdx.x) % Shape::position_threads;
  __syncthreads();  // what was in the buffer has been read
  if (split > 0) {
    Accumulator* const place = buffer + (split - 1) * Shape::thread_sums * Shape::position_threads + own;
    sums.each([place](Accumulator& sum, int number) { place[number * Shape::position_threads] = sum; });
  }
  __syncthreads();
  if (split > 0) return;
#pragma unroll 1
  for (int other = 1; other < Tile::splits; ++other) {
    const Accumulator* const place = buffer + (other - 1) * Shape::thread_sums * Shape::position_threads + own;
    sums.each([place](Accumulator& sum, int number) { sum += place[number * Shape::position_threads]; });
  }
}

}  // namespace tconv
