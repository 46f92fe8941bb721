// col2im_rows: the lines and strips over the maps.
#pragma once
#include "col2im_rows/shape.cuh"

namespace tconv {

// How many a layer has. A line is a range of `Tile::rows` positions along the height, of one position along the depth
// of an image. A strip has some of a line's columns.
template <class Layer, class Tile>
struct Col2imRowsCounts {
  using Shape = Col2imRowsShape<Layer, Tile>;
  int depths, ranges, strips;

  TCONV_CONSTANT Col2imRowsCounts(int output_depth, int output_height, int input_width)
      : depths(Shape::Depth::end_position(output_depth) - Shape::Depth::first_position),
        ranges(ceil_div(Shape::Height::end_position(output_height) - Shape::Height::first_position, Tile::rows)),
        strips(input_width - Shape::first_column <= Tile::columns
                   ? 1
                   : 1 + ceil_div(input_width - Shape::first_column - Tile::columns, Shape::strip_step)) {}
};

// Works of all teams with the same weights: a strip of some lines each.
template <class Layer, class Tile>
TCONV_CONSTANT long long col2im_rows_works(int batch, const int (&output)[3], int input_width) {
  const Col2imRowsCounts<Layer, Tile> counts(output[0], output[1], input_width);
  const long long lines = static_cast<long long>(batch) * counts.depths * counts.ranges;
  return ceil_div(lines, static_cast<long long>(Col2imRowsShape<Layer, Tile>::lines)) * counts.strips;
}

// A line of a team's work.
template <class Layer, class Tile>
struct Col2imRowsPart {
  using Shape = Col2imRowsShape<Layer, Tile>;
  int image;                      // beyond the batch where there is no such line
  int depth, row;                 // positions: along the depth, and the first along the height
  int column;                     // the first input of the line's strip
  int first_output, outputs_end;  // along the width

  TCONV_DEVICE Col2imRowsPart(int work, int line_of_team, int output_depth, int output_height, int input_width,
                              int output_width) {
    const Col2imRowsCounts<Layer, Tile> counts(output_depth, output_height, input_width);
    const int strip = work % counts.strips;
    int line = work / counts.strips * Shape::lines + line_of_team;
    row = Shape::Height::first_position + line % counts.ranges * Tile::rows, line /= counts.ranges;
    depth = Shape::Depth::first_position + line % counts.depths, image = line / counts.depths;
    column = Shape::first_column + strip * Shape::strip_step;
    // A strip sums the positions behind those of the strip before; the last one all that are left.
    const int end = column + Tile::columns, first = strip == 0 ? 0 : end - Shape::strip_step;
    first_output = strip == 0 ? 0 : first * Shape::Width::phases - Layer::Width::padding;
    outputs_end = end * Shape::Width::phases - Layer::Width::padding;
    if (strip + 1 == counts.strips || outputs_end > output_width) outputs_end = output_width;
  }
  // The first row of inputs.
  TCONV_DEVICE int first_row() const { return row - Shape::rows_before; }
};

}  // namespace tconv
