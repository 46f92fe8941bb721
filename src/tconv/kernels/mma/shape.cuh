// mma: the constants of a kernel, which follow from its layer and its tile. `mma.cuh` has the picture. The planner
// repeats the formulas of sizes and grids.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/elements.cuh"

namespace tconv {

// Bytes from one row of a staged subtile to the next. Lanes that write two neighbouring positions of neighbouring rows
// then find different banks.
TCONV_CONSTANT int mma_subtile_pitch(int position_tiles, int item_bytes, bool channels_last) {
  const int least = 8 * position_tiles * item_bytes, wanted = channels_last ? 16 : 8 * item_bytes;
  return least + (wanted - least % 128 + 128) % 128;
}

// The shared memory that subtiles may take even if the stages take less.
constexpr int mma_subtile_least_bytes = 32 * 1024;

// The position tiles of a subtile: as many as fit and divide all.
TCONV_CONSTANT int mma_subtile_position_tiles(int all, int rows, int item_bytes, bool channels_last, int most_bytes) {
  int tiles = all;
  while (tiles > 1 && (all % tiles != 0 || rows * mma_subtile_pitch(tiles, item_bytes, channels_last) > most_bytes))
    --tiles;
  return tiles;
}

// How many threads share the patches of a channel; the others have other channels. The number for which a thread has
// the fewest loads.
TCONV_CONSTANT int mma_patch_lanes(int threads, int patches, int channels) {
  int best = threads;
  for (int lanes = threads; lanes >= 8 && threads % lanes == 0; lanes /= 2)
    if (ceil_div(patches, lanes) * ceil_div(channels, threads / lanes) <
        ceil_div(patches, best) * ceil_div(channels, threads / best))
      best = lanes;
  return best;
}

template <class Layer, class Tile>
struct MmaShape {
  using Element = typename Layer::Element;
  using Accumulator = typename AccumulatorOf<Element>::type;
  using Staged =
      typename Choice<Layer::has_program, Accumulator, Element>::type;  // outputs; a program takes accumulators
  // Position q owns the outputs from q * stride - origin on. So an axis has less padding, and its outputs are moved.
  using Depth = Axis<Layer::Depth::kernel, Layer::Depth::stride, Layer::Depth::padding - Tile::BlockTile::depth_origin,
                     Layer::Depth::dilation>;
  using Height = Axis<Layer::Height::kernel, Layer::Height::stride,
                      Layer::Height::padding - Tile::BlockTile::row_origin, Layer::Height::dilation>;
  using Width = Axis<Layer::Width::kernel, Layer::Width::stride, Layer::Width::padding - Tile::BlockTile::origin,
                     Layer::Width::dilation>;
  using DepthShifts = Shifts<Depth>;
  using HeightShifts = Shifts<Height>;
  using WidthShifts = Shifts<Width>;

  // ---- products ----
  // One instruction multiplies 16 rows by 8 positions over 32 bytes of channels. Exact float32 splits each factor into
  // two planes, its rounding to TF32 and the rest, and adds three products.
  static constexpr int item_bytes = static_cast<int>(sizeof(Element));
  static constexpr int vector_items = 16 / item_bytes;
  static constexpr int step_channels = 32 / item_bytes;
  // A lane has 16 bytes of a fragment of weights, in units that belong to one row each: a word, or the two words of a
  // double. A unit has `unit_items` numbers.
  static constexpr int unit_bytes = item_bytes > 4 ? item_bytes : 4;
  static constexpr int units = 16 / unit_bytes, unit_items = unit_bytes / item_bytes;
  static constexpr bool exact = item_bytes == 4 && Layer::rounding == Rounding::none;
  static constexpr int planes = exact ? 2 : 1;

  // ---- rows: output channels and phases ----
  static constexpr int phases = Depth::stride * Height::stride * Width::stride;
  static constexpr int tile_phases = 16 / Tile::channels;
  static constexpr int phase_tiles = ceil_div(phases, tile_phases);
  static constexpr int channel_tiles = ceil_div(Layer::group_out_channels, Tile::channels);
  static constexpr int block_row_tiles = Tile::Warps::high * Tile::Warps::row_tiles;
  static constexpr int row_blocks = ceil_div(phase_tiles * channel_tiles, block_row_tiles);
  static constexpr int weight_sets = Layer::groups * row_blocks;
  // If a warp has all phases, the compiler knows the phases of each of its row tiles.
  static constexpr bool phases_known = Tile::Warps::row_tiles % phase_tiles == 0;

  // ---- shifts ----
  static constexpr int shifts = DepthShifts::count * HeightShifts::count * WidthShifts::count;
  static constexpr int shift_groups = ceil_div(shifts, Tile::Pipeline::k_tile_shifts);
  static constexpr bool every_phase_has_every_shift =
      static_cast<long long>(phases) * shifts == static_cast<long long>(Depth::kernel) * Height::kernel * Width::kernel;

  // Exact accumulators leave the tensor core every 32 channels, counted over several shifts. They leave it sooner
  // if most channels of a step are padding: a sum of few products is large compared with each of them, so the
  // bits that the tensor core drops would show.
  static constexpr bool sums_several_shifts =
      exact && (Tile::Pipeline::k_tile_steps < 4) && (Layer::group_in_channels >= step_channels);
  static constexpr int shifts_together = sums_several_shifts ? 4 / Tile::Pipeline::k_tile_steps : 1;

  // Whether any phase of a row tile has a tap at this shift. True, unchecked, for tiles of several phases.
  static TCONV_CONSTANT bool has_taps(int shift, int phase_tile) {
    return every_phase_has_every_shift || tile_phases > 1 ||
           (DepthShifts::tap(phase_tile / (Height::stride * Width::stride),
                             shift / (HeightShifts::count * WidthShifts::count)) >= 0 &&
            HeightShifts::tap(phase_tile / Width::stride % Height::stride,
                              shift / WidthShifts::count % HeightShifts::count) >= 0 &&
            WidthShifts::tap(phase_tile % Width::stride, shift % WidthShifts::count) >= 0);
  }

  // ---- channels: a k-tile has some steps for each set of warps ----
  static constexpr int stage_steps = Tile::Pipeline::k_tile_steps * Tile::Warps::splits;
  static constexpr int k_tile_channels = stage_steps * step_channels;
  static constexpr int k_tiles = ceil_div(Layer::group_in_channels, k_tile_channels);
  static constexpr bool whole_k_tiles = Layer::group_in_channels % k_tile_channels == 0;

  // ---- positions: a block tile of images, slabs, rows and columns, and the inputs around it ----
  static constexpr int warps = Tile::Warps::high * Tile::Warps::wide;  // of one set
  static constexpr int threads = 32 * warps * Tile::Warps::splits;
  static constexpr int block_positions = Tile::Warps::wide * Tile::Warps::position_tiles * 8;
  static constexpr int block_tile_positions =
      Tile::BlockTile::images * Tile::BlockTile::depths * Tile::BlockTile::rows * Tile::BlockTile::columns;
  static constexpr int halo_depths = Tile::BlockTile::depths + DepthShifts::halo;
  static constexpr int halo_rows = Tile::BlockTile::rows + HeightShifts::halo;
  static constexpr int halo_columns = Tile::BlockTile::columns + WidthShifts::halo;
  static constexpr int halo_all_rows = Tile::BlockTile::images * halo_depths * halo_rows;
  static constexpr int halo_positions = halo_all_rows * halo_columns;

  // Patches of the halo, of some neighbouring columns. A row's first patch begins `patch_lead` columns before the halo.
  static constexpr int patch_lead =
      (-WidthShifts::highest % Tile::Pipeline::patch_columns + Tile::Pipeline::patch_columns) %
      Tile::Pipeline::patch_columns;
  static constexpr int row_patches = ceil_div(patch_lead + halo_columns, Tile::Pipeline::patch_columns);
  static constexpr int halo_patches = halo_all_rows * row_patches;

  // Copied inputs lie channel by channel in a stage, as in contiguous global memory, in whole patches. Other inputs lie
  // position by position, as ldmatrix reads them.
  static constexpr bool by_channel = Tile::Pipeline::copied > 0;
  static constexpr int row_places = by_channel ? row_patches * Tile::Pipeline::patch_columns : halo_columns;
  // A lane loads its own 32-bit or 64-bit numbers from inputs that lie channel by channel. Otherwise a warp loads
  // matrices, for two tiles of positions at once, and a lane gives the address of one row.
  static constexpr bool own_words = by_channel && item_bytes >= 4;
  static constexpr int lane_places = own_words ? Tile::Warps::position_tiles : Tile::Warps::position_tiles / 2;

  // The distance, in places, from the input at the highest shift to the input at a shift.
  static TCONV_CONSTANT int halo_offset(int shift) {
    const int depth = shift / (HeightShifts::count * WidthShifts::count);
    const int row = shift / WidthShifts::count % HeightShifts::count, column = shift % WidthShifts::count;
    return ((DepthShifts::halo - depth * DepthShifts::step) * halo_rows + HeightShifts::halo -
            row * HeightShifts::step) *
               row_places +
           WidthShifts::halo - column * WidthShifts::step;
  }

  // ---- shared memory, in bytes: stages of inputs and of weights, two where one is read while one is written ----
  // Copied inputs have more stages, because several k-tiles are in flight.
  static constexpr int input_stages = Tile::Pipeline::copied > 0               ? Tile::Pipeline::copied
                                      : k_tiles > 1 || Tile::Pipeline::resident ? 2
                                                                               : 1;
  static TCONV_CONSTANT int next_input_stage(int stage) {
    return stage == (input_stages - 1) * input_stage_bytes ? 0 : stage + input_stage_bytes;
  }
  static TCONV_CONSTANT int input_stage_before(int stage) {
    return stage == 0 ? (input_stages - 1) * input_stage_bytes : stage - input_stage_bytes;
  }
  // How many k-tiles are asked for before the first is waited for.
  static constexpr int stages_ahead = input_stages > 1 ? input_stages - 1 : 1;
  static constexpr int steps = k_tiles * shift_groups;
  static constexpr int weight_stages = Tile::Pipeline::resident ? steps : steps > 1 ? 2 : 1;
  // Neighbouring positions lie an odd number of 16-byte vectors apart: eight of them are in different banks.
  static constexpr int position_bytes = planes * stage_steps * 32 + 16;
  // Four channels of eight neighbouring places are in different banks, too, or eight channels of 16-bit types.
  static constexpr int channel_shift = item_bytes < 4 ? 16 : 32;
  static constexpr int channel_bytes =
      by_channel ? (halo_all_rows * row_places * item_bytes + 127 - channel_shift) / 128 * 128 + channel_shift
                 : item_bytes;
  static constexpr int place_bytes = by_channel ? item_bytes : position_bytes;
  static constexpr int step_bytes = by_channel ? step_channels * channel_bytes : 32;
  static constexpr int plane_bytes = stage_steps * step_bytes;
  static constexpr int input_stage_bytes = by_channel ? planes * plane_bytes : halo_all_rows * row_places * place_bytes;
  static constexpr int fragment_bytes = 512;  // 16 rows by 32 bytes of channels, as 32 lanes hold them
  static constexpr int tile_bytes = stage_steps * planes * fragment_bytes;  // of a tile of rows at one shift
  static constexpr int shift_bytes = block_row_tiles * tile_bytes;
  static constexpr int weight_stage_bytes = Tile::Pipeline::k_tile_shifts * shift_bytes;
  // The stage after the one that begins at byte `stage`; after the last one, the first.
  static TCONV_CONSTANT int next_weight_stage(int stage) {
    return stage == (weight_stages - 1) * weight_stage_bytes ? 0 : stage + weight_stage_bytes;
  }
  static constexpr int stages_bytes = input_stages * input_stage_bytes + weight_stages * weight_stage_bytes;
  // In place of the stages, the other sets of warps give their accumulators to the first set.
  static constexpr int accumulator_bytes =
      static_cast<int>(sizeof(Accumulator));  // a lane has four of a tile of rows and positions
  static constexpr int joined_bytes = (Tile::Warps::splits - 1) * warps * 32 * Tile::Warps::row_tiles *
                                      Tile::Warps::position_tiles * 4 * accumulator_bytes;

  // ---- outputs: a warp of the first set stores them in subtiles through shared memory, after joined accumulators ----
  // Row tiles of a subtile: all phases along the width of their channels, if a warp has them.
  static constexpr int whole_row_tiles = Width::stride / greatest_common_divisor(Width::stride, tile_phases);
  static constexpr int subtile_row_tiles =
      Tile::Warps::row_tiles % whole_row_tiles == 0 && phase_tiles % whole_row_tiles == 0 ? whole_row_tiles
      : phases_known                                                                      ? phase_tiles
                                                                                          : 1;
  static constexpr int subtile_slots = subtile_row_tiles * tile_phases;
  static constexpr int staged_bytes = static_cast<int>(sizeof(Staged));
  static constexpr int subtile_position_tiles = mma_subtile_position_tiles(
      Tile::Warps::position_tiles, subtile_row_tiles * 16 * warps, staged_bytes, Tile::channels_last,
      Tile::Pipeline::resident || joined_bytes + mma_subtile_least_bytes > stages_bytes ? mma_subtile_least_bytes
                                                                                     : stages_bytes - joined_bytes);
  static constexpr int subtile_pitch = mma_subtile_pitch(subtile_position_tiles, staged_bytes, Tile::channels_last);
  static constexpr int subtile_bytes = subtile_row_tiles * 16 * subtile_pitch;
  // Resident weights stay in their stages, and the next block tile's inputs in theirs.
  static constexpr int stored_at = Tile::Pipeline::resident ? stages_bytes : joined_bytes;
  static constexpr int stored_bytes = stored_at + warps * subtile_bytes;
  // After all of it, the mbarrier of weights.
  static constexpr int barrier_at = stored_bytes > stages_bytes ? stored_bytes : stages_bytes;
  static constexpr int shared_bytes = barrier_at + 16;

  // Whether loops over shifts are unrolled. A body of more products takes long to compile. Unrolled, exact partial sums
  // of several shifts would be live at the same time and need too many registers.
  static constexpr bool unrolled = !exact && static_cast<long long>(shifts) * Tile::Pipeline::k_tile_steps *
                                                     Tile::Warps::row_tiles * Tile::Warps::position_tiles <=
                                                 1024;

  // Who loads a k-tile of inputs: a thread has some patches of a vector of channels. Copied inputs: a thread has some
  // patches, which `patch_lanes` threads share, in some channels.
  static constexpr int k_tile_vectors = k_tile_channels / vector_items;
  static constexpr int patch_lanes = mma_patch_lanes(threads, halo_patches, k_tile_channels);
  static constexpr int thread_patches =
      by_channel ? ceil_div(halo_patches, patch_lanes) : ceil_div(halo_patches * k_tile_vectors, threads);
  static constexpr bool whole_vectors = Tile::channels_last && Layer::group_in_channels % vector_items == 0;
  static constexpr int thread_channels = by_channel      ? ceil_div(k_tile_channels, threads / patch_lanes)
                                         : whole_vectors ? 1
                                                         : vector_items;
  static constexpr int thread_loads = thread_patches * thread_channels;
  // A few loads are asked for in parts, between the first products of the k-tile before: fragments take the same path.
  // Many would come too late, so all are asked for at once. The same holds where shifts are a loop.
  static constexpr int input_parts =
      unrolled && thread_loads <= 16 ? ceil_div(shifts * Tile::Pipeline::k_tile_steps, 2) : 0;

  // The prepared weights: [group][block of rows][k-tile][shift][row tile][step][plane][lane] of 16 bytes. Row tiles
  // without a tap at a shift are gaps, which nobody multiplies. If Tile::gaps, nobody writes or loads them either.
  static constexpr long long block_weight_bytes = static_cast<long long>(k_tiles) * shifts * shift_bytes;
  static constexpr long long weight_bytes = weight_sets * block_weight_bytes;
  static constexpr long long weight_vectors = weight_bytes / 16;

  // Who prepares weights. Row tiles of one phase: a thread has some taps of the filters of a lane and step, also in
  // tiles that only fill up the last block. Row tiles of several phases: a thread has one vector.
  static constexpr int taps = Depth::kernel * Height::kernel * Width::kernel;
  static constexpr int prepared_channel_tiles = ceil_div(row_blocks * block_row_tiles, phase_tiles);
  static constexpr long long preparing_items = tile_phases > 1
                                                   ? weight_vectors
                                                   : static_cast<long long>(Layer::groups) * prepared_channel_tiles *
                                                         k_tiles * stage_steps * (taps / Tile::taps_together) * 32;

  static_assert(Tile::BlockTile::origin >= 0 && Tile::BlockTile::origin <= Layer::Width::padding &&
                    Tile::BlockTile::origin < Width::stride && Tile::BlockTile::row_origin >= 0 &&
                    Tile::BlockTile::row_origin <= Layer::Height::padding &&
                    Tile::BlockTile::row_origin < Height::stride && Tile::BlockTile::depth_origin >= 0 &&
                    Tile::BlockTile::depth_origin <= Layer::Depth::padding &&
                    Tile::BlockTile::depth_origin < Depth::stride,
                "an origin is what padding cut off of the first position");
  static_assert(!exact || Tile::Pipeline::k_tile_steps <= 4,
                "exact accumulators leave the tensor core every 32 channels");
  static_assert(Tile::Warps::position_tiles % 2 == 0, "matrices of two tiles of positions are loaded at once");
  static_assert(block_tile_positions <= block_positions, "a block tile is at most what a block multiplies");
  static_assert(thread_patches <= 32, "a thread has a bit for each of its patches");
  static_assert(Tile::Pipeline::patch_columns == 1 ||
                    (!Tile::channels_last && is_power_of_two(Tile::Pipeline::patch_columns) &&
                     Tile::Pipeline::patch_columns <= vector_items &&
                     Tile::BlockTile::columns % Tile::Pipeline::patch_columns == 0),
                "a patch is loaded at once, and does not cross what other blocks begin with");
  static_assert(!Tile::Pipeline::resident || (Tile::Warps::splits == 1 && shift_groups == 1),
                "resident weights have a stage for each k_tile, and nothing is joined in their place");
  static_assert(input_stages > 1 || (k_tiles == 1 && !Tile::Pipeline::resident),
                "what is read is not written at the same time");
  static_assert(!by_channel || (planes == 1 && !Tile::channels_last), "copied inputs are multiplied as they are");
  static_assert(!by_channel || item_bytes >= 4 ||
                    (WidthShifts::count == 1 && Tile::Pipeline::patch_columns == 8 && patch_lead == 0),
                "matrices of 16-bit items are transposed from eight neighbouring columns, and shifts would move them");
  static_assert(taps % Tile::taps_together == 0, "threads that prepare weights have as many taps each");
  static_assert(16 % Tile::channels == 0, "a tile of 16 rows has as many channels in each of its phases");
};

}  // namespace tconv
