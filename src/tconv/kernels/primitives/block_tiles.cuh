// Block tiles of positions: their numbers, their positions, and their inputs with the halo. A block tile spans
// BlockTile::images images, `depths` slabs (a slab is one depth of a map), `rows` rows and `columns` columns.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/launch.cuh"

namespace tconv {

// An image and a position in it: a block tile's first one, or one counted from there.
struct BlockTilePosition {
  int image, depth, row, column;
};

// The position with the given number in a block tile. A slab has `block_tile_rows` rows. Columns are numbered first,
// images last.
template <class BlockTile>
TCONV_DEVICE BlockTilePosition position_in_block_tile(int number, int block_tile_rows) {
  const int column = number % BlockTile::columns, rows = number / BlockTile::columns;
  const int row = rows % block_tile_rows, slabs = rows / block_tile_rows;
  return {slabs / BlockTile::depths, slabs % BlockTile::depths, row, column};
}

// The block tiles over maps with the given numbers of positions. They are numbered like positions.
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

// What a block has, by its number: a group, one of the group's `sets` of weights, and one of the map's `block_tiles`.
// Blocks with the same inputs are neighbours, and so are those of a group, because the L2 cache may not hold the
// weights of all. Where blocks keep their weights, or groups share lines of the cache (`groups_beside`), a block tile's
// groups follow each other: blocks with the same set are then a multiple of all sets apart.
template <class Layer, int sets, bool groups_beside>
struct BlockOrder {
  static TCONV_DEVICE int set_of(int number) { return sets == 1 ? 0 : number % sets; }
  static TCONV_DEVICE int group_of(int number, int block_tiles) {
    return Layer::groups == 1 ? 0 : groups_beside ? number / sets % Layer::groups : number / sets / block_tiles;
  }
  static TCONV_DEVICE int block_tile_of(int number, int block_tiles) {
    return groups_beside || Layer::groups == 1 ? number / sets / Layer::groups
                                               : number / sets - group_of(number, block_tiles) * block_tiles;
  }
};

// The first input of a block tile's halo, where its block has all shifts. It may lie outside the map.
template <class Shape>
TCONV_DEVICE BlockTilePosition halo_of(const BlockTilePosition& block_tile) {
  return {block_tile.image, block_tile.depth - Shape::DepthShifts::highest,
          block_tile.row - Shape::HeightShifts::highest, block_tile.column - Shape::WidthShifts::highest};
}

// The input of a block's group. The halo is the box of all inputs around a block tile that its taps can read; `Shape`
// has its sizes.
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
    Index position;   // in one channel of the image
    bool row_inside;  // whether image, slab and row exist
    bool inside;      // whether the column exists, too
  };
  // The place of an input in the halo. The halo's rows are counted through all its slabs and images.
  TCONV_DEVICE Place place(const BlockTilePosition& halo, int halo_row, int halo_column) const {
    const int slab = halo_row / Shape::halo_rows, image = slab / Shape::halo_depths;
    const int column = halo.column + halo_column, row = halo.row + halo_row % Shape::halo_rows;
    const int depth = halo.depth + slab % Shape::halo_depths;
    const bool row_inside = halo.image + image < batch && in_range(depth, depths) && in_range(row, rows);
    return {image, (static_cast<Index>(depth) * rows + row) * columns + column, row_inside,
            row_inside && in_range(column, columns)};
  }
};

// The launch of a kernel whose blocks own block tiles. A work is one block tile with one set of weights. Blocks that
// `walk` share the works evenly; there are at most `at_once` of them, a multiple of `together`, so that with as many
// weight sets a block keeps its set. Other blocks have one work each. An offset within a block spans at most
// `input_reach` channels of the input and `output_reach` of the output.
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
  launch.counted = works + launch.blocks;  // a walk ends beyond the last work, by less than a grid
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  launch.wide_index = larger(plane_of(sizes.input) * input_reach, plane_of(sizes.output) * output_reach) >= index_limit;
  launch.weight_blocks = ceil_div(Shape::preparing_items, static_cast<long long>(preparing_threads));
  launch.weight_bytes = Shape::weight_bytes;
  return launch;
}

}  // namespace tconv
