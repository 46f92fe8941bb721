// direct: the inputs of a thread, through the L1 cache or from the tile of its block. `direct.cuh` has the picture.
#pragma once
#include "direct/shape.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// The first tap of a thread's column phase number `a`, or the kernel's width if the phase has no tap. With phases in
// registers, phases are numbered by their first taps, so the tap is a constant.
template <class Layer, class Tile>
TCONV_DEVICE int direct_first_tap(int first_phase, int a) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  if (!Shape::phases_on_lanes) return a;
  const int phase = first_phase + a * Tile::phase_lanes;
  return phase < Width::stride ? Width::first_tap(phase) : Width::kernel;
}

// Whether a thread's column phase number `a` has a tap number `number`.
template <class Layer, class Tile>
TCONV_DEVICE bool direct_has_tap(int first_phase, int a, int number) {
  using Width = typename DirectShape<Layer, Tile>::Width;
  const int first_tap = direct_first_tap<Layer, Tile>(first_phase, a);
  return first_tap < Width::kernel && first_tap + static_cast<long long>(number) * Width::tap_period < Width::kernel;
}

// The slot of a thread's window with the input for phase `a` and tap number `number` of a stage. With phases in
// registers, neighbouring phases and taps share slots.
template <class Layer, class Tile>
TCONV_DEVICE int direct_slot(int a, int number) {
  using Shape = DirectShape<Layer, Tile>;
  if (Shape::phases_on_lanes) return number * Tile::phases + a;
  if (Shape::window == 1) return 0;
  return Shape::Width::shift_of(a) - Shape::lowest_shift + number * Shape::shift_pitch;
}

// The distance of a slot's input to the left of its position.
template <class Layer, class Tile>
TCONV_DEVICE int direct_shift(int first_phase, int slot) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  if (Shape::phases_on_lanes)
    return Width::shift_of(direct_first_tap<Layer, Tile>(first_phase, slot % Tile::phases)) +
           slot / Tile::phases * Width::shift_period;
  if (Shape::shift_pitch == Width::shift_period) return Shape::lowest_shift + slot;
  return Shape::lowest_shift + slot % Shape::shift_span + slot / Shape::shift_span * Width::shift_period;
}

// The inputs that a thread needs for one stage of taps and one group of `unroll` input channels.
template <class Layer, class Tile>
struct DirectInputs {
  using Shape = DirectShape<Layer, Tile>;
  typename Shape::Accumulator values[Tile::unroll][Shape::input_rows][Shape::window][Tile::positions];
};

// Loads the inputs of one group of channels, and rounds them as operands. Places outside the input are 0.
//
// `x` points to the thread's first position in its topmost input row of the group's first channel. The position is
// column `column` of a row. Input row r has `columns[r]` columns, 0 if it lies outside the input. `left` channels are
// left, counted from the group's first.
template <class Layer, class Tile>
TCONV_DEVICE void direct_load(const typename Layer::Element* x, int row_pitch, int column,
                              const int (&columns)[DirectShape<Layer, Tile>::input_rows], typename Layer::Index plane,
                              int left, int first_phase, int tap_k_tile, DirectInputs<Layer, Tile>& inputs) {
  using Shape = DirectShape<Layer, Tile>;
#pragma unroll
  for (int r = 0; r < Shape::input_rows; ++r)
#pragma unroll
    for (int slot = 0; slot < Shape::window; ++slot) {
      const int shift = direct_shift<Layer, Tile>(first_phase, slot);
      const bool has_tap =
          !Shape::phases_on_lanes ||
          direct_has_tap<Layer, Tile>(first_phase, slot % Tile::phases, tap_k_tile + slot / Tile::phases);
#pragma unroll
      for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p) {
          // Only the load is conditional, which makes a predicate. More would make a branch, and loads would then wait
          // for each other.
          typename Layer::Element input{};
          if (in_range(column - shift + p * Tile::columns, columns[r]) &&
              (Layer::group_in_channels % Tile::unroll == 0 || k < left) && has_tap)
            input = load_constant(x + r * static_cast<long long>(row_pitch) + k * static_cast<long long>(plane) +
                                  (p * Tile::columns - shift));
          inputs.values[k][r][slot][p] = operand<Layer::rounding>(to_accumulator(input));
        }
    }
}

// Loads the inputs of one group of channels from the block's tile in shared memory; the thread's inputs start at `own`.
template <class Layer, class Tile>
TCONV_DEVICE void direct_read(const typename DirectShape<Layer, Tile>::Accumulator* own,
                              DirectInputs<Layer, Tile>& inputs) {
  using Shape = DirectShape<Layer, Tile>;
#pragma unroll
  for (int r = 0; r < Shape::input_rows; ++r)
#pragma unroll
    for (int slot = 0; slot < Shape::window; ++slot) {
      const int shift = direct_shift<Layer, Tile>(0, slot);
      if (!Shape::every_slot && shift > Shape::last_shift) continue;
#pragma unroll
      for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p)
          inputs.values[k][r][slot][p] =
              own[k * Shape::tile_items + r * Shape::tile_pitch + Shape::last_shift - shift + p * Tile::columns];
    }
}

// A thread's part of the inputs of a block's tile, in registers on their way from global to shared memory.
template <class Layer, class Tile>
struct DirectTileInputs {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  static constexpr int items = ceil_div(Shape::tile_items, Shape::threads);  // of one channel
  typename Layer::Index offsets[items];  // in a plane; -1 for a place outside it
  Element values[Shape::stage_channels][items];

  // Sets the thread's places for a tile whose first input is at the given row and column, maybe outside the map.
  TCONV_DEVICE void place(int first_row, int first_column, int height, int width) {
#pragma unroll
    for (int i = 0; i < items; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * Shape::threads;
      const int row = first_row + item / Shape::tile_pitch, column = first_column + item % Shape::tile_pitch;
      const bool inside = item < Shape::tile_items && in_range(row, height) && in_range(column, width);
      offsets[i] = inside ? static_cast<typename Layer::Index>(row) * width + column : -1;
    }
  }

  // Loads the places in the first `channels` channels from `x` on; in further channels they become 0.
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
