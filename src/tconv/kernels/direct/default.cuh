// direct: the tile for any size of a layer, good for long rows, and how many blocks a launch has. The planner has both
// once more: `default_tile` and `grid`.
#pragma once
#include "direct/shape.cuh"

namespace tconv {

// What `direct.cuh` asks of a tile, from the layer alone.
template <class Layer>
struct DirectDefault {
  using Width = typename Layer::Width;
  using Accumulator = typename AccumulatorOf<typename Layer::Element>::type;
  static constexpr int item_bytes = static_cast<int>(sizeof(typename Layer::Element));
  static constexpr int accumulator_bytes = static_cast<int>(sizeof(Accumulator)), words = accumulator_bytes / 4;

  static TCONV_CONSTANT int least(int a, int b) { return a < b ? a : b; }
  static TCONV_CONSTANT int most(int a, int b) { return a > b ? a : b; }
  static TCONV_CONSTANT int power_of_two_up_to(int value) {
    int power = 1;
    while (2 * power <= value) power *= 2;
    return power;
  }

  // ---- who owns what: column phases in a thread's registers, or many of them across the lanes of a warp ----
  static constexpr int splits = 1, stacked = 0, rows = 1, warps_wide = 0, ahead = 0, row_origin = 0;
  static constexpr int threads = 128;
  static constexpr int phase_lanes = Width::stride > 16 ? 32 : 1;
  static constexpr int position_lanes = threads / phase_lanes, columns = phase_lanes > 1 ? 1 : 32;
  static constexpr int phases = phase_lanes > 1 ? least(2, ceil_div(Width::stride, 32)) : Width::phases_with_taps;
  static constexpr int most_sums = 32 / words, most_loads = 16;
  static constexpr int positions =
      phase_lanes > 1 ? most(1, most_loads / (2 * phases)) : most(1, least(2, most_sums / phases));
  static constexpr int channels =
      power_of_two_up_to(least(least(Layer::group_out_channels, most(1, most_sums / (phases * positions))), 16));

  // ---- where positions start: so that taps share most inputs, or, where stores matter more, at the first column ----
  static TCONV_CONSTANT int shift(int tap, int at) {
    const long long distance = static_cast<long long>(tap) * Width::dilation - Width::padding + at;
    return static_cast<int>((distance + static_cast<long long>(Width::padding) * Width::stride) / Width::stride) -
           Width::padding;
  }
  // Inputs that the phases' first taps read, and those of each further tap.
  static TCONV_CONSTANT int first_inputs(int at) {
    return phase_lanes > 1 ? phases : shift(Width::phases_with_taps - 1, at) - shift(0, at) + 1;
  }
  static TCONV_CONSTANT int further_inputs(int at) {
    return phase_lanes > 1 ? phases : least(first_inputs(at), Width::shift_period);
  }
  static TCONV_CONSTANT int inputs(int taps, int at) { return first_inputs(at) + (taps - 1) * further_inputs(at); }
  static constexpr bool is_vector = is_power_of_two(Width::stride) && (Width::stride * item_bytes <= 16);
  static TCONV_CONSTANT int best_origin() {
    int best = 0;
    const bool stores_matter = is_vector || Layer::group_in_channels == 1 || phase_lanes > 1;
    const int last = stores_matter ? 0 : least(Width::padding, Width::stride - 1);
    for (int at = 1; at <= last; ++at)
      if (inputs(Width::taps_per_phase, at) < inputs(Width::taps_per_phase, best)) best = at;
    return best;
  }
  static constexpr int origin = best_origin();

  // ---- what is asked for at once: no more inputs than hide the cache, no more products than compile quickly ----
  static constexpr int most_products = 1024, most_inputs = 32;
  static constexpr int products = positions * phases * channels;
  static constexpr int most_taps = least(phase_lanes > 1 ? 2 : most_products / products,
                                         (most_inputs / positions - first_inputs(origin)) / further_inputs(origin) + 1);
  static constexpr int chunk_taps = least(Width::taps_per_phase, most(1, most_taps));
  static constexpr int loads = inputs(chunk_taps, origin) * positions;
  // Channels, and no more than a few of them for nothing.
  static TCONV_CONSTANT int best_unroll() {
    int unroll = 1;
    while (unroll < 16 && 2 * unroll * loads <= most_loads && 2 * unroll * products * chunk_taps <= most_products &&
           ceil_div(Layer::group_in_channels, 2 * unroll) * 2 * unroll <= 1.15 * Layer::group_in_channels)
      unroll *= 2;
    return unroll;
  }
  static constexpr int unroll = best_unroll();

  // ---- weights: all of a block's in shared memory if they are few, else in stages ----
  static constexpr int row_taps = Layer::Depth::kernel * Layer::Height::kernel;
  static constexpr int groups = ceil_div(Layer::group_in_channels, unroll);
  static constexpr int padding_to = phase_lanes > 1 ? 1 : 16 / accumulator_bytes;
  static constexpr int channel_items = ceil_div(chunk_taps * phase_lanes * phases * channels, padding_to) * padding_to;
  static constexpr long long group_bytes = static_cast<long long>(channel_items) * accumulator_bytes * unroll;
  static constexpr bool can_stay = chunk_taps >= Width::taps_per_phase &&
                                   (static_cast<long long>(Layer::Depth::stride) * Layer::Height::stride <= 64);
  static constexpr bool stays = can_stay && (row_taps * groups * group_bytes <= 44 * 1024);
  static constexpr int stages = least(groups, most(1, static_cast<int>(16 * 1024 / group_bytes)));
  static constexpr int chunk_rows = stays ? row_taps : 1, chunk_channels = (stays ? groups : stages) * unroll;

  // ---- blocks of a multiprocessor, by the registers that a thread is expected to want ----
  static constexpr bool resident = can_stay && chunk_rows == row_taps && (chunk_channels >= Layer::group_in_channels);
  static constexpr bool chained = sizeof(typename Layer::Element) == sizeof(Accumulator) &&
                                  Layer::rounding == Rounding::none &&
                                  (static_cast<long long>(Layer::group_in_channels) * Layer::Depth::taps_per_phase *
                                       Layer::Height::taps_per_phase * Width::taps_per_phase >
                                   64);
  static TCONV_CONSTANT int registers() {
    double count = 33 + 1.27 * products * words * (chained ? 2 : 1);
    count = count + loads * words * unroll * 1.1;
    if (phase_lanes > 1) {
      count = count + 5 * phases;
    } else if (Width::stride > 1 && !is_vector) {
      count = count + 4;
    }
    return static_cast<int>(count + (resident ? 0 : 36) + (Layer::spatial_dims == 3 ? 17 : 0));
  }
  static TCONV_CONSTANT int register_limit(int wanted) {
    return wanted <= 48    ? 48
           : wanted <= 64  ? 64
           : wanted <= 80  ? 80
           : wanted <= 96  ? 96
           : wanted <= 128 ? 128
           : wanted <= 168 ? 168
                           : 255;
  }
  static constexpr int blocks = most(1, least(16, 64 * 1024 / (register_limit(registers()) * threads)));
};

template <class Layer>
TCONV_CONSTANT int direct_default_bytes() {
  return DirectShape<Layer, DirectDefault<Layer>>::shared_bytes;
}

// Blocks of a launch on so many multiprocessors. Those with resident weights go on to further positions: 32 for each
// multiprocessor, or as many as there are positions for.
template <class Layer>
TCONV_CONSTANT long long direct_default_blocks(long long multiprocessors, int batch, int output_depth, int output_height,
                                               int output_width) {
  using Shape = DirectShape<Layer, DirectDefault<Layer>>;
  const long long depths = (output_depth - 1) / Shape::Depth::stride + 1;
  const long long heights = (output_height - 1) / Shape::Height::stride + 1;
  const long long widths = (output_width + DirectDefault<Layer>::origin - 1) / Shape::Width::stride + 1;
  const long long in_row = (widths + Shape::run_columns - 1) / Shape::run_columns;
  const long long in_map = (batch * depths * heights + Shape::run_rows - 1) / Shape::run_rows * in_row;
  const long long blocks = (in_map + Shape::block_runs - 1) / Shape::block_runs;
  const long long at_once = 32 * multiprocessors / Shape::parts > 0 ? 32 * multiprocessors / Shape::parts : 1;
  return Shape::parts * (Shape::resident && at_once < blocks ? at_once : blocks);
}

}  // namespace tconv
