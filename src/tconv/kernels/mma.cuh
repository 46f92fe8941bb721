// mma: transposed convolution as a product of matrices on tensor cores, from sm_80 on.
//
// Computes what `direct` computes. x and y are contiguous, or channels_last, and begin at multiples of 16 bytes;
// `mma_weights` must have prepared the weights, which were contiguous and began there, too.
//
// The matrices. A position q owns stride_d * stride_h * stride_w neighbouring outputs, its phases, and each tap of each
// phase reads the input at q - shift. So for all phases together
//
//     rows (phase, output channel)  x  depth (shift, input channel)   weights, 0 where a phase has no tap at a shift
//   * depth                         x  columns (position)             inputs, moved by the shift
//   = rows                          x  columns                        outputs, position by position
//
// Where the kernel is a multiple of the stride every phase has a tap at every shift. Elsewhere a tile of 16 rows of one
// phase leaves out the shifts at which the phase has no tap.
//
//     warps_wide = 2, warps_high = 2                  a block owns a box of positions: box_images x box_depths x
//                  positions                          box_rows x box_columns of them, numbered one after the other;
//              ............ ............              numbers beyond the box repeat the first position and are not
//        rows  : warp 0   : : warp 2   :              stored. A warp owns row_tiles tiles of 16 rows by position_tiles
//              :..........: :..........:              tiles of 8 positions. Neighbouring row tiles are the phases of
//              : warp 1   : : warp 3   :              the same channels, the column phase running fastest: a warp
//              :..........: :..........:              mostly has whole rows of outputs.
//
// `splits` such sets of warps share the input channels, a part of each chunk for each; the first adds the others' sums
// to its own, in order.
//
// Shared memory. The box's inputs with the halo around it lie position by position, the channels of a chunk together:
// ldmatrix then finds its rows at any shift, as moving by a shift is adding a constant. Places outside the input are 0.
// Weights lie as the lanes want them, so that a fragment is one load of 16 bytes. There are two stages of both, if
// there are several steps; at the end warps bring their outputs into the order of memory there. Behind it all stands
// what tells when weights have landed.
//
// Weights that are `resident` have a stage for each chunk, and are brought once: there are fewer blocks than boxes, and
// a block goes through several of them, with the next box's first inputs on their way while it multiplies the last
// chunk of this one. Outputs have memory of their own then.
//
//     step n:    wait; barrier; ask for the weights of step n+1;  multiply  ;  write the next chunk's inputs, if
//                               and, of a new chunk, for the                   this is the chunk's last step
//                               next chunk's inputs
//
// A step is one chunk of channels and one group of shifts. Weights come by copies of the block; inputs come through
// registers, where they are rounded and, unless they are channels_last, transposed.
//
// The kernel may begin while its weights are prepared, and waits for them itself. Whatever it reads before that was
// there when the preparing kernel began, and it writes nothing.
//
// Exact fp32 splits each factor into its rounding to TF32 and the rest, and adds three products. The tensor core drops
// bits of long sums: they go to registers of their own every 32 channels, those of several shifts among them.
//
// Not-a-number: an input outside the map counts as 0, and so does a weight that a phase does not have: an infinite or
// NaN input reaches all outputs of the positions that read it, an infinite or NaN weight also those at the border.
//
// Sizes: the channels of a box's inputs and 32 planes of outputs must stay below 2^31 unless wide_index, as channels
// that a lane stores are up to so many apart; the rest is 64-bit. Shared memory: MmaShape<Layer, Tile>::shared_bytes.
#pragma once
#include "mma_inputs.cuh"
#include "mma_store.cuh"

namespace tconv {

// Multiplies a set's part of one chunk of channels at one shift, at which inputs lie `moved` bytes behind those at the
// highest one. `weights` points to the lane's fragment of the warp's first row tile, `inputs` to the row of each pair
// of position tiles that the lane names, at the highest shift.
template <class Layer, class Tile, class Between>
TCONV_DEVICE void mma_multiply(MmaSums<Layer, Tile>& sums, int shift, int moved, int first_row_tile,
                               const unsigned char* weights,
                               const unsigned char* const (&inputs)[Tile::position_tiles / 2],
                               const Between& between_steps) {
  using Shape = MmaShape<Layer, Tile>;
#pragma unroll
  for (int step = 0; step < Tile::chunk_steps; ++step) {
    unsigned columns[Shape::planes][Tile::position_tiles][2];
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane)
#pragma unroll
      for (int j = 0; j < Tile::position_tiles; j += 2) {
        unsigned words[4];
        load_matrices(inputs[j / 2] + moved + plane * Shape::plane_bytes + step * 32, words);
        columns[plane][j][0] = words[0], columns[plane][j][1] = words[1];
        columns[plane][j + 1][0] = words[2], columns[plane][j + 1][1] = words[3];
      }
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i) {
      if (!Shape::has_taps(shift, (Shape::phases_known ? i : first_row_tile + i) % Shape::phase_tiles)) continue;
      // The small products first.
#pragma unroll
      for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane) {
        const Vector<unsigned, 4> row = *reinterpret_cast<const Vector<unsigned, 4>*>(
            weights + ((i * Shape::stage_steps + step) * Shape::planes + row_plane) * Shape::fragment_bytes);
#pragma unroll
        for (int column_plane = Shape::planes - 1 - row_plane; column_plane >= 0; --column_plane)
#pragma unroll
          for (int j = 0; j < Tile::position_tiles; ++j)
            MatrixProduct<typename Layer::Element>::add(sums.values[i][j], row.values, columns[column_plane][j]);
      }
    }
    between_steps(step);
  }
}

template <class Layer, class Tile>
TCONV_DEVICE void mma(const typename Layer::Element* x, const typename Layer::Element* weight,
                      const typename Layer::Element* bias, typename Layer::Element* y, int batch, int input_depth,
                      int input_height, int input_width, int output_depth, int output_height, int output_width) {
  using Shape = MmaShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_high = warp % Tile::warps_high, warp_wide = warp / Tile::warps_high % Tile::warps_wide;
  const int first_step = warp / Shape::warps * Tile::chunk_steps;  // of each chunk, for the warp's set

  // Blocks with the same inputs follow each other.
  constexpr int weight_sets = Layer::groups * Shape::row_blocks;
  const int weight_set = static_cast<int>(blockIdx.x) % weight_sets;
  const int group = weight_set / Shape::row_blocks, row_block = weight_set % Shape::row_blocks;
  const int first_row_tile = row_block * Shape::block_row_tiles + warp_high * Tile::row_tiles;
  const MmaBoxes<Layer, Tile> boxes(output_depth, output_height, output_width);
  const int box_count = boxes.columns * boxes.rows * boxes.depths * ceil_div(batch, Tile::box_images);
  int number = static_cast<int>(blockIdx.x) / weight_sets;
  MmaBox box = boxes.box(number);

  MmaInputs<Layer, Tile> inputs(x, group, batch, input_depth, input_height, input_width);
  inputs.begin(box);
  inputs.load(0, true, 0, 1);

  // Lane l names row l % 8 of matrix l / 8: two tiles of positions, and of each the halves of 32 bytes of channels.
  int places[Tile::position_tiles / 2];
#pragma unroll
  for (int j = 0; j < Tile::position_tiles; j += 2) {
    const int position = (warp_wide * Tile::position_tiles + j + lane / 16) * 8 + lane % 8;
    const MmaBox in_box = mma_in_box<Tile>(position < Shape::box_positions ? position : 0);
    places[j / 2] =
        (((in_box.sample * Shape::halo_depths + in_box.depth) * Shape::halo_rows + in_box.row) * Shape::halo_columns +
         in_box.column) *
            Shape::position_bytes +
        first_step * 32 + lane / 8 % 2 * 16;
  }

  unsigned char* const weight_stages = shared + Shape::input_stages * Shape::input_stage_bytes;
  const unsigned char* const fragments = weight_stages + lane * 16 +
                                         first_step * Shape::planes * Shape::fragment_bytes +
                                         warp_high * Tile::row_tiles * Shape::tile_bytes;
  MmaWeightStages<Layer, Tile> weights(
      reinterpret_cast<const unsigned char*>(weight) + weight_set * Shape::block_weight_bytes, weight_stages,
      shared + Shape::barrier_at, row_block);
  wait_for_kernel_before();  // which prepared the weights
  weights.ask();
  inputs.store(shared);
  if (Tile::resident) weights.copy.wait();

  MmaSums<Layer, Tile> sums;
  int input_stage = 0, weight_stage = 0;  // where they begin, in bytes
  bool more = false;
  do {
    const MmaBox current = box;
    sums.clear();
#pragma unroll 1
    for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
      const bool last_chunk = chunk == Shape::chunks - 1;
      bool loads = !last_chunk;
      const unsigned char* rows_of_lane[Tile::position_tiles / 2];
#pragma unroll
      for (int j = 0; j < Tile::position_tiles / 2; ++j) rows_of_lane[j] = shared + input_stage + places[j];
      MmaCursor<Layer, Tile> cursor;
#pragma unroll(Shape::unrolled ? Shape::shift_groups : 1)
      for (int shift_group = 0; shift_group < Shape::shift_groups; ++shift_group) {
        if (!Tile::resident) weights.copy.wait();
        __syncthreads();
        if (Tile::resident && last_chunk && shift_group == 0) {
          number += static_cast<int>(gridDim.x) / weight_sets;
          loads = more = number < box_count;
          if (more) inputs.begin(box = boxes.box(number));
        }
        if (Shape::input_parts == 0 && shift_group == 0 && loads) inputs.load(last_chunk ? 0 : chunk + 1, true, 0, 1);
        if (!Tile::resident) weights.ask();

#pragma unroll(Shape::unrolled ? Tile::chunk_shifts : 1)
        for (int first = 0; first < Tile::chunk_shifts; first += Shape::shifts_together) {
          MmaSums<Layer, Tile> partial;
          if (Shape::exact) partial.clear();
#pragma unroll
          for (int of_group = first; of_group < first + Shape::shifts_together; ++of_group) {
            const int shift = shift_group * Tile::chunk_shifts + of_group;
            if (of_group >= Tile::chunk_shifts || shift >= Shape::shifts) break;
            const int moved = Shape::unrolled ? Shape::halo_offset(shift) * Shape::position_bytes : cursor.next();
            mma_multiply<Layer, Tile>(Shape::exact ? partial : sums, shift, moved, first_row_tile,
                                      fragments + weight_stage + of_group * Shape::shift_bytes, rows_of_lane,
                                      [&](int step) {
                                        const int part = shift * Tile::chunk_steps + step;
                                        if (part < Shape::input_parts)
                                          inputs.load(last_chunk ? 0 : chunk + 1, loads, part, Shape::input_parts);
                                      });
          }
          if (Shape::exact) sums.add(partial);
        }
        weight_stage = Shape::next_weight_stage(weight_stage);
      }
      if (Shape::input_stages == 2) input_stage = Shape::input_stage_bytes - input_stage;
      if (loads) inputs.store(shared + input_stage);
    }

    if (!Tile::resident) __syncthreads();  // Nobody reads the stages any more: what follows takes their place.
    if (!mma_join(sums, shared)) return;
    const MmaBias<Layer> epilogue{Layer::has_bias ? bias + static_cast<long long>(group) * Layer::out_channels : bias};
    const long long first_channel = static_cast<long long>(group) * Layer::out_channels;
    const long long plane = static_cast<long long>(output_depth) * output_height * output_width;
    mma_store(sums, epilogue, shared + Shape::stored_at + warp * Shape::turn_bytes,
              y + first_channel * (Tile::channels_last ? 1 : plane), current, first_row_tile,
              warp_wide * Tile::position_tiles * 8, batch, output_depth, output_height, output_width);
  } while (more);
}

}  // namespace tconv
