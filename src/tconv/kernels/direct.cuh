// direct: transposed convolution on CUDA cores, for every problem and every GPU from sm_75 on. The other families are
// measured against it.
//
// Computes  y[n, co, o] = bias[co] + sum over ci and taps k of  x[n, ci, i] * weight[ci, co, k]  for all i, k with
// o = i*stride + k*dilation - padding on each axis, inside each group. x, weight and y are contiguous.
//
// Positions and phases. A position is one (n, qd, qh, qw); each owns stride_d * stride_h * stride_w neighbouring
// outputs, its phases. A warp owns a *run*: `columns * positions` neighbouring positions of one row, of 32 / `columns`
// rows at once where maps are narrow. A block owns
//   - `position_lanes` lanes' worth of runs,
//   - `channels` output channels of one group,
//   - one row phase (phase of depth and height) at a time: all its threads then use the same row taps,
//   - all column phases that have taps (phase_lanes == 1), or some of them (phase_lanes == 32):
//
//     phase_lanes == 1                                phase_lanes == 32 (large strides)
//     lanes of a warp: neighbouring positions         lanes of a warp: 32 column phases of the same positions
//     registers of a thread: every column phase,      registers of a thread: every 32nd column phase,
//     every `columns`-th position of the run          every position of the run
//
//            q    q+1  q+2        lane = position            lane = phase
//          |a b c|a b c|a b c|    x: coalesced               x: one address for the warp
//           ^ one thread          weight: one address        weight: coalesced
//
// Several positions a thread let each weight from shared memory serve several products; several channels do the same
// for inputs. Weights are staged in shared memory as [row tap][input channel][tap of the phase][column phase][output
// channel]: what one thread multiplies an input with lies together. If all that a block needs fits, they are
// *resident*: staged once, then the block walks over the grid's runs and, at each, over all row phases, so that
// neighbouring rows are read and written together. Otherwise a block has one set of runs and one row phase, and stages
// one row tap, `chunk_channels` input channels and `chunk_taps` taps a phase at a time. Inputs are read through the L1
// cache.
//
// Stores. Where column phases interleave, a lane's results of one position are neighbours in memory. If they make one
// aligned vector, the lane stores it; else the warp exchanges its results through shared memory and stores whole runs,
// 32 neighbours at a time, columns without taps written along.
//
// Not-a-number: an input outside the map counts as 0, so an infinite or NaN *weight* also reaches the outputs at the
// border whose tap would read there. Non-finite inputs reach exactly the outputs that depend on them.
//
// Sizes: one plane of a channel and the number of runs must stay below 2^31 unless wide_index; the rest is 64-bit.
// Every axis must stay below 2^31 - stride - padding. Shared memory: DirectShape<Layer, Tile>::shared_bytes.
#pragma once
#include "primitives.cuh"

namespace tconv {

template <class Layer, class Tile>
struct DirectShape {
  using Accumulator = typename AccumulatorOf<typename Layer::Element>::type;
  // Position q owns the columns from q * stride - origin on: less padding, with everything moved to the right.
  using Width =
      Axis<Layer::Width::kernel, Layer::Width::stride, Layer::Width::padding - Tile::origin, Layer::Width::dilation>;
  static constexpr int threads = Tile::position_lanes * Tile::phase_lanes;
  static constexpr int block_runs = Tile::position_lanes * Tile::phase_lanes / 32;
  static constexpr int run_columns = Tile::columns * Tile::positions;
  static constexpr int block_phases = Tile::phase_lanes * Tile::phases;
  static constexpr bool phases_on_lanes = Tile::phase_lanes > 1;
  static constexpr int run_rows = phases_on_lanes ? 1 : 32 / Tile::columns;
  // Interleaved column phases go through shared memory to be stored in rows, unless they are aligned vectors.
  static constexpr bool exchange = !phases_on_lanes && Width::stride > 1;
  static constexpr int vector =
      exchange && is_power_of_two(Width::stride) && Width::stride * sizeof(typename Layer::Element) <= 16
          ? Width::stride
          : 1;

  static constexpr long long row_phases = static_cast<long long>(Layer::Depth::stride) * Layer::Height::stride;
  static constexpr int column_chunks = phases_on_lanes ? ceil_div(Width::stride, block_phases) : 1;
  static constexpr int channel_blocks = ceil_div(Layer::out_channels, Tile::channels);
  static constexpr bool whole_channels = Layer::out_channels % Tile::channels == 0;

  static constexpr bool all_taps = Tile::chunk_taps >= Width::taps_per_phase;
  static constexpr int row_taps = Layer::Depth::kernel * Layer::Height::kernel;
  // A walk over very many row phases would leave most of the GPU idle: those go to the grid.
  static constexpr bool resident =
      Tile::chunk_rows == row_taps && Tile::chunk_channels >= Layer::in_channels && all_taps && row_phases <= 64;
  static constexpr int grid_row_phases = resident ? 1 : static_cast<int>(row_phases);
  static constexpr int parts = grid_row_phases * column_chunks * channel_blocks * Layer::groups;

  // Rounding errors grow along a sum. Where nothing else hides them, long sums are taken in chains of about 64
  // products, which are then added up.
  static constexpr long long products = static_cast<long long>(Layer::in_channels) * Layer::Depth::taps_per_phase *
                                        Layer::Height::taps_per_phase * Width::taps_per_phase;
  static constexpr int chain = 64;
  static constexpr bool chained =
      sizeof(typename Layer::Element) == sizeof(Accumulator) && Layer::rounding == Rounding::none && products > chain;
  static constexpr int chain_groups =
      chain / (Tile::chunk_taps * Tile::unroll) > 0 ? chain / (Tile::chunk_taps * Tile::unroll) : 1;
  static constexpr int chain_channels = chained ? chain_groups * Tile::unroll : Tile::chunk_channels;

  // The inputs of one channel that a thread needs for one stage of taps, for each of its positions. With phases in
  // registers they are the distinct shifts of the first taps and, where neighbouring taps share some, of the whole
  // stage.
  static constexpr int lowest_shift = Width::lowest_first_shift();
  static constexpr int shift_span = Width::highest_first_shift() - lowest_shift + 1;
  static constexpr int shift_pitch = Width::shift_period < shift_span ? Width::shift_period : shift_span;
  static constexpr int window =
      phases_on_lanes ? Tile::chunk_taps * Tile::phases : shift_span + (Tile::chunk_taps - 1) * shift_pitch;

  // A thread loads its weights of so many column phases together: few channels alone make no wide load.
  static constexpr int phases_at_once = !phases_on_lanes && Tile::channels < 4 ? Tile::phases : 1;
  static constexpr int tap_items = block_phases * Tile::channels;
  static constexpr int row_items = Tile::chunk_channels * Tile::chunk_taps * tap_items;
  static constexpr int weight_items = Tile::chunk_rows * row_items;
  // The exchange buffer of a warp holds [channel][row][column]. An even stride would put lanes into the same banks: one
  // word in 33 is left out then.
  static constexpr int exchange_pitch = 32 + (Width::stride % 2 == 0 ? 1 : 0);
  static constexpr int exchange_steps = Tile::positions * Width::stride;  // of 32 items, for one channel
  static constexpr int exchange_channel_items = exchange_steps * exchange_pitch;
  static constexpr int exchange_steps_at_once = largest_divisor(exchange_steps, 10);
  // So many channels at once that loads from shared memory do not wait for each other.
  static constexpr int exchange_channels = largest_divisor(Tile::channels, ceil_div(16, exchange_steps));
  static constexpr int exchange_items = exchange ? threads / 32 * exchange_channels * exchange_channel_items : 0;
  // The exchange takes the place of the weights unless they stay.
  static constexpr int exchange_start = resident ? weight_items : 0;
  static constexpr int shared_bytes =
      static_cast<int>(sizeof(Accumulator)) * (resident                        ? weight_items + exchange_items
                                               : weight_items > exchange_items ? weight_items
                                                                               : exchange_items);

  static_assert(Tile::origin >= 0 && Tile::origin <= Layer::Width::padding && Tile::origin < Layer::Width::stride,
                "the origin is what padding cut off of the first position");
  static_assert(Tile::chunk_channels % Tile::unroll == 0, "a stage is whole groups of input channels");
  static_assert(resident || Tile::chunk_rows == 1, "stages hold one row tap or all weights");
  static_assert(threads % 32 == 0, "a block is whole warps");
  static_assert(Tile::phase_lanes == 1 || Tile::phase_lanes == 32, "phases lie in registers or across a warp");
  static_assert(phases_on_lanes ? Tile::columns == 1 : Tile::position_lanes % 32 == 0 && 32 % Tile::columns == 0,
                "a warp shares its output channels");
  static_assert(phases_on_lanes || Tile::phases == Width::phases_with_taps, "a thread owns every column phase");
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
  using Width = typename Shape::Width;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Shape::weight_items; i += Shape::threads) {
    const int tile_channel = i % Tile::channels, slot = i / Tile::channels % Shape::block_phases;
    const int rest = i / Shape::tap_items;
    const int tap_number = first_tap_number + rest % Tile::chunk_taps;
    const int in_channel = first_channel + rest / Tile::chunk_taps % Tile::chunk_channels;
    const int out_channel = part.first_channel + tile_channel;

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

// Where a thread's run lies: the position of its first lane's worth of columns. The others follow `columns` apart.
struct DirectRun {
  int sample;  // -1: no such row
  int depth, height, width;
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

  TCONV_DEVICE typename DirectShape<Layer, Tile>::Accumulator with_bias(
      int a, int p, int c, const typename DirectShape<Layer, Tile>::Accumulator (&biases)[Tile::channels]) const {
    return Layer::has_bias ? values[a][p][c] + biases[c] : values[a][p][c];
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

// Where a tap finds its input in a thread's window, and how far to the left of its position it lies. With phases in
// registers all this is known to the compiler, and neighbouring phases and taps share inputs.
template <class Layer, class Tile>
TCONV_DEVICE int direct_slot(int a, int tap_number, int first_shift) {
  using Shape = DirectShape<Layer, Tile>;
  return Shape::phases_on_lanes ? tap_number * Tile::phases + a
                                : first_shift - Shape::lowest_shift + tap_number * Shape::shift_pitch;
}

// The inputs that a thread needs for one row tap and one stage of taps, of a group of input channels.
template <class Layer, class Tile>
struct DirectInputs {
  typename DirectShape<Layer, Tile>::Accumulator values[Tile::unroll][DirectShape<Layer, Tile>::window]
                                                       [Tile::positions];

  // `row` is the first channel's input at the thread's first position, which has number `column` in its row of
  // `columns`, 0 for a row outside the input. There are `channels` channels.
  TCONV_DEVICE void load(const typename Layer::Element* row, int column, int columns, typename Layer::Index plane,
                         int channels, const int (&first_taps)[Tile::phases], const int (&first_shifts)[Tile::phases],
                         int tap_chunk) {
    using Shape = DirectShape<Layer, Tile>;
    using Width = typename Shape::Width;
    bool loaded[Shape::window] = {};
#pragma unroll
    for (int j = 0; j < Tile::chunk_taps; ++j)
#pragma unroll
      for (int a = 0; a < Tile::phases; ++a) {
        const long long tap = first_taps[a] + static_cast<long long>(tap_chunk + j) * Width::tap_period;
        const int slot = direct_slot<Layer, Tile>(a, j, first_shifts[a]);
        const bool has_tap = first_taps[a] < Width::kernel && tap < Width::kernel;
        if ((!Shape::phases_on_lanes && Shape::all_taps && !has_tap) || loaded[slot]) continue;
        loaded[slot] = true;
        const int shift = first_shifts[a] + j * Width::shift_period;
#pragma unroll
        for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
          for (int p = 0; p < Tile::positions; ++p) {
            // Only the load is conditional: that is a predicate, more would be a branch, and loads would wait in turn.
            typename Layer::Element input{};
            if (in_range(column - shift + p * Tile::columns, columns) &&
                (Layer::in_channels % Tile::unroll == 0 || k < channels) && (!Shape::phases_on_lanes || has_tap))
              input = load_constant(row + k * static_cast<long long>(plane) + (p * Tile::columns - shift));
            values[k][slot][p] = operand<Layer::rounding>(to_accumulator(input));
          }
      }
  }
};

// Adds the products of one row tap and one stage: `channels` input channels. Inputs as `DirectInputs::load` takes them.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_multiply(const Accumulator* own_weights, const typename Layer::Element* row, int column,
                                  int columns, typename Layer::Index plane, int channels,
                                  const int (&first_taps)[Tile::phases], const int (&first_shifts)[Tile::phases],
                                  int tap_chunk, DirectSums<Layer, Tile>& all_sums) {
  using Shape = DirectShape<Layer, Tile>;
  using Width = typename Shape::Width;
  if (!Shape::all_taps) {
    row -= static_cast<long long>(tap_chunk) * Width::shift_period;
    column -= tap_chunk * Width::shift_period;
  }
  for (int chain = 0; chain < channels; chain += Shape::chain_channels) {
    DirectSums<Layer, Tile> chain_sums;
    DirectSums<Layer, Tile>& sums = Shape::chained ? chain_sums : all_sums;
    if (Shape::chained) sums.clear();
    const int end = chain + Shape::chain_channels < channels ? chain + Shape::chain_channels : channels;
#pragma unroll 1
    for (int group = chain; group < end; group += Tile::unroll) {
      DirectInputs<Layer, Tile> inputs;
      inputs.load(row, column, columns, plane, channels - group, first_taps, first_shifts, tap_chunk);
      row += Tile::unroll * static_cast<long long>(plane);
#pragma unroll
      for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
        for (int j = 0; j < Tile::chunk_taps; ++j) {
          const Accumulator* const tap_weights = own_weights + (k * Tile::chunk_taps + j) * Shape::tap_items;
          Accumulator weights[Shape::phases_at_once * Tile::channels];
#pragma unroll
          for (int a = 0; a < Tile::phases; ++a) {
            const long long tap = first_taps[a] + static_cast<long long>(tap_chunk + j) * Width::tap_period;
            if (first_taps[a] >= Width::kernel || tap >= Width::kernel) continue;
            const int slot = direct_slot<Layer, Tile>(a, j, first_shifts[a]);
            if (a % Shape::phases_at_once == 0)
              load_shared(tap_weights + a * Tile::phase_lanes * Tile::channels, weights);
            const int first_weight = a % Shape::phases_at_once * Tile::channels;
#pragma unroll
            for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
              for (int c = 0; c < Tile::channels; ++c)
                sums.values[a][p][c] =
                    multiply_add(inputs.values[k][slot][p], weights[first_weight + c], sums.values[a][p][c]);
          }
        }
      own_weights += Tile::unroll * Tile::chunk_taps * Shape::tap_items;
    }
    if (Shape::chained) all_sums.add(sums);
  }
}

// What a thread stores: of its first position, the outputs from column `column` on, in the rows that start at `row` of
// its first channel's plane; -1 for a row outside the output.
template <class Element>
struct DirectTarget {
  Element* y;
  long long row, plane;
  int column, width, channels;
};

// Stores each position's column phases as one vector. Their width divides that of the output.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_store_vectors(const DirectSums<Layer, Tile>& sums, const Accumulator (&biases)[Tile::channels],
                                       const DirectTarget<typename Layer::Element>& target) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
  using Wide = Vector<Element, Shape::vector>;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    if (!Shape::whole_channels && c >= target.channels) break;
    Element* const row = target.y + (target.row + c * target.plane + target.column);
#pragma unroll
    for (int p = 0; p < Tile::positions; ++p) {
      Wide values;
#pragma unroll
      for (int phase = 0; phase < Shape::vector; ++phase) {
        const int tap = Width::first_tap(phase);
        values.values[phase] =
            from_accumulator<Element>(tap < Width::kernel ? sums.with_bias(tap, p, c, biases) : biases[c]);
      }
      constexpr int step = Tile::columns * Width::stride;
      if (target.row >= 0 && target.column + p * step < target.width) *reinterpret_cast<Wide*>(row + p * step) = values;
    }
  }
}

// Stores a warp's results as whole runs, by way of its `buffer` in shared memory, or only the bias of a row phase that
// has no taps. Called by whole warps.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_store_exchanged(const DirectSums<Layer, Tile>& sums,
                                         const Accumulator (&biases)[Tile::channels],
                                         const DirectTarget<typename Layer::Element>& target, bool has_taps,
                                         Accumulator* buffer) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
  constexpr int steps = Shape::exchange_steps, at_once = Shape::exchange_steps_at_once;
  constexpr int run = Shape::run_columns * Width::stride;  // outputs of a run in one row
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int run_column = __shfl_sync(0xffffffffu, target.column, 0);
  const int own_item = lane / Tile::columns * run + lane % Tile::columns * Width::stride;
#pragma unroll
  for (int first = 0; first < Tile::channels; first += Shape::exchange_channels) {
    if (has_taps) {
      __syncwarp();
#pragma unroll
      for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
        for (int phase = 0; phase < Width::stride; ++phase) {
          const int tap = Width::first_tap(phase);
          const int item = own_item + p * Tile::columns * Width::stride + phase;
          Accumulator* const place = buffer + item / 32 * Shape::exchange_pitch + item % 32;
#pragma unroll
          for (int c = 0; c < Shape::exchange_channels; ++c)
            place[c * Shape::exchange_channel_items] =
                tap < Width::kernel ? sums.with_bias(tap, p, first + c, biases) : biases[first + c];
        }
      __syncwarp();
    }
#pragma unroll
    for (int c = first; c < first + Shape::exchange_channels; ++c) {
      if (!Shape::whole_channels && c >= target.channels) break;
      // Where all rows are one, stores differ by constants from here.
      const long long place = kept((Shape::run_rows == 1 ? target.row : 0) + c * target.plane + (run_column + lane));
#pragma unroll
      for (int first_step = 0; first_step < steps; first_step += at_once) {
        // All loads before all stores, and only the stores conditional: otherwise each would wait for its load.
        Accumulator values[at_once];
#pragma unroll
        for (int s = 0; s < at_once; ++s) values[s] = biases[c];
        if (has_taps) {
#pragma unroll
          for (int s = 0; s < at_once; ++s)
            values[s] =
                buffer[(c - first) * Shape::exchange_channel_items + (first_step + s) * Shape::exchange_pitch + lane];
        }
#pragma unroll
        for (int s = 0; s < at_once; ++s) {
          const int item = (first_step + s) * 32 + lane;
          long long row = target.row, offset = 0;  // from `place`
          int column = run_column + item;
          if (Shape::run_rows > 1) {
            const int row_of_run = item / run;
            row = __shfl_sync(0xffffffffu, target.row, row_of_run * Tile::columns % 32);
            offset = row - row_of_run * run;
            column -= row_of_run * run;
          }
          if (row >= 0 && in_range(column, target.width))
            target.y[place + offset + (first_step + s) * 32] = from_accumulator<Element>(values[s]);
        }
      }
    }
  }
}

// Stores results whose column phases do not interleave in a thread: stride 1, or phases across the lanes.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_store_single(const DirectSums<Layer, Tile>& sums, const Accumulator (&biases)[Tile::channels],
                                      const DirectTarget<typename Layer::Element>& target, int first_phase) {
  using Shape = DirectShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Width = typename Shape::Width;
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    if (!Shape::whole_channels && c >= target.channels) break;
    Element* const row = target.y + (target.row + c * target.plane);
#pragma unroll
    for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
      for (int a = 0; a < Tile::phases; ++a) {
        const int phase = first_phase + a * Tile::phase_lanes;
        const int column = target.column + p * Tile::columns * Width::stride + phase;
        if (target.row >= 0 && phase < Width::stride && in_range(column, target.width))
          row[column] = from_accumulator<Element>(sums.with_bias(a, p, c, biases));
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
  using Width = typename Shape::Width;
  constexpr int CI = Layer::in_channels, CO = Layer::out_channels;  // of one group

  // The unused axes of 1-D and 2-D layers disappear here.
  if (Layer::spatial_dims < 3) input_depth = output_depth = 1;
  if (Layer::spatial_dims < 2) input_height = output_height = 1;

  TCONV_SHARED(shared);
  Accumulator* const staged = reinterpret_cast<Accumulator*>(shared);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int phase_lane = thread % Tile::phase_lanes;
  const int position_lane = thread / Tile::phase_lanes;
  const int row_lane = Shape::phases_on_lanes ? 0 : lane / Tile::columns;
  const int column_lane = Shape::phases_on_lanes ? 0 : lane % Tile::columns;

  // Blocks that read the same inputs are neighbours in the grid, so that they meet in the L2 cache.
  const int number_in_grid = static_cast<int>(blockIdx.x % Shape::parts / Shape::grid_row_phases);
  const DirectPart part = {
      number_in_grid / (Shape::column_chunks * Shape::channel_blocks),
      number_in_grid / Shape::column_chunks % Shape::channel_blocks * Tile::channels,
      number_in_grid % Shape::column_chunks * Shape::block_phases,
  };
  const int first_row_phase = static_cast<int>(blockIdx.x % Shape::grid_row_phases);
  const int end_row_phase = Shape::resident ? static_cast<int>(Shape::row_phases) : first_row_phase + 1;
  const int own_channel = part.first_channel;
  const Accumulator* const own_weights = staged + phase_lane * Tile::channels;

  const Index input_plane = static_cast<Index>(input_depth) * input_height * input_width;
  const Index output_plane = static_cast<Index>(output_depth) * output_height * output_width;
  const Index depths = Depth::positions(output_depth), heights = Height::positions(output_height);
  const Index rows = batch * depths * heights;
  const Index runs_a_row = (Width::positions(output_width + Tile::origin) - 1) / Shape::run_columns + 1;
  const Index runs = ((rows - 1) / Shape::run_rows + 1) * runs_a_row;

  Accumulator biases[Tile::channels];
#pragma unroll
  for (int c = 0; c < Tile::channels; ++c) {
    biases[c] = 0;
    if (Layer::has_bias && own_channel + c < CO)
      biases[c] = to_accumulator(load_constant(bias + part.group * CO + own_channel + c));
  }

  // Column phases of this thread, by their first taps. With phases in registers these are constants.
  int first_taps[Tile::phases], first_shifts[Tile::phases];
#pragma unroll
  for (int a = 0; a < Tile::phases; ++a) {
    const int phase = part.first_phase + a * Tile::phase_lanes + phase_lane;
    first_taps[a] = !Shape::phases_on_lanes ? a : phase < Width::stride ? Width::first_tap(phase) : Width::kernel;
    first_shifts[a] = Width::shift_of(first_taps[a]);
  }

  if (Shape::resident) {
    direct_stage<Layer, Tile>(part, weight, staged, 0, 0, 0);
    __syncthreads();
  }
  Accumulator* const buffer =
      staged + Shape::exchange_start + thread / 32 * Shape::exchange_channels * Shape::exchange_channel_items;
  const bool in_vectors = Shape::vector > 1 && output_width % Shape::vector == 0;

  const Index run_stride = static_cast<Index>(gridDim.x / Shape::parts) * Shape::block_runs;
  for (Index first_run = static_cast<Index>(blockIdx.x / Shape::parts) * Shape::block_runs; first_run < runs;
       first_run += run_stride) {
    const Index run = first_run + position_lane * Tile::phase_lanes / 32;
    const Index row_group = run / runs_a_row, row_number = row_group * Shape::run_rows + row_lane;
    const Index slab_number = row_number / heights, sample = slab_number / depths;
    const DirectRun at = {
        run < runs && row_number < rows ? static_cast<int>(sample) : -1,
        static_cast<int>(slab_number - sample * depths),
        static_cast<int>(row_number - slab_number * heights),
        static_cast<int>(run - row_group * runs_a_row) * Shape::run_columns + column_lane,
    };

    for (int row_phase = first_row_phase; row_phase < end_row_phase; ++row_phase) {
      const int depth_phase = row_phase / Height::stride, height_phase = row_phase % Height::stride;
      const int first_depth_tap = Depth::first_tap(depth_phase), first_height_tap = Height::first_tap(height_phase);
      const bool has_taps = first_depth_tap < Depth::kernel && first_height_tap < Height::kernel;
      DirectSums<Layer, Tile> sums;
      sums.clear();

      for (int depth_tap = first_depth_tap; depth_tap < Depth::kernel; depth_tap += Depth::tap_period)
        for (int height_tap = first_height_tap; height_tap < Height::kernel; height_tap += Height::tap_period) {
          const int weight_row = depth_tap * Height::kernel + height_tap;
          const int slab = at.depth - Depth::shift_of(depth_tap), row = at.height - Height::shift_of(height_tap);
          const bool inside = at.sample >= 0 && slab >= 0 && slab < input_depth && row >= 0 && row < input_height;
          for (int channel_chunk = 0; channel_chunk < CI; channel_chunk += Tile::chunk_channels)
            for (int tap_chunk = 0; tap_chunk < Width::taps_per_phase; tap_chunk += Tile::chunk_taps) {
              if (!Shape::resident) {
                __syncthreads();
                direct_stage<Layer, Tile>(part, weight, staged, weight_row, channel_chunk, tap_chunk);
                __syncthreads();
              }
              const int channels =
                  CI - channel_chunk < Tile::chunk_channels ? CI - channel_chunk : Tile::chunk_channels;
              const long long plane =
                  (static_cast<long long>(at.sample) * Layer::groups + part.group) * CI + channel_chunk;
              const Element* const input =
                  x + (inside ? ((plane * input_depth + slab) * input_height + row) * input_width : 0) + at.width;
              const int input_columns = inside ? input_width : 0;
              const Accumulator* const row_weights =
                  own_weights + (Shape::resident ? weight_row * Shape::row_items : 0);
              direct_multiply<Layer, Tile>(row_weights, input, at.width, input_columns, input_plane, channels,
                                           first_taps, first_shifts, tap_chunk, sums);
            }
        }

      const int slab = at.depth * Depth::stride + depth_phase, row = at.height * Height::stride + height_phase;
      const long long plane = (static_cast<long long>(at.sample) * Layer::groups + part.group) * CO + own_channel;
      const bool inside = at.sample >= 0 && slab < output_depth && row < output_height;
      const DirectTarget<Element> target = {
          y,
          inside ? ((plane * output_depth + slab) * output_height + row) * output_width : -1,
          static_cast<long long>(output_plane),
          at.width * Width::stride - Tile::origin,
          output_width,
          CO - own_channel,
      };
      if (!Shape::exchange) {
        direct_store_single<Layer, Tile>(sums, biases, target, part.first_phase + phase_lane);
      } else if (in_vectors) {
        direct_store_vectors<Layer, Tile>(sums, biases, target);
      } else {
        if (!Shape::resident) __syncthreads();  // the weights have been read
        direct_store_exchanged<Layer, Tile>(sums, biases, target, has_taps, buffer);
      }
    }
  }
}

}  // namespace tconv
