// direct: the inputs of a thread, through the L1 cache or from the tile of its block. `direct.cuh` has the picture.
#pragma once
#include "direct/shape.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// Where a tap finds its input in a thread's window, and how far to the left of its position it lies. With phases in
// registers all this is known to the compiler, and neighbouring phases and taps share inputs.
template <class Layer, class Tile>
TCONV_DEVICE int direct_slot(int a, int tap_number, int first_shift) {
  using Shape = DirectShape<Layer, Tile>;
  return Shape::phases_on_lanes ? tap_number * Tile::phases + a
                                : first_shift - Shape::lowest_shift + tap_number * Shape::shift_pitch;
}

// The column phases of a thread, by their first taps. With phases in registers these are constants.
template <class Layer, class Tile>
struct DirectPhases {
  using Width = typename DirectShape<Layer, Tile>::Width;
  int first_taps[Tile::phases], first_shifts[Tile::phases];

  TCONV_DEVICE explicit DirectPhases(int first_phase) {
#pragma unroll
    for (int a = 0; a < Tile::phases; ++a) {
      const int phase = first_phase + a * Tile::phase_lanes;
      first_taps[a] = Tile::phase_lanes == 1 ? a : phase < Width::stride ? Width::first_tap(phase) : Width::kernel;
      first_shifts[a] = Width::shift_of(first_taps[a]);
    }
  }

  TCONV_DEVICE bool has_tap(int a, int tap_number) const {
    const long long tap = first_taps[a] + static_cast<long long>(tap_number) * Width::tap_period;
    return first_taps[a] < Width::kernel && tap < Width::kernel;
  }
};

// The inputs that a thread needs for one stage of taps, of a group of input channels.
template <class Layer, class Tile>
struct DirectInputs {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  using Accumulator = typename Shape::Accumulator;
  Accumulator values[Tile::unroll][Shape::input_rows][Shape::window][Tile::positions];

  // Calls visit(row, slot, shift, has_tap) for each input of a position that any tap of the stage needs.
  template <class Visitor>
  TCONV_DEVICE static void each(const DirectPhases<Layer, Tile>& phases, int tap_chunk, Visitor visit) {
    bool seen[Shape::input_rows][Shape::window] = {};
#pragma unroll
    for (int row_tap = 0; row_tap < Shape::own_row_taps; ++row_tap)
#pragma unroll
      for (int v = 0; v < Tile::rows; ++v)
#pragma unroll
        for (int j = 0; j < Tile::chunk_taps; ++j)
#pragma unroll
          for (int a = 0; a < Tile::phases; ++a) {
            const int row = Shape::input_row(v, row_tap);
            const int slot = direct_slot<Layer, Tile>(a, j, phases.first_shifts[a]);
            const bool has_tap = phases.has_tap(a, tap_chunk + j);
            if ((!Shape::phases_on_lanes && Shape::all_taps && !has_tap) || seen[row][slot]) continue;
            seen[row][slot] = true;
            visit(row, slot, phases.first_shifts[a] + j * Width::shift_period, has_tap);
          }
  }

  // From memory. `x` points to the first channel at the thread's first position in its topmost input row. The position
  // has number `column` among the `columns` of a row; rows outside the input have none. There are `channels` channels.
  TCONV_DEVICE void load(const typename Layer::Element* x, int row_pitch, int column,
                         const int (&columns)[Shape::input_rows], typename Layer::Index plane, int channels,
                         const DirectPhases<Layer, Tile>& phases, int tap_chunk) {
    each(phases, tap_chunk, [&](int r, int slot, int shift, bool has_tap) {
      const typename Layer::Element* const row = x + static_cast<long long>(r) * row_pitch;
#pragma unroll
      for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p) {
          // Only the load is conditional: that is a predicate, more would be a branch, and loads would wait in turn.
          typename Layer::Element input{};
          if (in_range(column - shift + p * Tile::columns, columns[r]) &&
              (Layer::group_in_channels % Tile::unroll == 0 || k < channels) && (!Shape::phases_on_lanes || has_tap))
            input = load_constant(row + k * static_cast<long long>(plane) + (p * Tile::columns - shift));
          values[k][r][slot][p] = operand<Layer::rounding>(to_accumulator(input));
        }
    });
  }

  // From the tile of a block, where the thread's inputs start at `own`.
  TCONV_DEVICE void read(const Accumulator* own, const DirectPhases<Layer, Tile>& phases) {
    each(phases, 0, [&](int r, int slot, int shift, bool) {
#pragma unroll
      for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p)
          values[k][r][slot][p] =
              own[k * Shape::tile_items + r * Shape::tile_pitch + Shape::last_shift - shift + p * Tile::columns];
    });
  }
};

// A thread's part of the inputs of a block, on their way from memory to shared memory.
template <class Layer, class Tile>
struct DirectTileInputs {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  static constexpr int items = ceil_div(Shape::tile_items, Shape::threads);  // of one channel
  typename Layer::Index offsets[items];                                      // in a plane; -1 for a place outside it
  Element values[Shape::stage_channels][items];

  // Chooses the places of a tile whose first input is the given one; it may lie outside the input.
  TCONV_DEVICE void place(int first_row, int first_column, int height, int width) {
#pragma unroll
    for (int i = 0; i < items; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * Shape::threads;
      const int row = first_row + item / Shape::tile_pitch, column = first_column + item % Shape::tile_pitch;
      const bool inside = item < Shape::tile_items && in_range(row, height) && in_range(column, width);
      offsets[i] = inside ? static_cast<typename Layer::Index>(row) * width + column : -1;
    }
  }

  // Asks for the places in `channels` channels, the first of which starts at `x`.
  TCONV_DEVICE void load(const Element* x, typename Layer::Index plane, int channels) {
#pragma unroll
    for (int k = 0; k < Shape::stage_channels; ++k)
#pragma unroll
      for (int i = 0; i < items; ++i) {
        Element input{};
        if (offsets[i] >= 0 && (Layer::group_in_channels % Shape::stage_channels == 0 || k < channels))
          input = load_constant(x + k * static_cast<long long>(plane) + offsets[i]);
        values[k][i] = input;
      }
  }

  TCONV_DEVICE void write(typename Shape::Accumulator* stage) const {
#pragma unroll
    for (int k = 0; k < Shape::stage_channels; ++k)
#pragma unroll
      for (int i = 0; i < items; ++i) {
        const int item = static_cast<int>(threadIdx.x) + i * Shape::threads;
        if (item < Shape::tile_items)
          stage[k * Shape::tile_items + item] = operand<Layer::rounding>(to_accumulator(values[k][i]));
      }
  }
};

}  // namespace tconv
