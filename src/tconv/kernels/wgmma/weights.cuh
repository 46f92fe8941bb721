// wgmma: the weights. A kernel prepares them, in the order in which blocks load them; later a warp loads them.
// `wgmma.cuh` has the picture.
#pragma once
#include "primitives/asynchronous.cuh"
#include "primitives/layer.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/block_tiles.cuh"

namespace tconv {

// A tap on an axis: its phase, and the number of its shift.
template <class Axis>
struct WgmmaTap {
  int tap, phase, shift;

  TCONV_DEVICE explicit WgmmaTap(int tap) : tap(tap) {
    const int of_tap = Axis::shift_of(tap);
    phase = tap * Axis::dilation - Axis::padding - of_tap * Axis::stride;
    shift = (of_tap - Shifts<Axis>::lowest) / Shifts<Axis>::step;
  }
};

// Where the piece of a tap lies: in which phase set, and as which piece of a k-tile. A visit's pieces lie together.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_piece(int of_tap, int& phase_set, int& piece) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  const WgmmaTap<Depth> depth(of_tap / (Height::kernel * Width::kernel));
  const WgmmaTap<Height> row(of_tap / Width::kernel % Height::kernel);
  const WgmmaTap<Width> column(of_tap % Width::kernel);
  const int phase = (depth.phase * Height::stride + row.phase) * Width::stride + column.phase;
  phase_set = phase / Tile::phases;
  if (Shape::kind == WgmmaKind::uniform) {
    // Visits are shifts: along the height fastest, then along the width. Each has a piece of every phase.
    const int visit = (depth.shift * Shape::WidthShifts::count + column.shift) * Shape::HeightShifts::count + row.shift;
    piece = visit * Tile::phases + phase % Tile::phases;
  } else if (Shape::kind == WgmmaKind::all_phases) {
    // Visits are the same shifts. Each has a piece of every phase that has a tap there.
    const int rows = Shape::HeightShifts::taps(row.shift), columns = Shape::WidthShifts::taps(column.shift);
    piece = Shape::pieces_before(depth.shift, column.shift, row.shift) +
            ((depth.tap - Shape::DepthShifts::first_tap(depth.shift)) * rows + row.tap -
             Shape::HeightShifts::first_tap(row.shift)) *
                columns +
            column.tap - Shape::WidthShifts::first_tap(column.shift);
  } else {
    // Visits are taps. `one_phase`: those of the phase, along the height fastest. `row_phases`: those along depth and
    // height, and shifts along the width; the pieces follow the order of taps along the width.
    const WgmmaPhases<Layer> own(phase);
    const int d = (depth.tap - own.depth.first) / Depth::tap_period, r = (row.tap - own.row.first) / Height::tap_period;
    const int c = (column.tap - own.column.first) / Width::tap_period;
    piece = Shape::kind == WgmmaKind::one_phase
                ? (d * own.column.count + c) * own.row.count + r
                : (d * own.row.count + r) * Width::kernel + column.tap;
  }
}

// Prepares the weights, in the order in which blocks load them. Each of `Shape::preparing_items` threads has every
// second vector of one tap's channels in a k-tile, for one output channel.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  let_next_kernel_begin();
  const long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= Shape::preparing_items) return;
  // Neighbouring threads read neighbouring weights. Two threads write 32 bytes, a whole sector.
  Digits<Shape::preparing_items> digits(item);
  const int first_vector = digits.next(2);
  int tap, channel;
  if (Layer::weights_last)
    channel = digits.next(Tile::channels), tap = digits.next(Shape::taps);
  else
    tap = digits.next(Shape::taps), channel = digits.next(Tile::channels);
  const int k_tile = digits.next(Shape::k_tiles), channel_block = digits.next(Shape::channel_blocks);
  const int group = static_cast<int>(digits.rest);

  const int out_channel = channel_block * Tile::channels + channel;
  int phase_set, piece;
  wgmma_piece<Layer, Tile>(tap, phase_set, piece);
  const int row = piece % Shape::product_phases * Tile::channels + Shape::row_of(channel);
  const long long set = (static_cast<long long>(group) * Shape::channel_blocks + channel_block) * Shape::phase_sets;
  const long long product =
      static_cast<long long>(k_tile) * Shape::k_tile_pieces + piece - piece % Shape::product_phases;
  unsigned char* const to =
      reinterpret_cast<unsigned char*>(prepared) + (set + phase_set) * Shape::set_bytes + product * Shape::piece_bytes;
#pragma unroll
  for (int pair = 0; pair < Shape::k_tile_vectors / 2; ++pair) {
    const int vector = pair * 2 + first_vector;
    const int in_channel = k_tile * Shape::k_tile_channels + vector * Shape::vector_items;
    Vector<Element, Shape::vector_items> values;
#pragma unroll
    for (int k = 0; k < Shape::vector_items; ++k) {
      const bool present = (Shape::whole_channels || out_channel < Layer::group_out_channels) &&
                           (Shape::whole_k_tiles || in_channel + k < Layer::group_in_channels);
      values.values[k] =
          present ? load_constant(weight_at<Layer>(weight, group, in_channel + k, out_channel, tap)) : Element{};
    }
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane) {
      Vector<Element, Shape::vector_items> factors;
#pragma unroll
      for (int k = 0; k < Shape::vector_items; ++k) factors.values[k] = matrix_factor<Layer>(values.values[k], plane);
      *reinterpret_cast<Vector<Element, Shape::vector_items>*>(
          to + plane * Shape::product_bytes + swizzled(row * Shape::k_tile_bytes + vector * 16, Shape::k_tile_bytes)) =
          factors;
    }
  }
  // The main kernel waits for this kernel alone, but also reads the inputs that the kernel before this one prepares.
  if (Tile::prepared_inputs) wait_for_kernel_before();
}

// Loads weights, visit by visit. One thread of warp 8 does this. It waits until the products that read a stage are
// done (the barrier "empty"). The copy's bytes complete the barrier "full".
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_load_weights(const WgmmaWork<Layer, Tile>& first_work, unsigned char* shared,
                                      unsigned char* barriers, const unsigned char* prepared) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int rows = Shape::HeightShifts::count, columns = Shape::WidthShifts::count;
  WgmmaStages<Tile::weight_stages> stages(barriers);
  for (WgmmaWork<Layer, Tile> work = first_work; work.is_left(); work.next()) {
    const unsigned char* const set = prepared + work.weight_set() * Shape::set_bytes;
    int visits = Shape::visits;
    if (Shape::one_row_phase) {
      const WgmmaPhases<Layer> own(work.first_phase());
      visits = own.depth.count * own.row.count * (Shape::kind == WgmmaKind::one_phase ? own.column.count : columns);
    }
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      const unsigned char* from = set + static_cast<long long>(k_tile) * Shape::k_tile_pieces * Shape::piece_bytes;
#pragma unroll 1
      for (int visit = 0; visit < visits; ++visit) {
        const int pieces = Shape::kind == WgmmaKind::all_phases
                               ? Shape::DepthShifts::taps(visit / (rows * columns)) *
                                     Shape::WidthShifts::taps(visit / rows % columns) *
                                     Shape::HeightShifts::taps(visit % rows)
                           : Shape::kind == WgmmaKind::row_phases ? Shape::WidthShifts::taps(visit % columns)
                                                                  : Tile::phases;
        if (Shape::kind != WgmmaKind::uniform && pieces == 0) continue;
        const int bytes = pieces * Shape::piece_bytes;
        stages.wait_empty();
        arrive_and_expect(stages.full(), bytes);
        // Packed weights lie as in memory. Others may not: a phase may have fewer taps than its block has stages.
        const int at =
            Shape::packs_weights ? static_cast<int>(from - set) : stages.stage() * Shape::weight_stage_bytes;
        copy_to_shared(shared + at, from, bytes, stages.full());
        from += bytes;
        stages.next();
      }
    }
    if (Tile::resident) break;  // resident: all block tiles of a block need the same weights
  }
}

}  // namespace tconv
