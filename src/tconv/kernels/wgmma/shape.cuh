// wgmma: the constants of a kernel, which follow from its layer and its tile. `wgmma.cuh` has the picture. The planner
// repeats the formulas of sizes and grids.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/elements.cuh"

namespace tconv {

// How many of the threads that load inputs share the patches of a channel; the others have other channels. The number
// for which a thread has the fewest copies, of at most eight patches.
TCONV_CONSTANT int wgmma_patch_lanes(int threads, int patches, int channels) {
  int best = threads;
  for (int lanes = threads; lanes >= 8; --lanes)
    if (threads % lanes == 0 && ceil_div(patches, lanes) <= 8 &&
        ceil_div(patches, lanes) * ceil_div(channels, threads / lanes) <
            ceil_div(patches, best) * ceil_div(channels, threads / best))
      best = lanes;
  return best;
}

// The kinds of blocks, by the phases that a block has. At a shift, a phase of an `all_phases` or `row_phases` block may
// have no tap: the compiler leaves the product out.
//
//                phases of a block                a visit is                              a product has
//   uniform      some; every phase of the layer   one shift                               all phases of the block
//                has a tap at every shift
//   all_phases   all of the layer                 one shift                               one phase
//   row_phases   one along depth and height, all  one tap along depth and height, at      one phase along the width
//                along the width                  one shift along the width
//   one_phase    one                              one tap                                 the phase
enum class WgmmaKind { uniform, all_phases, row_phases, one_phase };

template <class Layer, class Tile>
struct WgmmaShape {
  using Element = typename Layer::Element;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  using DepthShifts = Shifts<Depth>;
  using HeightShifts = Shifts<Height>;
  using WidthShifts = Shifts<Width>;

  // ---- products: of 64 positions and some rows of weights, over a step of 32 bytes of channels ----
  static constexpr int item_bytes = static_cast<int>(sizeof(Element));
  static constexpr int vector_items = 16 / item_bytes, step_channels = 32 / item_bytes;

  // Exact float32 splits each factor into two planes: its rounding to TF32, and the rest. It adds three products.
  static constexpr bool exact = item_bytes == 4 && Layer::rounding == Rounding::none;
  static constexpr int planes = exact ? 2 : 1;

  // ---- threads: two warpgroups multiply; of a third one warp loads weights, the others inputs ----
  static constexpr int consumers = 2, threads = 128 * (consumers + 1), loaders = 96;

  // ---- rows: output channels of some phases ----
  static constexpr int phases = Depth::stride * Height::stride * Width::stride;
  static constexpr int phase_sets = phases / Tile::phases;
  static constexpr int channel_blocks = ceil_div(Layer::group_out_channels, Tile::channels);
  static constexpr int row_blocks = channel_blocks * phase_sets;
  static constexpr int weight_sets = Layer::groups * row_blocks;
  static constexpr bool whole_channels = Layer::group_out_channels % Tile::channels == 0;  // in every block

  // ---- shifts ----
  static constexpr int shifts = DepthShifts::count * HeightShifts::count * WidthShifts::count;
  static constexpr int taps = Depth::kernel * Height::kernel * Width::kernel;
  static constexpr WgmmaKind kind = static_cast<long long>(phases) * shifts == taps ? WgmmaKind::uniform
                                    : Tile::phases == phases                        ? WgmmaKind::all_phases
                                    : Tile::phases == 1                             ? WgmmaKind::one_phase
                                                                                    : WgmmaKind::row_phases;
  // Whether a block has one phase along depth and height. It goes through the taps of that phase.
  static constexpr bool one_row_phase = kind == WgmmaKind::row_phases || kind == WgmmaKind::one_phase;
  // Whether some blocks have no tap at all, because their phase has none. Their outputs are the bias.
  static constexpr bool some_without_taps =
      one_row_phase && (Depth::phases_with_taps < Depth::stride || Height::phases_with_taps < Height::stride ||
                        (kind == WgmmaKind::one_phase && Width::phases_with_taps < Width::stride));
  // Whether every product has a tap at each visit. If not, a product has one phase, and `has_tap` says whether this
  // phase has a tap. Products count the block's phases.
  static constexpr bool every_tap = kind == WgmmaKind::uniform || kind == WgmmaKind::one_phase;
  static TCONV_CONSTANT bool has_tap(int product, int depth, int row, int column) {
    return (one_row_phase || (DepthShifts::tap(product / (Height::stride * Width::stride), depth) >= 0 &&
                              HeightShifts::tap(product / Width::stride % Height::stride, row) >= 0)) &&
           WidthShifts::tap(product % Width::stride, column) >= 0;
  }
  // Whether a block has phases along depth and height with taps, and some without; and whether one of its phases has.
  static constexpr bool some_rows_without_taps =
      kind == WgmmaKind::all_phases &&
      (Depth::phases_with_taps < Depth::stride || Height::phases_with_taps < Height::stride);
  static TCONV_CONSTANT bool row_has_taps(int phase) {
    return !some_rows_without_taps || (Depth::taps(phase / (Height::stride * Width::stride)) > 0 &&
                                       Height::taps(phase / Width::stride % Height::stride) > 0);
  }
  // Lanes of a team that stores rows of outputs without taps: about as many as a row has vectors, and no fewer than a
  // vector has outputs; smaller teams were not measured. Other teams of a warp have other channels.
  static TCONV_CONSTANT int team_lanes() {
    const int stores = Tile::phases % Width::stride == 0
                           ? ceil_div(Tile::BlockTile::columns * Width::stride, vector_items)
                           : Tile::BlockTile::columns;
    int lanes = vector_items;
    while (lanes < 32 && lanes < stores) lanes *= 2;
    return lanes;
  }
  static constexpr int row_lanes = team_lanes();
  static constexpr int product_phases = kind == WgmmaKind::uniform ? Tile::phases : 1;
  static constexpr int products = Tile::phases / product_phases;
  static constexpr int product_rows = product_phases * Tile::channels;
  // A bit for each product whose phases ever have a tap. It has accumulators. Other outputs are made from 0.
  static TCONV_CONSTANT unsigned products_with_taps() {
    unsigned found = 0;
    for (int product = 0; product < products; ++product)
      if (every_tap || (row_has_taps(product) && Width::taps(product % Width::stride) > 0)) found |= 1u << product;
    return found;
  }
  static constexpr unsigned accumulated = products_with_taps();
  static constexpr int accumulated_products = bit_count(accumulated);
  static constexpr bool all_accumulated = accumulated_products == products;
  static TCONV_CONSTANT bool has_accumulators(int product) {
    return all_accumulated || (accumulated >> product & 1u) != 0;
  }
  // How many products before this one have accumulators.
  static TCONV_CONSTANT int accumulators_before(int product) {
    return all_accumulated ? product : bit_count(accumulated & ((1u << product) - 1));
  }
  // Taps along depth and height, of the phase that has the most.
  static constexpr int row_phase_taps = Depth::taps_per_phase * Height::taps_per_phase;
  // Visits of a block in a k-tile. A block with one phase on an axis may have fewer.
  static constexpr int visits = kind == WgmmaKind::row_phases  ? row_phase_taps * WidthShifts::count
                                : kind == WgmmaKind::one_phase ? row_phase_taps * Width::taps_per_phase
                                                               : shifts;
  // Where tiles are stacked along the rows, fragments that were loaded once serve all shifts along the height.
  static constexpr int row_visits = Tile::stacked ? HeightShifts::count : 1;
  static constexpr int fragments = Tile::position_tiles + row_visits - 1;
  // Steps of a batch: their products are begun together. A thread has registers for the fragments of two batches.
  // Exact accumulators leave the tensor core after each batch, which adds at most 32 channels over its `row_visits`.
  static constexpr int exact_steps = row_visits > 2 ? 1 : 4 / row_visits;
  static constexpr int batch_steps = exact ? exact_steps < Tile::k_tile_steps ? exact_steps : Tile::k_tile_steps
                                     : Tile::k_tile_steps == 4 && 2 * fragments <= 6 ? 2
                                                                                    : 1;
  static constexpr int batches = exact ? 1 : 2;  // that have fragments in registers

  // ---- channels ----
  static constexpr int k_tile_bytes = Tile::k_tile_steps * 32, k_tile_channels = k_tile_bytes / item_bytes;
  static constexpr int k_tiles = ceil_div(Layer::group_in_channels, k_tile_channels);
  static constexpr bool whole_k_tiles = Layer::group_in_channels % k_tile_channels == 0;

  // ---- positions: a block tile of images, slabs, rows and columns, and the inputs around it ----
  static constexpr int position_numbers = 64 * consumers;  // of a tile of positions, over both warpgroups
  static constexpr int block_positions = position_numbers * Tile::position_tiles;
  static constexpr int block_tile_positions =
      Tile::BlockTile::images * Tile::BlockTile::depths * Tile::BlockTile::rows * Tile::BlockTile::columns;
  static constexpr int stacked_rows =
      Tile::stacked ? Tile::BlockTile::rows / Tile::position_tiles : Tile::BlockTile::rows;
  // A block with one phase on an axis reads less: the halo is as large as the phase with the most taps needs.
  template <class Axis, bool one_phase>
  static constexpr int halo = one_phase ? (Axis::taps_per_phase - 1) * Axis::shift_period : Shifts<Axis>::halo;
  static constexpr int halo_depths = Tile::BlockTile::depths + halo<Depth, one_row_phase>;
  static constexpr int halo_rows = Tile::BlockTile::rows + halo<Height, one_row_phase>;
  static constexpr int halo_columns = Tile::BlockTile::columns + halo<Width, kind == WgmmaKind::one_phase>;
  static constexpr int halo_all_rows = Tile::BlockTile::images * halo_depths * halo_rows;

  // ---- inputs: four ways from global memory to a stage ----
  //
  //   flag         in global memory                   on their way     in a stage
  //   by_channel   channel by channel                 copied           the same
  //   transposed   channel by channel, 16 bits        raw stages       the channels of a place together
  //   by_place     the channels of a place together   copied           the same
  //   none         the same, but no whole vectors     registers        the same
  static constexpr bool inputs_last = Tile::channels_last || Tile::prepared_inputs;
  // 16 bits, and all taps read the same column, at a multiple of eight: eight columns of a channel are a row of
  // ldmatrix, which transposes them.
  static constexpr bool straight = !inputs_last && item_bytes == 2 && Tile::patch_columns == 8 &&
                                   WidthShifts::count == 1 && WidthShifts::highest % 8 == 0;
  static constexpr bool by_channel = !inputs_last && (item_bytes == 4 || straight);
  // Other contiguous 16-bit inputs are transposed from a raw copy, because one copy takes at least four bytes.
  static constexpr bool transposed = !inputs_last && item_bytes == 2 && !straight;
  // Rows begin anywhere: patches are the 16 bytes at multiples of 16 that hold a part of a row of the halo.
  static constexpr bool unaligned = transposed && Tile::patch_columns == 1;
  static constexpr bool by_place = inputs_last && Layer::group_in_channels % vector_items == 0;
  // Whether blocks go through one group after the other: the L2 cache may not hold the weights of all. Not where they
  // keep their weights, nor where groups share lines of the cache, of 128 bytes.
  static constexpr bool group_by_group = Layer::groups > 1 && !Tile::resident &&
                                         (!inputs_last || Layer::group_in_channels * item_bytes >= 128);
  // How many columns of a row's first patch come before the halo's first column. `highest` is the highest shift along
  // the width of the block's phases. The second function: the most such columns and halo together.
  static TCONV_CONSTANT int patch_lead(int highest) {
    return (-highest % Tile::patch_columns + Tile::patch_columns) % Tile::patch_columns;
  }
  static TCONV_CONSTANT int lead_and_halo() {
    if (kind != WgmmaKind::one_phase) return patch_lead(WidthShifts::highest) + WidthShifts::halo;
    int most = 0;
    for (int phase = 0; phase < Width::stride; ++phase) {
      const int taps = Width::taps(phase),
                highest = Width::shift_of(Width::first_tap(phase)) + (taps - 1) * Width::shift_period;
      const int together = patch_lead(highest) + (taps - 1) * Width::shift_period;
      if (taps > 0 && together > most) most = together;
    }
    return most;
  }
  // Eight columns are transposed at once. In an unaligned row, up to seven columns come before the halo's first one.
  static constexpr int columns_loaded = transposed ? 8 : Tile::patch_columns;
  static constexpr int row_patches = unaligned ? ceil_div(halo_columns + 7, 8)
                                               : ceil_div(Tile::BlockTile::columns + lead_and_halo(), columns_loaded) *
                                                     (columns_loaded / Tile::patch_columns);
  static constexpr int patch_bytes = unaligned ? 16 : Tile::patch_columns * item_bytes;
  static constexpr int halo_patches = halo_all_rows * row_patches;
  // A row's places in a stage. Whole patches also have places before the halo's first column.
  static constexpr bool whole_patches = by_channel || (transposed && !unaligned);
  static TCONV_CONSTANT int row_lead(int highest) { return whole_patches ? patch_lead(highest) : 0; }
  static constexpr int row_places = whole_patches ? row_patches * Tile::patch_columns : halo_columns;
  // Registers of a thread that multiplies, and of a thread that loads: a multiprocessor has 65,536.
  static constexpr int consumer_registers = by_place ? 216 : 208;
  static constexpr int producer_registers = 504 - 2 * consumer_registers;
  // In different banks are: four channels of eight neighbouring 32-bit places; eight channels of eight neighbouring
  // 16-bit places; vectors of eight neighbouring places, where the channels of a place lie together.
  static constexpr int channel_shift = item_bytes == 2 ? 16 : 32;
  static constexpr int channel_bytes =
      by_channel || transposed ? (halo_patches * patch_bytes + 127 - channel_shift) / 128 * 128 + channel_shift
                           : item_bytes;
  static constexpr int place_bytes = by_channel ? item_bytes : k_tile_bytes + 16;
  static constexpr int input_stage_bytes =
      by_channel ? k_tile_channels * channel_bytes : halo_all_rows * row_places * place_bytes;
  static constexpr int raw_stage_bytes = transposed ? k_tile_channels * channel_bytes : 0;
  static constexpr int patch_lanes =
      by_channel || transposed ? wgmma_patch_lanes(loaders, halo_patches, k_tile_channels) : loaders;
  static constexpr int thread_patches = by_channel || transposed ? ceil_div(halo_patches, patch_lanes) : 1;
  static constexpr int thread_copies =
      thread_patches * ceil_div(k_tile_channels, loaders / patch_lanes);  // of a k-tile
  static constexpr int k_tile_vectors = k_tile_bytes / 16;

  // Where an input of the halo lies in a stage, in places. Arguments: its distances to the halo's first input, and the
  // highest shift along the width.
  static TCONV_CONSTANT int halo_offset(int depth, int row, int column, int highest) {
    return (depth * halo_rows + row) * row_places + row_lead(highest) + column;
  }

  // ---- weights: a piece has the channels of one tap in a k-tile. The pieces of a visit follow each other. Exact
  // products have all rows of plane 0 first ----
  static constexpr int piece_bytes = planes * Tile::channels * k_tile_bytes;
  static constexpr int product_bytes = product_rows * k_tile_bytes;
  static constexpr int k_tile_pieces = kind == WgmmaKind::uniform      ? shifts * Tile::phases
                                       : kind == WgmmaKind::all_phases ? taps
                                       : kind == WgmmaKind::row_phases ? row_phase_taps * Width::kernel
                                                                       : visits;
  // The most pieces of a visit.
  static constexpr int visit_pieces =
      kind == WgmmaKind::uniform      ? Tile::phases
      : kind == WgmmaKind::all_phases ? DepthShifts::most_taps * HeightShifts::most_taps * WidthShifts::most_taps
      : kind == WgmmaKind::row_phases ? WidthShifts::most_taps
                                      : 1;
  static constexpr int weight_stage_bytes = visit_pieces * piece_bytes;
  // How many pieces of an `all_phases` block's k-tile come before the pieces of a shift. Pieces follow each other by
  // shift, and at one shift by phase: on each axis that is the order of taps.
  static TCONV_CONSTANT int pieces_before(int depth, int column, int row) {
    return DepthShifts::first_tap(depth) * Width::kernel * Height::kernel +
           DepthShifts::taps(depth) * (WidthShifts::first_tap(column) * Height::kernel +
                                       WidthShifts::taps(column) * HeightShifts::first_tap(row));
  }
  static constexpr long long set_bytes = static_cast<long long>(k_tiles) * k_tile_pieces * piece_bytes;
  static constexpr long long weight_bytes = Tile::own_weights ? 0 : weight_sets * set_bytes;
  // The weights of an input channel in a block, and those of them that are loaded at once, because they are neighbours
  // in memory from a multiple of as many on.
  static constexpr int block_weights = Tile::channels * taps;
  static constexpr int weights_together =
      Layer::weights_last
          ? greatest_common_divisor(vector_items, greatest_common_divisor(Tile::channels, Layer::group_out_channels))
          : greatest_common_divisor(vector_items,
                                    greatest_common_divisor(block_weights, Layer::group_out_channels * taps));
  // A thread prepares a unit: as many vectors of input channels.
  static constexpr int block_units = k_tiles * k_tile_vectors * (block_weights / weights_together);
  static constexpr long long preparing_items =
      Tile::own_weights ? 0 : static_cast<long long>(Layer::groups) * channel_blocks * block_units;

  // ---- outputs ----
  // A warpgroup stages contiguous outputs, to store whole rows, as `staged[channel][position][phase]`: some channels of
  // a tile, with `run` phases that are neighbours in memory. Lanes that write eight positions of four channels find
  // different banks.
  static constexpr int run =
      largest_divisor(greatest_common_divisor(Tile::phases, Width::stride), item_bytes == 2 ? 16 : 12);
  // A thread has all phases of a row's position, and they are one vector: it stores them from registers.
  static constexpr bool by_runs = !Tile::channels_last && run > 1 && (run == Width::stride) && is_power_of_two(run) &&
                                  (run <= vector_items);
  // Rows of a position whose places a thread keeps meanwhile. More than eight would take the accumulators' registers.
  static constexpr int rows_together = by_runs ? largest_divisor(Tile::phases / run, 8) : 1;
  static constexpr int staged_channels = run > (item_bytes == 2 ? 3 : 2) || Tile::channels % 16 != 0 ? 8
                                         : run > 1 || Tile::channels % 32 != 0                       ? 16
                                                                                                     : 32;
  static constexpr int staged_pitch = 64 * run + 4;
  static constexpr int staged_bytes = Tile::channels_last ? 0 : staged_channels * staged_pitch * 4;

  // The most neighbouring outputs of a row that are stored at once, if rows are aligned.
  static constexpr int most_width =
      greatest_common_divisor(run == Width::stride ? Tile::BlockTile::columns * run : run, vector_items);

  // ---- shared memory: weights, inputs, raw inputs, staged outputs, offsets, barriers ----
  // Whether resident weights are packed, because visits differ in bytes. Other weights lie in their stage.
  static constexpr bool packs_weights = Tile::resident && kind == WgmmaKind::all_phases;
  static constexpr int inputs_at =
      Tile::resident ? static_cast<int>(set_bytes) : Tile::weight_stages * weight_stage_bytes;
  static constexpr int raw_at = inputs_at + Tile::input_stages * input_stage_bytes;
  static constexpr int staged_at = raw_at + Tile::raw_stages * raw_stage_bytes;
  static constexpr int offsets_at = staged_at + consumers * staged_bytes;
  static constexpr int offset_places = ceil_div(halo_all_rows * halo_columns, 8) * 8;
  static constexpr int offsets_bytes = by_place ? offset_places * static_cast<int>(sizeof(long long)) : 0;
  static constexpr int barriers_at = offsets_at + offsets_bytes;
  static constexpr int shared_bytes = barriers_at + 16 * (Tile::weight_stages + Tile::input_stages);

  // How many neighbouring channels a thread has. channels_last outputs: it stores them together.
  static constexpr int channel_width = !Tile::channels_last                           ? 2
                                       : vector_items < 4 || Tile::channels % 32 != 0 ? 4
                                                                                      : vector_items;
  // The row of a block's weights that holds a channel. A thread has two of each eight rows; rows are dealt out such
  // that a thread's channels are neighbours.
  static TCONV_CONSTANT int row_of(int channel) {
    const int in_group = channel % (4 * channel_width), own = in_group % channel_width;
    return channel - in_group + own / 2 * 8 + in_group / channel_width * 2 + own % 2;
  }

  static_assert(item_bytes <= 4, "tensor cores multiply 16-bit types and TF32");
  static_assert(!exact || row_visits <= 4, "exact accumulators leave the tensor core every 32 channels");
  static_assert(kind != WgmmaKind::row_phases || Tile::phases == Width::stride,
                "a block has all phases, one, those of a row, or some that are alike");
  static_assert(!Tile::resident || kind != WgmmaKind::row_phases, "weights of a row's phases do not stay");
  static_assert(!Tile::resident || !some_without_taps, "blocks take turns at the phases that have taps");
  static_assert(phases % Tile::phases == 0, "blocks have as many phases each");
  static_assert(products <= 32, "products have a bit each");
  static_assert(Tile::channels % (4 * channel_width) == 0, "a thread has whole vectors of channels");
  static_assert(Tile::k_tile_steps == 2 || Tile::k_tile_steps == 4, "rows of weights have 64 or 128 bytes");
  static_assert(block_tile_positions <= block_positions, "a block tile is at most what a block multiplies");
  static_assert(!Tile::stacked || (kind == WgmmaKind::uniform && Height::stride == 1 && HeightShifts::step == 1 &&
                                   Tile::BlockTile::rows % Tile::position_tiles == 0),
                "tiles are stacked where a shift along the height is another tile");
  static_assert(Tile::BlockTile::images * Tile::BlockTile::depths * stacked_rows * Tile::BlockTile::columns <=
                    position_numbers * (Tile::stacked ? 1 : Tile::position_tiles),
                "stacked tiles have the same columns");
  static_assert(Tile::resident ? Tile::weight_stages == k_tiles * visits : Tile::weight_stages > row_visits,
                "a stage is written while others are read, or each visit has one of its own");
  static_assert(!Tile::own_weights || (Tile::resident && phase_sets == 1),
                "a block prepares its own weights where they stay, and those of all phases");
  static_assert(Tile::input_stages >= 1, "inputs come in stages");
  static_assert(Tile::patch_columns == 1 || (!inputs_last && Tile::BlockTile::columns % Tile::patch_columns == 0),
                "a patch does not cross what other blocks begin with");
  static_assert(!Tile::prepared_inputs || (by_place && !Tile::channels_last), "contiguous inputs become whole vectors");
  static_assert(transposed ? Tile::raw_stages > 0 : Tile::raw_stages == 0, "what is transposed has stages of its own");
  static_assert(thread_patches <= 8, "a thread has an offset for each of its patches");
  static_assert(weight_stage_bytes % 1024 == 0 || k_tile_bytes == 64, "rows of weights begin at multiples of eight");
};

}  // namespace tconv
