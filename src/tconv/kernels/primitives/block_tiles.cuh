// Block tiles of positions: which there are, where their positions lie, and where the inputs around them. A block tile
// has images, slabs, rows and columns; BlockTile::columns and so on say how many.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/launch.cuh"

namespace tconv {

// An image and a position in it: of a block tile's first corner, or in a block tile.
struct BlockTilePosition {
  int image, depth, row, column;
};

// A position of a block tile of which a slab has so many rows, by its number: columns first, images last.
template <class BlockTile>
TCONV_DEVICE BlockTilePosition position_in_block_tile(int number, int block_tile_rows) {
  const int column = number % BlockTile::columns, rows = number / BlockTile::columns;
  const int row = rows % block_tile_rows, slabs = rows / block_tile_rows;
  return {slabs / BlockTile::depths, slabs % BlockTile::depths, row, column};
}

// The block tiles over maps of so many positions, by number: columns first, images last.
template <class BlockTile>
struct BlockTiles {
  int columns, rows, depths;

  TCONV_DEVICE BlockTiles(int depth_positions, int row_positions, int column_positions)
      : columns(ceil_div(column_positions, BlockTile::columns)),
        rows(ceil_div(row_positions, BlockTile::rows)),
        depths(ceil_div(depth_positions, BlockTile::depths)) {}

  TCONV_DEVICE int count(int batch) const { return columns * rows * depths * ceil_div(batch, BlockTile::images); }
  TCONV_DEVICE BlockTilePosition block_tile(int number) const {
    const int row = number / columns, depth = row / rows;
    return {depth / depths * BlockTile::images, depth % depths * BlockTile::depths, row % rows * BlockTile::rows,
            number % columns * BlockTile::columns};
  }
};

// The first input that a block tile reads, where its block has all shifts.
template <class Shape>
TCONV_DEVICE BlockTilePosition halo_of(const BlockTilePosition& block_tile) {
  return {block_tile.image, block_tile.depth - Shape::DepthShifts::highest,
          block_tile.row - Shape::HeightShifts::highest, block_tile.column - Shape::WidthShifts::highest};
}

// The input of a block's group, and of it the halo: what a block tile reads and the places between. `Shape` has its
// sizes.
template <class Layer, class Shape>
struct InputMap {
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int channels = Layer::groups * Layer::group_in_channels;
  int batch, depths, rows, columns;
  Index plane;
  const Element* first;  // of the block tile's first image and the block's group

  TCONV_DEVICE InputMap(int batch, int depths, int rows, int columns)
      : batch(batch),
        depths(depths),
        rows(rows),
        columns(columns),
        plane(static_cast<Index>(depths) * rows * columns) {}

  struct Place {
    int image;
    Index position;   // in one channel of it
    bool row_inside;  // the input, if not the column
    bool inside;
  };
  // A column of one of the halo's rows, counted from the halo's first one.
  TCONV_DEVICE Place place(const BlockTilePosition& halo, int halo_row, int halo_column) const {
    const int slab = halo_row / Shape::halo_rows, image = slab / Shape::halo_depths;
    const int column = halo.column + halo_column, row = halo.row + halo_row % Shape::halo_rows;
    const int depth = halo.depth + slab % Shape::halo_depths;
    const bool row_inside = halo.image + image < batch && in_range(depth, depths) && in_range(row, rows);
    return {image, (static_cast<Index>(depth) * rows + row) * columns + column, row_inside,
            row_inside && in_range(column, columns)};
  }
};

// How a kernel is launched whose blocks own block tiles of positions, each with every set of weights. Blocks that
// `walk` from block tile to block tile share them evenly: `at_once` at most, in multiples of `together`. Of others each
// has one block tile. An offset within a block spans so many channels of the input, and of the output.
template <class Shape, class Tile>
TCONV_CONSTANT Launch block_tiles_launch(const Sizes& sizes, const int (&positions)[3], bool walk, int at_once,
                                         int together, int input_reach, int output_reach) {
  using BlockTile = typename Tile::BlockTile;
  const long long works = static_cast<long long>(Shape::weight_sets) * ceil_div(sizes.batch, BlockTile::images) *
                          ceil_div(positions[0], BlockTile::depths) * ceil_div(positions[1], BlockTile::rows) *
                          ceil_div(positions[2], BlockTile::columns);
  const long long most = larger(1, at_once / together) * together;
  const long long turns = (walk ? ceil_div(works, most) : 1) * together;
  Launch launch = {};
  launch.blocks = ceil_div(works, turns) * together;
  launch.counted = works + launch.blocks;  // blocks count beyond the last work, by less than a grid
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  launch.wide_index = larger(plane_of(sizes.input) * input_reach, plane_of(sizes.output) * output_reach) >= index_limit;
  launch.weight_blocks = ceil_div(Shape::preparing_items, static_cast<long long>(preparing_threads));
  launch.weight_bytes = Shape::weight_bytes;
  return launch;
}

}  // namespace tconv
