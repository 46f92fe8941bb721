// mma: where a box lies, and where its inputs lie in a stage. `mma.cuh` has the picture.
#pragma once
#include "mma/shape.cuh"

namespace tconv {

// Goes through the shifts of a chunk where their numbers are not known to the compiler: `Shape::halo_offset` in bytes,
// without dividing.
template <class Layer, class Tile>
struct MmaCursor {
  using Shape = MmaShape<Layer, Tile>;
  static constexpr int column_bytes = Shape::WidthShifts::step * Shape::place_bytes;
  static constexpr int row_bytes = Shape::HeightShifts::step * Shape::row_places * Shape::place_bytes;
  static constexpr int slab_bytes =
      Shape::DepthShifts::step * Shape::halo_rows * Shape::row_places * Shape::place_bytes;
  int row = 0, column = 0, moved = Shape::halo_offset(0) * Shape::place_bytes;

  TCONV_DEVICE int next() {
    const int here = moved;
    moved -= column_bytes;
    if (++column == Shape::WidthShifts::count) {
      column = 0;
      moved += Shape::WidthShifts::count * column_bytes - row_bytes;
      if (++row == Shape::HeightShifts::count) {
        row = 0;
        moved += Shape::HeightShifts::count * row_bytes - slab_bytes;
      }
    }
    return here;
  }
};

// Where a block's box starts: its first image, and the position of its first corner.
struct MmaBox {
  int sample, depth, row, column;
};

// A position of a box, by its number.
template <class Tile>
TCONV_DEVICE MmaBox mma_in_box(int number) {
  const int column = number % Tile::Box::columns, rows = number / Tile::Box::columns;
  const int row = rows % Tile::Box::rows, slabs = rows / Tile::Box::rows;
  return {slabs / Tile::Box::depths, slabs % Tile::Box::depths, row, column};
}

// The box of a number among all that the outputs take: columns first, images last.
template <class Layer, class Tile>
struct MmaBoxes {
  using Shape = MmaShape<Layer, Tile>;
  int columns, rows, depths;

  TCONV_DEVICE MmaBoxes(int output_depth, int output_height, int output_width)
      : columns(ceil_div(Shape::Width::positions(output_width + Tile::Box::origin), Tile::Box::columns)),
        rows(ceil_div(Shape::Height::positions(output_height + Tile::Box::row_origin), Tile::Box::rows)),
        depths(ceil_div(Shape::Depth::positions(output_depth + Tile::Box::depth_origin), Tile::Box::depths)) {}

  TCONV_DEVICE MmaBox box(int number) const {
    const int row = number / columns, depth = row / rows;
    return {depth / depths * Tile::Box::images, depth % depths * Tile::Box::depths, row % rows * Tile::Box::rows,
            number % columns * Tile::Box::columns};
  }
};

}  // namespace tconv
