// col2im: the block tiles over the inputs.
#pragma once
#include "col2im/spans.cuh"
#include "primitives/block_tiles.cuh"

namespace tconv {

// Which block tile of each axis.
struct Col2imNumbers {
  int image, depth, row, column;
};

template <class Layer, class Tile, class Shape>
struct Col2imBlockTiles {
  int depths, rows, columns;  // how many there are

  TCONV_DEVICE Col2imBlockTiles(int input_depth, int input_height, int input_width)
      : depths(Layer::spatial_dims > 2 ? Shape::Depth::count(input_depth) : 1),
        rows(Layer::spatial_dims > 1 ? Shape::Height::count(input_height) : 1),
        columns(Shape::Width::count(input_width)) {}

  TCONV_DEVICE int count(int batch) const { return ceil_div(batch, Tile::BlockTile::images) * depths * rows * columns; }
  TCONV_DEVICE Col2imNumbers numbers(int number) const {
    if (columns * rows * depths == 1) return {number, 0, 0, 0};  // no division's instructions need be fetched
    const int row = number / columns, depth = row / rows;
    return {depth / depths, depth % depths, row % rows, number % columns};
  }
  // The numbers of the block tile whose number is the sum of the two's, without divisions.
  TCONV_DEVICE Col2imNumbers sum(const Col2imNumbers& one, const Col2imNumbers& other) const {
    Col2imNumbers sum = {one.image + other.image, one.depth + other.depth, one.row + other.row,
                         one.column + other.column};
    if (sum.column >= columns) sum.column -= columns, ++sum.row;
    if (sum.row >= rows) sum.row -= rows, ++sum.depth;
    if (sum.depth >= depths) sum.depth -= depths, ++sum.image;
    return sum;
  }
  TCONV_DEVICE BlockTilePosition first_input(const Col2imNumbers& numbers) const {
    return {numbers.image * Tile::BlockTile::images, numbers.depth * Shape::Depth::step,
            numbers.row * Shape::Height::step, numbers.column * Shape::Width::step};
  }
  TCONV_DEVICE BlockTilePosition first_position(const Col2imNumbers& numbers, int output_depth, int output_height,
                                                int output_width) const {
    return {numbers.image * Tile::BlockTile::images, Shape::Depth::first_position(numbers.depth, depths, output_depth),
            Shape::Height::first_position(numbers.row, rows, output_height),
            Shape::Width::first_position(numbers.column, columns, output_width)};
  }
};

}  // namespace tconv
