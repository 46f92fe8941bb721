// col2im: transposed convolution as one GEMM and col2im, on tensor cores, by mma.sync. From sm_80 on. For layers of few
// positions, whose time is that of loading their weights, and for layers of few output channels.
//
// Computes the same as `direct`. x and y are contiguous or channels_last; they and the weights begin at multiples of 16
// bytes. Weights are taken as they lie: no kernel before this one prepares them.
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
// The warps. `splits` sets of `high` x `wide` warps share the input channels: a set has every splits-th k-tile of them,
// multiplies all rows by all columns, and waits for no other set. Its warps share rows and columns.
//
// Shared memory, of a block with one block tile. A set copies to its stages as global memory has the data. After the
// last k-tile the sets put their sums in place of the stages and meet. Then each thread sums outputs, over taps and
// sets:
//
//   | set 0: stages of weights and inputs  | set 1: ... |      | sums of set 0     | sums of set 1 | ...
//
// As many stages are asked for at once as shared memory holds: bytes in flight bound the time. So does code: it comes
// from memory, too, and such a block runs most of it once. What copies stands in one loop, which first asks and then
// multiplies.
//
// With resident weights a block goes through several block tiles. The next one's inputs arrive while this one is
// summed:
//
//   | set 0: all weights of its k-tiles, stages of inputs  | set 1: ...  | sums of set 0  | sums of set 1 | ...
//
// Rounding: factors to TF32 on their way from a stage to fragments, resident weights once; outputs once, after the
// epilogue.
//
// Not-a-number: reaches the outputs that depend on it, and no others.
#pragma once
#include "col2im/accumulators.cuh"
#include "col2im/block_tiles.cuh"
#include "col2im/copies.cuh"
#include "col2im/launch.cuh"
#include "col2im/positions.cuh"
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
TCONV_DEVICE void col2im_load_runs(const unsigned char* inputs,
                                   const Col2imRuns<Layer, Tile, Col2imShape<Layer, Tile>>& runs, int first_tile,
                                   int lane, unsigned (&words)[4]) {
  using Shape = Col2imShape<Layer, Tile>;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int number = (first_tile + word / 2) * 8 + lane / 4, position = number < Shape::positions ? number : 0;
    const int image = position / Shape::run_positions, channel = word % 2 * 8 + lane % 4 * 2;
    // With one image, where a channel's run begins is the same for all tiles: compilers compute it once.
    const int place = position % Shape::run_positions;
    const unsigned low = runs.template at<unsigned short>(inputs, channel, image)[place];
    const unsigned high = runs.template at<unsigned short>(inputs, channel + 1, image)[place];
    words[word] = low | high << 16;
  }
}

// Puts a set's resident weights of 32 bits into the order of fragments, rounded: a lane's four numbers of a tile of
// rows lie together. Its threads make each step's in turn.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_order(unsigned char* weights, int set, int thread) {
  using Shape = Col2imShape<Layer, Tile>;
  constexpr int numbers = Shape::row_tiles * 128, turns = ceil_div(numbers, Shape::set_threads);
#pragma unroll 1
  for (int step = 0; step < Shape::set_k_tiles * Tile::k_tile_steps; ++step) {
    float* const of_step = reinterpret_cast<float*>(weights + step * Shape::step_channels * Shape::weight_pitch);
    float values[turns];
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int number = thread + i * Shape::set_threads, word = number % 4, lane = number / 4 % 32;
      const int row = number / 128 * 16 + word % 2 * 8 + lane / 4, channel = lane % 4 + word / 2 * 4;
      if (number < numbers) values[i] = matrix_factor<Layer>(of_step[channel * (Shape::weight_pitch / 4) + row], 0);
    }
    col2im_meet<Layer, Tile>(set);
#pragma unroll
    for (int i = 0; i < turns; ++i)
      if (thread + i * Shape::set_threads < numbers) of_step[thread + i * Shape::set_threads] = values[i];
  }
}

// Multiplies a step. Resident weights of 32 bits lie as fragments.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_multiply(Col2imAccumulators<Layer, Tile>& accumulators, const unsigned char* weights,
                                  const unsigned char* inputs,
                                  const Col2imRuns<Layer, Tile, Col2imShape<Layer, Tile>>& runs, int first_row_tile,
                                  int first_position_tile, int lane) {
  using Shape = Col2imShape<Layer, Tile>;
  using Element = typename Layer::Element;
  constexpr int together = Shape::rows_together;
  unsigned rows[Shape::warp_row_tiles][4];
  if (Shape::item_bytes == 4 && Tile::resident) {
#pragma unroll
    for (int i = 0; i < Shape::warp_row_tiles; ++i) {
      const auto row = reinterpret_cast<const Vector<unsigned, 4>*>(weights)[(first_row_tile + i) * 32 + lane];
#pragma unroll
      for (int word = 0; word < 4; ++word) rows[i][word] = row.values[word];
    }
  } else if (Shape::item_bytes == 4) {
    // Word 2 * half + low of a fragment: row lane / 4 + 8 * low, channel lane % 4 + 4 * half.
#pragma unroll
    for (int i = 0; i < Shape::warp_row_tiles; i += together)
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        float values[together];
        load_shared<float, together>(
            reinterpret_cast<const float*>(weights + (lane % 4 + word / 2 * 4) * Shape::weight_pitch) +
                Shape::row_of(first_row_tile + i, word % 2 * 8 + lane / 4),
            values);
#pragma unroll
        for (int k = 0; k < together; ++k) rows[i + k][word] = float_bits(matrix_factor<Layer>(values[k], 0));
      }
  } else {
    // Matrix 2 * half + low: eight channels from 8 * half on, of eight rows from 8 * low on; transposed on the way.
#pragma unroll
    for (int i = 0; i < Shape::warp_row_tiles; ++i)
      load_transposed_matrices(weights + (lane / 16 * 8 + lane % 8) * Shape::weight_pitch +
                                   ((first_row_tile + i) * 16 + lane / 8 % 2 * 8) * 2,
                               rows[i]);
  }
#pragma unroll
  for (int j = 0; j < Shape::warp_position_tiles; j += Shape::tiles_at_once) {
    unsigned columns[2][2];
    if (Shape::item_bytes == 4) {
      const int position = (first_position_tile + j) * 8 + lane / 4;
      const int of_run = position < Shape::positions ? position : 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = lane % 4 + half * 4;
        const float value =
            Tile::runs
                ? runs.template at<float>(inputs, channel, of_run / Shape::run_positions)[of_run % Shape::run_positions]
                : *reinterpret_cast<const float*>(inputs + (Tile::inputs_last
                                                                ? position * Shape::input_pitch + channel * 4
                                                                : channel * Shape::input_pitch + position * 4));
        columns[0][half] = float_bits(matrix_factor<Layer>(value, 0));
      }
    } else {
      // Matrix 2 * tile + half: eight channels from 8 * half on, of the eight positions of a tile.
      unsigned words[4];
      const int tile = first_position_tile + j + lane / 16, half = lane / 8 % 2;
      if (Tile::runs)
        col2im_load_runs<Layer, Tile>(inputs, runs, first_position_tile + j, lane, words);
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

template <class Layer, class Tile>
TCONV_DEVICE void col2im_clear(Col2imAccumulators<Layer, Tile>& accumulators) {
  using Shape = Col2imShape<Layer, Tile>;
#pragma unroll
  for (int i = 0; i < Shape::warp_row_tiles; ++i)
#pragma unroll
    for (int j = 0; j < Shape::warp_position_tiles; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) accumulators.values[i][j][k] = 0;
}

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void col2im(const typename Layer::Element* x, const typename Layer::Element* weight,
                         const typename Layer::Element* bias, typename Layer::Element* y, int y_channels, int batch,
                         int input_depth, int input_height, int input_width, int output_depth, int output_height,
                         int output_width, const Program& program = {}) {
  using Shape = Col2imShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  const Col2imBlockTiles<Layer, Tile, Shape> block_tiles(input_depth, input_height, input_width);
  using Order = BlockOrder<Layer, Shape::row_blocks, Tile::resident>;
  const int block = static_cast<int>(blockIdx.x);
  const int group = Order::group_of(block, block_tiles.count(batch)),
            first_channel = Order::set_of(block) * Tile::channels;
  int number = Order::block_tile_of(block, block_tiles.count(batch));
  Col2imNumbers numbers = block_tiles.numbers(number);

  // A set of warps shares the rows and columns of a step.
  const int set = warp / (Tile::Warps::high * Tile::Warps::wide),
            of_set = warp % (Tile::Warps::high * Tile::Warps::wide);
  const int first_row_tile = of_set % Tile::Warps::high * Shape::warp_row_tiles;
  const int first_position_tile = of_set / Tile::Warps::high * Shape::warp_position_tiles;
  Col2imCopies<Layer, Tile, Shape> copies(weight, x, group, first_channel, set, block_tiles.first_input(numbers), batch,
                                          input_depth, input_height, input_width, of_set * 32 + lane);
  unsigned char* const resident = shared + set * Shape::set_bytes;
  unsigned char* const stages = resident + Shape::resident_bytes;
  float* const sums = reinterpret_cast<float*>(shared + Shape::sums_at);
  const Epilogue<Layer, Program> epilogue{bias + (Layer::has_bias ? group * Layer::group_out_channels : 0), program,
                                          group * Layer::group_out_channels};
  typename Layer::Element* const y_of_group =
      y + static_cast<long long>(group) * Layer::group_out_channels *
              (Tile::channels_last ? 1 : static_cast<long long>(output_depth) * output_height * output_width);
  Col2imAccumulators<Layer, Tile> accumulators;
  int stage = 0, stage_ahead = 0;

  const auto runs_of = [&](const Col2imNumbers& numbers) {
    const long long begin = Tile::runs ? copies.place(0, group, block_tiles.first_input(numbers), batch, input_depth,
                                                      input_height, input_width)
                                       : 0;
    return Col2imRuns<Layer, Tile, Shape>{static_cast<unsigned>(begin), static_cast<unsigned>(copies.plane)};
  };

  const auto multiply_k_tile = [&](const unsigned char* weights, const unsigned char* inputs,
                                   const Col2imRuns<Layer, Tile, Shape>& runs, int k_tile) {
    const int number = k_tile * Tile::Warps::splits + set;
    const int channels_left = Layer::group_in_channels - number * Shape::k_tile_channels;
#pragma unroll
    for (int i = 0; i < Tile::k_tile_steps; ++i)
      if (Shape::whole_k_tiles || i * Shape::step_channels < channels_left)
        col2im_multiply<Layer, Tile>(accumulators, weights + i * Shape::step_channels * Shape::weight_pitch,
                                     inputs + i * (Tile::inputs_last ? 32 : Shape::step_channels * Shape::input_pitch),
                                     runs, first_row_tile, first_position_tile, lane);
  };

  if (!Tile::resident) {
    const auto runs = runs_of(numbers);
    col2im_clear<Layer, Tile>(accumulators);
    // The first turns only ask.
#pragma unroll 1
    for (int ahead = 0; ahead < Shape::set_k_tiles + Shape::stages_ahead; ++ahead) {
      const int k_tile = ahead - Shape::stages_ahead;
      if (k_tile >= 0) {
        copies.waiting.template wait<Shape::stages_ahead - 1>();
        col2im_meet<Layer, Tile>(set);  // all see the k-tile, and none reads the one before any more
      }
      copies.begin(ahead < Shape::set_k_tiles, stages + stage_ahead * Shape::stage_bytes);
      stage_ahead = stage_ahead + 1 == Tile::stages ? 0 : stage_ahead + 1;
      if (k_tile < 0) continue;
      const unsigned char* const weights = stages + stage * Shape::stage_bytes;
      multiply_k_tile(weights, weights + Shape::stage_weight_bytes, runs, k_tile);
      stage = stage + 1 == Tile::stages ? 0 : stage + 1;
    }
    __syncthreads();  // nobody reads a stage any more
    col2im_put<Layer, Tile>(accumulators, sums + set * Shape::sums, first_row_tile, first_position_tile, lane);
    __syncthreads();
    col2im_store_outputs<Layer, Tile, Shape, Program>(sums, epilogue, y_of_group, block_tiles, numbers, first_channel,
                                                      0, batch, input_depth, input_height, input_width, y_channels,
                                                      output_depth, output_height, output_width);
    return;
  }

  // Resident weights. The inputs of the next block tile are on their way while this one is summed.
  const int block_tile_count = block_tiles.count(batch), together = static_cast<int>(gridDim.x) / Shape::weight_sets;
  const Col2imNumbers step = block_tiles.numbers(together);
  Col2imNumbers numbers_ahead = numbers;
  int number_ahead = number, k_tile_ahead = 0;
  const auto ask = [&] {
    if (k_tile_ahead == 0 && number_ahead < block_tile_count)
      copies.begin_block_tile(group, set, block_tiles.first_input(numbers_ahead), batch, input_depth, input_height,
                              input_width);
    copies.begin_next(number_ahead < block_tile_count, stages + stage_ahead * Shape::stage_bytes);
    stage_ahead = stage_ahead + 1 == Tile::stages ? 0 : stage_ahead + 1;
    if (++k_tile_ahead < Shape::set_k_tiles) return;
    k_tile_ahead = 0, number_ahead += together, numbers_ahead = block_tiles.sum(numbers_ahead, step);
  };
  copies.begin_resident(resident);
#pragma unroll 1
  for (int ahead = 0; ahead < Shape::stages_ahead; ++ahead) ask();
  if (Shape::item_bytes == 4) {
    copies.waiting.template wait<Shape::stages_ahead>();
    col2im_meet<Layer, Tile>(set);  // all see the weights
    col2im_order<Layer, Tile>(resident, set, of_set * 32 + lane);
  }
#pragma unroll 1
  for (; number < block_tile_count; number += together, numbers = block_tiles.sum(numbers, step)) {
    const auto runs = runs_of(numbers);
    col2im_clear<Layer, Tile>(accumulators);
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::set_k_tiles; ++k_tile) {
      copies.waiting.template wait<Shape::stages_ahead - 1>();
      col2im_meet<Layer, Tile>(set);  // all see the k-tile, and none reads the one before any more
      ask();
      multiply_k_tile(resident + k_tile * Shape::stage_weight_bytes, stages + stage * Shape::stage_bytes, runs, k_tile);
      stage = stage + 1 == Tile::stages ? 0 : stage + 1;
    }
    // Nobody reads the sums of the block tile before any more. One set alone has met since.
    if (Tile::Warps::splits > 1) __syncthreads();
    col2im_put<Layer, Tile>(accumulators, sums + set * Shape::sums, first_row_tile, first_position_tile, lane);
    __syncthreads();
    col2im_store_positions<Layer, Tile, Shape, Program>(sums, epilogue, y_of_group, block_tiles, numbers, first_channel,
                                                        0, batch, input_depth, input_height, input_width, y_channels,
                                                        output_depth, output_height, output_width);
  }
}

}  // namespace tconv
