// col2im: transposed convolution as one GEMM and col2im, on tensor cores, by mma.sync. From sm_80 on. For layers of few
// positions, whose time is that of loading their weights.
//
// Computes the same as `direct`. x and y are contiguous or channels_last; they and the weights begin at multiples of 16
// bytes. Weights are taken as they lie: nothing is prepared.
//
// The matrices. For an input channel, the taps of neighbouring output channels are neighbours in memory. So are mostly
// the positions of an image:
//
//     rows (output channel, tap)  x  depth (input channel)    weights, rows are neighbours
//   * depth                       x  columns (position)       inputs
//   = rows                        x  columns                  what each tap makes of each input
//
// An output is the sum of those results whose tap and input meet there (col2im). Every result belongs to one output, or
// to none where padding cuts it off. Stride, padding and dilation matter for these sums alone.
//
// A block has all taps of `channels` output channels, and a block tile of inputs: images x depths x rows x columns.
// Where taps overlap, block tiles do, too: a block stores the outputs of which it has all inputs.
//
//      weights     inputs       `splits` sets of warps share the input channels: each multiplies all rows by all
//      columns
//    : stage 0 : : stage 0 :    for every splits-th step of 32 bytes of channels. A set has its own stages, copies to
//    them : stage 1 : : stage 1 :    as global memory has the data, and waits for no other set. Its `high` x `wide`
//    warps share :   ...   : :   ...   :    rows and columns. After the last step the sets put their sums into shared
//    memory, in place
//       of set 0, of set 1 ...  of the stages, and meet. Then each thread sums outputs, over taps and sets.
//
// As many stages are asked for at once as shared memory holds: bytes in flight bound the time. So does code: it comes
// from memory, too, and a block runs most of it once. What copies stands in one loop, which first asks and then
// multiplies.
//
// Rounding: factors to TF32 on their way from a stage to fragments; outputs once, after the epilogue.
//
// Not-a-number: reaches the outputs that depend on it, and no others.
#pragma once
#include "col2im/copies.cuh"
#include "col2im/launch.cuh"
#include "col2im/store.cuh"
#include "primitives/barriers.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// The threads of a set meet; orders their memory.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_meet(int set) {
  using Shape = Col2imShape<Layer, Tile>;
  if (Shape::set_threads == 32)
    __syncwarp();
  else
    meet<Shape::set_threads>(1 + set);
}

// Loads the fragments of two tiles of positions from runs, item by item.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_load_runs(const unsigned char* inputs, const Col2imCopies<Layer, Tile>& copies, int step,
                                   int first_tile, int lane, unsigned (&words)[4]) {
  using Shape = Col2imShape<Layer, Tile>;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int number = (first_tile + word / 2) * 8 + lane / 4, position = number < Shape::positions ? number : 0;
    const int image = position / Shape::run_positions, channel = word % 2 * 8 + lane % 4 * 2;
    // With one image, where a channel's run begins is the same for all tiles: compilers compute it once.
    const unsigned low = copies.run_at(inputs, step, channel, image)[position % Shape::run_positions];
    const unsigned high = copies.run_at(inputs, step, channel + 1, image)[position % Shape::run_positions];
    words[word] = low | high << 16;
  }
}

// Multiplies a step, which lies in `stage`.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_multiply(Col2imAccumulators<Layer, Tile>& accumulators, const unsigned char* stage,
                                  const Col2imCopies<Layer, Tile>& copies, int step, int first_row_tile,
                                  int first_position_tile, int lane) {
  using Shape = Col2imShape<Layer, Tile>;
  using Element = typename Layer::Element;
  constexpr int together = Shape::rows_together;
  unsigned rows[Shape::warp_row_tiles][4];
  const unsigned char* const inputs = stage + Shape::stage_weight_bytes;
  if (Shape::item_bytes == 4) {
    // Word 2 * half + low of a fragment: row lane / 4 + 8 * low, channel lane % 4 + 4 * half.
#pragma unroll
    for (int i = 0; i < Shape::warp_row_tiles; i += together)
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        float values[together];
        load_shared<float, together>(
            reinterpret_cast<const float*>(stage + (lane % 4 + word / 2 * 4) * Shape::weight_pitch) +
                Shape::row_of(first_row_tile + i, word % 2 * 8 + lane / 4),
            values);
#pragma unroll
        for (int k = 0; k < together; ++k) rows[i + k][word] = float_bits(matrix_factor<Layer>(values[k], 0));
      }
  } else {
    // Matrix 2 * half + low: eight channels from 8 * half on, of eight rows from 8 * low on; transposed on the way.
#pragma unroll
    for (int i = 0; i < Shape::warp_row_tiles; ++i)
      load_transposed_matrices(
          stage + (lane / 16 * 8 + lane % 8) * Shape::weight_pitch + ((first_row_tile + i) * 16 + lane / 8 % 2 * 8) * 2,
          rows[i]);
  }
#pragma unroll
  for (int j = 0; j < Shape::warp_position_tiles; j += Shape::tiles_at_once) {
    unsigned columns[2][2];
    if (Shape::item_bytes == 4) {
      const int position = (first_position_tile + j) * 8 + lane / 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = lane % 4 + half * 4;
        const float value =
            *reinterpret_cast<const float*>(inputs + (Tile::inputs_last ? position * Shape::input_pitch + channel * 4
                                                                        : channel * Shape::input_pitch + position * 4));
        columns[0][half] = float_bits(matrix_factor<Layer>(value, 0));
      }
    } else {
      // Matrix 2 * tile + half: eight channels from 8 * half on, of the eight positions of a tile.
      unsigned words[4];
      const int tile = first_position_tile + j + lane / 16, half = lane / 8 % 2;
      if (Tile::runs)
        col2im_load_runs<Layer, Tile>(inputs, copies, step, first_position_tile + j, lane, words);
      else if (Tile::inputs_last)
        load_matrices(inputs + (tile * 8 + lane % 8) * Shape::input_pitch + half * 16, words);
      else
        load_transposed_matrices(inputs + (half * 8 + lane % 8) * Shape::input_pitch + tile * 16, words);
      columns[0][0] = words[0], columns[0][1] = words[1], columns[1][0] = words[2], columns[1][1] = words[3];
    }
#pragma unroll
    for (int k = 0; k < Shape::tiles_at_once; ++k)
#pragma unroll
      for (int i = 0; i < Shape::warp_row_tiles; ++i)
        multiply_fragments<Element>(accumulators.values[i][j + k], rows[i], columns[k]);
  }
}

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void col2im(const typename Layer::Element* x, const typename Layer::Element* weight,
                         const typename Layer::Element* bias, typename Layer::Element* y, int y_channels, int batch,
                         int input_depth, int input_height, int input_width, int output_depth, int output_height,
                         int output_width, const Program& program = {}) {
  using Shape = Col2imShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  // Blocks with the same inputs are neighbours.
  const int columns = Shape::Width::count(input_width);
  const int rows = Layer::spatial_dims > 1 ? Shape::Height::count(input_height) : 1;
  const int depths = Layer::spatial_dims > 2 ? Shape::Depth::count(input_depth) : 1;
  const int weight_set = static_cast<int>(blockIdx.x) % Shape::weight_sets;
  int image_block = static_cast<int>(blockIdx.x) / Shape::weight_sets, depth = 0, row = 0, column = 0;
  if (columns * rows * depths > 1) {  // else there is nothing to divide, and the instructions need not be fetched
    column = image_block % columns, image_block /= columns;
    row = image_block % rows, image_block /= rows;
    depth = image_block % depths, image_block /= depths;
  }
  const int group = weight_set / Shape::row_blocks, first_channel = weight_set % Shape::row_blocks * Tile::channels;
  const BlockTilePosition first = {image_block * Tile::BlockTile::images, depth * Shape::Depth::step,
                                   row * Shape::Height::step, column * Shape::Width::step};

  // A set of warps shares the rows and columns of a step.
  const int set = warp / (Tile::Warps::high * Tile::Warps::wide),
            of_set = warp % (Tile::Warps::high * Tile::Warps::wide);
  const int first_row_tile = of_set % Tile::Warps::high * Shape::warp_row_tiles;
  const int first_position_tile = of_set / Tile::Warps::high * Shape::warp_position_tiles;
  Col2imCopies<Layer, Tile> copies(weight, x, group, first_channel, set, first, batch, input_depth, input_height,
                                   input_width, of_set * 32 + lane);
  unsigned char* const stages = shared + set * (Tile::stages * Shape::stage_bytes);
  Col2imAccumulators<Layer, Tile> accumulators;
#pragma unroll
  for (int i = 0; i < Shape::warp_row_tiles; ++i)
#pragma unroll
    for (int j = 0; j < Shape::warp_position_tiles; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) accumulators.values[i][j][k] = 0;

  // The first turns only ask.
  int stage = 0, stage_ahead = 0;
#pragma unroll 1
  for (int ahead = 0; ahead < Shape::set_steps + Shape::stages_ahead; ++ahead) {
    const int step = ahead - Shape::stages_ahead;
    if (step >= 0) {
      copies.waiting.template wait<Shape::stages_ahead - 1>();
      col2im_meet<Layer, Tile>(set);  // all see the step, and none reads the one before any more
    }
    copies.begin(ahead < Shape::set_steps, stages + stage_ahead * Shape::stage_bytes);
    stage_ahead = stage_ahead + 1 == Tile::stages ? 0 : stage_ahead + 1;
    if (step < 0) continue;
    col2im_multiply<Layer, Tile>(accumulators, stages + stage * Shape::stage_bytes, copies,
                                 set + step * Tile::Warps::splits, first_row_tile, first_position_tile, lane);
    stage = stage + 1 == Tile::stages ? 0 : stage + 1;
  }

  float* const sums = reinterpret_cast<float*>(shared);
  __syncthreads();  // nobody reads a stage any more
  col2im_put<Layer, Tile>(accumulators, sums + set * Shape::sums, first_row_tile, first_position_tile, lane);
  __syncthreads();
  const Epilogue<Layer, Program> epilogue{bias + (Layer::has_bias ? group * Layer::group_out_channels : 0), program,
                                          group * Layer::group_out_channels};
  const BlockTilePosition first_output = {first.image, Shape::Depth::first_output(depth, depths, output_depth),
                                          Shape::Height::first_output(row, rows, output_height),
                                          Shape::Width::first_output(column, columns, output_width)};
  const Col2imOutputs<Layer, Tile, Program> outputs{
      sums,
      epilogue,
      y + static_cast<long long>(group) * Layer::group_out_channels *
              (Tile::channels_last ? 1 : static_cast<long long>(output_depth) * output_height * output_width),
      first,
      first_output,
      Shape::Depth::first_output(depth + 1, depths, output_depth) - first_output.depth,
      Shape::Height::first_output(row + 1, rows, output_height) - first_output.row,
      Shape::Width::first_output(column + 1, columns, output_width) - first_output.column,
      first_channel,
      batch,
      input_depth,
      input_height,
      input_width,
      y_channels,
      output_depth,
      output_height,
      output_width};
  outputs.store();
}

}  // namespace tconv
