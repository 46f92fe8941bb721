// col2im_wgmma: the constants of a kernel, from its layer and its tile.
#pragma once
#include "col2im/spans.cuh"
#include "primitives/elements.cuh"
#include "primitives/warpgroups.cuh"

namespace tconv {

// Positions of a product, PTX's N: so many, or the next larger number for which there is an instruction.
TCONV_CONSTANT int product_positions(int positions) {
  if (positions <= 64 || (128 < positions && positions <= 160)) return ceil_div(positions, 16) * 16;
  return positions <= 96 ? 96 : positions <= 128 ? 128 : positions <= 192 ? 192 : positions <= 240 ? 240 : 256;
}

template <class Layer, class Tile>
struct Col2imWgmmaShape {
  using Element = typename Layer::Element;
  using Depth = Col2imSpan<typename Layer::Depth, Tile::BlockTile::depths, 1, false>;
  using Height = Col2imSpan<typename Layer::Height, Tile::BlockTile::rows, 1, false>;
  static constexpr bool resident = false;
  // Products read 16-bit items where copies put them. 32-bit ones must lie otherwise: weights go to registers, and
  // inputs are moved, but for those that were prepared. So are runs of inputs, which begin anywhere.
  static constexpr bool factors_in_stages = sizeof(Element) == 2,
                        inputs_in_stages = Tile::prepared_inputs || (factors_in_stages && !Tile::runs);
  static constexpr bool products_read_stages = factors_in_stages || inputs_in_stages;
  static constexpr int item_bytes = sizeof(Element);
  // The block's own taps and phases.
  static constexpr bool all_phases = Tile::phases == 0;
  static constexpr int width_phases = all_phases ? Layer::Width::stride : Tile::phases;
  static constexpr int width_taps = all_phases ? Layer::Width::kernel : Layer::Width::taps_per_phase * Tile::phases;
  using OwnWidth = typename Choice<all_phases, typename Layer::Width, Axis<width_taps, width_phases, 0, 1>>::type;
  static constexpr int phase_blocks = Layer::Width::stride / width_phases;
  static constexpr int taps = Layer::Depth::kernel * Layer::Height::kernel * width_taps;
  static constexpr int phases = Layer::Depth::stride * Layer::Height::stride * width_phases;
  // Where these are few, a thread sums and stores all phases of a position, `vector` outputs of a row at once.
  static constexpr bool sums_by_position = taps <= 64 && phases <= 16;
  static constexpr int stored_phases =
      all_phases ? Layer::Width::stride : greatest_common_divisor(width_phases, Layer::Width::padding);
  static constexpr int vector = sums_by_position && !Tile::channels_last
                                    ? greatest_common_divisor(16, stored_phases* item_bytes) / item_bytes
                                    : 1;
  using Width = Col2imSpan<OwnWidth, Tile::BlockTile::columns, Tile::patch_positions, (vector > 1)>;
  static constexpr int splits = Tile::Warpgroups::splits;

  // ---- rows of the product: the taps of a block's output channels; a warpgroup has some tiles of 64 ----
  static constexpr int block_rows = Tile::channels * taps;
  using Rows = Col2imBlockRows<Layer, Tile::channels, taps>;
  static constexpr int row_tiles = ceil_div(block_rows, 64 * Tile::Warpgroups::high);
  static constexpr int rows = 64 * Tile::Warpgroups::high * row_tiles;
  static constexpr int row_blocks = ceil_div(Layer::group_out_channels, Tile::channels) * phase_blocks;
  static constexpr int weight_sets = Layer::groups * row_blocks;
  // A lane that loads weights has so many neighbouring rows, two of each tile.
  static constexpr int lane_rows = factors_in_stages ? 1 : 2 * row_tiles;
  // The row of the product in place `row`, 0 to 15, of a warp's part of a tile.
  static TCONV_CONSTANT int row_of(int warp, int tile, int row) {
    return factors_in_stages ? ((warp / 4 * row_tiles + tile) * 4 + warp % 4) * 16 + row
                             : (warp * 8 + row % 8) * lane_rows + 2 * tile + row / 8;
  }

  // Among a set's warps that share positions, a thread's; and the first position of its products.
  static TCONV_DEVICE int high_warp(int thread) { return thread / 32 % (4 * Tile::Warpgroups::high); }
  static TCONV_DEVICE int first_position(int thread) { return thread / (128 * Tile::Warpgroups::high) * product_rows; }

  // ---- columns of the product: positions, which are inputs of a block ----
  static constexpr int run_positions =
      Tile::BlockTile::depths * Tile::BlockTile::rows * Tile::BlockTile::columns;  // of an image
  static constexpr int positions = Tile::BlockTile::images * run_positions;
  static constexpr int product_rows = product_positions(ceil_div(positions, Tile::Warpgroups::wide));
  static constexpr int all_positions = Tile::Warpgroups::wide * product_rows;

  // ---- depth of the product: input channels, in steps of 32 bytes; a set has every splits-th k-tile ----
  static constexpr int step_channels = 32 / item_bytes;
  static constexpr int k_tile_channels = Tile::k_tile_steps * step_channels;
  static constexpr int k_tile_bytes = Tile::k_tile_steps * 32;
  static constexpr int k_tiles = ceil_div(Layer::group_in_channels, k_tile_channels);
  static constexpr bool whole_k_tiles = Layer::group_in_channels % (k_tile_channels * splits) == 0;
  static constexpr int set_k_tiles = ceil_div(k_tiles, splits);
  static constexpr int set_threads = 128 * Tile::Warpgroups::high * Tile::Warpgroups::wide,
                       threads = set_threads * splits;
  // K-tiles that are asked for before the first is waited for: all, or all stages but the one that is read, and the one
  // that products may still read.
  static constexpr int stages_ahead =
      Tile::stages == set_k_tiles ? Tile::stages : Tile::stages - (products_read_stages ? 2 : 1);

  // ---- copies to stages, as of `Col2imShape`: their sizes in bytes ----
  static constexpr int weight_run = all_phases ? Rows::run : width_phases;
  static constexpr int weight_copy = greatest_common_divisor(16, weight_run* item_bytes);
  static constexpr int input_copy = Tile::runs ? 16
                                    : Tile::inputs_last
                                        ? greatest_common_divisor(16, Layer::group_in_channels* item_bytes)
                                        : Tile::patch_positions * item_bytes;
  static constexpr int channel_copies = block_rows * item_bytes / weight_copy;
  // Weights in copies of two bytes that a thread loads together, beside its accumulators.
  static constexpr int loaded_at_once = row_tiles * product_rows / 2 < 64 ? 32 : 16;
  static constexpr int position_copies = k_tile_bytes / input_copy;
  static constexpr int run_items = 16 / item_bytes;
  static constexpr int run_copies = ceil_div(run_positions + run_items - 1, run_items);
  static constexpr int row_copies = Tile::runs          ? Tile::BlockTile::images * run_copies
                                    : Tile::inputs_last ? position_copies
                                                        : positions / Tile::patch_positions;
  static constexpr int input_rows = Tile::inputs_last ? positions : k_tile_channels;

  // ---- inputs from a stage to the second factor: vectors of 16 bytes, channels of a position ----
  static constexpr int vectors = k_tile_bytes / 16, vector_channels = 16 / item_bytes;
  // Eight threads that write together find different banks: they have neighbouring positions, or neighbouring vectors.
  static constexpr int vector_lanes = Tile::inputs_last ? vectors : 1, position_lanes = 8 / vector_lanes;
  // Of those eights, so many have the same vectors.
  static constexpr int position_eights = ceil_div(positions, position_lanes);
  static constexpr int eights = col2im_sharers(position_eights, set_threads / 8);
  static constexpr int position_turns = ceil_div(position_eights, eights);
  static constexpr int vectors_at_once = set_threads / 8 / eights * vector_lanes;
  static constexpr int vector_turns = ceil_div(vectors, vectors_at_once);

  // ---- shared memory, in bytes. Of each set two k-tiles of moved inputs, and its stages; sums of all sets take their
  // place ----
  // Lanes that load weights together find different banks: channels lie 8 banks apart.
  static constexpr int weight_pitch = 4 * conflict_free_pitch(rows, 1, 8);
  static constexpr int input_pitch = Tile::runs          ? Tile::BlockTile::images * run_copies * 16
                                     : Tile::inputs_last ? k_tile_bytes + 16
                                                         : ceil_div(positions * item_bytes, 16) * 16;
  // Factors in stages: blocks of 64 rows or positions have a row of 128 bytes for each channel. Of `inputs_last`, a
  // position has a row of channels.
  static constexpr int block_bytes = k_tile_channels * 128;
  static TCONV_CONSTANT int factor_place(int channel, int byte) {
    return byte / 128 * block_bytes + swizzled(channel * 128 + byte % 128, 128);
  }
  // Whether a position's channels lie together, as a row of the second factor; and where a position's begin.
  static constexpr bool rows_of_positions = !inputs_in_stages || Tile::inputs_last;
  static TCONV_DEVICE int second_bytes(int position) {
    return rows_of_positions ? position * k_tile_bytes : position / 64 * block_bytes;
  }
  static TCONV_CONSTANT int input_place(int row, int byte) {
    return Tile::inputs_last ? swizzled(row * k_tile_bytes + byte, k_tile_bytes) : factor_place(row, byte);
  }
  // Products read at multiples of eight rows of the second factor, which lies behind the weights.
  static constexpr int stage_weight_bytes = factors_in_stages  ? rows / 64 * block_bytes
                                            : inputs_in_stages ? ceil_div(k_tile_channels * weight_pitch, 1024) * 1024
                                                               : k_tile_channels * weight_pitch;
  static constexpr int factor_bytes =
      (rows_of_positions ? all_positions : ceil_div(all_positions, 64) * 64) * k_tile_bytes;
  static constexpr int stage_bytes =
      ceil_div(stage_weight_bytes + (inputs_in_stages ? factor_bytes : input_rows * input_pitch), 1024) * 1024;
  static constexpr int moved_bytes = inputs_in_stages ? 0 : 2 * factor_bytes;
  static constexpr int set_bytes = moved_bytes + Tile::stages * stage_bytes;
  // Lanes that write two positions of eight rows find different banks, unless they have too many rows.
  static constexpr int sums_pitch = conflict_free_pitch(all_positions, lane_rows < 4 ? lane_rows : 4, 8);  // in floats
  static constexpr int sums = rows * sums_pitch;
  static constexpr int shared_bytes = splits * (set_bytes > sums * 4 ? set_bytes : sums * 4);

  static_assert(item_bytes <= 4, "sums are float");
  static_assert(all_phases || (Layer::Width::kernel % Layer::Width::stride == 0 && Layer::Width::dilation == 1 &&
                               Layer::Width::stride % width_phases == 0 && !Layer::weights_last),
                "blocks of some phases have as many taps of each, which lie together");
  static_assert(k_tile_bytes == 64 || k_tile_bytes == 128, "rows of the second factor have 64 or 128 bytes");
  static_assert(positions <= all_positions && positions % Tile::patch_positions == 0, "a block has whole patches");
  static_assert(!Tile::runs || !Tile::inputs_last, "runs are of a channel");
  static_assert(!Tile::prepared_inputs || (Tile::inputs_last && !Tile::channels_last && input_copy == 16),
                "prepared inputs lie by position, in whole copies");
  static_assert(Tile::stages <= set_k_tiles && stages_ahead >= 1, "a stage holds a k-tile, and one alone all");
  static_assert(rows_of_positions || Tile::Warpgroups::wide == 1 || product_rows % 64 == 0,
                "columns of the second factor lie in blocks of 64");
  static_assert(set_threads / 8 % eights == 0, "eights share vectors evenly");

  // ---- outputs: a thread has some column phases of a position, or all phases, in some channels, few enough for each
  // thread to have two turns ----
  static constexpr int sum_phases = width_phases <= 4 ? width_phases : 1;
  static constexpr int most_at_once = sums_by_position ? 32 / phases : 4;
  static TCONV_CONSTANT int channels_at_once() {
    const long long items = 1ll * positions * Tile::channels * (sums_by_position ? 1 : phases / sum_phases);
    int count = 1;
    while (count < most_at_once && Tile::channels % (2 * count) == 0 && items >= 4ll * count * threads) count *= 2;
    return count;
  }
  static constexpr int sum_channels = channels_at_once();
};

}  // namespace tconv
