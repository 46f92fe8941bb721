// col2im: the constants of a kernel, from its layer and its tile.
#pragma once
#include "col2im/spans.cuh"
#include "primitives/elements.cuh"

namespace tconv {

template <class Layer, class Tile>
struct Col2imShape {
  using Element = typename Layer::Element;
  static constexpr bool resident = Tile::resident;
  // Fragments are loaded from stages.
  static constexpr bool factors_in_stages = false, inputs_in_stages = false;
  static TCONV_CONSTANT int factor_place(int, int) { return 0; }
  static TCONV_CONSTANT int input_place(int, int) { return 0; }
  using Depth = Col2imSpan<typename Layer::Depth, Tile::BlockTile::depths, 1, false>;
  using Height = Col2imSpan<typename Layer::Height, Tile::BlockTile::rows, 1, false>;
  // Of resident weights, outputs of a row are stored `vector` at once where rows begin at multiples of that.
  static constexpr int stored_bytes =
      greatest_common_divisor(16, Layer::Width::stride* static_cast<int>(sizeof(Element)));
  static constexpr int vector =
      Tile::resident && !Tile::channels_last ? stored_bytes / static_cast<int>(sizeof(Element)) : 1;
  using Width = Col2imSpan<typename Layer::Width, Tile::BlockTile::columns, Tile::patch_positions, (vector > 1)>;
  static constexpr bool all_phases = true;
  using OwnWidth = typename Layer::Width;
  static constexpr int item_bytes = sizeof(Element);

  // ---- rows of the product: the taps of a block's output channels ----
  static constexpr int taps = Layer::Depth::kernel * Layer::Height::kernel * Layer::Width::kernel;
  static constexpr int block_rows = Tile::channels * taps;
  using Rows = Col2imBlockRows<Layer, Tile::channels, taps>;
  static constexpr int warp_row_tiles = ceil_div(block_rows, 16 * Tile::Warps::high);
  static constexpr int row_tiles = Tile::Warps::high * warp_row_tiles;
  static constexpr int row_blocks = ceil_div(Layer::group_out_channels, Tile::channels);
  static constexpr int weight_sets = Layer::groups * row_blocks;
  // Neighbouring rows that a lane loads at once: they belong to as many tiles of rows.
  static constexpr int rows_together =
      item_bytes < 4 || Tile::resident ? 1 : greatest_common_divisor(warp_row_tiles, 4);
  // The row of the product in place `row` of tile `tile`.
  static TCONV_CONSTANT int row_of(int tile, int row) {
    return tile / rows_together * 16 * rows_together + row * rows_together + tile % rows_together;
  }

  // ---- columns of the product: positions, which are inputs of a block ----
  static constexpr int run_positions =
      Tile::BlockTile::depths * Tile::BlockTile::rows * Tile::BlockTile::columns;  // of an image
  static constexpr int positions = Tile::BlockTile::images * run_positions;
  // Matrices of 16-bit items are loaded for two tiles of positions at once.
  static constexpr int tiles_at_once = item_bytes < 4 ? 2 : 1;
  static constexpr int warp_position_tiles = tiles_at_once * ceil_div(positions, 8 * tiles_at_once * Tile::Warps::wide);
  static constexpr int position_tiles = Tile::Warps::wide * warp_position_tiles;

  // ---- depth of the product: input channels, in steps of 32 bytes; a stage has a k-tile of steps, and a set of warps
  // every splits-th k-tile ----
  static constexpr int step_channels = 32 / item_bytes;
  static constexpr int k_tile_channels = Tile::k_tile_steps * step_channels;
  static constexpr int k_tiles = ceil_div(Layer::group_in_channels, k_tile_channels);
  static constexpr bool whole_k_tiles = Layer::group_in_channels % (k_tile_channels * Tile::Warps::splits) == 0;
  static constexpr int splits = Tile::Warps::splits;
  static constexpr int set_k_tiles = ceil_div(k_tiles, splits);
  static constexpr int set_threads = 32 * Tile::Warps::high * Tile::Warps::wide,
                       threads = set_threads * Tile::Warps::splits;
  // K-tiles that are asked for before the first is waited for: all, or all stages but the one that is read.
  static constexpr int stages_ahead = Tile::stages == set_k_tiles && !Tile::resident ? Tile::stages : Tile::stages - 1;

  // ---- copies: their sizes in bytes ----
  static constexpr int weight_copy = greatest_common_divisor(16, Rows::run* item_bytes);
  static constexpr int input_copy = Tile::runs ? 16
                                    : Tile::inputs_last
                                        ? greatest_common_divisor(16, Layer::group_in_channels* item_bytes)
                                        : Tile::patch_positions * item_bytes;
  // Of a channel's weights and of a position's channels in a k-tile.
  static constexpr int channel_copies = block_rows * item_bytes / weight_copy;
  // Weights in copies of two bytes that a thread loads together, beside its accumulators.
  static constexpr int loaded_at_once = 16;
  static constexpr int position_copies = Tile::k_tile_steps * 32 / input_copy;
  // Runs: the positions of an image are copied from the multiple of 16 bytes before them on, which differs from channel
  // to channel.
  static constexpr int run_items = 16 / item_bytes;
  static constexpr int run_copies = ceil_div(run_positions + run_items - 1, run_items);
  // Inputs of a k-tile: rows of copies, of a channel or of a position.
  static constexpr int row_copies = Tile::runs          ? Tile::BlockTile::images * run_copies
                                    : Tile::inputs_last ? position_copies
                                                        : positions / Tile::patch_positions;
  static constexpr int input_rows = Tile::inputs_last ? positions : k_tile_channels;

  // ---- shared memory, in bytes ----
  // Lanes that load together find different banks: of 32-bit items, four channels lie 8 banks apart; of 16-bit items,
  // eight rows of a matrix lie an odd number of 16 bytes apart.
  static constexpr int weight_pitch =
      item_bytes < 4 ? row_tiles * 32 + 16 : 4 * conflict_free_pitch(row_tiles * 16, 1, 8);
  static constexpr int runs_bytes = Tile::BlockTile::images * run_copies * 16;  // of a channel
  static constexpr int input_pitch = Tile::runs && item_bytes < 4 ? runs_bytes
                                     : Tile::runs                 ? 4 * conflict_free_pitch(runs_bytes / 4, 1, 8)
                                     : Tile::inputs_last          ? Tile::k_tile_steps * 32 + 16
                                     : item_bytes < 4             ? position_tiles * 16 + 16
                                                                  : 4 * conflict_free_pitch(position_tiles * 8, 1, 8);
  static constexpr int stage_weight_bytes = k_tile_channels * weight_pitch;
  static constexpr int stage_input_bytes = (Tile::inputs_last ? position_tiles * 8 : k_tile_channels) * input_pitch;
  static constexpr int stage_bytes = (Tile::resident ? 0 : stage_weight_bytes) + stage_input_bytes;
  // Of a set: resident weights of all its k-tiles, and its stages.
  static constexpr int resident_bytes = Tile::resident ? set_k_tiles * stage_weight_bytes : 0;
  static constexpr int set_bytes = resident_bytes + Tile::stages * stage_bytes;
  // Lanes that write two positions of eight rows find different banks. The sums of all sets take the place of the
  // stages or, if weights are resident, lie behind them: the next block tile's inputs arrive meanwhile.
  static constexpr int sums_pitch = conflict_free_pitch(position_tiles * 8, rows_together, 8);  // in floats
  static constexpr int sums = row_tiles * 16 * sums_pitch;
  static constexpr int sums_at = Tile::resident ? Tile::Warps::splits * set_bytes : 0;
  static constexpr int stages_bytes = Tile::Warps::splits * set_bytes;
  static constexpr int sums_end = sums_at + Tile::Warps::splits * sums * 4;
  static constexpr int shared_bytes = stages_bytes > sums_end ? stages_bytes : sums_end;

  static_assert(item_bytes <= 4, "sums are float");
  static_assert(Tile::stages >= 1 && (Tile::resident || Tile::stages <= set_k_tiles), "a stage holds a k-tile");
  static_assert(stages_ahead >= 1, "one stage alone would be read and written at once");
  static_assert(positions % Tile::patch_positions == 0, "a block has whole patches");
  static_assert(!Tile::runs || !Tile::inputs_last, "runs are of a channel");

  // ---- outputs: a thread has some column phases of a position in some channels, so many that no thread is idle ----
  static constexpr int sum_phases = Layer::Width::stride <= 4 ? Layer::Width::stride : 1;
  // Of resident weights, a thread has all phases.
  static constexpr int phases = Layer::Depth::stride * Layer::Height::stride * Layer::Width::stride;
  static constexpr int most_at_once = Tile::resident ? (phases < 32 ? 32 / phases : 1) : 4;
  static TCONV_CONSTANT int channels_at_once() {
    if (Tile::resident && Tile::channels <= 4 && Tile::channels <= most_at_once) return Tile::channels;
    const long long items = 1ll * positions * Tile::channels * (Tile::resident ? 1 : phases / sum_phases);
    int count = 1;
    while (count < most_at_once && Tile::channels % (2 * count) == 0 && items >= 2ll * count * threads) count *= 2;
    return count;
  }
  static constexpr int sum_channels = channels_at_once();
};

}  // namespace tconv
