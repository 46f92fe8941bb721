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
//     Warps: wide = 2, high = 2                       a block owns a box of positions: images x depths x rows x
//                  positions                          columns of them (`Box`), numbered one after the other;
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
// Inputs that are `copied` lie channel by channel instead, as they do in memory, and have more stages. Weights lie as
// the lanes want them, so that a fragment is one load of 16 bytes. There are two stages of both, if there are several
// steps; at the end warps bring their outputs into the order of memory there. Behind it all stands what tells when
// weights have landed.
//
// Weights that are `resident` have a stage for each chunk, and are brought once: there are fewer blocks than boxes, and
// a block goes through several of them, with the next box's first inputs on their way while it multiplies the last
// chunk of this one. Outputs have memory of their own then.
//
//     step n:    wait; barrier; ask for the weights of step n+1;  multiply  ;  write the next chunk's inputs, if
//                               and, of a new chunk, for the                   this is the chunk's last step
//                               next chunk's inputs
//
// A step is one chunk of channels and one group of shifts. Weights come by copies of the block. Inputs come through
// registers, where they are rounded and, unless they are channels_last, turned: a chunk is on its way while the one
// before it is multiplied. Or they are copied by threads, several chunks ahead, and are rounded or turned when a warp
// loads its operands; 16-bit ones only where no shift moves them along the row, as they are turned eight by eight.
// (Before sm_90 a wait for weights is one for all copies, so that only the next chunk is on its way.)
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
#include "mma/columns.cuh"
#include "mma/launch.cuh"
#include "mma/store.cuh"
#include "mma/weights.cuh"

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

// Multiplies a set's part of one chunk of channels at one shift, at which inputs lie `moved` bytes behind those at the
// highest one. `weights` points to the lane's fragment of the warp's first row tile, `places` are the lane's
// (`MmaColumns`), at the highest shift.
template <class Layer, class Tile, class Between>
TCONV_DEVICE void mma_multiply(MmaSums<Layer, Tile>& sums, int shift, int moved, int first_row_tile,
                               const unsigned char* weights,
                               const unsigned char* const (&places)[MmaColumns<Layer, Tile>::lane_places],
                               const Between& between_steps) {
  using Shape = MmaShape<Layer, Tile>;
#pragma unroll
  for (int step = 0; step < Tile::Pipeline::chunk_steps; ++step) {
    unsigned columns[Shape::planes][Tile::Warps::position_tiles][2];
    MmaColumns<Layer, Tile>::load(places, moved + step * Shape::step_bytes, columns);
#pragma unroll
    for (int i = 0; i < Tile::Warps::row_tiles; ++i) {
      if (!Shape::has_taps(shift, (Shape::phases_known ? i : first_row_tile + i) % Shape::phase_tiles)) continue;
      // The small products first.
#pragma unroll
      for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane) {
        const Vector<unsigned, 4> row = *reinterpret_cast<const Vector<unsigned, 4>*>(
            weights + ((i * Shape::stage_steps + step) * Shape::planes + row_plane) * Shape::fragment_bytes);
#pragma unroll
        for (int column_plane = Shape::planes - 1 - row_plane; column_plane >= 0; --column_plane)
#pragma unroll
          for (int j = 0; j < Tile::Warps::position_tiles; ++j)
            MatrixProduct<typename Layer::Element>::add(sums.values[i][j], row.values, columns[column_plane][j]);
      }
    }
    between_steps(step);
  }
}

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void mma(const typename Layer::Element* x, const typename Layer::Element* weight,
                      const typename Layer::Element* bias, typename Layer::Element* y, int batch, int input_depth,
                      int input_height, int input_width, int output_depth, int output_height, int output_width,
                      const Program& program = {}) {
  using Shape = MmaShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_high = warp % Tile::Warps::high, warp_wide = warp / Tile::Warps::high % Tile::Warps::wide;
  const int first_step = warp / Shape::warps * Tile::Pipeline::chunk_steps;  // of each chunk, for the warp's set

  // Blocks with the same inputs follow each other.
  const int weight_set = static_cast<int>(blockIdx.x) % Shape::weight_sets;
  const int group = weight_set / Shape::row_blocks, row_block = weight_set % Shape::row_blocks;
  const int first_row_tile = row_block * Shape::block_row_tiles + warp_high * Tile::Warps::row_tiles;
  const Boxes<typename Tile::Box> boxes(Shape::Depth::positions(output_depth + Tile::Box::depth_origin),
                                        Shape::Height::positions(output_height + Tile::Box::row_origin),
                                        Shape::Width::positions(output_width + Tile::Box::origin));
  const int box_count = boxes.count(batch);
  int number = static_cast<int>(blockIdx.x) / Shape::weight_sets;
  const int boxes_together = static_cast<int>(gridDim.x) / Shape::weight_sets;

  // Of inputs, the chunk that is asked for next, and of which box.
  using Columns = MmaColumns<Layer, Tile>;
  typename Columns::Inputs inputs(x, group, batch, input_depth, input_height, input_width);
  int chunk_ahead = 0, number_ahead = number;
  const auto is_there = [&] {
    return Tile::Pipeline::resident ? number_ahead < box_count : chunk_ahead < Shape::chunks;
  };
  const auto ask = [&](int part, int parts, int stage) {
    inputs.load(chunk_ahead, is_there(), part, parts, shared + stage);
  };
  const auto end_asking = [&](int stage) {
    inputs.end_chunk(is_there(), shared + stage);
    ++chunk_ahead;
    if (!Tile::Pipeline::resident || chunk_ahead < Shape::chunks) return;
    chunk_ahead = 0;
    number_ahead += boxes_together;
    if (is_there()) inputs.begin(boxes.box(number_ahead));
  };
  inputs.begin(boxes.box(number));
  ask(0, 1, 0);

  int places[Columns::lane_places];
#pragma unroll
  for (int i = 0; i < Columns::lane_places; ++i) {
    const int position = (warp_wide * Tile::Warps::position_tiles + Columns::tile(i, lane)) * 8 + Columns::number(lane);
    const BoxPosition in_box =
        position_in_box<typename Tile::Box>(position < Shape::box_positions ? position : 0, Tile::Box::rows);
    places[i] =
        (((in_box.image * Shape::halo_depths + in_box.depth) * Shape::halo_rows + in_box.row) * Shape::row_places +
         (Shape::by_channel ? Shape::patch_lead : 0) + in_box.column) *
            Shape::place_bytes +
        first_step * Shape::step_bytes + Columns::offset(lane);
  }

  unsigned char* const weight_stages = shared + Shape::input_stages * Shape::input_stage_bytes;
  const unsigned char* const fragments = weight_stages + lane * 16 +
                                         first_step * Shape::planes * Shape::fragment_bytes +
                                         warp_high * Tile::Warps::row_tiles * Shape::tile_bytes;
  MmaWeightStages<Layer, Tile> weights(
      reinterpret_cast<const unsigned char*>(weight) + weight_set * Shape::block_weight_bytes, weight_stages,
      shared + Shape::barrier_at, row_block);
  wait_for_kernel_before();  // which prepared the weights
  weights.ask();
  end_asking(0);
#pragma unroll
  for (int ahead = 1; ahead < Shape::stages_ahead; ++ahead) {
    ask(0, 1, ahead * Shape::input_stage_bytes);
    end_asking(ahead * Shape::input_stage_bytes);
  }
  if (Tile::Pipeline::resident) weights.copy.wait();

  MmaSums<Layer, Tile> sums;
  int input_stage = 0, weight_stage = 0;  // where they begin, in bytes
  do {
    sums.clear();
#pragma unroll 1
    for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
      const unsigned char* places_of_chunk[Columns::lane_places];
#pragma unroll
      for (int i = 0; i < Columns::lane_places; ++i) places_of_chunk[i] = shared + input_stage + places[i];
      const int stage_ahead = Shape::input_stage_before(input_stage);
      MmaCursor<Layer, Tile> cursor;
#pragma unroll(Shape::unrolled ? Shape::shift_groups : 1)
      for (int shift_group = 0; shift_group < Shape::shift_groups; ++shift_group) {
        if (!Tile::Pipeline::resident) weights.copy.wait();
        if (shift_group == 0) inputs.wait();
        __syncthreads();
        if (Shape::input_parts == 0 && shift_group == 0) ask(0, 1, stage_ahead);
        if (!Tile::Pipeline::resident) weights.ask();

#pragma unroll(Shape::unrolled ? Tile::Pipeline::chunk_shifts : 1)
        for (int first = 0; first < Tile::Pipeline::chunk_shifts; first += Shape::shifts_together) {
          MmaSums<Layer, Tile> partial;
          if (Shape::exact) partial.clear();
#pragma unroll
          for (int of_group = first; of_group < first + Shape::shifts_together; ++of_group) {
            const int shift = shift_group * Tile::Pipeline::chunk_shifts + of_group;
            if (of_group >= Tile::Pipeline::chunk_shifts || shift >= Shape::shifts) break;
            const int moved = Shape::unrolled ? Shape::halo_offset(shift) * Shape::place_bytes : cursor.next();
            mma_multiply<Layer, Tile>(Shape::exact ? partial : sums, shift, moved, first_row_tile,
                                      fragments + weight_stage + of_group * Shape::shift_bytes, places_of_chunk,
                                      [&](int step) {
                                        const int part = shift * Tile::Pipeline::chunk_steps + step;
                                        if (part < Shape::input_parts) ask(part, Shape::input_parts, stage_ahead);
                                      });
          }
          if (Shape::exact) sums.add(partial);
        }
        weight_stage = Shape::next_weight_stage(weight_stage);
      }
      end_asking(stage_ahead);
      input_stage = Shape::next_input_stage(input_stage);
    }

    if (!Tile::Pipeline::resident)
      __syncthreads();  // Nobody reads the stages any more: what follows takes their place.
    if (!mma_join(sums, shared)) return;
    const long long first_channel = static_cast<long long>(group) * Layer::group_out_channels;
    const Epilogue<Layer, Program> epilogue{Layer::has_bias ? bias + first_channel : bias, program,
                                            static_cast<int>(first_channel)};
    const long long plane = static_cast<long long>(output_depth) * output_height * output_width;
    mma_store(sums, epilogue, shared + Shape::stored_at + warp * Shape::turn_bytes,
              y + first_channel * (Tile::channels_last ? 1 : plane), boxes.box(number), first_row_tile,
              warp_wide * Tile::Warps::position_tiles * 8, batch, output_depth, output_height, output_width);
    number += boxes_together;
  } while (Tile::Pipeline::resident && number < box_count);
}

}  // namespace tconv
