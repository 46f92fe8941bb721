// wgmma: where a block tile lies, which block tiles a block computes, and stages. `wgmma.cuh` has the picture.
#pragma once
#include "primitives/barriers.cuh"
#include "primitives/block_tiles.cuh"
#include "wgmma/shape.cuh"

namespace tconv {

// The position of a number in one of the thread's tiles. Each tile has position_numbers numbers.
template <class Layer, class Tile>
TCONV_DEVICE BlockTilePosition wgmma_in_block_tile(int number, int tile) {
  using Shape = WgmmaShape<Layer, Tile>;
  if (!Tile::stacked) number += tile * Shape::position_numbers;
  BlockTilePosition position = position_in_block_tile<typename Tile::BlockTile>(number, Shape::stacked_rows);
  if (Tile::stacked) position.row = position.row * Tile::position_tiles + tile;
  return position;
}
// Whether a number has a position. A block tile may have fewer positions than its tiles have numbers.
template <class Layer, class Tile>
TCONV_DEVICE bool wgmma_is_in_block_tile(int number, int tile) {
  using Shape = WgmmaShape<Layer, Tile>;
  return Tile::stacked ? number * Tile::position_tiles < Shape::block_tile_positions
                       : number + tile * Shape::position_numbers < Shape::block_tile_positions;
}

// The taps of one phase on an axis, by number: the last one has the highest shift.
template <class Axis>
struct WgmmaPhase {
  int first, count;

  TCONV_DEVICE explicit WgmmaPhase(int phase) : first(Axis::first_tap(phase)), count(Axis::taps(phase)) {}
  // The distance from the last tap's input, the first one in memory, to a tap's input.
  TCONV_DEVICE int behind(int number) const { return (count - 1 - number) * Axis::shift_period; }
  TCONV_DEVICE int highest_shift() const { return Axis::shift_of(first) + behind(0); }
};

// The phase of a block on each axis, of one that has one there: `column` is meant only for `one_phase` blocks.
template <class Layer>
struct WgmmaPhases {
  WgmmaPhase<typename Layer::Depth> depth;
  WgmmaPhase<typename Layer::Height> row;
  WgmmaPhase<typename Layer::Width> column;

  TCONV_DEVICE explicit WgmmaPhases(int phase)
      : depth(phase / (Layer::Height::stride * Layer::Width::stride)),
        row(phase / Layer::Width::stride % Layer::Height::stride),
        column(phase % Layer::Width::stride) {}
  TCONV_DEVICE int taps() const { return depth.count * row.count * column.count; }
};

// The works of a grid: every block tile with every set of weights, in the order of `BlockOrder`. A block does every
// gridDim.x-th work.
template <class Layer, class Tile>
struct WgmmaWork {
  using Shape = WgmmaShape<Layer, Tile>;
  using Order = BlockOrder<Layer, Shape::row_blocks, !Shape::group_by_group>;
  BlockTiles<typename Tile::BlockTile> block_tiles;
  int count, number;

  TCONV_DEVICE WgmmaWork(int batch, int output_depth, int output_height, int output_width, int number)
      : block_tiles(Shape::Depth::positions(output_depth), Shape::Height::positions(output_height),
                    Shape::Width::positions(output_width)),
        count(block_tiles.count(batch) * Shape::weight_sets),
        number(number) {}

  TCONV_DEVICE bool is_left() const { return number < count; }
  TCONV_DEVICE void next() { number += static_cast<int>(gridDim.x); }
  // Whether the work has a tap. Of one without, nothing is loaded or multiplied.
  TCONV_DEVICE bool has_taps() const {
    if (!Shape::some_without_taps) return true;
    const WgmmaPhases<Layer> phase(first_phase());
    return phase.depth.count * phase.row.count * (Shape::kind == WgmmaKind::one_phase ? phase.column.count : 1) > 0;
  }

  // Of the group's sets. Where some have no taps they move on by one with every round of the grid. Otherwise a block
  // would have the same set each time, and the few that have taps would do all the multiplying.
  TCONV_DEVICE int set() const {
    return Shape::some_without_taps && Shape::row_blocks > 1
               ? (Order::set_of(number) + (number - Order::set_of(number)) / static_cast<int>(gridDim.x)) %
                     Shape::row_blocks
               : Order::set_of(number);
  }
  TCONV_DEVICE int group() const { return Order::group_of(number, count / Shape::weight_sets); }
  TCONV_DEVICE int weight_set() const { return group() * Shape::row_blocks + set(); }
  TCONV_DEVICE int first_phase() const { return Shape::phase_sets == 1 ? 0 : set() % Shape::phase_sets * Tile::phases; }
  TCONV_DEVICE int channel_block() const { return Shape::channel_blocks == 1 ? 0 : set() / Shape::phase_sets; }
  TCONV_DEVICE BlockTilePosition block_tile() const {
    return block_tiles.block_tile(Order::block_tile_of(number, count / Shape::weight_sets));
  }
  // The halo's first input, which may lie outside the image.
  TCONV_DEVICE BlockTilePosition halo() const {
    const BlockTilePosition from = block_tile();
    if (!Shape::one_row_phase) return halo_of<Shape>(from);
    // A block with one phase on an axis has only the shifts of this phase.
    const WgmmaPhases<Layer> phase(first_phase());
    const int shift = Shape::kind == WgmmaKind::one_phase ? phase.column.highest_shift() : Shape::WidthShifts::highest;
    return {from.image, from.depth - phase.depth.highest_shift(), from.row - phase.row.highest_shift(),
            from.column - shift};
  }
};

// Stages of shared memory that go round: the producer fills one while consumers read others. Each stage has two
// mbarriers, "full" and "empty", together 16 bytes. One register, `turn`, holds the next stage and the parity of the
// rounds so far, which is the parity to wait for. One register, because accumulators leave few.
template <int Count>
struct WgmmaStages {
  unsigned char* barriers;
  int turn = 0;  // stage + Count * parity

  TCONV_DEVICE explicit WgmmaStages(unsigned char* barriers) : barriers(barriers) {}
  TCONV_DEVICE static void make(unsigned char* barriers, int producers, int consumers) {
    for (int i = 0; i < Count; ++i) {
      make_barrier(barriers + 16 * i, producers);
      make_barrier(barriers + 16 * i + 8, consumers);
    }
  }
  TCONV_DEVICE int stage() const { return turn < Count ? turn : turn - Count; }
  TCONV_DEVICE unsigned parity() const { return turn < Count ? 0 : 1; }
  TCONV_DEVICE unsigned char* full() const { return barriers + 16 * stage(); }
  TCONV_DEVICE unsigned char* empty() const { return empty(stage()); }
  TCONV_DEVICE unsigned char* empty(int number) const { return barriers + 16 * number + 8; }
  TCONV_DEVICE void wait_full() const { wait(full(), parity()); }
  TCONV_DEVICE void wait_empty() const { wait(empty(), parity() ^ 1); }
  TCONV_DEVICE void next() { turn = turn + 1 < 2 * Count ? turn + 1 : 0; }
};

}  // namespace tconv
