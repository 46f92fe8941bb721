// col2im: the constants of a kernel, from its layer and its tile.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/elements.cuh"

namespace tconv {

// The inputs of an axis that a block has: `Size` of them, from a multiple of `Together` on. Blocks along the axis
// overlap, so that each output is summed by the one block that has all its inputs.
template <class Axis, int Size, int Together>
struct Col2imSpan {
  static constexpr int size = Size, together = Together;
  static constexpr int overlap = static_cast<int>((Axis::kernel - 1ll) * Axis::dilation / Axis::stride);
  // A block that is no longer than the overlap is the only one (the planner sees to that).
  static constexpr int step = size - overlap < together ? size : (size - overlap) / together * together;

  static TCONV_CONSTANT int count(int inputs) { return inputs <= size ? 1 : 1 + ceil_div(inputs - size, step); }
  // The outputs of block `number` of `count` begin here; those of the one after the last, behind all.
  static TCONV_CONSTANT int first_output(int number, int count, int outputs) {
    const int first = ((number - 1) * step + size) * Axis::stride - Axis::padding;
    return number == 0 || first < 0 ? 0 : number == count || first > outputs ? outputs : first;
  }
};

// Of so many threads, those that share a row of copies: all, or so few that several rows are copied at once.
TCONV_CONSTANT int col2im_sharers(int copies, int threads) {
  return copies < threads ? power_of_two_from(copies) : threads;
}

template <class Layer, class Tile>
struct Col2imShape {
  using Element = typename Layer::Element;
  using Depth = Col2imSpan<typename Layer::Depth, Tile::BlockTile::depths, 1>;
  using Height = Col2imSpan<typename Layer::Height, Tile::BlockTile::rows, 1>;
  using Width = Col2imSpan<typename Layer::Width, Tile::BlockTile::columns, Tile::patch_positions>;
  static constexpr int item_bytes = sizeof(Element);

  // ---- rows of the product: the taps of a block's output channels ----
  static constexpr int taps = Layer::Depth::kernel * Layer::Height::kernel * Layer::Width::kernel;
  static constexpr int block_rows = Tile::channels * taps;
  static constexpr int warp_row_tiles = ceil_div(block_rows, 16 * Tile::Warps::high);
  static constexpr int row_tiles = Tile::Warps::high * warp_row_tiles;
  static constexpr int row_blocks = ceil_div(Layer::group_out_channels, Tile::channels);
  static constexpr int weight_sets = Layer::groups * row_blocks;
  // Neighbouring rows that a lane loads at once: they belong to as many tiles of rows.
  static constexpr int rows_together = item_bytes < 4 ? 1 : greatest_common_divisor(warp_row_tiles, 4);
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

  // ---- depth of the product: input channels, a step of 32 bytes at a time; a set of warps has every splits-th ----
  static constexpr int step_channels = 32 / item_bytes;
  static constexpr int steps = ceil_div(Layer::group_in_channels, step_channels);
  static constexpr int set_steps = ceil_div(steps, Tile::Warps::splits);
  static constexpr int set_threads = 32 * Tile::Warps::high * Tile::Warps::wide,
                       threads = set_threads * Tile::Warps::splits;
  // Steps that are asked for before the first is waited for: all, or all stages but the one that is read.
  static constexpr int stages_ahead = Tile::stages == set_steps ? Tile::stages : Tile::stages - 1;

  // ---- copies: their sizes in bytes ----
  static constexpr int weight_copy =
      greatest_common_divisor(16, greatest_common_divisor(Layer::group_out_channels* taps, block_rows) * item_bytes);
  static constexpr int input_copy = Tile::runs ? 16
                                    : Tile::inputs_last
                                        ? greatest_common_divisor(16, Layer::group_in_channels* item_bytes)
                                        : Tile::patch_positions * item_bytes;
  // Of a channel's weights and of a position's channels in a step.
  static constexpr int channel_copies = block_rows * item_bytes / weight_copy;
  static constexpr int position_copies = 32 / input_copy;
  // Runs: the positions of an image are copied from the multiple of 16 bytes before them on, which differs from channel
  // to channel.
  static constexpr int run_items = 16 / item_bytes;
  static constexpr int run_copies = ceil_div(run_positions + run_items - 1, run_items);
  // Inputs of a step: rows of copies, of a channel or of a position.
  static constexpr int row_copies = Tile::runs          ? Tile::BlockTile::images * run_copies
                                    : Tile::inputs_last ? position_copies
                                                        : positions / Tile::patch_positions;
  static constexpr int input_rows = Tile::inputs_last ? positions : step_channels;

  // ---- shared memory, in bytes ----
  // Lanes that load together find different banks: of 32-bit items, four channels lie 8 banks apart; of 16-bit items,
  // eight rows of a matrix lie an odd number of 16 bytes apart.
  static constexpr int weight_pitch =
      item_bytes < 4 ? row_tiles * 32 + 16 : 4 * conflict_free_pitch(row_tiles * 16, 1, 8);
  static constexpr int input_pitch = Tile::runs          ? Tile::BlockTile::images * run_copies * 16
                                     : Tile::inputs_last ? 48
                                     : item_bytes < 4    ? position_tiles * 16 + 16
                                                         : 4 * conflict_free_pitch(position_tiles * 8, 1, 8);
  static constexpr int stage_weight_bytes = step_channels * weight_pitch;
  static constexpr int stage_bytes =
      stage_weight_bytes + (Tile::inputs_last ? position_tiles * 8 : step_channels) * input_pitch;
  // A set's sums take the place of the stages. Lanes that write two positions of eight rows find different banks.
  static constexpr int sums_pitch = conflict_free_pitch(position_tiles * 8, rows_together, 8);  // in floats
  static constexpr int sums = row_tiles * 16 * sums_pitch;
  static constexpr int stages_bytes = Tile::Warps::splits * Tile::stages * stage_bytes;
  static constexpr int sums_bytes = Tile::Warps::splits * sums * 4;
  static constexpr int shared_bytes = stages_bytes > sums_bytes ? stages_bytes : sums_bytes;

  static_assert(item_bytes <= 4, "sums are float");
  static_assert(Tile::stages >= 1 && Tile::stages <= set_steps, "a stage holds a step");
  static_assert(stages_ahead >= 1, "one stage alone would be read and written at once");
  static_assert(positions % Tile::patch_positions == 0, "a block has whole patches");
  static_assert(!Tile::runs || (item_bytes == 2 && !Tile::inputs_last), "runs are for 16-bit items");

  // ---- outputs: a thread has some column phases of a position in some channels, so many that no thread is idle ----
  static constexpr int sum_phases = Layer::Width::stride <= 4 ? Layer::Width::stride : 1;
  static TCONV_CONSTANT int channels_at_once() {
    int count = 1;
    while (count < 4 && Tile::channels % (2 * count) == 0 &&
           1ll * positions * Layer::Depth::stride * Layer::Height::stride * (Layer::Width::stride / sum_phases) *
                   Tile::channels >=
               2ll * count * threads)
      count *= 2;
    return count;
  }
  static constexpr int sum_channels = channels_at_once();
};

}  // namespace tconv
