// direct: transposed convolution on CUDA cores, for every problem and every GPU from sm_75 on. The other families are
// measured against it.
//
// Computes  y[n, co, o] = bias[co] + sum over ci and taps k of  x[n, ci, i] * weight[ci, co, k]  for all i, k with
// o = i*stride + k*dilation - padding on each axis, inside each group. x, weight and y are contiguous.
//
// Positions and phases. A position is one (n, qd, qh, qw); each owns stride_d * stride_h * stride_w outputs, its
// phases. Positions are numbered in one line, so that small maps and batches fill a block by themselves. A block owns
//   - runs of `position_lanes * positions` positions,
//   - `channel_lanes * channels` output channels of one group,
//   - one row phase (phase of depth and height) at a time: all its threads then use the same row taps,
//   - all column phases that have taps (phase_lanes == 1), or some of them (phase_lanes == 32):
//
//     phase_lanes == 1                                phase_lanes == 32 (large strides)
//     lanes of a warp: 32 positions                   lanes of a warp: 32 column phases of the same positions
//     registers of a thread: every column phase       registers of a thread: every 32nd column phase
//
//            q    q+1  q+2        lane = position            lane = phase
//          |a b c|a b c|a b c|    x: coalesced               x: one address for the warp
//           ^ one thread          weight: one address        weight: coalesced
//
// Weights are staged in shared memory as [row tap][input channel][tap of the phase][channel lane][column phase]
// [output channel]: what one thread multiplies an input with lies together. If all that a block needs fits, they are
// *resident*: staged once, then the block walks over the grid's runs of positions and, at each, over all row phases, so
// that neighbouring rows are read and written together. Otherwise a block has one run and one row phase, and stages one
// row tap, `chunk_channels` input channels and `chunk_taps` taps a phase at a time. Inputs are read through the L1
// cache. Where column phases interleave, a warp exchanges its results through shared memory, so that stores are
// coalesced and columns without taps are written along.
//
// Not-a-number: an input outside the map counts as 0, so an infinite or NaN *weight* also reaches the outputs at the
// border whose tap would read there. Non-finite inputs reach exactly the outputs that depend on them.
//
// Sizes: one plane of a channel and the number of positions must stay below 2^31 unless wide_index; the rest is 64-bit.
// Every axis must stay below 2^31 - stride - padding. Shared memory: DirectShape<Layer, Tile>::shared_bytes.
#pragma once
#include "primitives.cuh"

namespace tconv {

template <class Layer, class Tile>
struct DirectShape {
  using Accumulator = typename AccumulatorOf<typename Layer::Element>::type;
  static constexpr int threads = Tile::position_lanes * Tile::channel_lanes * Tile::phase_lanes;
  static constexpr int block_positions = Tile::position_lanes * Tile::positions;
  static constexpr int block_channels = Tile::channel_lanes * Tile::channels;
  static constexpr int block_phases = Tile::phase_lanes * Tile::phases;
  static constexpr bool phases_on_lanes = Tile::phase_lanes > 1;
  // Interleaved column phases go through shared memory to be stored in rows.
  static constexpr bool exchange = !phases_on_lanes && Layer::Width::stride > 1;

  static constexpr long long row_phases = static_cast<long long>(Layer::Depth::stride) * Layer::Height::stride;
  static constexpr int column_chunks = phases_on_lanes ? ceil_div(Layer::Width::stride, block_phases) : 1;
  static constexpr int channel_blocks = ceil_div(Layer::out_channels, block_channels);
  static constexpr bool whole_channels = Layer::out_channels % block_channels == 0;

  static constexpr bool all_taps = Tile::chunk_taps >= Layer::Width::taps_per_phase;
  static constexpr int row_taps = Layer::Depth::kernel * Layer::Height::kernel;
  // A walk over very many row phases would leave most of the GPU idle: those go to the grid.
  static constexpr bool resident =
      Tile::chunk_rows == row_taps && Tile::chunk_channels >= Layer::in_channels && all_taps && row_phases <= 64;
  static constexpr int grid_row_phases = resident ? 1 : static_cast<int>(row_phases);
  static constexpr int parts = grid_row_phases * column_chunks * channel_blocks * Layer::groups;

  // Rounding errors grow along a sum. Where nothing else hides them, long sums are taken in chains of about 64
  // products, which are then added up.
  static constexpr long long products = static_cast<long long>(Layer::in_channels) * Layer::Depth::taps_per_phase *
                                        Layer::Height::taps_per_phase * Layer::Width::taps_per_phase;
  static constexpr int chain = 64;
  static constexpr bool chained =
      sizeof(typename Layer::Element) == sizeof(Accumulator) && Layer::rounding == Rounding::none && products > chain;
  static constexpr int chain_channels = !chained                    ? Tile::chunk_channels
                                        : Tile::chunk_taps >= chain ? 1
                                                                    : chain / Tile::chunk_taps;

  // A thread loads its weights of so many column phases together: few channels alone make no wide load.
  static constexpr int phases_at_once = !phases_on_lanes && Tile::channels < 4 ? Tile::phases : 1;
  static constexpr int tap_items = block_phases * block_channels;
  static constexpr int row_items = Tile::chunk_channels * Tile::chunk_taps * tap_items;
  static constexpr int weight_items = Tile::chunk_rows * row_items;
  // The exchange buffer of a warp holds [channel][column phase][position], its rows shifted against each other so that
  // reading across phases meets 32 different banks. A last row stands for the phases without taps.
  static constexpr int exchange_pitch = 32 + ceil_div(32, Layer::Width::stride);
  static constexpr int exchange_rows = Tile::phases + (Tile::phases < Layer::Width::stride ? 1 : 0);
  static constexpr int exchange_channel_items = exchange_rows * exchange_pitch;
  static constexpr int exchange_items = exchange ? threads / 32 * Tile::channels * exchange_channel_items : 0;
  // Stores that a warp makes to one row in a go, 32 columns each.
  static constexpr int exchange_steps = Layer::Width::stride < 8 ? Layer::Width::stride : 8;
  // The exchange takes the place of the weights unless they stay.
  static constexpr int exchange_start = resident ? weight_items : 0;
  static constexpr int shared_bytes =
      static_cast<int>(sizeof(Accumulator)) * (resident                        ? weight_items + exchange_items
                                               : weight_items > exchange_items ? weight_items
                                                                               : exchange_items);

  static_assert(resident || Tile::chunk_rows == 1, "stages hold one row tap or all weights");
  static_assert(threads % 32 == 0, "a block is whole warps");
  static_assert(Tile::phase_lanes == 1 || Tile::phase_lanes == 32, "phases lie in registers or across a warp");
  static_assert(Tile::phase_lanes == 32 || Tile::position_lanes % 32 == 0, "a warp shares its output channels");
  static_assert(phases_on_lanes || Tile::phases == Layer::Width::phases_with_taps, "a thread owns every column phase");
};

// Which weights a block uses, apart from its row phase.
struct DirectPart {
  int group, first_channel, first_phase;
};

// Brings one stage of weights to shared memory, from the given row tap, input channel and tap number on. Places without
// a weight become 0.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_stage(const DirectPart& part, const typename Layer::Element* weight, Accumulator* staged,
                               int first_row, int first_channel, int first_tap_number) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Layer::Width;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Shape::weight_items; i += Shape::threads) {
    const int lane_channel = i % Tile::channels, slot = i / Tile::channels % Shape::block_phases;
    const int channel_lane = i / (Tile::channels * Shape::block_phases) % Tile::channel_lanes;
    const int rest = i / Shape::tap_items;
    const int tap_number = first_tap_number + rest % Tile::chunk_taps;
    const int in_channel = first_channel + rest / Tile::chunk_taps % Tile::chunk_channels;
    const int out_channel = part.first_channel + channel_lane * Tile::channels + lane_channel;

    int tap = slot;  // the slot's first; phases in registers are numbered by their first taps
    if (Shape::phases_on_lanes)
      tap = part.first_phase + slot < Width::stride ? Width::first_tap(part.first_phase + slot) : Width::kernel;
    const long long column_tap = tap + static_cast<long long>(tap_number) * Width::tap_period;

    Accumulator value = 0;
    if (tap < Width::kernel && column_tap < Width::kernel && in_channel < Layer::in_channels &&
        out_channel < Layer::out_channels) {
      const long long filter =
          (static_cast<long long>(part.group) * Layer::in_channels + in_channel) * Layer::out_channels + out_channel;
      const long long row = filter * Shape::row_taps + first_row + i / Shape::row_items;
      value = operand<Layer::rounding>(to_accumulator(load_constant(weight + row * Width::kernel + column_tap)));
    }
    staged[i] = value;
  }
}

// The positions that a thread owns. Offsets are derived where they are used, which is cheaper than keeping them.
template <class Tile>
struct DirectPositions {
  int sample[Tile::positions];  // -1: no such position
  int depth[Tile::positions], height[Tile::positions], width[Tile::positions];
};

// What a thread sums up: of each of its column phases, positions and output channels.
template <class Layer, class Tile>
struct DirectSums {
  typename DirectShape<Layer, Tile>::Accumulator values[Tile::phases][Tile::positions][Tile::channels];

  TCONV_DEVICE void clear() {
#pragma unroll
    for (int a = 0; a < Tile::phases; ++a)
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
        for (int c = 0; c < Tile::channels; ++c) values[a][p][c] = 0;
  }

  TCONV_DEVICE void add(const DirectSums& other) {
#pragma unroll
    for (int a = 0; a < Tile::phases; ++a)
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
        for (int c = 0; c < Tile::channels; ++c) values[a][p][c] += other.values[a][p][c];
  }
};

// Adds the products of one row tap and one stage: `channels` input channels, whose rows start at `inputs_at` (column 0)
// and have `input_columns` columns, 0 for a row outside the input.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_multiply(const Accumulator* own_weights, const DirectPositions<Tile>& at,
                                  const typename Layer::Element* const (&inputs_at)[Tile::positions],
                                  const int (&input_columns)[Tile::positions], typename Layer::Index input_plane,
                                  int channels, const int (&first_taps)[Tile::phases], int tap_chunk,
                                  DirectSums<Layer, Tile>& sums) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Layer::Width;
#pragma unroll Tile::unroll
  for (int k = 0; k < channels; ++k) {
#pragma unroll
    for (int j = 0; j < Tile::chunk_taps; ++j) {
      const int tap_number = Shape::all_taps ? j : tap_chunk + j;
      const Accumulator* const tap_weights = own_weights + (k * Tile::chunk_taps + j) * Shape::tap_items;
      Accumulator weights[Shape::phases_at_once * Tile::channels];
      Accumulator inputs[Tile::positions];
      int loaded_shift = -1;
#pragma unroll
      for (int a = 0; a < Tile::phases; ++a) {
        const long long tap = first_taps[a] + static_cast<long long>(tap_number) * Width::tap_period;
        if (first_taps[a] >= Width::kernel || tap >= Width::kernel) continue;
        const int shift = Width::first_shift(first_taps[a]) + tap_number * Width::shift_period;
        if (shift != loaded_shift) {  // neighbouring phases mostly share their input
          loaded_shift = shift;
#pragma unroll
          for (int p = 0; p < Tile::positions; ++p) {
            const int column = at.width[p] - shift;
            // Only the load is conditional: that is a predicate, more would be a branch, and loads would wait in turn.
            Element loaded{};
            if (column >= 0 && column < input_columns[p])
              loaded = load_constant(inputs_at[p] + k * static_cast<long long>(input_plane) + column);
            inputs[p] = operand<Layer::rounding>(to_accumulator(loaded));
          }
        }
        if (a % Shape::phases_at_once == 0) load_shared(tap_weights + a * Tile::phase_lanes * Tile::channels, weights);
        const int first_weight = a % Shape::phases_at_once * Tile::channels;
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
          for (int c = 0; c < Tile::channels; ++c)
            sums.values[a][p][c] = multiply_add(inputs[p], weights[first_weight + c], sums.values[a][p][c]);
      }
    }
  }
}

// Stores the results of a warp's 32 positions, which its lanes have put into `buffer`, as whole rows. `row` and
// `column` say where column phase 0 of the lane's own position goes: the offset of the first channel's row, -1 outside
// the output, and the column. Called by whole warps.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_store_exchanged(const Accumulator* buffer, typename Layer::Element* y, long long row,
                                         int column, typename Layer::Index output_plane, int output_width,
                                         int channels) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Layer::Width;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int first = 0; first < Width::stride; first += Shape::exchange_steps) {
    Element* targets[Shape::exchange_steps];
    const Accumulator* sources[Shape::exchange_steps];
    bool inside[Shape::exchange_steps];
#pragma unroll
    for (int s = 0; s < Shape::exchange_steps; ++s) {
      const int number = (first + s) * 32 + lane, owner = number / Width::stride, phase = number % Width::stride;
      const long long owner_row = __shfl_sync(0xffffffffu, row, owner % 32);
      const int target_column = __shfl_sync(0xffffffffu, column, owner % 32) + phase;
      const int tap = Width::first_tap(phase);
      inside[s] = owner < 32 && owner_row >= 0 && target_column >= 0 && target_column < output_width;
      targets[s] = y + (owner_row + target_column);
      sources[s] = buffer + (tap < Width::kernel ? tap : Tile::phases) * Shape::exchange_pitch + owner % 32;
    }
    // Channels outside, columns inside: memory takes long runs of one row much faster than short pieces of many rows in
    // turn.
#pragma unroll
    for (int c = 0; c < Tile::channels; ++c) {
      if (!Shape::whole_channels && c >= channels) break;
      Accumulator values[Shape::exchange_steps];
#pragma unroll
      for (int s = 0; s < Shape::exchange_steps; ++s) values[s] = sources[s][c * Shape::exchange_channel_items];
#pragma unroll
      for (int s = 0; s < Shape::exchange_steps; ++s) {
        if (inside[s]) *targets[s] = from_accumulator<Element>(values[s]);
        targets[s] += output_plane;
      }
    }
  }
}

template <class Layer, class Tile>
TCONV_DEVICE void direct(const typename Layer::Element* x, const typename Layer::Element* weight,
                         const typename Layer::Element* bias, typename Layer::Element* y, int batch, int input_depth,
                         int input_height, int input_width, int output_depth, int output_height, int output_width) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Accumulator = typename Shape::Accumulator;
  using Index = typename Layer::Index;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  constexpr int CI = Layer::in_channels, CO = Layer::out_channels;  // of one group

  // The unused axes of 1-D and 2-D layers disappear here.
  if (Layer::spatial_dims < 3) input_depth = output_depth = 1;
  if (Layer::spatial_dims < 2) input_height = output_height = 1;

  TCONV_SHARED(shared);
  Accumulator* const staged = reinterpret_cast<Accumulator*>(shared);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int phase_lane = thread % Tile::phase_lanes;
  const int position_lane = thread / Tile::phase_lanes % Tile::position_lanes;
  const int channel_lane = thread / (Tile::phase_lanes * Tile::position_lanes);

  // Blocks that read the same inputs are neighbours in the grid, so that they meet in the L2 cache.
  const int number_in_grid = static_cast<int>(blockIdx.x % Shape::parts / Shape::grid_row_phases);
  const DirectPart part = {
      number_in_grid / (Shape::column_chunks * Shape::channel_blocks),
      number_in_grid / Shape::column_chunks % Shape::channel_blocks * Shape::block_channels,
      number_in_grid % Shape::column_chunks * Shape::block_phases,
  };
  const int first_row_phase = static_cast<int>(blockIdx.x % Shape::grid_row_phases);
  const int end_row_phase = Shape::resident ? static_cast<int>(Shape::row_phases) : first_row_phase + 1;
  const int own_channel = part.first_channel + channel_lane * Tile::channels;
  const Accumulator* const own_weights = staged + (channel_lane * Shape::block_phases + phase_lane) * Tile::channels;

  const Index input_plane = static_cast<Index>(input_depth) * input_height * input_width;
  const Index output_plane = static_cast<Index>(output_depth) * output_height * output_width;
  const Index depths = Depth::positions(output_depth), heights = Height::positions(output_height);
  const Index widths = Width::positions(output_width), count = batch * depths * heights * widths;

  Accumulator biases[Tile::channels];
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    biases[c] = 0;
    if (Layer::has_bias && own_channel + c < CO)
      biases[c] = to_accumulator(load_constant(bias + part.group * CO + own_channel + c));
  }

  // Column phases of this thread, by their first taps. With phases in registers these are constants.
  int first_taps[Tile::phases];
#pragma unroll
  for (int a = 0; a < Tile::phases; ++a) {
    const int phase = part.first_phase + a * Tile::phase_lanes + phase_lane;
    first_taps[a] = !Shape::phases_on_lanes ? a : phase < Width::stride ? Width::first_tap(phase) : Width::kernel;
  }

  if (Shape::resident) {
    direct_stage<Layer, Tile>(part, weight, staged, 0, 0, 0);
    __syncthreads();
  }

  const Index run_stride = static_cast<Index>(gridDim.x / Shape::parts) * Shape::block_positions;
  for (Index run = static_cast<Index>(blockIdx.x / Shape::parts) * Shape::block_positions; run < count;
       run += run_stride) {
    DirectPositions<Tile> at;
#pragma unroll
    for (int p = 0; p < Tile::positions; ++p) {
      const Index number = run + p * Tile::position_lanes + position_lane;
      const Index row = number / widths, slab = row / heights, sample = slab / depths;
      at.width[p] = static_cast<int>(number - row * widths) + Width::first_position;
      at.height[p] = static_cast<int>(row - slab * heights) + Height::first_position;
      at.depth[p] = static_cast<int>(slab - sample * depths) + Depth::first_position;
      at.sample[p] = number < count ? static_cast<int>(sample) : -1;
    }

    for (int row_phase = first_row_phase; row_phase < end_row_phase; ++row_phase) {
      const int depth_phase = row_phase / Height::stride, height_phase = row_phase % Height::stride;
      // Where the row of the block's first output channel starts, in elements; -1 for a row outside the output.
      const auto output_row_of = [&](int p) -> long long {
        const long long plane = (static_cast<long long>(at.sample[p]) * Layer::groups + part.group) * CO + own_channel;
        const int slab = at.depth[p] * Depth::stride + depth_phase - Depth::padding;
        const int row = at.height[p] * Height::stride + height_phase - Height::padding;
        const bool inside = at.sample[p] >= 0 && slab >= 0 && slab < output_depth && row >= 0 && row < output_height;
        return inside ? ((plane * output_depth + slab) * output_height + row) * output_width : -1;
      };

      DirectSums<Layer, Tile> sums;
      sums.clear();

      for (int depth_tap = Depth::first_tap(depth_phase); depth_tap < Depth::kernel; depth_tap += Depth::tap_period)
        for (int height_tap = Height::first_tap(height_phase); height_tap < Height::kernel;
             height_tap += Height::tap_period) {
          const int weight_row = depth_tap * Height::kernel + height_tap;
          for (int channel_chunk = 0; channel_chunk < CI; channel_chunk += Tile::chunk_channels)
            for (int tap_chunk = 0; tap_chunk < Width::taps_per_phase; tap_chunk += Tile::chunk_taps) {
              if (!Shape::resident) {
                __syncthreads();
                direct_stage<Layer, Tile>(part, weight, staged, weight_row, channel_chunk, tap_chunk);
                __syncthreads();
              }
              const int channels =
                  CI - channel_chunk < Tile::chunk_channels ? CI - channel_chunk : Tile::chunk_channels;
              const Element* inputs_at[Tile::positions];  // column 0
              int input_columns[Tile::positions];         // 0 where the row lies outside the input
#pragma unroll
              for (int p = 0; p < Tile::positions; ++p) {
                const int slab = at.depth[p] - Depth::shift_of(depth_tap),
                          row = at.height[p] - Height::shift_of(height_tap);
                const bool inside =
                    at.sample[p] >= 0 && slab >= 0 && slab < input_depth && row >= 0 && row < input_height;
                const long long plane =
                    (static_cast<long long>(at.sample[p]) * Layer::groups + part.group) * CI + channel_chunk;
                input_columns[p] = inside ? input_width : 0;
                inputs_at[p] = x + (inside ? ((plane * input_depth + slab) * input_height + row) * input_width : 0);
              }
              const Accumulator* row_weights = own_weights + (Shape::resident ? weight_row * Shape::row_items : 0);
              for (int left = channels; left > 0; left -= Shape::chain_channels) {
                const int chain = left < Shape::chain_channels ? left : Shape::chain_channels;
                if (Shape::chained) {
                  DirectSums<Layer, Tile> partial;
                  partial.clear();
                  direct_multiply<Layer, Tile>(row_weights, at, inputs_at, input_columns, input_plane, chain,
                                               first_taps, tap_chunk, partial);
                  sums.add(partial);
                } else {
                  direct_multiply<Layer, Tile>(row_weights, at, inputs_at, input_columns, input_plane, chain,
                                               first_taps, tap_chunk, sums);
                }
                row_weights += Shape::chain_channels * Tile::chunk_taps * Shape::tap_items;
#pragma unroll
                for (int p = 0; p < Tile::positions; ++p)
                  inputs_at[p] += Shape::chain_channels * static_cast<long long>(input_plane);
              }
            }
        }

      if (Shape::exchange) {
        if (!Shape::resident) __syncthreads();  // the weights have been read
        Accumulator* const buffer =
            staged + Shape::exchange_start + thread / 32 * Tile::channels * Shape::exchange_channel_items;
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p) {
          __syncwarp();
#pragma unroll
          for (int c = 0; c < Tile::channels; ++c) {
            Accumulator* const own = buffer + c * Shape::exchange_channel_items + lane;
#pragma unroll
            for (int a = 0; a < Tile::phases; ++a)
              own[a * Shape::exchange_pitch] =
                  Layer::has_bias ? sums.values[a][p][c] + biases[c] : sums.values[a][p][c];
            if (Shape::exchange_rows > Tile::phases) own[Tile::phases * Shape::exchange_pitch] = biases[c];
          }
          __syncwarp();
          direct_store_exchanged<Layer, Tile>(buffer, y, output_row_of(p), at.width[p] * Width::stride - Width::padding,
                                              output_plane, output_width, CO - own_channel);
        }
      } else {
        long long targets[Tile::positions][Tile::phases];  // -1: outside the output
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p) {
          const long long row = output_row_of(p);
#pragma unroll
          for (int a = 0; a < Tile::phases; ++a) {
            const int phase = part.first_phase + a * Tile::phase_lanes + phase_lane;
            const int column = at.width[p] * Width::stride + phase - Width::padding;
            const bool inside = row >= 0 && phase < Width::stride && column >= 0 && column < output_width;
            targets[p][a] = inside ? row + column : -1;
          }
        }
#pragma unroll
        for (int c = 0; c < Tile::channels; ++c) {
          if (!Shape::whole_channels && own_channel + c >= CO) break;
#pragma unroll
          for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
            for (int a = 0; a < Tile::phases; ++a)
              if (targets[p][a] >= 0)
                y[targets[p][a] + c * static_cast<long long>(output_plane)] = from_accumulator<Element>(
                    Layer::has_bias ? sums.values[a][p][c] + biases[c] : sums.values[a][p][c]);
        }
      }
    }
  }
}

}  // namespace tconv
