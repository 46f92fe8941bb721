// direct: from the accumulators of a thread to outputs in memory.
//
// Where a thread has all column phases, its results of one position are neighbours in memory. If they make one aligned
// vector, the lane stores it. Else the warp exchanges its results through shared memory and stores whole runs, 32
// neighbours at a time, together with columns that no tap reaches. All rows of one output channel are stored together.
#pragma once
#include "direct/accumulators.cuh"
#include "primitives/epilogue.cuh"

namespace tconv {

// The loaded values of a thread's output channels: the bias, and the epilogue program's values of a channel.
template <class Layer, class Tile, class Program>
struct DirectChannels {
  typename DirectShape<Layer, Tile>::Accumulator biases[Tile::channels];
  typename Program::Channel of_program[Tile::channels];
};

// An output from its accumulator, rounded to the element type once, at the end. `read` holds the values that the
// program has fetched for several outputs; this output is number `i` of them.
template <class Layer, class Tile, class Program, class Accumulator, class Values>
TCONV_DEVICE typename Layer::Element direct_output(Accumulator accumulator,
                                                   const DirectChannels<Layer, Tile, Program>& channels, int channel,
                                                   const Program& program, const Values& read, int i) {
  return from_accumulator<typename Layer::Element>(program.apply(
      Layer::has_bias ? accumulator + channels.biases[channel] : accumulator, channels.of_program[channel], read, i));
}

// Stores each position's column phases as one vector. Vectors are aligned: their width divides the output's width, and
// `origin` is 0 here.
//
// Outputs of the thread's first position begin at row `first_row` and column `column` of a plane; both may be negative.
// `start` is the offset of that row in y, for the thread's first channel. The same row of the next channel lies `plane`
// elements further. A plane has `height` rows of `width` columns; `height` is 0 where the position does not exist. The
// thread's first channel and those after it are `left` channels.
template <class Layer, class Tile, class Program>
TCONV_DEVICE void direct_store_vectors(const DirectAccumulators<Layer, Tile>& accumulators,
                                       const DirectChannels<Layer, Tile, Program>& channels, const Program& program,
                                       long long start, long long plane, int first_row, int height, int column,
                                       int width, int left, typename Layer::Element* y) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
  using Wide = Vector<Element, Shape::vector>;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    if (!Shape::whole_channels && c >= left) break;
#pragma unroll
    for (int r = 0; r < Shape::output_rows; ++r) {
      if (!in_range(first_row + r, height)) continue;
      Element* const row = y + (start + c * plane + static_cast<long long>(r) * width + column);
      const int accumulator_row = Shape::accumulator_row_of_output(r);
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p) {
        constexpr int step = Tile::columns * Width::stride;
        const bool inside = column + p * step < width;
        const auto read = program.template fetch<Shape::vector>(row + p * step, inside);
        Wide values;
#pragma unroll
        for (int phase = 0; phase < Shape::vector; ++phase) {
          const int tap = Width::first_tap(phase);
          const bool has_taps = accumulator_row >= 0 && tap < Width::kernel;
          values.values[phase] = direct_output<Layer, Tile, Program>(
              has_taps ? accumulators.values[accumulator_row][tap][p][c] : 0, channels, c, program, read, phase);
        }
        if (inside) *reinterpret_cast<Wide*>(row + p * step) = values;
      }
    }
  }
}

// Clears a warp's buffer. Column phases that no tap reaches are never written there, so they stay 0.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_clear_buffer(Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x) % 32; item < Shape::warp_items; item += 32) buffer[item] = 0;
}

// Stores one row of one output channel for a whole warp: from `line` in its buffer, or zeros with the epilogue applied
// where no tap reaches the row.
template <class Layer, class Tile, class Program, class Accumulator>
TCONV_DEVICE void direct_store_line(const Accumulator* line, bool has_accumulators, int lane,
                                    const DirectChannels<Layer, Tile, Program>& channels, const Program& program,
                                    int run_column, long long start, long long plane, int first_row, int height,
                                    int width, int c, int r,
                                    typename Layer::Element* y) {
  using Shape = DirectShape<Layer, Tile>;
  const long long own_row = in_range(first_row + r, height) ? start + static_cast<long long>(r) * width : -1;
  // A run of one row is stored at constant distances from `place`. Aligned stores begin `ahead` items before the run,
  // at a multiple of 32 elements.
  const long long begin = (Shape::run_rows == 1 ? own_row : 0) + c * plane + run_column;
  const int ahead = Shape::aligned_lines ? static_cast<int>(begin) & 31 : 0;
  const long long place = kept(begin + lane - ahead);
  constexpr int at_once = Shape::aligned_lines ? Shape::line_steps : Shape::exchange_steps_at_once;
#pragma unroll
  for (int first_step = 0; first_step < Shape::line_steps; first_step += at_once) {
    // All loads come before all stores, and only stores are conditional. Otherwise each store would wait for its load.
    Accumulator values[at_once];
    bool in_line[at_once];
#pragma unroll
    for (int s = 0; s < at_once; ++s) {
      const int step = first_step + s, item = step * 32 + lane - ahead;
      in_line[s] = !Shape::aligned_lines || ((step > 0 || lane >= ahead) &&
                                             (step < Shape::line_steps - 1 || item < Shape::run_outputs));
      values[s] = 0;
      if (has_accumulators && in_line[s]) values[s] = line[step * Shape::exchange_pitch + lane - ahead];
    }
#pragma unroll
    for (int s = 0; s < at_once; ++s) {
      const int step = first_step + s, item = step * 32 + lane - ahead;
      // In a run of several rows, a lane that has the item's row tells where the row begins. `offset` counts from
      // `place`.
      const int row_of_run = Shape::run_rows > 1 ? item / Shape::run_outputs : 0;
      const long long row =
          Shape::run_rows > 1 ? __shfl_sync(0xffffffffu, own_row, row_of_run * Tile::columns % 32) : own_row;
      const long long offset = Shape::run_rows > 1 ? row - row_of_run * Shape::run_outputs : 0;
      const int own_column = run_column + item - row_of_run * Shape::run_outputs;
      if (row >= 0 && in_line[s] && (Tile::origin == 0 || own_column >= 0) && own_column < width)
        y[place + offset + step * 32] = direct_output<Layer, Tile, Program>(
            values[s], channels, c, program, program.template fetch<1>(y + (place + offset + step * 32), true), 0);
    }
  }
}

// Stores a warp's results as whole runs, through its `buffer` in shared memory. Without taps the buffer is not used.
// Called by whole warps.
template <class Layer, class Tile, class Program, class Accumulator>
TCONV_DEVICE void direct_store_exchanged(bool has_taps, int lane, const DirectAccumulators<Layer, Tile>& accumulators,
                                         const DirectChannels<Layer, Tile, Program>& channels, const Program& program,
                                         long long start, long long plane, int first_row, int height, int column,
                                         int width, int left, Accumulator* buffer,
                                         typename Layer::Element* y) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  constexpr int lines = Shape::exchange_lines;
  const int run_column = __shfl_sync(0xffffffffu, column, 0);
  const int own_item = Shape::run_rows == 1
                           ? lane * Width::stride
                           : lane / Tile::columns * Shape::run_outputs + lane % Tile::columns * Width::stride;
#pragma unroll
  for (int first = 0; first < Tile::channels * Shape::accumulator_rows; first += lines) {
    if (has_taps) {
      __syncwarp();  // all lanes have read the last lines
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
        for (int phase = 0; phase < Width::stride; ++phase) {
          const int tap = Width::first_tap(phase);
          if (tap >= Width::kernel) continue;
          const int item = own_item + p * Tile::columns * Width::stride + phase;
          Accumulator* const place = buffer + item / 32 * Shape::exchange_pitch + item % 32;
#pragma unroll
          for (int n = first; n < first + lines; ++n)
            place[(n - first) * Shape::exchange_line_items] =
                accumulators.values[n % Shape::accumulator_rows][tap][p][n / Shape::accumulator_rows];
        }
      __syncwarp();  // all lanes have written theirs
    }
#pragma unroll
    for (int n = first; n < first + lines; ++n) {
      const int c = n / Shape::accumulator_rows;
      if (!Shape::whole_channels && c >= left) break;
#pragma unroll
      for (int r = 0; r < Shape::output_rows; ++r) {
        // Rows that no tap reaches are stored together with the channel's first row.
        const int accumulator_row = Shape::accumulator_row_of_output(r);
        if ((accumulator_row < 0 ? 0 : accumulator_row) != n % Shape::accumulator_rows) continue;
        direct_store_line<Layer, Tile, Program>(buffer + (n - first) * Shape::exchange_line_items,
                                                has_taps && accumulator_row >= 0, lane, channels, program, run_column,
                                                start, plane, first_row, height, width, c, r, y);
      }
    }
  }
}

// Stores results straight from registers, where neighbouring lanes have neighbouring outputs: with stride 1 along the
// width, or with column phases on lanes.
template <class Layer, class Tile, class Program>
TCONV_DEVICE void direct_store_single(const DirectAccumulators<Layer, Tile>& accumulators,
                                      const DirectChannels<Layer, Tile, Program>& channels, const Program& program,
                                      long long start, long long plane, int first_row, int height, int column,
                                      int width, int left, int first_phase, typename Layer::Element* y) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    if (!Shape::whole_channels && c >= left) break;
#pragma unroll
    for (int r = 0; r < Shape::output_rows; ++r) {
      if (!in_range(first_row + r, height)) continue;
      Element* const row = y + (start + c * plane + static_cast<long long>(r) * width);
      const int accumulator_row = Shape::accumulator_row_of_output(r);
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
        for (int a = 0; a < Tile::phases; ++a) {
          const int phase = first_phase + a * Tile::phase_lanes;
          const int own = column + p * Tile::columns * Width::stride + phase;
          if (phase < Width::stride && in_range(own, width))
            row[own] = direct_output<Layer, Tile, Program>(
                accumulator_row < 0 ? 0 : accumulators.values[accumulator_row][a][p][c], channels, c, program,
                program.template fetch<1>(row + own, true), 0);
        }
    }
  }
}

}  // namespace tconv
