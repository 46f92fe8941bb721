// wgmma: the weights. A kernel prepares them, in the order in which blocks load them; later a warp loads them. Or each
// block prepares its own.
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

// Weights on their way to the order in which products read them. A unit has 16 bytes of input channels of a few weights
// that are neighbours in memory: a thread loads these at once for each channel, and writes a vector for each of them.
template <class Layer, class Tile>
struct WgmmaWeightUnit {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  static constexpr int together = Shape::weights_together, channels = Shape::vector_items;
  using Neighbours = Vector<Element, together>;

  Neighbours loaded[channels];
  int first, vector, k_tile;  // among the weights of an input channel in a block; in the k-tile

  // Loads the unit with a number below `Shape::block_units`, or zeros if it is not `present`.
  TCONV_DEVICE void read(const Element* weight, int group, int channel_block, int number, bool present) {
    Digits<Shape::block_units> digits(present ? number : 0);
    // Neighbouring threads write neighbouring vectors, and read neighbouring weights.
    vector = digits.next(Shape::k_tile_vectors);
    first = digits.next(Shape::block_weights / together) * together;
    k_tile = digits.rest;
    const int tap = tap_of(0), out_channel = channel_block * Tile::channels + channel_of(0);
    const int in_channel = k_tile * Shape::k_tile_channels + vector * channels;
    // All of a unit's output channels exist, or none.
    const bool exists = present && (Shape::whole_channels || out_channel < Layer::group_out_channels);
#pragma unroll
    for (int k = 0; k < channels; ++k) {
      const bool there = exists && (Shape::whole_k_tiles || in_channel + k < Layer::group_in_channels);
      const Neighbours neighbours = *reinterpret_cast<const Neighbours*>(
          there ? weight_at<Layer>(weight, group, in_channel + k, out_channel, tap) : weight);
#pragma unroll
      for (int n = 0; n < together; ++n) loaded[k].values[n] = there ? neighbours.values[n] : Element{};
    }
  }

  // Writes it behind `sets`, where the first phase set of its block's channels begins.
  TCONV_DEVICE void write(unsigned char* sets) const {
#pragma unroll
    for (int n = 0; n < together; ++n) {
      int phase_set, piece;
      wgmma_piece<Layer, Tile>(tap_of(n), phase_set, piece);
      const int row = piece % Shape::product_phases * Tile::channels + Shape::row_of(channel_of(n));
      const int product = k_tile * Shape::k_tile_pieces + piece - piece % Shape::product_phases;
      unsigned char* const to =
          sets + phase_set * Shape::set_bytes + static_cast<long long>(product) * Shape::piece_bytes;
#pragma unroll
      for (int plane = 0; plane < Shape::planes; ++plane) {
        Vector<Element, channels> factors;
#pragma unroll
        for (int k = 0; k < channels; ++k) factors.values[k] = matrix_factor<Layer>(loaded[k].values[n], plane);
        *reinterpret_cast<Vector<Element, channels>*>(
            to + plane * Shape::product_bytes +
            swizzled(row * Shape::k_tile_bytes + vector * 16, Shape::k_tile_bytes)) = factors;
      }
    }
  }

  // The tap and the channel in the block of the unit's n-th weight. Known when compiled, where they can be.
  TCONV_DEVICE int tap_of(int n) const {
    if (Layer::weights_last) return first / Tile::channels;
    return together % Shape::taps == 0 ? n % Shape::taps : (first + n) % Shape::taps;
  }
  TCONV_DEVICE int channel_of(int n) const {
    if (Layer::weights_last) return first % Tile::channels + n;
    return together % Shape::taps == 0 ? first / Shape::taps + n / Shape::taps : (first + n) / Shape::taps;
  }
};

// Prepares the weights, in the order in which blocks load them. Each of `Shape::preparing_items` threads has a unit.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Shape = WgmmaShape<Layer, Tile>;
  let_next_kernel_begin();
  const long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= Shape::preparing_items) return;
  Digits<Shape::preparing_items> digits(item);
  const int number = digits.next(Shape::block_units);
  const int channel_block = Shape::channel_blocks == 1 ? 0 : digits.next(Shape::channel_blocks);
  const int group = Layer::groups == 1 ? 0 : static_cast<int>(digits.rest);
  WgmmaWeightUnit<Layer, Tile> unit;
  unit.read(weight, group, channel_block, number, true);
  unit.write(reinterpret_cast<unsigned char*>(prepared) +
             (static_cast<long long>(group) * Shape::channel_blocks + channel_block) * Shape::phase_sets *
                 Shape::set_bytes);
  // The main kernel waits for this kernel alone, but also reads the inputs that the kernel before this one prepares.
  if (Tile::prepared_inputs) wait_for_kernel_before();
}

// Prepares a block's own weights in shared memory, where they stay. All threads that multiply do this.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_own_weights(const typename Layer::Element* weight, const WgmmaWork<Layer, Tile>& work,
                                    int thread, unsigned char* shared) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Unit = WgmmaWeightUnit<Layer, Tile>;
  // Loads of some units are on their way together, of 256 bytes.
  constexpr int threads = 128 * Shape::consumers, turns = ceil_div(Shape::block_units, threads);
  constexpr int most = 256 / static_cast<int>(sizeof(Unit::loaded)), at_once = turns < most ? turns : most;
  const int group = work.group(), channel_block = work.channel_block();
#pragma unroll 1
  for (int number = thread; number < Shape::block_units; number += at_once * threads) {
    Unit units[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      units[i].read(weight, group, channel_block, number + i * threads, number + i * threads < Shape::block_units);
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (number + i * threads < Shape::block_units) units[i].write(shared);
  }
  show_to_products();
  meet<threads>(4);
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
