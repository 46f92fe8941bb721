// direct: from the sums of a thread to outputs in memory.
//
// Where column phases interleave, a lane's results of one position are neighbours in memory. If they make one aligned
// vector, the lane stores it; else the warp exchanges its results through shared memory and stores whole runs, 32
// neighbours at a time, columns without taps written along. All rows of one output channel are stored together.
#pragma once
#include "direct/sums.cuh"
#include "primitives/epilogue.cuh"

namespace tconv {

// What a thread stores: of its first position, the outputs from row `row` and column `column` on, each of which may be
// negative. `start` is where that row begins in the plane of the thread's first channel, in elements of y.
template <class Element>
struct DirectTarget {
  Element* y;
  long long start, plane;
  int row, height;  // a height of 0 says that there is no such position
  int column, width;
  int channels;  // that are left, the thread's first among them

  TCONV_DEVICE bool has_row(int output_row) const { return in_range(row + output_row, height); }
  TCONV_DEVICE long long place(int channel, int output_row) const {
    return start + channel * plane + static_cast<long long>(output_row) * width;
  }
};

// What a thread's output channels need, loaded.
template <class Layer, class Tile, class Program>
using DirectChannels = typename Epilogue<Layer, Program>::Channel[Tile::channels];

// Stores each position's column phases as one vector. Their width divides that of the output.
template <class Layer, class Tile, class Program>
TCONV_DEVICE void direct_store_vectors(const DirectSums<Layer, Tile>& sums, const Epilogue<Layer, Program>& epilogue,
                                       const DirectChannels<Layer, Tile, Program>& of_channels,
                                       const DirectTarget<typename Layer::Element>& target) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
  using Wide = Vector<Element, Shape::vector>;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    if (!Shape::whole_channels && c >= target.channels) break;
#pragma unroll
    for (int r = 0; r < Shape::output_rows; ++r) {
      if (!target.has_row(r)) continue;
      Element* const row = target.y + (target.place(c, r) + target.column);
      const int sum_row = Shape::sum_row_of_output(r);
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p) {
        constexpr int step = Tile::columns * Width::stride;
        const bool inside = target.column + p * step < target.width;
        const auto read = epilogue.program.template fetch<Shape::vector>(row + p * step, inside);
        const auto& channel = of_channels[c];
        Wide values;
#pragma unroll
        for (int phase = 0; phase < Shape::vector; ++phase) {
          const int tap = Width::first_tap(phase);
          const bool has_taps = sum_row >= 0 && tap < Width::kernel;
          values.values[phase] = epilogue.output(has_taps ? channel.y(sums.values[sum_row][tap][p][c]) : channel.bias,
                                                 channel, read, phase);
        }
        if (inside) *reinterpret_cast<Wide*>(row + p * step) = values;
      }
    }
  }
}

// Column phases that no tap reaches stay 0 in a warp's buffer.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_clear_buffer(Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
  constexpr int items = Shape::exchange_lines * Shape::exchange_line_items;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x) % 32; item < items; item += 32) buffer[item] = 0;
}

// Stores one row of one output channel for a whole warp: from `line` of its buffer, or the bias alone.
template <bool from_buffer, class Layer, class Tile, class Program, class Accumulator>
TCONV_DEVICE void direct_store_line(const Accumulator* line, const Epilogue<Layer, Program>& epilogue,
                                    const DirectChannels<Layer, Tile, Program>& of_channels, int run_column,
                                    const DirectTarget<typename Layer::Element>& target, int c, int r) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  constexpr int run = Shape::run_columns * Width::stride;  // outputs of a run in one row
  const auto& channel = of_channels[c];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const long long own_row = target.has_row(r) ? target.place(0, r) : -1;
  // Where all rows are one, stores differ by constants from here, and start at lines of memory.
  const long long first = (Shape::run_rows == 1 ? own_row : 0) + c * target.plane + run_column;
  const int ahead = Shape::aligned_lines ? static_cast<int>(first) & 31 : 0;
  const long long place = kept(first + lane - ahead);
  constexpr int steps = Shape::exchange_steps + (Shape::aligned_lines ? 1 : 0);
  constexpr int at_once = Shape::aligned_lines ? steps : Shape::exchange_steps_at_once;
#pragma unroll
  for (int first_step = 0; first_step < steps; first_step += at_once) {
    // All loads before all stores, and only the stores conditional: otherwise each would wait for its load.
    Accumulator values[at_once];
    bool in_line[at_once];
#pragma unroll
    for (int s = 0; s < at_once; ++s) {
      const int step = first_step + s, item = step * 32 + lane - ahead;
      in_line[s] = !Shape::aligned_lines || ((step > 0 || lane >= ahead) && (step < steps - 1 || item < run));
      values[s] = channel.bias;
      if (from_buffer && in_line[s]) values[s] = channel.y(line[step * Shape::exchange_pitch + lane - ahead]);
    }
#pragma unroll
    for (int s = 0; s < at_once; ++s) {
      const int step = first_step + s, item = step * 32 + lane - ahead;
      long long row = own_row, offset = 0;  // from `place`
      int row_item = item;
      if (Shape::run_rows > 1) {
        const int row_of_run = item / run;
        row = __shfl_sync(0xffffffffu, own_row, row_of_run * Tile::columns % 32);
        offset = row - row_of_run * run;
        row_item -= row_of_run * run;
      }
      const int column = run_column + row_item;
      if (row >= 0 && in_line[s] && (Tile::origin == 0 || column >= 0) && column < target.width) {
        target.y[place + offset + step * 32] = epilogue.output(
            values[s], channel, epilogue.program.template fetch<1>(target.y + (place + offset + step * 32), true));
      }
    }
  }
}

// Stores a warp's results as whole runs, by way of its `buffer` in shared memory, or only the bias of a row phase that
// has no taps. Called by whole warps.
template <bool has_taps, class Layer, class Tile, class Program, class Accumulator>
TCONV_DEVICE void direct_store_exchanged(const DirectSums<Layer, Tile>& sums, const Epilogue<Layer, Program>& epilogue,
                                         const DirectChannels<Layer, Tile, Program>& of_channels,
                                         const DirectTarget<typename Layer::Element>& target, Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  constexpr int run = Shape::run_columns * Width::stride, lines = Shape::exchange_lines;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int run_column = __shfl_sync(0xffffffffu, target.column, 0);
  const int own_item = lane / Tile::columns * run + lane % Tile::columns * Width::stride;
#pragma unroll
  for (int first = 0; first < Tile::channels * Shape::sum_rows; first += lines) {
    if (has_taps) {
      __syncwarp();
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
                sums.values[n % Shape::sum_rows][tap][p][n / Shape::sum_rows];
        }
      __syncwarp();
    }
#pragma unroll
    for (int n = first; n < first + lines; ++n) {
      const int c = n / Shape::sum_rows;
      if (!Shape::whole_channels && c >= target.channels) break;
      const Accumulator* const line = buffer + (n - first) * Shape::exchange_line_items;
#pragma unroll
      for (int r = 0; r < Shape::output_rows; ++r) {
        const int sum_row = Shape::sum_row_of_output(r);
        // Rows that no tap reaches are stored with the channel's first.
        if (sum_row == n % Shape::sum_rows)
          direct_store_line<has_taps, Layer, Tile>(line, epilogue, of_channels, run_column, target, c, r);
        else if (sum_row < 0 && n % Shape::sum_rows == 0)
          direct_store_line<false, Layer, Tile>(line, epilogue, of_channels, run_column, target, c, r);
      }
    }
  }
}

// Stores results whose column phases do not interleave in a thread: stride 1, or phases across the lanes.
template <class Layer, class Tile, class Program>
TCONV_DEVICE void direct_store_single(const DirectSums<Layer, Tile>& sums, const Epilogue<Layer, Program>& epilogue,
                                      const DirectChannels<Layer, Tile, Program>& of_channels,
                                      const DirectTarget<typename Layer::Element>& target, int first_phase) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    if (!Shape::whole_channels && c >= target.channels) break;
#pragma unroll
    for (int r = 0; r < Shape::output_rows; ++r) {
      if (!target.has_row(r)) continue;
      Element* const row = target.y + target.place(c, r);
      const int sum_row = Shape::sum_row_of_output(r);
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
        for (int a = 0; a < Tile::phases; ++a) {
          const int phase = first_phase + a * Tile::phase_lanes;
          const int column = target.column + p * Tile::columns * Width::stride + phase;
          if (phase < Width::stride && in_range(column, target.width)) {
            const auto& channel = of_channels[c];
            row[column] = epilogue.output(sum_row < 0 ? channel.bias : channel.y(sums.values[sum_row][a][p][c]),
                                          channel, epilogue.program.template fetch<1>(row + column, true));
          }
        }
    }
  }
}

}  // namespace tconv
