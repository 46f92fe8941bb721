// wgmma: the weights: brought into the order in which blocks read them, and on their way there. `wgmma.cuh` has the
// picture.
#pragma once
#include "primitives/asynchronous.cuh"
#include "primitives/layer.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/boxes.cuh"

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

// Where the piece of a tap lies: in the weights of which blocks, and behind how many pieces of a chunk. Those of a
// visit lie together, visits in order: along the height fastest, then along the width.
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
  if (Shape::uniform) {
    const int visit = (depth.shift * Shape::WidthShifts::count + column.shift) * Shape::HeightShifts::count + row.shift;
    piece = visit * Tile::phases + phase % Tile::phases;
  } else if (Shape::known) {
    const int rows = Shape::HeightShifts::taps(row.shift), columns = Shape::WidthShifts::taps(column.shift);
    piece = Shape::pieces_before(depth.shift, column.shift, row.shift) +
            ((depth.tap - Shape::DepthShifts::first_tap(depth.shift)) * rows + row.tap -
             Shape::HeightShifts::first_tap(row.shift)) *
                columns +
            column.tap - Shape::WidthShifts::first_tap(column.shift);
  } else {
    const WgmmaPhases<Layer> own(phase);
    const int d = (depth.tap - own.depth.first) / Depth::tap_period, r = (row.tap - own.row.first) / Height::tap_period;
    const int c = (column.tap - own.column.first) / Width::tap_period;
    piece = Shape::single ? (d * own.column.count + c) * own.row.count + r
                          : (d * own.row.count + r) * Width::kernel + column.tap;
  }
}

// Brings the weights into the order in which blocks read them, by one thread for each of `Shape::preparing_items`:
// every second vector of a tap's channels in a chunk.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  let_kernel_behind_begin();
  const long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= Shape::preparing_items) return;
  // Neighbouring threads read neighbouring taps of neighbouring filters; two of them write 32 bytes, a whole sector.
  Digits<Shape::preparing_items> digits(item);
  const int first_vector = digits.next(2), tap = digits.next(Shape::taps), channel = digits.next(Tile::channels);
  const int chunk = digits.next(Shape::chunks), channel_block = digits.next(Shape::channel_blocks);
  const int group = static_cast<int>(digits.rest);

  const int out_channel = channel_block * Tile::channels + channel;
  int phase_set, piece;
  wgmma_piece<Layer, Tile>(tap, phase_set, piece);
  const int row = piece % Shape::product_phases * Tile::channels + Shape::row_of(channel);
  const long long set = (static_cast<long long>(group) * Shape::channel_blocks + channel_block) * Shape::phase_sets;
  const long long product = static_cast<long long>(chunk) * Shape::chunk_pieces + piece - piece % Shape::product_phases;
  unsigned char* const to =
      reinterpret_cast<unsigned char*>(prepared) + (set + phase_set) * Shape::set_bytes + product * Shape::piece_bytes;
#pragma unroll
  for (int pair = 0; pair < Shape::chunk_vectors / 2; ++pair) {
    const int vector = pair * 2 + first_vector,
              in_channel = chunk * Shape::chunk_channels + vector * Shape::vector_items;
    Vector<Element, Shape::vector_items> values;
#pragma unroll
    for (int k = 0; k < Shape::vector_items; ++k) {
      const bool present =
          (Layer::group_out_channels % Tile::channels == 0 || out_channel < Layer::group_out_channels) &&
          (Shape::whole_chunks || in_channel + k < Layer::group_in_channels);
      values.values[k] = Element{};
      if (present) values.values[k] = load_constant(weight_at<Layer>(weight, group, in_channel + k, out_channel, tap));
    }
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane) {
      Vector<Element, Shape::vector_items> factors;
#pragma unroll
      for (int k = 0; k < Shape::vector_items; ++k) factors.values[k] = matrix_factor<Layer>(values.values[k], plane);
      *reinterpret_cast<Vector<Element, Shape::vector_items>*>(
          to + plane * Shape::product_bytes + swizzled(row * Shape::chunk_bytes + vector * 16, Shape::chunk_bytes)) =
          factors;
    }
  }
  // The kernel behind this one waits for this one alone, and reads what the one before it prepares, too.
  if (Tile::prepared_inputs) wait_for_kernel_before();
}

// Brings a block's weights, visit by visit; one thread. Those that stay come once: all boxes of a block need the same.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_bring_weights(WgmmaWork<Layer, Tile> work, const unsigned char* prepared, unsigned char* stages,
                                      unsigned char* barriers) {
  using Shape = WgmmaShape<Layer, Tile>;
  WgmmaStages<Tile::weight_stages> ring(barriers);
  const unsigned char* set = prepared;
  const auto bring = [&](const unsigned char*& from, int pieces) {
    if (pieces == 0) return;
    const int bytes = pieces * Shape::piece_bytes;
    ring.wait_empty();
    arrive_and_expect(ring.full(), bytes);
    // A phase may have fewer taps than its block has stages for: only `known` ones lie as in memory.
    const int at =
        Tile::resident && Shape::known ? static_cast<int>(from - set) : ring.stage() * Shape::weight_stage_bytes;
    copy_to_shared(stages + at, from, bytes, ring.full());
    from += bytes;
    ring.next();
  };
  for (bool more = true; more && work.is_left(); work.next()) {
    set = prepared + work.weight_set() * Shape::set_bytes;
    const unsigned char* from = set;
    constexpr int rows = Shape::HeightShifts::count, columns = Shape::WidthShifts::count;
    const WgmmaPhases<Layer> own(work.first_phase());
    const int visits =
        !Shape::alone ? Shape::visits : own.depth.count * own.row.count * (Shape::single ? own.column.count : columns);
#pragma unroll 1
    for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
      const unsigned char* of_chunk = from;
#pragma unroll 1
      for (int visit = 0; visit < visits; ++visit) {
        bring(of_chunk, Shape::known                     ? Shape::DepthShifts::taps(visit / (rows * columns)) *
                                                               Shape::WidthShifts::taps(visit / rows % columns) *
                                                               Shape::HeightShifts::taps(visit % rows)
                        : Shape::alone && !Shape::single ? Shape::WidthShifts::taps(visit % columns)
                                                         : Tile::phases);
      }
      from += static_cast<long long>(Shape::chunk_pieces) * Shape::piece_bytes;
    }
    more = !Tile::resident;
  }
}

}  // namespace tconv
