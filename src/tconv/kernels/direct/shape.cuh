// direct: the constants of a kernel, all from its layer and its tile. `direct.cuh` has the picture. The planner repeats
// the formulas of sizes and grids.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/elements.cuh"

namespace tconv {

template <class Layer, class Tile>
struct DirectShape {
  using Element = typename Layer::Element;
  using Accumulator = typename AccumulatorOf<Element>::type;
  using Depth = typename Layer::Depth;
  // Position q owns the outputs from q * stride - origin on. This equals an axis with `origin` less padding, all of
  // whose outputs lie `origin` further to the right.
  using Height = Axis<Layer::Height::kernel, Layer::Height::stride, Layer::Height::padding - Tile::row_origin,
                      Layer::Height::dilation>;
  using Width =
      Axis<Layer::Width::kernel, Layer::Width::stride, Layer::Width::padding - Tile::origin, Layer::Width::dilation>;

  // ---- sizes of runs and blocks ----
  static constexpr bool phases_on_lanes = Tile::phase_lanes > 1;
  static constexpr bool stacked = Tile::stacked != 0;
  static constexpr int position_threads = Tile::position_lanes * Tile::phase_lanes;
  static constexpr int threads = position_threads * Tile::splits;
  static constexpr int block_runs = position_threads / 32;
  static constexpr int run_columns = Tile::columns * Tile::positions;
  static constexpr int run_outputs = run_columns * Width::stride;  // in one row
  static constexpr int run_rows = phases_on_lanes ? 1 : 32 / Tile::columns;
  static constexpr int block_phases = Tile::phase_lanes * Tile::phases;

  // Along the height, stacked: a thread has accumulators for every phase that has taps, and outputs for every phase, in
  // each of its rows of positions. Not stacked: it has one phase at a time, which is known only at run time.
  static constexpr int accumulator_rows = stacked ? Tile::rows * Height::phases_with_taps : 1;
  static constexpr int output_rows = stacked ? Tile::rows * Height::stride : 1;
  static constexpr int own_row_taps = stacked ? Height::kernel : 1;
  static constexpr int top_shift = stacked ? Height::shift_of(Height::kernel - 1) : 0;
  static constexpr int input_rows = stacked ? Tile::rows + top_shift - Height::shift_of(0) : 1;

  static TCONV_CONSTANT int accumulator_row(int row, int tap) {
    if (!stacked) return 0;
    return row * Height::phases_with_taps + (Height::taps_per_phase == 1 ? tap : tap % Height::tap_period);
  }
  static TCONV_CONSTANT int input_row(int row, int tap) {
    return input_rows == 1 ? 0 : row + top_shift - Height::shift_of(tap);
  }
  // The accumulators of an output row; -1 for a row that no tap reaches.
  static TCONV_CONSTANT int accumulator_row_of_output(int output_row) {
    const int tap = stacked ? Height::first_tap(output_row % Height::stride) : 0;
    return tap < Height::kernel ? accumulator_row(output_row / (stacked ? Height::stride : 1), tap) : -1;
  }

  // ---- the grid ----
  static constexpr long long row_phases = static_cast<long long>(Depth::stride) * (stacked ? 1 : Height::stride);
  static constexpr bool phases_without_taps =
      Depth::phases_with_taps < Depth::stride || (!stacked && Height::phases_with_taps < Height::stride);
  static constexpr int column_blocks = phases_on_lanes ? ceil_div(Width::stride, block_phases) : 1;
  static constexpr int channel_blocks = ceil_div(Layer::group_out_channels, Tile::channels);
  static constexpr bool whole_channels = Layer::group_out_channels % Tile::channels == 0;
  static constexpr bool all_taps = Tile::k_tile_taps >= Width::taps_per_phase;
  static constexpr int row_taps = Depth::kernel * Height::kernel;
  // A block that walks over very many row phases would leave most of the GPU idle, so the grid has them instead.
  static constexpr bool resident = Tile::k_tile_rows == row_taps && Tile::k_tile_channels >= Layer::group_in_channels &&
                                   all_taps && row_phases <= 64;
  static constexpr int grid_row_phases = resident ? 1 : static_cast<int>(row_phases);
  static constexpr int parts = grid_row_phases * column_blocks * channel_blocks * Layer::groups;

  // ---- long sums ----
  // Rounding errors grow along a sum. Where operands and outputs are not rounded more coarsely anyway, a long sum is
  // split into chains of about 64 products, and the sums of the chains are added.
  static constexpr long long products = static_cast<long long>(Layer::group_in_channels) * Depth::taps_per_phase *
                                        Height::taps_per_phase * Width::taps_per_phase;
  static constexpr int chain = 64;
  static constexpr bool chained = sizeof(Element) == sizeof(Accumulator) && Layer::rounding == Rounding::none &&
                                  products > static_cast<long long>(chain) * Tile::splits;
  static constexpr int group_products = Tile::k_tile_taps * Tile::unroll * (stacked ? Height::taps_per_phase : 1);
  static constexpr int chain_groups = chain / group_products > 0 ? chain / group_products : 1;

  // ---- inputs ----
  // A window holds the inputs of one row and channel that a thread needs at one position for one stage of taps. With
  // phases in registers it has one slot for each distinct shift of the first taps. Each further tap of the stage adds
  // `shift_pitch` slots, fewer than the first where neighbouring taps share shifts.
  static constexpr int lowest_shift = Width::lowest_first_shift();
  static constexpr int shift_span = Width::highest_first_shift() - lowest_shift + 1;
  static constexpr int shift_pitch = Width::shift_period < shift_span ? Width::shift_period : shift_span;
  static constexpr int window =
      phases_on_lanes ? Tile::k_tile_taps * Tile::phases : shift_span + (Tile::k_tile_taps - 1) * shift_pitch;

  // Where tiled, a block owns a tile of positions, `warps_wide` runs side by side and the others below them. It loads
  // all their inputs to shared memory.
  static constexpr bool tiled = Tile::warps_wide > 0;
  static constexpr int tile_columns = tiled ? Tile::warps_wide * run_columns : 1;
  static constexpr int tile_rows = tiled ? block_runs / Tile::warps_wide * run_rows * Tile::rows : 1;
  // Whether each column phase of a thread has all `taps_per_phase` taps, so that none needs a check.
  static constexpr bool every_tap =
      !phases_on_lanes && all_taps && Width::phases_with_taps * Width::taps_per_phase == Width::kernel;
  static constexpr int last_shift = Width::shift_of(Width::kernel - 1);
  // The shift of a window's last slot. Slots beyond the last shift are read by no tap.
  static constexpr int last_slot_shift =
      lowest_shift + (shift_pitch == Width::shift_period
                          ? window - 1
                          : (window - 1) % shift_span + (window - 1) / shift_span * Width::shift_period);
  static constexpr bool every_slot = last_slot_shift <= last_shift;
  static constexpr int tile_input_rows = tile_rows + (tiled ? input_rows - Tile::rows : 0);
  static constexpr int tile_input_columns = tile_columns + last_shift - lowest_shift;
  // Lanes of different rows read different banks, if there is such a pitch.
  static constexpr int tile_pitch =
      run_rows > 1 ? conflict_free_pitch(tile_input_columns, Tile::rows, Tile::columns) : tile_input_columns;
  static constexpr int tile_items = tile_input_rows * tile_pitch;  // of one channel
  static constexpr int stage_channels = Tile::unroll * Tile::splits;
  // Two stages: one is read while the next one is written.
  static constexpr int tile_stage_items = tiled ? ceil_div(stage_channels * tile_items, 4) * 4 : 0;

  // ---- shared memory, in accumulators ----
  // Weights lie as [row tap][input channel][tap][phase][output channel]. A thread loads `items_at_once` weights at a
  // time: all of one row tap and input channel if they are few, else all of one tap, or of one tap and phase.
  static constexpr int tap_items = block_phases * Tile::channels;
  static constexpr int accumulator_bytes = static_cast<int>(sizeof(Accumulator));
  static constexpr int padding_to = phases_on_lanes ? 1 : 16 / accumulator_bytes;
  static constexpr int channel_items = ceil_div(Tile::k_tile_taps * tap_items, padding_to) * padding_to;
  static constexpr bool channel_at_once = !phases_on_lanes && channel_items <= 16;
  static constexpr int phases_at_once = !phases_on_lanes && Tile::channels < 4 ? Tile::phases : 1;
  static constexpr int items_at_once = channel_at_once ? channel_items : phases_at_once * Tile::channels;
  static constexpr int row_items = Tile::k_tile_channels * channel_items;
  static constexpr int weight_items = Tile::k_tile_rows * row_items;

  // Where a thread has several column phases, results go through shared memory to be stored in rows, unless each
  // position's are one aligned vector. A warp's buffer holds [line][row of positions][column]; a line is one output
  // channel in one row of accumulators. With an even stride lanes would meet in banks, so every 33rd word stays unused.
  static constexpr bool exchange = !phases_on_lanes && Width::stride > 1;
  static constexpr int vector =
      exchange && is_power_of_two(Width::stride) && Width::stride * sizeof(Element) <= 16 ? Width::stride : 1;
  static constexpr int exchange_pitch = 32 + (Width::stride % 2 == 0 ? 1 : 0);
  static constexpr int exchange_steps = Tile::positions * Width::stride;  // of 32 items, for one line
  // Stores that begin at a multiple of 32 elements touch fewer lines of memory, but need one step more.
  static constexpr bool aligned_lines = run_rows == 1 && Width::stride % 2 == 1;
  static constexpr int line_steps = exchange_steps + (aligned_lines ? 1 : 0);
  static constexpr int exchange_line_items = exchange_steps * exchange_pitch;
  static constexpr int exchange_steps_at_once = largest_divisor(exchange_steps, 10);
  // Enough lines at once, about 16 steps, that loads from shared memory do not wait for each other.
  static constexpr int exchange_lines =
      largest_divisor(Tile::channels * accumulator_rows, ceil_div(16, exchange_steps));
  static constexpr int warp_items = exchange_lines * exchange_line_items;  // of a warp's buffer
  static constexpr int exchange_items = exchange ? block_runs * warp_items : 0;

  // Where sets of warps share the input channels, all sets but the first write their accumulators here.
  static constexpr int thread_accumulators = accumulator_rows * Tile::phases * Tile::positions * Tile::channels;
  static constexpr int split_items = (Tile::splits - 1) * thread_accumulators * position_threads;

  // The exchange and the splits' accumulators take the place of the weights. Beside resident weights they have places
  // of their own: the weights stay, and some warps still multiply while others store.
  static constexpr int weight_start = 2 * tile_stage_items;
  static constexpr int exchange_start = weight_start + (resident ? weight_items : 0);
  static constexpr int split_start = exchange_start + exchange_items;
  static constexpr int other_items = exchange_items + split_items;
  static constexpr int shared_items = weight_start + (resident                     ? weight_items + other_items
                                                      : weight_items > other_items ? weight_items
                                                                                   : other_items);
  static constexpr int shared_bytes = accumulator_bytes * shared_items;

  static_assert(Tile::origin >= 0 && Tile::origin <= Layer::Width::padding && Tile::origin < Width::stride &&
                    Tile::row_origin >= 0 && Tile::row_origin <= Layer::Height::padding &&
                    Tile::row_origin < Height::stride,
                "an origin is what padding cut off of the first position");
  static_assert(Tile::k_tile_channels % Tile::unroll == 0, "a stage is whole groups of input channels");
  static_assert(resident || Tile::k_tile_rows == own_row_taps, "stages hold a thread's row taps or all weights");
  static_assert(position_threads % 32 == 0, "a block is whole warps");
  static_assert(Tile::phase_lanes == 1 || Tile::phase_lanes == 32, "phases lie in registers or across a warp");
  static_assert(phases_on_lanes ? Tile::columns == 1 : Tile::position_lanes % 32 == 0 && 32 % Tile::columns == 0,
                "a warp shares its output channels");
  static_assert(phases_on_lanes || Tile::phases == Width::phases_with_taps, "a thread owns every column phase");
  static_assert(!tiled || (stacked && all_taps && block_runs % Tile::warps_wide == 0),
                "a tile has all phases and taps of height and width in registers");
  static_assert(stacked ? !phases_on_lanes : Tile::rows == 1 && Tile::row_origin == 0,
                "several rows of positions have their phases stacked");
};

}  // namespace tconv
