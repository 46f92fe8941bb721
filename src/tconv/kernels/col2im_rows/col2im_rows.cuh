// col2im_rows: one GEMM and col2im, with each input read once. Only on sm_90a. For layers of few output channels and
// many positions.
//
// The matrices. A row of the first factor is an input, with its channels; a row of the second is a tap of an output
// channel. A result is what an input gives to an output. Inputs go from memory to fragments, or by stages of shared
// memory that a warpgroup fills for itself: then several k-tiles are on their way.
//
// The sums. A team of warpgroups has inputs of a row of the map, 64 each, and goes down the rows. Position q along the
// height sums what the rows q, q - 1, ... give at the shifts 0, 1, ...: each shift has accumulators of its own, which
// move on by one shift from row to row. Those of shift 0 are then complete; with four shifts:
//
//   row 5:   | shift 0: position 5 | 1: position 6 | 2: position 7 | 3: position 8 |
//   row 6:   | shift 0: position 6 | 1: position 7 | 2: position 8 | 3: position 9 |
//
// The shifts along the width meet in shared memory, where a lane sums its output's, in order of shifts, and stores it.
// That happens while the products of the next row run. Shifts along the depth are a part of the product's depth.
//
// Shared memory:
//
//   | weights of all shifts and phases | of each warpgroup: stages of inputs, if any |
//   | of team 0: results of even rows, of odd rows | of team 1: ...
//
// Rounding: factors to TF32 where they become factors; outputs once, after the epilogue.
//
// Not-a-number: reaches the outputs that depend on it, and others of the same position, whose phases have no tap at its
// shift.
#pragma once
#include "col2im_rows/inputs.cuh"
#include "col2im_rows/launch.cuh"
#include "col2im_rows/lines.cuh"
#include "col2im_rows/store.cuh"
#include "col2im_rows/weights.cuh"
#include "primitives/barriers.cuh"

namespace tconv {

// Accumulators of a lane: of each shift along the height, eight columns of the product at a time.
template <class Layer, class Tile>
struct Col2imRowsAccumulators {
  using Shape = Col2imRowsShape<Layer, Tile>;
  static constexpr int of_shift = Shape::shift_columns / 2;
  float values[Shape::product_rows / 2];

  TCONV_DEVICE void clear() {
#pragma unroll
    for (int k = 0; k < Shape::product_rows / 2; ++k) begin_accumulator(values[k], 0);
  }
  // Puts the results of shift 0. The warpgroup's products are done.
  TCONV_DEVICE void put(float* results, int warp, int lane) const {
#pragma unroll
    for (int k = 0; k < of_shift; k += 4)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<Vector<float, 2>*>(results + (warp * 16 + lane / 4 * 2 + i) * Shape::pitch + 2 * k +
                                             lane % 4 * 2) = {{values[k + 2 * i], values[k + 2 * i + 1]}};
  }
  // The accumulators of each shift become those of the shift below.
  TCONV_DEVICE void move_on() {
#pragma unroll
    for (int k = 0; k < Shape::product_rows / 2; ++k)
      move_accumulator(values[k], k + of_shift < Shape::Height::shifts * of_shift
                                      ? values[(k + of_shift) % (Shape::product_rows / 2)]
                                      : 0);
  }
};

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void col2im_rows(const typename Layer::Element* x, const typename Layer::Element* weight,
                              const typename Layer::Element* bias, typename Layer::Element* y, int y_channels,
                              int batch, int input_depth, int input_height, int input_width, int output_depth,
                              int output_height, int output_width, const Program& program = {}) {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  TCONV_SHARED(shared);
  const int team = static_cast<int>(threadIdx.x) / Shape::team_threads;
  const int thread = static_cast<int>(threadIdx.x) % Shape::team_threads, warp = thread / 32, lane = thread % 32;

  // Blocks with the same inputs are neighbours.
  const int weight_set = static_cast<int>(blockIdx.x) % Shape::weight_sets;
  const int group = weight_set / Shape::channel_blocks;
  const int first_channel = weight_set % Shape::channel_blocks * Tile::channels;
  const int work = static_cast<int>(blockIdx.x) / Shape::weight_sets * Shape::teams + team;
  const Col2imRowsPart<Layer, Tile> part(work, warp / Shape::line_warps, output_depth, output_height, input_width,
                                         output_width);

  // What is asked for first, comes first.
  Col2imRowsWeights<Layer, Tile> weights(weight, group, first_channel);
  using Inputs =
      typename Choice<Shape::staged, Col2imRowsStagedInputs<Layer, Tile>, Col2imRowsInputs<Layer, Tile>>::type;
  const Col2imRowsPart<Layer, Tile> loaded(work, Inputs::line(thread), output_depth, output_height, input_width,
                                           output_width);
  Inputs inputs(x, group, loaded, thread, batch, input_depth, input_height, input_width, shared + Shape::weight_bytes);
  const Epilogue<Layer, Program> epilogue{bias + (Layer::has_bias ? group * Layer::group_out_channels : 0), program,
                                          group * Layer::group_out_channels};
  const Col2imRowsChannels<Layer, Tile, Program> channels(epilogue, first_channel);
  float* const results =
      reinterpret_cast<float*>(shared + Shape::weight_bytes + Shape::input_bytes) + team * 2 * Shape::buffer;
  col2im_rows_clear<Layer, Tile>(results, thread);
  Col2imRowsWeights<Layer, Tile>::clear(shared);
  __syncthreads();
  weights.put(shared);
  show_to_products();
  __syncthreads();

  Element* const y_of_group =
      y + static_cast<long long>(group) * Layer::group_out_channels *
              (Tile::channels_last ? 1 : static_cast<long long>(output_depth) * output_height * output_width);
  Col2imRowsAccumulators<Layer, Tile> accumulators;
  WarpgroupProducts products;
  accumulators.clear();
  // Stores what the row before gave. All see its results; none reads those of two rows before.
  const auto store = [&](int row) {
    meet<Shape::team_threads>(1 + team);
    if (part.image < batch)
      col2im_rows_store<Layer, Tile, Program>(results + row % 2 * Shape::buffer, channels, y_of_group, y_channels, part,
                                              part.first_row() + row, warp, lane, output_depth, output_height,
                                              output_width);
  };
#pragma unroll 1
  for (int row = 0; row < Shape::input_rows; ++row) {
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      unsigned fragments[Tile::k_tile_steps][4];
      inputs.take(fragments);
      products.begin_group();
#pragma unroll
      for (int step = 0; step < Tile::k_tile_steps; ++step) {
        const int number = k_tile * Tile::k_tile_steps + step;
        products.template add<Element, Shape::product_rows>(
            accumulators.values, fragments[step], FactorRows<128>(shared + number / 4 * Shape::weight_block_bytes),
            number % 4 * 32);
      }
      products.end_group();
      if (k_tile == 0 && row > Shape::rows_before) store(row - 1);
      products.template wait<0>();
#pragma unroll
      for (int step = 0; step < Tile::k_tile_steps; ++step)
#pragma unroll
        for (int word = 0; word < 4; ++word) end_factor(fragments[step][word]);
    }
    // Positions before the first one of the part lack rows.
    if (row >= Shape::rows_before) accumulators.put(results + row % 2 * Shape::buffer, warp, lane);
    accumulators.move_on();
  }
  store(Shape::input_rows - 1);
}

}  // namespace tconv
