// col2im_wgmma: as `col2im`, one GEMM and col2im, by warpgroups. Only on sm_90a. For layers of few positions with more
// products than `mma.sync` makes in the time in which their weights arrive.
//
// The matrices, the block tiles, the copies and the sums are those of `col2im`. Weights are the first factor, inputs
// the second.
//
// Factors of 16 bits. The tensor core reads both from shared memory, as copies put them there: of each channel a row of
// 128 bytes, swizzled, for 64 rows of the product or for 64 positions. It wants nothing else of threads but that they
// ask. Runs of inputs begin anywhere; those are moved, as all inputs of 32 bits are.
//
// Factors of 32 bits. The tensor core takes them from shared memory only where the channels of a row lie together. So
// a lane loads the fragments of its weights from a stage, and threads move inputs from a stage to such rows, rounded,
// while the products of the k-tile before run.
//
// Prepared inputs. If Tile::prepared_inputs, `col2im_wgmma_inputs` brings the inputs into channels_last order before,
// and rounds them. Products then read them where copies put them, whatever a map's size. The kernel may begin while
// they are prepared: it asks for the first k-tile's weights, and waits. (To ask for more would delay the loads that it
// waits for.) Nobody writes weights meanwhile, for the kernel that prepares inputs does not begin before what stands in
// front of it has ended.
//
// The phases. Where a kernel is a multiple of its stride, a block may have some phases along the width alone: all taps
// of one channel of a kernel of 1024 would be 1024 rows. A picture stands with the spans of block tiles.
//
// The warpgroups. `splits` sets of `high` x `wide` warpgroups share the input channels: a set has every splits-th
// k-tile of them, and waits for no other set. Its warpgroups share rows and positions.
//
// Shared memory. Sums take the place of all else:
//
//   | set 0: moved inputs of even and odd k-tiles, stages of weights and inputs  | set 1: ...
//   | sums of set 0  | sums of set 1 | ...
//
// Rounding: factors to TF32 on their way from a stage; outputs once, after the epilogue.
//
// Not-a-number: reaches the outputs that depend on it, and no others.
#pragma once
#include "col2im/block_tiles.cuh"
#include "col2im/positions.cuh"
#include "col2im/store.cuh"
#include "col2im_wgmma/inputs.cuh"
#include "col2im_wgmma/launch.cuh"
#include "col2im_wgmma/products.cuh"
#include "primitives/barriers.cuh"
#include "primitives/channels_last.cuh"

namespace tconv {

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void col2im_wgmma(const typename Layer::Element* x, const typename Layer::Element* weight,
                               const typename Layer::Element* bias, typename Layer::Element* y, int y_channels,
                               int batch, int input_depth, int input_height, int input_width, int output_depth,
                               int output_height, int output_width, const Program& program = {}) {
  using Shape = Col2imWgmmaShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int set = static_cast<int>(threadIdx.x) / Shape::set_threads,
            thread = static_cast<int>(threadIdx.x) % Shape::set_threads;

  const Col2imBlockTiles<Layer, Tile, Shape> block_tiles(input_depth, input_height, input_width);
  using Order = BlockOrder<Layer, Shape::row_blocks, false>;
  const int block = static_cast<int>(blockIdx.x), block_tile_count = block_tiles.count(batch);
  const int group = Order::group_of(block, block_tile_count);
  const int first_channel = Order::set_of(block) / Shape::phase_blocks * Tile::channels;
  const int block_phase = Shape::all_phases ? 0 : Order::set_of(block) % Shape::phase_blocks * Shape::OwnWidth::stride;
  const Col2imNumbers numbers = block_tiles.numbers(Order::block_tile_of(block, block_tile_count));
  const BlockTilePosition first = block_tiles.first_input(numbers);

  Col2imCopies<Layer, Tile, Shape> copies(weight + block_phase, x, group, first_channel, set, first, batch, input_depth,
                                          input_height, input_width, thread);
  const long long begin = Tile::runs ? copies.place(0, group, first, batch, input_depth, input_height, input_width) : 0;
  const Col2imRuns<Layer, Tile, Shape> runs{static_cast<unsigned>(begin), static_cast<unsigned>(copies.plane)};
  unsigned char* const moved = shared + set * Shape::set_bytes;
  unsigned char* const stages = moved + Shape::moved_bytes;
  Col2imWgmmaAccumulators<Layer, Tile> accumulators;
  Col2imWgmmaProducts<Layer, Tile> of_k_tile;
  int stage = 0, stage_ahead = 0;
  accumulators.clear();
  if (Tile::prepared_inputs) {
    copies.begin_first_weights(stages);
    wait_for_kernel_before();
  }
  // The first turns only ask.
#pragma unroll 1
  for (int ahead = 0; ahead < Shape::set_k_tiles + Shape::stages_ahead; ++ahead) {
    const int k_tile = ahead - Shape::stages_ahead;
    if (k_tile >= 0) {
      copies.waiting.template wait<Shape::stages_ahead - 1>();
      if (Shape::products_read_stages) show_to_products();
      // All see the k-tile. None reads the one before, nor do products the one before that.
      meet<Shape::set_threads>(1 + set);
    }
    copies.begin(ahead < Shape::set_k_tiles, stages + stage_ahead * Shape::stage_bytes,
                 !Tile::prepared_inputs || ahead > 0);
    stage_ahead = stage_ahead + 1 == Tile::stages ? 0 : stage_ahead + 1;
    if (k_tile < 0) continue;
    const unsigned char* const weights = stages + stage * Shape::stage_bytes;
    const unsigned char* const inputs = weights + Shape::stage_weight_bytes;
    stage = stage + 1 == Tile::stages ? 0 : stage + 1;
    unsigned char* const factor = moved + k_tile % 2 * Shape::factor_bytes;
    if (!Shape::inputs_in_stages) {
      Col2imWgmmaInputs<Layer, Tile>::move(inputs, runs, factor, thread);
      show_to_products();
    }
    of_k_tile.begin(accumulators, weights, Shape::inputs_in_stages ? inputs : factor, set, thread);
  }
  of_k_tile.products.template wait<0>();
  __syncthreads();  // nobody reads a stage any more
  float* const sums = reinterpret_cast<float*>(shared);
  accumulators.put(sums + set * Shape::sums, Shape::high_warp(thread), Shape::first_position(thread), thread % 32);
  __syncthreads();
  const Epilogue<Layer, Program> epilogue{bias + (Layer::has_bias ? group * Layer::group_out_channels : 0), program,
                                          group * Layer::group_out_channels};
  typename Layer::Element* const y_of_group =
      y + static_cast<long long>(group) * Layer::group_out_channels *
              (Tile::channels_last ? 1 : static_cast<long long>(output_depth) * output_height * output_width);
  if (Shape::sums_by_position)
    col2im_store_positions<Layer, Tile, Shape, Program>(sums, epilogue, y_of_group, block_tiles, numbers, first_channel,
                                                        block_phase, batch, input_depth, input_height, input_width,
                                                        y_channels, output_depth, output_height, output_width);
  else
    col2im_store_outputs<Layer, Tile, Shape, Program>(sums, epilogue, y_of_group, block_tiles, numbers, first_channel,
                                                      block_phase, batch, input_depth, input_height, input_width,
                                                      y_channels, output_depth, output_height, output_width);
}

// Prepares the inputs of `col2im_wgmma`.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_wgmma_inputs(const typename Layer::Element* x, typename Layer::Element* prepared, int batch,
                                      int input_depth, int input_height, int input_width) {
  order_inputs<Layer>(x, prepared, batch, input_depth, input_height, input_width);
}

}  // namespace tconv
