// wgmma: transposed convolution as an implicit GEMM on the tensor cores of Hopper, by wgmma.mma_async. Only sm_90a.
//
// Types: 16 bits, and float32 rounded to TF32 or exact. x and y are contiguous or channels_last and begin at multiples
// of 16 bytes. `wgmma_weights` prepares the weights before this kernel; they are contiguous and begin at such a
// multiple, too. If Tile::own_weights, each block prepares its own instead, and there is no such kernel. If
// Tile::prepared_inputs, `wgmma_inputs` prepares the inputs.
//
// The matrices. A position q owns stride_d * stride_h * stride_w neighbouring outputs, its phases. Each tap of each
// phase reads the input at q - shift. A block owns a block tile of positions, and some output channels of some phases:
//
//               input channels                rows: phases, output channels
//              ................            ................................
//   positions  : warpgroup 0  :     x      :  weights, read from shared   :     = accumulators, in registers:
//   64 a tile  :..............:  channels  :  memory by the tensor core   :       positions x rows
//              : warpgroup 1  :            :..............................:
//              :..............:            both warpgroups read the same
//              from shared memory by way
//              of registers, rounded there
//
// A block adds these products over all k-tiles of input channels, and in each k-tile over its visits. A visit is the
// work with one stage of weights: one shift, or, in blocks with few phases, one tap. Another stride changes how many
// phases there are, and which phase has a tap at which shift. Positions are the first factor because wgmma takes that
// one from registers: a lane can load its positions' inputs from any address. So a block tile has any form, and inputs
// lie in shared memory as they do in global memory.
//
// The warps. There are at most as many blocks as multiprocessors; each block computes several block tiles in turn:
//
//   0-3, 4-7   consumers, two warpgroups: each multiplies 64 positions of each tile by all rows and stores the outputs
//   8          producer of weights: one lane loads the weights of visit after visit, by cp.async.bulk
//   9-11       producers of inputs: load k-tile after k-tile of the block tile and the halo around it
//
// Shared memory, in this order, as far as the layer needs it. A stage is filled again when all consumers have read it,
// so the next block tile's inputs arrive while this one's outputs are stored:
//
//   | weights     | inputs      | raw inputs, to be | outputs, staged   | where inputs lie | barriers: full and
//   | stages      | stages      | transposed        | by each warpgroup | in global memory | empty, of each stage
//
// Waits. A consumer waits for the mbarrier "full": a producer's copies have landed. A producer waits for "empty": the
// inputs are in the consumers' registers, or the products that read the weights are done. A consumer has two batches of
// products on their way; wgmma.wait_group waits for the older batch before the consumer overwrites its fragments.
// Named barriers 1 and 2 enclose the outputs that warpgroup 0 or 1 stages. Named barrier 3 joins warps 9-11. Named
// barrier 4 joins the consumers that have prepared their block's weights.
//
// The kernel may begin while its weights are prepared; it waits before it reads them. Before that wait it reads only
// data that was there when the preparing kernel began, and it stores nothing.
//
// Rounding: weights when they are prepared, inputs from shared memory to fragments, outputs once, after the epilogue.
//
// Not-a-number: an input outside the map counts as 0. An infinite or NaN input or weight reaches the outputs that
// depend on it. Such a weight also reaches outputs whose input is outside the map, as 0 * infinity.
//
// Sizes: the channels of a block tile's inputs must stay below 2^31 unless wide_index; the rest is 64-bit.
#pragma once
#include "primitives/channels_last.cuh"
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
  // With few rows of weights, the tensor core would wait for fragments. Then tiles are stacked along the rows of the
  // map: tile i has every `position_tiles`-th row from the i-th on. At the next shift along the height, a tile reads
  // the inputs that its neighbour, tile i + 1 or i - 1, reads now. So a fragment is loaded once for all of these
  // shifts, and its place is the place of tile 0 moved by rows.
  static constexpr int placed_tiles = Tile::stacked ? 1 : Tile::position_tiles;
  static constexpr int halves = Shape::by_channel && !Shape::straight ? 2 : 1;

  unsigned char* const shared;
  const int lane;
  int places[placed_tiles][halves];  // of the lane's positions in a stage of inputs, in bytes
  WgmmaAccumulators<Layer, Tile> accumulators;
  unsigned fragments[Shape::batches][Shape::batch_steps][Shape::fragments][Shape::planes][4];
  WarpgroupProducts products;
  WgmmaStages<Tile::weight_stages> weights;
  WgmmaStages<Tile::input_stages> inputs;
  bool read = false;  // whether the last visit's stages of weights are not given back yet

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
      for (int product = 0; product < Shape::accumulated_products; ++product)
#pragma unroll
        for (int k = 0; k < Shape::product_rows / 2; ++k) begin_accumulator(accumulators.values[tile][product][k], 0);
  }

  // Loads the fragments of a step of a k-tile from inputs that begin at `moved`. Rounds float32 to TF32, or splits it.
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

  // Gives back the stages of weights before `end`, which the last visit has read. Its products must be done.
  TCONV_DEVICE void give_back(int end) {
    // Unrolled: in a loop, the compiler would wait for the products that are on their way.
#pragma unroll
    for (int i = 0; i < Shape::row_visits; ++i) {
      const int stage = end - Shape::row_visits + i;
      if (!Tile::resident && read && lane == 0) arrive(weights.empty(stage < 0 ? stage + Tile::weight_stages : stage));
    }
    read = false;
  }

  // Begins the products of a batch of steps with one visit's weights. `row_visit` counts visits that share fragments.
  TCONV_DEVICE void multiply(WgmmaAccumulators<Layer, Tile>& accumulators, int batch, int row_visit, const Rows& rows,
                             int depth, int row, int column) {
#pragma unroll
    for (int step = 0; step < Shape::batch_steps; ++step) {
      int piece = 0;
#pragma unroll
      for (int product = 0; product < Shape::products; ++product) {
        if (!Shape::every_tap && !Shape::has_tap(product, depth, row, column)) continue;
        // Exact products: the small ones come first.
#pragma unroll
        for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane)
#pragma unroll
          for (int plane = Shape::planes - 1 - row_plane; plane >= 0; --plane)
#pragma unroll
            for (int tile = 0; tile < Tile::position_tiles; ++tile) {
              const int fragment = Tile::stacked ? tile + HeightShifts::count - 1 - row_visit : tile;
              products.template add<Element, Shape::product_rows>(
                  accumulators.values[tile][Shape::accumulators_before(product)], fragments[batch % Shape::batches][step][fragment][plane], rows,
                  piece * Shape::piece_bytes + row_plane * Shape::product_bytes +
                      (batch * Shape::batch_steps + step) * 32);
            }
        ++piece;
      }
    }
  }

  // Multiplies a k-tile of inputs, whose stage is full, by the weights of one visit. Stacked tiles make all visits
  // along the height at once. `moved` is where the inputs begin for the visit's shifts.
  TCONV_DEVICE void visit(const unsigned char* moved, int depth, int row, int column, int packed) {
    const int first_stage = weights.stage();
    WgmmaAccumulators<Layer, Tile> batch_accumulators;  // of exact products
    // Unrolled unless exact: an exact batch hands no fragments on to the next one.
#pragma unroll(Shape::exact ? 1 : Tile::k_tile_steps)
    for (int batch = 0; batch < Tile::k_tile_steps / Shape::batch_steps; ++batch) {
#pragma unroll
      for (int step = 0; step < Shape::batch_steps; ++step)
        load(moved, batch * Shape::batch_steps + step, fragments[batch % Shape::batches][step]);
      if (Shape::exact) clear(batch_accumulators);
      int stage = first_stage;
#pragma unroll
      for (int row_visit = 0; row_visit < Shape::row_visits; ++row_visit) {
        // The first batch begins its products as the weights of each visit land.
        if (batch == 0 && !Tile::own_weights) weights.wait_full();
        if (Shape::exact || batch == 0 || row_visit == 0) products.begin_group();
        const int from = Shape::packs_weights ? packed : stage * Shape::weight_stage_bytes;
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
        // The other warpgroup keeps the tensor core busy meanwhile.
        products.template wait<0>();
#pragma unroll
        for (int tile = 0; tile < Tile::position_tiles; ++tile)
#pragma unroll
          for (int product = 0; product < Shape::accumulated_products; ++product)
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

  // Where a stage's inputs begin for a visit. The first three arguments are distances to the halo's first input, which
  // the highest shifts read; `highest` is the highest shift along the width.
  TCONV_DEVICE const unsigned char* moved(int depth, int row, int column, int highest) const {
    return shared + Shape::inputs_at + inputs.stage() * Shape::input_stage_bytes +
           Shape::halo_offset(depth, row, column, highest) * Shape::place_bytes;
  }

  // The products of a k-tile in a `one_phase` block: a visit for each tap of its phase.
  TCONV_DEVICE void visit_taps(const WgmmaPhases<Layer>& phase) {
    int d = 0, c = 0, r = 0;
#pragma unroll 1
    do {  // a block that comes here has a tap
      visit(moved(phase.depth.behind(d), phase.row.behind(r), phase.column.behind(c), phase.column.highest_shift()), 0,
            0, 0, 0);
      if (++r < phase.row.count) continue;
      r = 0;
      if (++c < phase.column.count) continue;
      c = 0, ++d;
    } while (d < phase.depth.count);
  }

  // The products of a k-tile in a `row_phases` block: a visit for each tap along depth and height and each shift along
  // the width.
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

  // The products of a k-tile in a `uniform` or `all_phases` block: a visit for each shift.
  TCONV_DEVICE void visit_shifts(int k_tile) {
    constexpr bool all_phases = Shape::kind == WgmmaKind::all_phases;
#pragma unroll(all_phases ? DepthShifts::count : 1)
    for (int d = 0; d < DepthShifts::count; ++d)
#pragma unroll(all_phases ? WidthShifts::count : 1)
      for (int c = 0; c < WidthShifts::count; ++c)
#pragma unroll(all_phases ? HeightShifts::count : 1)
        for (int r = Shape::row_visits - 1; r < HeightShifts::count; r += Shape::row_visits) {
          if (all_phases && DepthShifts::taps(d) * HeightShifts::taps(r) * WidthShifts::taps(c) == 0) continue;
          const int packed = Shape::packs_weights
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
      // Each loop has its own function. Written out here, loops that are never entered would change the others' code.
      if (Shape::kind == WgmmaKind::one_phase)
        visit_taps(WgmmaPhases<Layer>(first_phase));
      else if (Shape::kind == WgmmaKind::row_phases)
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
    // "Empty" counts one arrival of each consumer warp for weights, and of each consumer thread for inputs.
    if (!Tile::own_weights) WgmmaStages<Tile::weight_stages>::make(weight_barriers, 1, 4 * Shape::consumers);
    WgmmaStages<Tile::input_stages>::make(input_barriers, Shape::loaders, 128 * Shape::consumers);
    show_barriers();
  }
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  // Each role makes its own copy: a register shared by all roles would be spilled where one role has none left.
  const auto first_work = [&] {
    return Work(renewed(batch), renewed(output_depth), renewed(output_height), renewed(output_width),
                renewed(static_cast<int>(blockIdx.x)));
  };
  if (warp < 4 * Shape::consumers) {
    take_registers<Shape::consumer_registers>();
    // Prepared inputs apart, no kernel is on its way that could write what is read here.
    if (Tile::own_weights) wgmma_own_weights<Layer, Tile>(weight, first_work(), thread, shared);
    wait_for_kernel_before();  // that kernel may still write where outputs go
    WgmmaConsumer<Layer, Tile> consumer(shared, warp, lane);
    for (Work work = first_work(); work.is_left(); work.next()) {
      const bool has_taps = work.has_taps();
      if (has_taps)
        consumer.block_tile(work.first_phase());
      else if (Tile::channels_last)
        consumer.clear(consumer.accumulators);
      // Renewed: whatever the compiler derives from these ahead of the loop takes registers from the accumulators.
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
          .store(has_taps);
    }
  } else {
    give_registers<Shape::producer_registers>();
    if (warp == 4 * Shape::consumers) {
      wait_for_kernel_before();  // that kernel prepares the weights
      if (lane == 0 && !Tile::own_weights)
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

// Prepares the inputs of `wgmma`. It rounds them again, which changes nothing.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_inputs(const typename Layer::Element* x, typename Layer::Element* prepared, int batch,
                               int input_depth, int input_height, int input_width) {
  order_inputs<Layer>(x, prepared, batch, input_depth, input_height, input_width);
}

}  // namespace tconv
