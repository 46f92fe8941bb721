// direct: transposed convolution on CUDA cores, for every problem and every GPU from sm_75 on. The other families of
// kernels are measured against it.
//
// Computes  y[n, co, o] = bias[co] + sum over ci and taps k of  x[n, ci, i] * weight[ci, co, k]  for all i, k with
// o = i*stride + k*dilation - padding on each axis, inside each group. x, weight and y are contiguous.
//
// A position is one (n, qd, qh, qw). It owns stride_d * stride_h * stride_w neighbouring outputs. An output's phase is
// its place among them: along the width its column phase, along depth and height its row phase. A slab is one depth of
// a map. A warp owns a *run*: neighbouring positions of one row, or of several rows where maps are narrow. A block owns
// some runs, and `channels` output channels of one group.
// ---- where !Shape::phases_on_lanes
//
// A run is `columns * positions` positions in each of 32 / `columns` rows. A block owns `position_lanes` / 32 runs with
// all column phases that have taps. Lanes of a warp are neighbouring positions. A thread has all column phases of every
// `columns`-th position of the run in registers, so a larger stride means more accumulators:
//
//            q    q+1  q+2        lane = position
//          |a b c|a b c|a b c|    x: coalesced
//           ^ one thread          weight: one address
// ---- where !Shape::phases_on_lanes
// ---- where Shape::phases_on_lanes
//
// A run is `positions` positions of one row. The stride is large, so a block owns only some column phases of its
// `position_lanes` runs. Lanes of a warp are 32 column phases of the same positions. A thread has every 32nd column
// phase of every position of the run in registers:
//
//            q    q+1  q+2        lane = phase
//          |a b c|a b c|a b c|    x: one address for the warp
//           ^ one thread          weight: coalesced
// ---- where Shape::phases_on_lanes
// ---- where !Shape::stacked
//
// A block works on one row phase at a time. All its threads use the same taps of depth and height.
// ---- where !Shape::stacked
// ---- where Shape::stacked
//
// Phases of height are *stacked*: a block works on one phase of depth at a time, and a thread has all phases of height
// in registers, for `rows` neighbouring rows of positions. With two rows and stride 3 along height and width, a thread
// has these outputs for each of its columns of positions:
//
//          |a b c|
//          |d e f|    An input is read once for all these outputs. A weight is read once for both rows of positions.
//          |g h i|    The rows of outputs are stored together.
//          |a b c|
//          |d e f|
//          |g h i|
// ---- where Shape::stacked
// ---- where Tile::splits > 1
//
// A block has `splits` sets of such warps. Each sums over its share of the input channels. The first set adds the
// accumulators of the others to its own, always in the same order.
// ---- where Tile::splits > 1
//
// A thread has several positions, so each weight from shared memory serves several products, and several output
// channels, so each input does too. Weights lie in shared memory as [row tap][input channel][tap of the phase][column
// phase][output channel]: the weights that one thread multiplies with one input lie together.
// ---- where Shape::resident
//
// All weights of a block fit into shared memory, so they are *resident*: the block loads them once. It then walks over
// the runs with the stride of the grid. At each step it computes all row phases in turn, so that neighbouring rows are
// read and written at nearly the same time.
// ---- where Shape::resident
// ---- where !Shape::resident
//
// A block has one set of runs and one row phase. A stage of weights has the row taps of a thread, `k_tile_channels`
// input channels and `k_tile_taps` taps of each column phase.
// ---- where !Shape::resident
// ---- where !Shape::tiled
//
// Inputs are read through the L1 cache.
// ---- where !Shape::tiled
// ---- where Shape::tiled
//
// The runs of a block form a *tile* in one slab: `warps_wide` runs side by side, the others below. The block loads the
// inputs of the tile and its halo to shared memory, `unroll` channels at a time for each set of warps. There are two
// stages: the block loads one while it multiplies with the other. Places outside the map are 0 there.
// ---- where Shape::tiled
//
// Not-a-number: an input outside the map counts as 0 and is multiplied like others. An infinite or NaN *weight* thus
// also reaches border outputs whose taps read there. Non-finite inputs reach exactly the outputs that depend on them.
//
// Sizes: one plane of a channel and the number of runs must stay below 2^31 unless Index has 64 bits (wide_index).
// Other offsets always have 64 bits. Every axis must stay below 2^31 - stride - padding.
#pragma once
#include "direct/launch.cuh"
#include "direct/products.cuh"
#include "direct/store.cuh"
#include "primitives/layer.cuh"

namespace tconv {

// Loads one stage of weights to shared memory, rounded as operands. Places without a weight become 0.
//
// The stage begins at the given row tap, input channel and tap number. Called by whole blocks, with a barrier before
// (threads have read the last stage) and after.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_stage(const typename Layer::Element* weight, int group, int first_out_channel,
                               int first_phase, int first_row, int first_in_channel, int first_tap_number,
                               Accumulator* staged) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Shape::weight_items; i += Shape::threads) {
    const int item = i % Shape::channel_items, stage_tap = item / Shape::tap_items;
    const int slot = item / Tile::channels % Shape::block_phases;
    const int in_channel = first_in_channel + i / Shape::channel_items % Tile::k_tile_channels;
    const int out_channel = first_out_channel + item % Tile::channels;

    int tap = slot;  // the first tap of the slot's phase: phases in registers are numbered by it
    if (Shape::phases_on_lanes)
      tap = first_phase + slot < Width::stride ? Width::first_tap(first_phase + slot) : Width::kernel;
    const long long column_tap =
        Width::taps_per_phase == 1
            ? tap
            : tap + static_cast<long long>(first_tap_number + stage_tap) * Width::tap_period;

    Accumulator value = 0;
    if (stage_tap < Tile::k_tile_taps && (!Shape::phases_on_lanes || tap < Width::kernel) &&
        (Shape::every_tap || column_tap < Width::kernel) &&
        (Layer::group_in_channels % Tile::k_tile_channels == 0 || in_channel < Layer::group_in_channels) &&
        (Shape::whole_channels || out_channel < Layer::group_out_channels)) {
      const int row_tap = (first_row + i / Shape::row_items) * Width::kernel;
      value = operand<Layer::rounding>(to_accumulator(load_constant(
          weight_at<Layer>(weight, group, in_channel, out_channel, row_tap + static_cast<int>(column_tap)))));
    }
    staged[i] = value;
  }
}

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void direct(const typename Layer::Element* x, const typename Layer::Element* weight,
                         const typename Layer::Element* bias, typename Layer::Element* y, int y_channels, int batch,
                         int input_depth, int input_height, int input_width, int output_depth, int output_height,
                         int output_width, const Program& program = {}) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Accumulator = typename Shape::Accumulator;
  using Index = typename Layer::Index;
  using Depth = typename Shape::Depth;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  constexpr int CI = Layer::group_in_channels, CO = Layer::group_out_channels;  // of one group

  // The unused axes of 1-D and 2-D layers disappear here.
  const int in_depth = Layer::spatial_dims < 3 ? 1 : input_depth;
  const int in_height = Layer::spatial_dims < 2 ? 1 : input_height;
  const int out_depth = Layer::spatial_dims < 3 ? 1 : output_depth;
  const int out_height = Layer::spatial_dims < 2 ? 1 : output_height;

  TCONV_SHARED(shared);
  Accumulator* const tiles = reinterpret_cast<Accumulator*>(shared);
  Accumulator* const staged = tiles + Shape::weight_start;

  const int split = Tile::splits == 1 ? 0 : static_cast<int>(threadIdx.x) / Shape::position_threads;
  const int thread = Tile::splits == 1 ? static_cast<int>(threadIdx.x)
                                       : static_cast<int>(threadIdx.x) % Shape::position_threads;
  const int lane = thread % 32;
  const int phase_lane = thread % Tile::phase_lanes;
  // The thread's first position, counted from the first of its block's tile or, without tiles, of its warp's run.
  const int warps_wide = Shape::tiled ? Tile::warps_wide : 1, warp = Shape::tiled ? thread / 32 : 0;
  const int row_lane = Shape::run_rows == 1 ? 0 : lane / Tile::columns;
  const int column_lane = Shape::phases_on_lanes ? 0 : Shape::run_rows == 1 ? lane : lane % Tile::columns;
  const int tile_row = (warp / warps_wide * Shape::run_rows + row_lane) * Tile::rows;
  const int tile_column = warp % warps_wide * Shape::run_columns + column_lane;

  // A block's row phase, column phases, channels and group, fastest first; its positions come last. Blocks that read
  // the same inputs are thus neighbours in the grid and share them through the L2 cache.
  const int part = static_cast<int>(blockIdx.x % Shape::parts / Shape::grid_row_phases);
  const int group = Layer::groups == 1 ? 0 : part / (Shape::column_blocks * Shape::channel_blocks);
  const int own_channel = (Layer::groups == 1 ? part / Shape::column_blocks
                                              : part / Shape::column_blocks % Shape::channel_blocks) *
                          Tile::channels;
  const int first_phase = Shape::phases_on_lanes ? part % Shape::column_blocks * Shape::block_phases : 0;
  const int own_phase = first_phase + phase_lane;
  const int first_row_phase = static_cast<int>(blockIdx.x % Shape::grid_row_phases);
  const int end_row_phase = Shape::resident ? static_cast<int>(Shape::row_phases) : first_row_phase + 1;
  const Accumulator* const own_weights = staged + phase_lane * Tile::channels;

  const Index input_plane = static_cast<Index>(in_depth) * in_height * input_width;
  const Index output_plane = static_cast<Index>(out_depth) * out_height * output_width;
  // Blocks walk in steps. A step is one tile, or `block_runs` runs. Runs are numbered along a row, then row after row
  // through the whole batch. A row group is as many rows of positions as a thread or a tile has; it lies in one slab.
  const Index depths = Depth::positions(out_depth);
  const Index row_groups =
      (Height::positions(out_height + Tile::row_origin) - 1) / (Shape::tiled ? Shape::tile_rows : Tile::rows) + 1;
  const Index all_row_groups = batch * depths * row_groups;
  constexpr int step_columns = Shape::tiled ? Shape::tile_columns : Shape::run_columns;
  const Index runs_a_row = (Width::positions(output_width + Tile::origin) - 1) / step_columns + 1;
  const Index runs = ((all_row_groups - 1) / Shape::run_rows + 1) * runs_a_row;
  const Index steps = Shape::tiled ? all_row_groups * runs_a_row : (runs - 1) / Shape::block_runs + 1;

  DirectChannels<Layer, Tile, Program> channels;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    const int channel = group * CO + own_channel + c;
    const bool exists = Shape::whole_channels || own_channel + c < CO;
    if (Layer::has_bias) channels.biases[c] = exists ? to_accumulator(load_constant(bias + channel)) : 0;
    if (Layer::has_program && exists) channels.of_program[c] = program.of(channel);
  }

  Accumulator* const buffer =
      tiles + Shape::exchange_start + thread / 32 * Shape::warp_items;
  const bool in_vectors = Shape::vector > 1 && output_width % Shape::vector == 0;
  if (Shape::resident) {
    direct_stage<Layer, Tile>(weight, group, own_channel, first_phase, 0, 0, 0, staged);
    if (Shape::exchange && !in_vectors && split == 0) direct_clear_buffer<Layer, Tile>(buffer);
    __syncthreads();
  }

  int stage = 0;
  const Index stride = static_cast<Index>(gridDim.x / Shape::parts);
  for (Index step = static_cast<Index>(blockIdx.x / Shape::parts); step < steps; step += stride) {
    // The thread's first row of positions and its first position there. Its other positions follow `columns` apart.
    const Index run = Shape::tiled ? step : step * Shape::block_runs + thread / 32;
    const Index step_group = run / runs_a_row;
    const Index row_group = Shape::tiled ? step_group : step_group * Shape::run_rows + tile_row / Tile::rows;
    const Index slab_of_all = row_group / row_groups, sample = slab_of_all / depths;
    const int depth = static_cast<int>(slab_of_all - sample * depths);
    const int height = static_cast<int>(row_group - slab_of_all * row_groups) *
                           (Shape::tiled ? Shape::tile_rows : Tile::rows) + (Shape::tiled ? tile_row : 0);
    const int width = static_cast<int>(run - step_group * runs_a_row) * step_columns + tile_column;
    const bool in_batch = row_group < all_row_groups;

    DirectTileInputs<Layer, Tile> tile_inputs;
    if (Shape::tiled)
      tile_inputs.place(height - tile_row - Shape::top_shift, width - tile_column - Shape::last_shift, in_height,
                        input_width);
    for (int row_phase = first_row_phase; row_phase < end_row_phase; ++row_phase) {
      // Where phases of height are stacked, one row phase has all of them, and the loop over height taps runs once.
      constexpr int height_phases = Shape::stacked ? 1 : Height::stride;
      constexpr int height_step = Shape::stacked ? Height::kernel : Height::tap_period;
      const int depth_phase = row_phase / height_phases, height_phase = row_phase % height_phases;
      const int first_depth_tap = Depth::first_tap(depth_phase);
      const int first_height_tap = Shape::stacked ? 0 : Height::first_tap(height_phase);
      const bool has_taps =
          !Shape::phases_without_taps || (first_depth_tap < Depth::kernel && first_height_tap < Height::kernel);
      DirectAccumulators<Layer, Tile> accumulators = {};

      for (int depth_tap = first_depth_tap; depth_tap < Depth::kernel; depth_tap += Depth::tap_period)
        for (int height_tap = first_height_tap; height_tap < Height::kernel; height_tap += height_step) {
          const int weight_row = depth_tap * Height::kernel + height_tap;
          const int slab = depth - Depth::shift_of(depth_tap);
          const int top_row = height - (Shape::stacked ? Shape::top_shift : Height::shift_of(height_tap));
          const bool inside = in_batch && (Layer::spatial_dims < 3 || in_range(slab, in_depth));
          if (Shape::tiled && !inside) continue;  // for the whole block alike, so barriers below stay uniform
          int input_columns[Shape::input_rows];
#pragma unroll
          for (int r = 0; r < Shape::input_rows; ++r)
            input_columns[r] = inside && in_range(top_row + r, in_height) ? input_width : 0;
          for (int channel_k_tile = 0; channel_k_tile < CI; channel_k_tile += Tile::k_tile_channels)
            for (int tap_k_tile = 0; tap_k_tile < Width::taps_per_phase; tap_k_tile += Tile::k_tile_taps) {
              if (!Shape::resident) {
                __syncthreads();  // all warps have read the last stage
                direct_stage<Layer, Tile>(weight, group, own_channel, first_phase, weight_row, channel_k_tile,
                                          tap_k_tile, staged);
                __syncthreads();
              }
              const int k_tile =
                  CI - channel_k_tile < Tile::k_tile_channels ? CI - channel_k_tile : Tile::k_tile_channels;
              const long long plane = (static_cast<long long>(sample) * Layer::groups + group) * CI + channel_k_tile;
              const Element* const rows = x + (inside ? (plane * in_depth + slab) * in_height * input_width : 0);
              const Accumulator* const row_weights =
                  own_weights + (Shape::resident ? weight_row * Shape::row_items : 0);
              if (Shape::tiled)
                direct_multiply_tiles<Layer, Tile>(row_weights, rows, input_plane, k_tile, tile_inputs, tiles,
                                                   tile_row * Shape::tile_pitch + tile_column, split, stage,
                                                   accumulators);
              else  // the address may lie outside x: rows outside the input have no columns and are not read
                direct_multiply<Layer, Tile>(row_weights, rows + static_cast<long long>(top_row) * input_width + width,
                                             input_width, width, input_columns, input_plane, k_tile, own_phase,
                                             tap_k_tile, split, accumulators);
            }
        }

      if (Tile::splits > 1) {
        direct_join<Layer, Tile>(accumulators, split, tiles + Shape::split_start);
        if (split > 0) continue;
      }
      const int slab = depth * Depth::stride + depth_phase;
      const int row = height * Height::stride - Tile::row_origin + height_phase;
      const long long plane = static_cast<long long>(sample) * y_channels + group * CO + own_channel;
      const bool inside = in_batch && (Layer::spatial_dims < 3 || slab < out_depth);
      const long long start = ((plane * out_depth + slab) * out_height + row) * output_width;
      const int plane_rows = inside ? out_height : 0, column = width * Width::stride - Tile::origin;
      if (!Shape::exchange) {
        direct_store_single<Layer, Tile, Program>(accumulators, channels, program, start, output_plane, row, plane_rows,
                                                  column, output_width, CO - own_channel, own_phase, y);
      } else if (in_vectors) {
        direct_store_vectors<Layer, Tile, Program>(accumulators, channels, program, start, output_plane, row,
                                                   plane_rows, column, output_width, CO - own_channel, y);
      } else {
        if (!Shape::resident) {
          // The buffer takes the place of weights, which all warps must have read. With splits, `direct_join` had a
          // barrier for this.
          if (Tile::splits == 1) __syncthreads();
          direct_clear_buffer<Layer, Tile>(buffer);
        }
        direct_store_exchanged<Layer, Tile, Program>(has_taps, lane, accumulators, channels, program, start,
                                                     output_plane, row, plane_rows, column, output_width,
                                                     CO - own_channel, buffer, y);
      }
    }
  }
}

}  // namespace tconv
