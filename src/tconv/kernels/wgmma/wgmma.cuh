// wgmma: transposed convolution as a product of matrices on the tensor cores of Hopper, sm_90a alone.
//
// Computes what `mma` computes, for 16-bit types and float32, rounded to TF32 or exact. x and y are contiguous, or
// channels_last, and begin at multiples of 16 bytes; `wgmma_weights` must have prepared the weights, which were
// contiguous and began there, too, and `wgmma_inputs` those inputs whose tile says so.
//
// The matrices. A position q owns stride_d * stride_h * stride_w neighbouring outputs, its phases, and each tap of each
// phase reads the input at q - shift. A block owns a box of positions and some output channels of some phases:
//
//               input channels                rows: phases, output channels
//              ................            ................................
//   positions  : warpgroup 0  :     x      :  weights, read from shared   :     = sums, in registers, of
//   64 a tile  :..............:  channels  :  memory by the tensor core   :       positions x rows
//              : warpgroup 1  :            :..............................:
//              :..............:            both warpgroups read the same
//              from shared memory by way
//              of registers, rounded there
//
// at every shift, or, where the block has one phase, at each of its taps; where it has the phases of a row of outputs,
// at each of their taps along depth and height and at every shift along the width. Positions are the first factor
// because that may come from registers: a lane finds each position's inputs wherever they lie, so a box has any form,
// inputs lie in shared memory as they do in global memory, and they are rounded on their way. Where few rows would keep
// the tensor core waiting for positions, tiles are stacked along the rows of the map: tile i has every
// `position_tiles`-th row from the i-th on, and at the next shift along the height it reads what tile i + 1 or i - 1
// does now. So a fragment is loaded once for all of those shifts.
//
// Three warpgroups. Two multiply, 64 positions by all rows of the block for each tile. Of the third, one warp brings
// weights and the others bring inputs, both into stages that go round:
//
//     inputs    | chunk 0      | chunk 1      | chunk 2 ...        a stage has a chunk of channels of the box and the
//     weights   |v0|v1|v2|...  |v0|v1|v2|...                       halo around it; or the weights of one visit
//     products      v0 v1 v2 ...   v0 v1 ...
//
// Each stage has a barrier that says it is full and one that says it is empty. A batch of products is on its way while
// the next one's fragments are loaded. There are as many blocks as multiprocessors, and each goes on to its next box:
// the next box's inputs come while this one's outputs are stored.
//
// The kernel may begin while its weights are prepared, and waits for them itself. Whatever it reads before that was
// there when the preparing kernel began, and it writes nothing.
//
// Not-a-number: an input outside the map counts as 0. An infinite or NaN input or weight reaches the outputs that
// depend on it, and through weights an input outside the map, as 0 * infinity.
//
// Sizes: the channels of a box's inputs must stay below 2^31 unless wide_index; the rest is 64-bit. Shared memory:
// WgmmaShape<Layer, Tile>::shared_bytes.
#pragma once
#include "wgmma/channels_last.cuh"
#include "wgmma/inputs.cuh"
#include "wgmma/launch.cuh"
#include "wgmma/store.cuh"
#include "wgmma/weights.cuh"

namespace tconv {

// A lane's part of the first factors: where its positions' inputs lie in a stage, and from there to registers.
template <class Layer, class Tile>
struct WgmmaPlaces {
  using Shape = WgmmaShape<Layer, Tile>;
  // Tiles that are stacked lie a row apart.
  static constexpr int own = Tile::stacked ? 1 : Tile::position_tiles;
  static constexpr int halves = Shape::by_channel && !Shape::straight ? 2 : 1;
  int places[own][halves];

  // Of positions from `first` on, 16 a warp. By channel a lane loads channel lane % 4 of positions lane / 4 and
  // lane / 4 + 8; else it names a row of ldmatrix, channels of a position or eight positions of a channel.
  TCONV_DEVICE WgmmaPlaces(int first, int lane) {
#pragma unroll
    for (int tile = 0; tile < own; ++tile)
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        const int number = first + (Shape::straight     ? lane / 8 % 2 * 8
                                    : Shape::by_channel ? lane / 4 + 8 * half
                                                        : lane % 16);
        const int channel = Shape::straight ? lane / 16 * 8 + lane % 8 : lane % 4;
        const bool is_in_box = wgmma_is_in_box<Layer, Tile>(number, tile);
        const BoxPosition at = wgmma_in_box<Layer, Tile>(is_in_box ? number : 0, is_in_box ? tile : 0);
        const int place =
            ((at.image * Shape::halo_depths + at.depth) * Shape::halo_rows + at.row) * Shape::row_places + at.column;
        places[tile][half] =
            place * Shape::place_bytes + (Shape::by_channel ? channel * Shape::channel_bytes : lane / 16 * 16);
      }
  }

  // The fragments of a step, from a stage on, moved by a shift.
  TCONV_DEVICE void load(const unsigned char* moved, int step,
                         unsigned (&fragments)[Shape::fragments][Shape::planes][4]) const {
#pragma unroll
    for (int f = 0; f < Shape::fragments; ++f) {
      const int further = Tile::stacked ? f * Shape::row_places * Shape::place_bytes : 0;
      const int tile = Tile::stacked ? 0 : f;
      if (Shape::straight) {
        load_turned_matrices(moved + places[tile][0] + further + step * Shape::step_channels * Shape::channel_bytes,
                             fragments[f][0]);
      } else if (Shape::by_channel) {
#pragma unroll
        for (int word = 0; word < 4; ++word)
          fragments[f][0][word] =
              *reinterpret_cast<const unsigned*>(moved + places[tile][word % 2 % halves] + further +
                                                 (step * Shape::step_channels + word / 2 * 4) * Shape::channel_bytes);
      } else {
        load_matrices(moved + places[tile][0] + further + step * 32, fragments[f][0]);
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if (Shape::item_bytes == 2) continue;
        const float value = bits_float(fragments[f][0][word]);
#pragma unroll
        for (int plane = 0; plane < Shape::planes; ++plane)
          fragments[f][plane][word] = float_bits(matrix_factor<Layer>(value, plane));
      }
    }
  }
};

// A warpgroup that multiplies.
template <class Layer, class Tile>
struct WgmmaConsumer {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Rows = FactorRows<Shape::chunk_bytes>;
  static constexpr int rows = Shape::HeightShifts::count, columns = Shape::WidthShifts::count;

  unsigned char *weight_stages, *input_stages;
  const WgmmaPlaces<Layer, Tile> places;
  const int lane;
  WgmmaSums<Layer, Tile> sums, batch_sums;  // of a batch alone where they are exact
  unsigned fragments[Shape::batches][Shape::batch_steps][Shape::fragments][Shape::planes][4];
  WarpgroupProducts products;
  WgmmaStages<Tile::weight_stages> weights;
  WgmmaStages<Tile::input_stages> inputs;
  bool read = false;  // stages that were not given back

  TCONV_DEVICE WgmmaConsumer(unsigned char* shared, int number, int lane)
      : weight_stages(shared),
        input_stages(shared + Shape::inputs_at),
        places(number, lane),
        lane(lane),
        weights(shared + Shape::barriers_at),
        inputs(shared + Shape::barriers_at + 16 * Tile::weight_stages) {}

  // Gives back what the visit has read that ended before this stage: its products are done.
  TCONV_DEVICE void give_back(int end) {
    // No loop: in one, the compiler would wait for the products that are on their way.
#pragma unroll
    for (int i = 0; i < Shape::row_visits; ++i) {
      const int stage = end - Shape::row_visits + i;
      if (!Tile::resident && read && lane == 0) arrive(weights.empty(stage < 0 ? stage + Tile::weight_stages : stage));
    }
    read = false;
  }

  // The products of a batch with the weights of one visit, of those behind each other: `has_tap` says which. Of exact
  // ones the small come first.
  template <class HasTap>
  TCONV_DEVICE void multiply(int batch, int of_visits, const Rows& of_stage, const HasTap& has_tap) {
    WgmmaSums<Layer, Tile>& to = Shape::exact ? batch_sums : sums;
#pragma unroll
    for (int step = 0; step < Shape::batch_steps; ++step) {
      int piece = 0;
#pragma unroll
      for (int product = 0; product < Shape::products; ++product) {
        if (!has_tap(product)) continue;
#pragma unroll
        for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane)
#pragma unroll
          for (int plane = Shape::planes - 1 - row_plane; plane >= 0; --plane)
#pragma unroll
            for (int tile = 0; tile < Tile::position_tiles; ++tile) {
              const int fragment = Tile::stacked ? tile + rows - 1 - of_visits : tile;
              products.template add<Element, Shape::product_rows>(
                  to.values[tile][product], fragments[batch % Shape::batches][step][fragment][plane], of_stage,
                  piece * Shape::piece_bytes + row_plane * Shape::product_bytes +
                      (batch * Shape::batch_steps + step) * 32);
            }
        ++piece;
      }
    }
  }

  // A visit, or those along the height at once: inputs from `moved` on, in a stage that is full. Weights that stay and
  // are known lie from `packed` on, others in their stage.
  template <class HasTap>
  TCONV_DEVICE void visit(const unsigned char* moved, int packed, const HasTap& has_tap) {
    const int first_stage = weights.stage();
    // Nothing of an exact batch goes on into the next one.
#pragma unroll(Shape::exact ? 1 : Tile::chunk_steps)
    for (int batch = 0; batch < Tile::chunk_steps / Shape::batch_steps; ++batch) {
#pragma unroll
      for (int step = 0; step < Shape::batch_steps; ++step)
        places.load(moved, batch * Shape::batch_steps + step, fragments[batch % Shape::batches][step]);
      if (Shape::exact) batch_sums.clear();
      int stage = first_stage;
#pragma unroll
      for (int of_visits = 0; of_visits < Shape::row_visits; ++of_visits) {
        // The first batch goes to the tensor core as the weights come.
        if (batch == 0) weights.wait_full();
        if (Shape::exact || batch == 0 || of_visits == 0) products.begin_group();
        const int from = Tile::resident && Shape::known ? packed : stage * Shape::weight_stage_bytes;
        multiply(batch, of_visits, Rows(weight_stages + from), has_tap);
        if (Shape::exact || batch == 0 || of_visits == Shape::row_visits - 1) products.end_group();
        if (batch == 0) weights.next();
        stage = stage + 1 == Tile::weight_stages ? 0 : stage + 1;
        if (batch == 0 && of_visits == 0 && !Shape::exact) {
          products.template wait<1>();  // the visits before are done
          __syncwarp();
          give_back(first_stage);
        }
      }
      if (Shape::exact) {
        // The other warpgroup's products are on their way meanwhile.
        products.template wait<0>();
        sums.add(batch_sums);
      } else if (batch > 0) {
        products.template wait<1>();
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
    return input_stages + inputs.stage() * Shape::input_stage_bytes +
           Shape::halo_offset(depth, row, column, highest) * Shape::place_bytes;
  }

  // The products of a chunk of a block with one phase: a visit for each of its taps.
  TCONV_DEVICE void visit_taps(const WgmmaPhases<Layer>& phase) {
    int d = 0, c = 0, r = 0;
#pragma unroll 1
    do {  // every phase has a tap
      visit(moved(phase.depth.behind(d), phase.row.behind(r), phase.column.behind(c), phase.column.highest_shift()), 0,
            [](int) { return true; });
      if (++r < phase.row.count) continue;
      r = 0;
      if (++c < phase.column.count) continue;
      c = 0, ++d;
    } while (d < phase.depth.count);
  }

  // Of one with the phases of a row: for each tap along depth and height, and each shift along the width.
  TCONV_DEVICE void visit_row(const WgmmaPhases<Layer>& phase) {
    int d = 0, r = 0;
#pragma unroll 1
    do {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const auto has_tap = [&](int product) { return Shape::WidthShifts::tap(product, c) >= 0; };
        if (Shape::WidthShifts::taps(c) > 0)
          visit(moved(phase.depth.behind(d), phase.row.behind(r), Shape::WidthShifts::behind(c),
                      Shape::WidthShifts::highest),
                0, has_tap);
      }
      if (++r < phase.row.count) continue;
      r = 0, ++d;
    } while (d < phase.depth.count);
  }

  // Of one whose phases are alike, or all: for each shift.
  TCONV_DEVICE void visit_shifts(int number) {
#pragma unroll(Shape::known ? Shape::DepthShifts::count : 1)
    for (int d = 0; d < Shape::DepthShifts::count; ++d)
#pragma unroll(Shape::known ? columns : 1)
      for (int c = 0; c < columns; ++c)
#pragma unroll(Shape::known ? rows : 1)
        for (int r = Shape::row_visits - 1; r < rows; r += Shape::row_visits) {
          const auto has_tap = [&](int product) {
            return Shape::uniform ||
                   (Shape::DepthShifts::tap(product / (Layer::Height::stride * Layer::Width::stride), d) >= 0 &&
                    Shape::HeightShifts::tap(product / Layer::Width::stride % Layer::Height::stride, r) >= 0 &&
                    Shape::WidthShifts::tap(product % Layer::Width::stride, c) >= 0);
          };
          if (!Shape::known ||
              Shape::DepthShifts::taps(d) * Shape::HeightShifts::taps(r) * Shape::WidthShifts::taps(c) > 0)
            visit(moved(Shape::DepthShifts::behind(d), Shape::HeightShifts::behind(r), Shape::WidthShifts::behind(c),
                        Shape::WidthShifts::highest),
                  (number * Shape::chunk_pieces + Shape::pieces_before(d, c, r)) * Shape::piece_bytes, has_tap);
        }
  }

  // No branch has the loops itself: those of another, never entered, would change what the compiler makes of them.
  TCONV_DEVICE void chunk(int first_phase, int number) {
    inputs.wait_full();
    if (Shape::single)
      visit_taps(WgmmaPhases<Layer>(first_phase));
    else if (Shape::alone)
      visit_row(WgmmaPhases<Layer>(first_phase));
    else
      visit_shifts(number);
    arrive(inputs.empty());
    inputs.next();
  }

  TCONV_DEVICE void box(int first_phase) {
    sums.clear();
    if (Tile::resident) weights.turn = 0;  // they are there since the first box
#pragma unroll 1
    for (int number = 0; number < Shape::chunks; ++number) chunk(first_phase, number);
    products.template wait<0>();
    __syncwarp();
    give_back(weights.stage());
  }
};

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void wgmma(const typename Layer::Element* x, const typename Layer::Element* weight,
                        const typename Layer::Element* bias, typename Layer::Element* y, int y_channels, int batch,
                        int input_depth, int input_height, int input_width, int output_depth, int output_height,
                        int output_width,
                        const Program& program = {}) {
  using Shape = WgmmaShape<Layer, Tile>;
  TCONV_SHARED(shared);
  unsigned char* const weight_barriers = shared + Shape::barriers_at;
  unsigned char* const input_barriers = weight_barriers + 16 * Tile::weight_stages;
  if (threadIdx.x == 0) {
    WgmmaStages<Tile::weight_stages>::make(weight_barriers, 1, 4 * Shape::consumers);
    WgmmaStages<Tile::input_stages>::make(input_barriers, Shape::loaders, 128 * Shape::consumers);
    show_barriers();
  }
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  using Work = WgmmaWork<Layer, Tile>;
  // For each role anew: a register that all have would be spilled where one of them has none left.
  const auto first_work = [&] {
    return Work(renewed(batch), renewed(output_depth), renewed(output_height), renewed(output_width),
                renewed(static_cast<int>(blockIdx.x)));
  };
  if (warp < 4 * Shape::consumers) {
    take_registers<Shape::consumer_registers>();
    wait_for_kernel_before();
    WgmmaConsumer<Layer, Tile> consumer(shared, warp * 16, lane);
    Work work = first_work();
    while (work.is_left()) {
      consumer.box(work.first_phase());
      // What follows from these would take registers that sums need.
      const int images = renewed(batch), depths = renewed(output_depth), rows = renewed(output_height);
      const int columns = renewed(output_width);
      work = Work(images, depths, rows, columns, renewed(work.number));
      const int channel = work.channel_block() * Tile::channels;
      const long long plane = static_cast<long long>(depths) * rows * columns;
      const long long first = static_cast<long long>(work.group()) * Layer::group_out_channels;
      const Epilogue<Layer, Program> epilogue{Layer::has_bias ? bias + first : bias, program, static_cast<int>(first)};
      WgmmaStore<Layer, Tile, Program>{
          consumer.sums,
          epilogue,
          y + (first + channel) * (Tile::channels_last ? 1 : plane),
          work.box(),
          work.first_phase(),
          channel,
          reinterpret_cast<float*>(shared + Shape::staged_at + warp / 4 * Shape::staged_bytes),
          renewed(warp),
          renewed(lane),
          y_channels,
          images,
          depths,
          rows,
          columns}
          .store();
      work.next();
    }
  } else {
    give_registers<Shape::producer_registers>();
    if (warp == 4 * Shape::consumers) {
      wait_for_kernel_before();  // which prepared the weights
      if (lane == 0)
        wgmma_bring_weights<Layer, Tile>(first_work(), reinterpret_cast<const unsigned char*>(weight), shared,
                                         weight_barriers);
    } else {
      if (Tile::prepared_inputs) wait_for_kernel_before();
      WgmmaProducer<Layer, Tile>::run(first_work(), thread - 32 * (4 * Shape::consumers + 1), shared, input_barriers, x,
                                      batch, input_depth, input_height, input_width);
    }
  }
}

}  // namespace tconv
