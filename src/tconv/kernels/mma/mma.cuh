// mma: transposed convolution as an implicit GEMM on tensor cores, by mma.sync. From sm_80 on.
//
// Computes the same as `direct`. x and y are contiguous or channels_last and begin at multiples of 16 bytes.
// `mma_weights` prepares the weights before this kernel; they are contiguous and begin at such a multiple, too.
//
// The matrices. A position q owns stride_d * stride_h * stride_w neighbouring outputs, its phases. Each tap of each
// phase reads the input at q - shift. For all phases together:
//
//     rows (phase, output channel)  x  depth (shift, input channel)   weights, 0 where a phase has no tap at a shift
//   * depth                         x  columns (position)             inputs, moved by the shift
//   = rows                          x  columns                        outputs, position by position
//
// Another stride changes how many phases there are, and which phase has a tap at which shift. If the kernel is a
// multiple of the stride, every phase has a tap at every shift. If not, a tile of 16 rows of one phase skips the shifts
// at which this phase has no tap. A tile of several phases multiplies zeros there.
//
//     Warps: wide = 2, high = 2          A block owns a block tile of positions: images x depths x rows x columns
//                  positions             (`BlockTile`). Positions are numbered; numbers beyond the block tile repeat
//              ............ ............ its first position and are not stored.
//        rows  : warp 0   : : warp 2   :
//              :..........: :..........: A warp owns row_tiles tiles of 16 rows by position_tiles tiles of 8 positions.
//              : warp 1   : : warp 3   : Neighbouring row tiles are the phases of the same channels, phases along the
//              :..........: :..........: width fastest. So a warp mostly has whole rows of outputs.
//
// Shared memory, in this order. Stages go round: one is read while another is written.
//
//   | stages of inputs: the block tile with the halo | stages of weights, as fragments: a lane  | mbarrier: weights
//   | around it, a k-tile of channels; 0 outside     | loads 16 bytes of a fragment at once     | have landed
//
// A shift adds a constant to a place in a stage. At the end, warps put their outputs into the order of global memory,
// in shared memory: in place of the stages or, if weights are resident, after them.
//
// A step is one k-tile at one group of shifts:
//
//     wait: the step's weights, and ; barrier ; ask for the weights of the ; multiply ; at the end of a k-tile, store
//     a new k-tile's inputs, have               next step; in a new k-tile,             the next k-tile's inputs in
//     landed                                    also for the next inputs                their stage, unless copied
//
// After the barrier, every thread sees what all threads have loaded, and no thread reads the stages of the step before,
// so these may be written.
//
// The kernel may begin while its weights are prepared; it waits before it reads them. Before that wait it reads only
// data that was there when the preparing kernel began, and it stores nothing.
//
// Rounding: weights when they are prepared; inputs on their way into a stage or, if copied, from it to fragments;
// outputs once, after the epilogue.
//
// Not-a-number: inputs outside the map count as 0, and so do weights where a phase has no tap. So an infinite or NaN
// input can reach all phases of the positions that read it. An infinite or NaN weight also reaches outputs whose input
// is outside the map.
//
// Sizes: the channels of a block tile's inputs, and 32 planes of outputs, which a lane's channels may span, must stay
// below 2^31 unless wide_index; the rest is 64-bit.
#pragma once
#include "mma/columns.cuh"
#include "mma/inputs.cuh"
#include "mma/launch.cuh"
#include "mma/store.cuh"
#include "mma/weights.cuh"

namespace tconv {

// Goes through the shifts of a k-tile where they are a loop: `Shape::halo_offset` in bytes, without divisions.
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

// Multiplies a step of a k-tile at one shift. `moved` is the distance in bytes from the input at the highest shift to
// the input at this shift. `weights` points to the lane's fragment of the step in the warp's first row tile. `places`
// are the lane's places at the highest shift.
template <class Layer, class Tile>
TCONV_DEVICE void mma_multiply(MmaAccumulators<Layer, Tile>& accumulators, int shift, int moved, int first_row_tile,
                               const unsigned char* weights,
                               const unsigned char* const (&places)[MmaShape<Layer, Tile>::lane_places]) {
  using Shape = MmaShape<Layer, Tile>;
  unsigned columns[Shape::planes][Tile::Warps::position_tiles][2];
  mma_load_columns<Layer, Tile>(places, moved, columns);
#pragma unroll
  for (int i = 0; i < Tile::Warps::row_tiles; ++i) {
    if (!Shape::has_taps(shift, (Shape::phases_known ? i : first_row_tile + i) % Shape::phase_tiles)) continue;
    // Exact products: the small ones come first.
#pragma unroll
    for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane) {
      const Vector<unsigned, 4> row = *reinterpret_cast<const Vector<unsigned, 4>*>(
          weights + (i * Shape::stage_steps * Shape::planes + row_plane) * Shape::fragment_bytes);
#pragma unroll
      for (int column_plane = Shape::planes - 1 - row_plane; column_plane >= 0; --column_plane)
#pragma unroll
        for (int j = 0; j < Tile::Warps::position_tiles; ++j)
          multiply_fragments<typename Layer::Element>(accumulators.values[i][j], row.values, columns[column_plane][j]);
    }
  }
}

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void mma(const typename Layer::Element* x, const typename Layer::Element* weight,
                      const typename Layer::Element* bias, typename Layer::Element* y, int y_channels, int batch,
                      int input_depth, int input_height, int input_width, int output_depth, int output_height,
                      int output_width, const Program& program = {}) {
  using Shape = MmaShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_high = warp % Tile::Warps::high, warp_wide = warp / Tile::Warps::high % Tile::Warps::wide;
  const int first_step = warp / Shape::warps * Tile::Pipeline::k_tile_steps;  // of each k-tile, for the warp's set

  const BlockTiles<typename Tile::BlockTile> block_tiles(
      Shape::Depth::positions(output_depth + Tile::BlockTile::depth_origin),
      Shape::Height::positions(output_height + Tile::BlockTile::row_origin),
      Shape::Width::positions(output_width + Tile::BlockTile::origin));
  using Order = BlockOrder<Layer, Shape::row_blocks, Tile::Pipeline::resident>;
  const int block = static_cast<int>(blockIdx.x), block_tile_count = block_tiles.count(batch);
  const int group = Order::group_of(block, block_tile_count), row_block = Order::set_of(block);
  const int first_row_tile = row_block * Shape::block_row_tiles + warp_high * Tile::Warps::row_tiles;
  int number = Order::block_tile_of(block, block_tile_count);
  const int block_tiles_together = static_cast<int>(gridDim.x) / Shape::weight_sets;

  // The k-tile of inputs that is asked for next, and its block tile.
  MmaInputs<Layer, Tile> inputs(x, group, batch, input_depth, input_height, input_width);
  int k_tile_ahead = 0, number_ahead = number;
  const auto is_there = [&] {
    return Tile::Pipeline::resident ? number_ahead < block_tile_count : k_tile_ahead < Shape::k_tiles;
  };
  const auto ask = [&](int part, int parts, int stage) {
    inputs.load(k_tile_ahead, is_there(), part, parts, shared + stage);
  };
  const auto end_asking = [&](int stage) {
    inputs.end_k_tile(is_there(), shared + stage);
    ++k_tile_ahead;
    if (!Tile::Pipeline::resident || k_tile_ahead < Shape::k_tiles) return;
    // Resident weights: a block computes several block tiles. The next one's first inputs are in flight while this
    // one's last k-tile is multiplied.
    k_tile_ahead = 0;
    number_ahead += block_tiles_together;
    if (is_there()) inputs.begin(block_tiles.block_tile(number_ahead));
  };
  inputs.begin(block_tiles.block_tile(number));
  ask(0, 1, 0);

  // Where the inputs of the lane's positions lie in a stage, at the highest shift, in bytes.
  int places[Shape::lane_places];
#pragma unroll
  for (int i = 0; i < Shape::lane_places; ++i) {
    int tile, number, offset;
    if (Shape::own_words) {  // position lane / 4 of a tile, one channel of four
      tile = i, number = lane / 4, offset = lane % 4 * Shape::channel_bytes;
    } else if (Shape::by_channel) {  // a row of ldmatrix: eight positions of a channel
      tile = 2 * i + lane / 16, number = 0, offset = lane % 16 * Shape::channel_bytes;
    } else {  // a row of ldmatrix: 16 bytes of channels of a position
      tile = 2 * i + lane / 16, number = lane % 8, offset = lane / 8 % 2 * 16;
    }
    const int position = (warp_wide * Tile::Warps::position_tiles + tile) * 8 + number;
    const BlockTilePosition in_block_tile = position_in_block_tile<typename Tile::BlockTile>(
        position < Shape::block_tile_positions ? position : 0, Tile::BlockTile::rows);
    places[i] =
        (((in_block_tile.image * Shape::halo_depths + in_block_tile.depth) * Shape::halo_rows + in_block_tile.row) *
             Shape::row_places +
         (Shape::by_channel ? Shape::patch_lead : 0) + in_block_tile.column) *
            Shape::place_bytes +
        first_step * Shape::step_bytes + offset;
  }

  unsigned char* const weight_stages = shared + Shape::input_stages * Shape::input_stage_bytes;
  const unsigned char* const fragments = weight_stages + lane * 16 +
                                         first_step * Shape::planes * Shape::fragment_bytes +
                                         warp_high * Tile::Warps::row_tiles * Shape::tile_bytes;
  MmaWeightStages<Layer, Tile> weights(reinterpret_cast<const unsigned char*>(weight) +
                                           (group * Shape::row_blocks + row_block) * Shape::block_weight_bytes,
                                       weight_stages, shared + Shape::barrier_at, row_block);
  wait_for_kernel_before();  // that kernel prepares the weights
  weights.ask();
  end_asking(0);
#pragma unroll
  for (int ahead = 1; ahead < Shape::stages_ahead; ++ahead) {
    ask(0, 1, ahead * Shape::input_stage_bytes);
    end_asking(ahead * Shape::input_stage_bytes);
  }
  if (Tile::Pipeline::resident) weights.copy.wait();

  MmaAccumulators<Layer, Tile> accumulators;
  int input_stage = 0, weight_stage = 0;  // where the stages begin, in bytes
  do {
    mma_clear<Layer, Tile>(accumulators);
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      const unsigned char* places_of_k_tile[Shape::lane_places];
#pragma unroll
      for (int i = 0; i < Shape::lane_places; ++i) places_of_k_tile[i] = shared + input_stage + places[i];
      const int stage_ahead = Shape::input_stage_before(input_stage);
      MmaCursor<Layer, Tile> cursor;
#pragma unroll(Shape::unrolled ? Shape::shift_groups : 1)
      for (int shift_group = 0; shift_group < Shape::shift_groups; ++shift_group) {
        if (!Tile::Pipeline::resident) weights.copy.wait();
        if (shift_group == 0) inputs.wait();
        __syncthreads();
        if (Shape::input_parts == 0 && shift_group == 0) ask(0, 1, stage_ahead);
        if (!Tile::Pipeline::resident) weights.ask();

#pragma unroll(Shape::unrolled ? Tile::Pipeline::k_tile_shifts : 1)
        for (int first = 0; first < Tile::Pipeline::k_tile_shifts; first += Shape::shifts_together) {
          MmaAccumulators<Layer, Tile> partial;
          if (Shape::exact) mma_clear<Layer, Tile>(partial);
#pragma unroll
          for (int of_group = first; of_group < first + Shape::shifts_together; ++of_group) {
            const int shift = shift_group * Tile::Pipeline::k_tile_shifts + of_group;
            if (of_group >= Tile::Pipeline::k_tile_shifts || shift >= Shape::shifts) break;
            const int moved = Shape::unrolled ? Shape::halo_offset(shift) * Shape::place_bytes : cursor.next();
#pragma unroll
            for (int step = 0; step < Tile::Pipeline::k_tile_steps; ++step) {
              mma_multiply<Layer, Tile>(Shape::exact ? partial : accumulators, shift, moved + step * Shape::step_bytes,
                                        first_row_tile,
                                        fragments + weight_stage + of_group * Shape::shift_bytes +
                                            step * Shape::planes * Shape::fragment_bytes,
                                        places_of_k_tile);
              const int part = shift * Tile::Pipeline::k_tile_steps + step;
              if (part < Shape::input_parts) ask(part, Shape::input_parts, stage_ahead);
            }
          }
          if (Shape::exact) {
            // The tensor core drops bits of long sums, so sums leave it every 32 channels.
#pragma unroll
            for (int i = 0; i < Tile::Warps::row_tiles; ++i)
#pragma unroll
              for (int j = 0; j < Tile::Warps::position_tiles; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) accumulators.values[i][j][k] += partial.values[i][j][k];
          }
        }
        weight_stage = Shape::next_weight_stage(weight_stage);
      }
      end_asking(stage_ahead);
      input_stage = Shape::next_input_stage(input_stage);
    }

    if (!Tile::Pipeline::resident)
      __syncthreads();  // Nobody reads the stages any more: what follows takes their place.
    if (!mma_join<Layer, Tile>(accumulators, shared)) return;
    const long long first_channel = static_cast<long long>(group) * Layer::group_out_channels;
    const Epilogue<Layer, Program> epilogue{Layer::has_bias ? bias + first_channel : bias, program,
                                            static_cast<int>(first_channel)};
    const long long plane = static_cast<long long>(output_depth) * output_height * output_width;
    mma_store<Layer, Tile>(accumulators, epilogue, shared + Shape::stored_at + warp * Shape::subtile_bytes,
                           y + first_channel * (Tile::channels_last ? 1 : plane), block_tiles.block_tile(number),
                           first_row_tile, warp_wide * Tile::Warps::position_tiles * 8, y_channels, batch, output_depth,
                           output_height, output_width);
    number += block_tiles_together;
  } while (Tile::Pipeline::resident && number < block_tile_count);
}

}  // namespace tconv
