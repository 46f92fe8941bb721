// wgmma: transposed convolution as a product of matrices (implicit GEMM) on the tensor cores of Hopper, by
// wgmma.mma_async: sm_90a alone.
//
// For 16-bit types and float32, rounded to TF32 or exact. x and y are contiguous, or channels_last, and begin at
// multiples of 16 bytes; `wgmma_weights` must have prepared the weights, which were contiguous and began there, too,
// and `wgmma_inputs` those inputs whose tile says so.
//
// The matrices. A position q owns stride_d * stride_h * stride_w neighbouring outputs, its phases, and each tap of each
// phase reads the input at q - shift. A block owns a block tile of positions and some output channels of some phases:
//
//               input channels                rows: phases, output channels
//              ................            ................................
//   positions  : warpgroup 0  :     x      :  weights, read from shared   :     = accumulators, in registers, of
//   64 a tile  :..............:  channels  :  memory by the tensor core   :       positions x rows
//              : warpgroup 1  :            :..............................:
//              :..............:            both warpgroups read the same
//              from shared memory by way
//              of registers, rounded there
//
// These products are added over all k-tiles of input channels, and for each over all visits: shifts, or taps. Another
// stride changes how many phases there are, and which of them has a tap at which shift. Positions are the first factor
// because that may come from registers: a lane finds each position's inputs wherever they lie, so a block tile has any
// form, and inputs lie in shared memory as they do in global memory.
//
// The warps, and what they do for one block tile after the other; there are as many blocks as multiprocessors:
//
//   0-3, 4-7   consumers, two warpgroups: multiply, 64 positions of each tile by all rows, and store the outputs
//   8          producer of weights: those of one visit after the other, by cp.async.bulk
//   9-11       producers of inputs: of the block tile and the halo around it one k-tile of channels after the other
//
// Shared memory, in this order, as far as the layer needs it. Each stage is filled again when all consumers have read
// it, so the next block tile's inputs come while this one's outputs are stored:
//
//   | weights     | inputs      | raw inputs,     | outputs, staged   | where inputs lie | barriers: full and
//   | stages      | stages      | to be transposed    | by each warpgroup | in global memory | empty, of each stage
//
// Waits. A consumer waits for the mbarrier "full": what a producer asked for has landed. A producer waits for "empty":
// the inputs are loaded, or the products that read the weights are done. Two batches of products are on their way, and
// wgmma.wait_group waits for the older one before its fragments are loaded anew. Named barriers 1 and 2 are the
// consumers' around what they stage, each warpgroup's own; 3 is that of the producers of inputs.
//
// The kernel may begin while its weights are prepared, and waits for them itself. Whatever it reads before that was
// there when the preparing kernel began, and it writes nothing.
//
// Not-a-number: an input outside the map counts as 0. An infinite or NaN input or weight reaches the outputs that
// depend on it, and through weights an input outside the map, as 0 * infinity.
//
// Sizes: the channels of a block tile's inputs must stay below 2^31 unless wide_index; the rest is 64-bit.
#pragma once
#include "wgmma/channels_last.cuh"
#include "wgmma/inputs.cuh"
#include "wgmma/launch.cuh"
#include "wgmma/store.cuh"
#include "wgmma/weights.cuh"

namespace tconv {

// A thread of a warpgroup that multiplies.
template <class Layer, class Tile>
struct WgmmaConsumer {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Rows = FactorRows<Shape::k_tile_bytes>;
  using DepthShifts = typename Shape::DepthShifts;
  using HeightShifts = typename Shape::HeightShifts;
  using WidthShifts = typename Shape::WidthShifts;
  // Where few rows would keep the tensor core waiting for positions, tiles are stacked along the rows of the map: tile
  // i has every `position_tiles`-th row from the i-th on, and at the next shift along the height it reads what tile i +
  // 1 or i - 1 does now. So a fragment is loaded once for all of those shifts, and its place is that of tile 0, moved.
  static constexpr int placed_tiles = Tile::stacked ? 1 : Tile::position_tiles;
  static constexpr int halves = Shape::by_channel && !Shape::straight ? 2 : 1;

  unsigned char* const shared;
  const int lane;
  int places[placed_tiles][halves];  // in a stage of inputs, in bytes: where the lane's positions are
  WgmmaAccumulators<Layer, Tile> accumulators;
  unsigned fragments[Shape::batches][Shape::batch_steps][Shape::fragments][Shape::planes][4];
  WarpgroupProducts products;
  WgmmaStages<Tile::weight_stages> weights;
  WgmmaStages<Tile::input_stages> inputs;
  bool read = false;  // stages of weights that were not given back

  TCONV_DEVICE WgmmaConsumer(unsigned char* shared, int warp, int lane)
      : shared(shared),
        lane(lane),
        weights(shared + Shape::barriers_at),
        inputs(shared + Shape::barriers_at + 16 * Tile::weight_stages) {
#pragma unroll
    for (int tile = 0; tile < placed_tiles; ++tile)
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        int of_warp, at_channel;
        if (Shape::straight) {  // a row of ldmatrix: eight positions of a channel
          of_warp = lane / 8 % 2 * 8, at_channel = (lane / 16 * 8 + lane % 8) * Shape::channel_bytes;
        } else if (Shape::by_channel) {  // positions g and g + 8 of the warp's sixteen, one channel of four
          of_warp = lane / 4 + 8 * half, at_channel = lane % 4 * Shape::channel_bytes;
        } else {  // a row of ldmatrix: 16 bytes of channels of a position
          of_warp = lane % 16, at_channel = lane / 16 * 16;
        }
        const int number = warp * 16 + of_warp;
        const bool is_in_block_tile = wgmma_is_in_block_tile<Layer, Tile>(number, tile);
        const BlockTilePosition at =
            wgmma_in_block_tile<Layer, Tile>(is_in_block_tile ? number : 0, is_in_block_tile ? tile : 0);
        const int place =
            ((at.image * Shape::halo_depths + at.depth) * Shape::halo_rows + at.row) * Shape::row_places + at.column;
        places[tile][half] = place * Shape::place_bytes + at_channel;
      }
  }

  static TCONV_DEVICE void clear(WgmmaAccumulators<Layer, Tile>& accumulators) {
#pragma unroll
    for (int tile = 0; tile < Tile::position_tiles; ++tile)
#pragma unroll
      for (int product = 0; product < Shape::products; ++product)
#pragma unroll
        for (int k = 0; k < Shape::product_rows / 2; ++k) begin_accumulator(accumulators.values[tile][product][k], 0);
  }

  // Loads the fragments of a step of a k-tile, for inputs that lie from `moved` on, and rounds them to TF32.
  TCONV_DEVICE void load(const unsigned char* moved, int step,
                         unsigned (&fragments)[Shape::fragments][Shape::planes][4]) const {
#pragma unroll
    for (int f = 0; f < Shape::fragments; ++f) {
      const int tile = Tile::stacked ? 0 : f;
      const unsigned char* const from = moved + (Tile::stacked ? f * Shape::row_places * Shape::place_bytes : 0);
      if (Shape::straight) {
        load_transposed_matrices(from + places[tile][0] + step * Shape::step_channels * Shape::channel_bytes,
                             fragments[f][0]);
      } else if (Shape::by_channel) {
#pragma unroll
        for (int word = 0; word < 4; ++word)
          fragments[f][0][word] =
              *reinterpret_cast<const unsigned*>(from + places[tile][word % 2 % halves] +
                                                 (step * Shape::step_channels + word / 2 * 4) * Shape::channel_bytes);
      } else {
        load_matrices(from + places[tile][0] + step * 32, fragments[f][0]);
      }
      if (Shape::item_bytes == 4) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const float value = bits_float(fragments[f][0][word]);
#pragma unroll
          for (int plane = 0; plane < Shape::planes; ++plane)
            fragments[f][plane][word] = float_bits(matrix_factor<Layer>(value, plane));
        }
      }
    }
  }

  // Gives back the stages of weights before `end` that the last visit has read: its products are done.
  TCONV_DEVICE void give_back(int end) {
    // No loop: in one, the compiler would wait for the products that are on their way.
#pragma unroll
    for (int i = 0; i < Shape::row_visits; ++i) {
      const int stage = end - Shape::row_visits + i;
      if (!Tile::resident && read && lane == 0) arrive(weights.empty(stage < 0 ? stage + Tile::weight_stages : stage));
    }
    read = false;
  }

  // The products of a batch of steps with the weights of one visit, of those along the height the `row_visit`-th.
  TCONV_DEVICE void multiply(WgmmaAccumulators<Layer, Tile>& accumulators, int batch, int row_visit, const Rows& rows,
                             int depth, int row, int column) {
#pragma unroll
    for (int step = 0; step < Shape::batch_steps; ++step) {
      int piece = 0;
#pragma unroll
      for (int product = 0; product < Shape::products; ++product) {
        if (!Shape::every_tap && !Shape::has_tap(product, depth, row, column)) continue;
        // Of exact products the small ones come first.
#pragma unroll
        for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane)
#pragma unroll
          for (int plane = Shape::planes - 1 - row_plane; plane >= 0; --plane)
#pragma unroll
            for (int tile = 0; tile < Tile::position_tiles; ++tile) {
              const int fragment = Tile::stacked ? tile + HeightShifts::count - 1 - row_visit : tile;
              products.template add<Element, Shape::product_rows>(
                  accumulators.values[tile][product], fragments[batch % Shape::batches][step][fragment][plane], rows,
                  piece * Shape::piece_bytes + row_plane * Shape::product_bytes +
                      (batch * Shape::batch_steps + step) * 32);
            }
        ++piece;
      }
    }
  }

  // A visit, or those along the height at once: a k-tile of inputs, in a stage that is full, moved by the visit's
  // shifts, by the weights of the visit.
  TCONV_DEVICE void visit(const unsigned char* moved, int depth, int row, int column, int packed) {
    const int first_stage = weights.stage();
    WgmmaAccumulators<Layer, Tile> batch_accumulators;  // of exact products
    // Nothing of an exact batch goes on into the next one.
#pragma unroll(Shape::exact ? 1 : Tile::k_tile_steps)
    for (int batch = 0; batch < Tile::k_tile_steps / Shape::batch_steps; ++batch) {
#pragma unroll
      for (int step = 0; step < Shape::batch_steps; ++step)
        load(moved, batch * Shape::batch_steps + step, fragments[batch % Shape::batches][step]);
      if (Shape::exact) clear(batch_accumulators);
      int stage = first_stage;
#pragma unroll
      for (int row_visit = 0; row_visit < Shape::row_visits; ++row_visit) {
        // The first batch goes to the tensor core as the weights come.
        if (batch == 0) weights.wait_full();
        if (Shape::exact || batch == 0 || row_visit == 0) products.begin_group();
        // Weights that stay and are known are packed, others lie in their stage.
        const int from = Tile::resident && Shape::known ? packed : stage * Shape::weight_stage_bytes;
        multiply(Shape::exact ? batch_accumulators : accumulators, batch, row_visit, Rows(shared + from), depth, row,
                 column);
        if (Shape::exact || batch == 0 || row_visit == Shape::row_visits - 1) products.end_group();
        if (batch == 0) weights.next();
        stage = stage + 1 == Tile::weight_stages ? 0 : stage + 1;
        if (batch == 0 && row_visit == 0 && !Shape::exact) {
          products.template wait<1>();  // the visits before are done
          __syncwarp();
          give_back(first_stage);
        }
      }
      if (Shape::exact) {
        // The other warpgroup's products are on their way meanwhile.
        products.template wait<0>();
#pragma unroll
        for (int tile = 0; tile < Tile::position_tiles; ++tile)
#pragma unroll
          for (int product = 0; product < Shape::products; ++product)
#pragma unroll
            for (int k = 0; k < Shape::product_rows / 2; ++k)
              accumulators.values[tile][product][k] += batch_accumulators.values[tile][product][k];
      } else if (batch > 0) {
        products.template wait<1>();  // the batch before is done: its fragments are free
      }
    }
    read = true;
    if (Shape::exact) {
      __syncwarp();
      give_back(weights.stage());
    }
  }

  // The inputs so far behind the halo's first one, which the highest shift along the width reads.
  TCONV_DEVICE const unsigned char* moved(int depth, int row, int column, int highest) const {
    return shared + Shape::inputs_at + inputs.stage() * Shape::input_stage_bytes +
           Shape::halo_offset(depth, row, column, highest) * Shape::place_bytes;
  }

  // The products of a k-tile. The block has one phase: a visit for each of its taps.
  TCONV_DEVICE void visit_taps(const WgmmaPhases<Layer>& phase) {
    int d = 0, c = 0, r = 0;
#pragma unroll 1
    do {  // every phase has a tap
      visit(moved(phase.depth.behind(d), phase.row.behind(r), phase.column.behind(c), phase.column.highest_shift()), 0,
            0, 0, 0);
      if (++r < phase.row.count) continue;
      r = 0;
      if (++c < phase.column.count) continue;
      c = 0, ++d;
    } while (d < phase.depth.count);
  }

  // The products of a k-tile. The block has the phases of a row of outputs: a visit for each of their taps along depth
  // and height, and each shift along the width.
  TCONV_DEVICE void visit_row(const WgmmaPhases<Layer>& phase) {
    int d = 0, r = 0;
#pragma unroll 1
    do {
#pragma unroll
      for (int c = 0; c < WidthShifts::count; ++c)
        if (WidthShifts::taps(c) > 0)
          visit(moved(phase.depth.behind(d), phase.row.behind(r), WidthShifts::behind(c), WidthShifts::highest), 0, 0,
                c, 0);
      if (++r < phase.row.count) continue;
      r = 0, ++d;
    } while (d < phase.depth.count);
  }

  // The products of a k-tile. The block has all phases, or all have a tap at every shift: a visit for each shift.
  TCONV_DEVICE void visit_shifts(int k_tile) {
#pragma unroll(Shape::known ? DepthShifts::count : 1)
    for (int d = 0; d < DepthShifts::count; ++d)
#pragma unroll(Shape::known ? WidthShifts::count : 1)
      for (int c = 0; c < WidthShifts::count; ++c)
#pragma unroll(Shape::known ? HeightShifts::count : 1)
        for (int r = Shape::row_visits - 1; r < HeightShifts::count; r += Shape::row_visits) {
          if (Shape::known && DepthShifts::taps(d) * HeightShifts::taps(r) * WidthShifts::taps(c) == 0) continue;
          const int packed = Tile::resident && Shape::known
                                 ? (k_tile * Shape::k_tile_pieces + Shape::pieces_before(d, c, r)) * Shape::piece_bytes
                                 : 0;
          visit(moved(DepthShifts::behind(d), HeightShifts::behind(r), WidthShifts::behind(c), WidthShifts::highest), d,
                r, c, packed);
        }
  }

  // The accumulators of a block tile.
  TCONV_DEVICE void block_tile(int first_phase) {
    clear(accumulators);
    if (Tile::resident) weights.turn = 0;  // they are there since the first block tile
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      inputs.wait_full();
      // No branch has the loops itself: those of another, never entered, would change what the compiler makes of them.
      if (Shape::single)
        visit_taps(WgmmaPhases<Layer>(first_phase));
      else if (Shape::alone)
        visit_row(WgmmaPhases<Layer>(first_phase));
      else
        visit_shifts(k_tile);
      arrive(inputs.empty());
      inputs.next();
    }
    products.template wait<0>();
    __syncwarp();
    give_back(weights.stage());
  }
};

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void wgmma(const typename Layer::Element* x, const typename Layer::Element* weight,
                        const typename Layer::Element* bias, typename Layer::Element* y, int y_channels, int batch,
                        int input_depth, int input_height, int input_width, int output_depth, int output_height,
                        int output_width, const Program& program = {}) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Work = WgmmaWork<Layer, Tile>;
  TCONV_SHARED(shared);
  unsigned char* const weight_barriers = shared + Shape::barriers_at;
  unsigned char* const input_barriers = weight_barriers + 16 * Tile::weight_stages;
  if (threadIdx.x == 0) {
    // Weights are given back by each consumer warp, and inputs by each thread.
    WgmmaStages<Tile::weight_stages>::make(weight_barriers, 1, 4 * Shape::consumers);
    WgmmaStages<Tile::input_stages>::make(input_barriers, Shape::loaders, 128 * Shape::consumers);
    show_barriers();
  }
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  // For each role anew: a register that all have would be spilled where one of them has none left.
  const auto first_work = [&] {
    return Work(renewed(batch), renewed(output_depth), renewed(output_height), renewed(output_width),
                renewed(static_cast<int>(blockIdx.x)));
  };
  if (warp < 4 * Shape::consumers) {
    take_registers<Shape::consumer_registers>();
    wait_for_kernel_before();  // whose outputs these may overwrite
    WgmmaConsumer<Layer, Tile> consumer(shared, warp, lane);
    for (Work work = first_work(); work.is_left(); work.next()) {
      consumer.block_tile(work.first_phase());
      // What follows from these would take registers that accumulators need.
      const int images = renewed(batch), depths = renewed(output_depth), rows = renewed(output_height);
      const int columns = renewed(output_width);
      const unsigned own_thread = static_cast<unsigned>(renewed(thread));
      work = Work(images, depths, rows, columns, renewed(work.number));
      const int channel = work.channel_block() * Tile::channels;
      const long long plane = static_cast<long long>(depths) * rows * columns;
      const long long first = static_cast<long long>(work.group()) * Layer::group_out_channels;
      const Epilogue<Layer, Program> epilogue{Layer::has_bias ? bias + first : bias, program, static_cast<int>(first)};
      WgmmaStore<Layer, Tile, Program>{
          consumer.accumulators,
          epilogue,
          y + (first + channel) * (Tile::channels_last ? 1 : plane),
          work.block_tile(),
          work.first_phase(),
          channel,
          reinterpret_cast<float*>(shared + Shape::staged_at + warp / 4 * Shape::staged_bytes),
          static_cast<int>(own_thread / 32),
          static_cast<int>(own_thread % 32),
          y_channels,
          images,
          depths,
          rows,
          columns}
          .store();
    }
  } else {
    give_registers<Shape::producer_registers>();
    if (warp == 4 * Shape::consumers) {
      wait_for_kernel_before();  // which prepared the weights
      if (lane == 0)
        wgmma_load_weights<Layer, Tile>(first_work(), shared, weight_barriers,
                                         reinterpret_cast<const unsigned char*>(weight));
    } else {
      if (Tile::prepared_inputs) wait_for_kernel_before();
      const int loader = thread - 32 * (4 * Shape::consumers + 1);
      wgmma_load_inputs<Layer, Tile>(first_work(), loader, shared, input_barriers, x, batch, input_depth, input_height,
                                      input_width);
    }
  }
}

}  // namespace tconv
