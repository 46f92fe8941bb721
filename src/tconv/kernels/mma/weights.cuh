// mma: the weights. A kernel prepares them as fragments, in the order of a block's steps; the main kernel loads them.
// `mma.cuh` has the picture.
#pragma once
#include "mma/factors.cuh"
#include "mma/shape.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/layer.cuh"

namespace tconv {

// Prepares weights where a tile of rows has one phase. A thread loads some neighbouring taps of the filters of its
// lane's two rows, because these taps are neighbours in memory. Each tap is a pair: one phase at one shift. Pairs
// without a tap are gaps. They become zeros if they are loaded to shared memory with the others, though nobody
// multiplies them.
template <class Layer, class Tile>
struct MmaFilters {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Depth = typename Shape::Depth;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  static constexpr int units = Shape::units, items = Shape::unit_items, together = Tile::taps_together;
  static constexpr int load_bytes =
      Layer::weights_last ? Shape::item_bytes : greatest_common_divisor(together * Shape::item_bytes, 16);
  static constexpr int loads = together * Shape::item_bytes / load_bytes, words = load_bytes < 4 ? 1 : load_bytes / 4;
  using Factors = Vector<Element, Shape::vector_items>;

  Element* prepared;
  int group, step, channel_tile, lane;

  // A phase and a shift, by number.
  struct Pair {
    int phase, shift;
  };
  template <class Axis, class Shifts>
  static TCONV_DEVICE Pair on_axis(int tap) {
    const int shift = Axis::shift_of(tap);
    return {tap * Axis::dilation - Axis::padding - shift * Axis::stride, (shift - Shifts::lowest) / Shifts::step};
  }
  static TCONV_DEVICE Pair pair_of(int tap) {
    const Pair depth = on_axis<Depth, typename Shape::DepthShifts>(tap / (Height::kernel * Width::kernel));
    const Pair row = on_axis<Height, typename Shape::HeightShifts>(tap / Width::kernel % Height::kernel);
    const Pair column = on_axis<Width, typename Shape::WidthShifts>(tap % Width::kernel);
    return {(depth.phase * Height::stride + row.phase) * Width::stride + column.phase,
            (depth.shift * Shape::HeightShifts::count + row.shift) * Shape::WidthShifts::count + column.shift};
  }

  // Writes a pair's vector of one plane. Tiles beyond the last are not written.
  TCONV_DEVICE void put(const Pair& pair, int plane, const Factors& factors) const {
    const int tile = channel_tile * Shape::phase_tiles + pair.phase;
    if (tile >= Shape::row_blocks * Shape::block_row_tiles) return;
    const long long block = static_cast<long long>(group) * Shape::row_blocks + tile / Shape::block_row_tiles;
    const long long of_k_tile = (block * Shape::k_tiles + step / Shape::stage_steps) * Shape::shifts + pair.shift;
    const long long of_tile = of_k_tile * Shape::block_row_tiles + tile % Shape::block_row_tiles;
    const long long of_step = (of_tile * Shape::stage_steps + step % Shape::stage_steps) * Shape::planes + plane;
    reinterpret_cast<Factors*>(prepared)[of_step * 32 + lane] = factors;
  }

  TCONV_DEVICE void reorder(const Element* weight, int first_tap) const {
    Vector<unsigned, words> loaded[units][items][loads];
#pragma unroll
    for (int u = 0; u < units; ++u)
#pragma unroll
      for (int i = 0; i < items; ++i) {
        const int out_channel = channel_tile * 16 + lane / 4 + u % 2 * 8;
        const int in_channel = step * Shape::step_channels + (lane % 4 + u / 2 * 4) * items + i;
        const bool present = out_channel < Layer::group_out_channels && in_channel < Layer::group_in_channels;
        const Element* const from =
            weight_at<Layer>(weight, group, present ? in_channel : 0, present ? out_channel : 0, first_tap);
#pragma unroll
        for (int l = 0; l < loads; ++l)
          load_present<load_bytes>(from + l * (load_bytes / Shape::item_bytes * tap_distance<Layer>()), present,
                                   loaded[u][i][l].values);
      }
#pragma unroll
    for (int t = 0; t < together; ++t) {
      const Pair pair = pair_of(first_tap + t);
      constexpr int of_load = load_bytes / Shape::item_bytes;
#pragma unroll
      for (int plane = 0; plane < Shape::planes; ++plane) {
        Factors factors;
#pragma unroll
        for (int u = 0; u < units; ++u)
#pragma unroll
          for (int i = 0; i < items; ++i) {
            Element value;
            mma_unpack(loaded[u][i][t / of_load], t % of_load, value);
            factors.values[u * items + i] = matrix_factor<Layer>(value, plane);
          }
        put(pair, plane, factors);
      }
    }
  }

  // Writes zeros to gaps. The threads that load taps of the same filters share the work.
  TCONV_DEVICE void clear_gaps(int number, int threads) const {
    for (int pair = number; pair < Shape::phases * Shape::shifts; pair += threads)
      if (!Shape::has_taps(pair % Shape::shifts, pair / Shape::shifts))
        for (int plane = 0; plane < Shape::planes; ++plane)
          put({pair / Shape::shifts, pair % Shape::shifts}, plane, Factors{});
  }
};

// Prepares one 16-byte vector, where a tile of rows has several phases.
template <class Layer, class Tile>
TCONV_DEVICE void mma_weights_of_phases(const typename Layer::Element* weight, typename Layer::Element* prepared,
                                        long long vector) {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  const int lane = static_cast<int>(vector % 32);
  Digits<Shape::weight_vectors> digits(vector / 32);
  const int plane = digits.next(Shape::planes), step = digits.next(Shape::stage_steps);
  const int row_tile = digits.next(Shape::block_row_tiles), shift = digits.next(Shape::shifts);
  const int k_tile = digits.next(Shape::k_tiles), row_block = digits.next(Shape::row_blocks);
  const int group = static_cast<int>(digits.rest);

  const int tile = row_block * Shape::block_row_tiles + row_tile;
  const int channel_tile = tile / Shape::phase_tiles, phase_tile = tile % Shape::phase_tiles;
  constexpr int items = Shape::unit_items;
  using Factors = Vector<Element, Shape::vector_items>;
  Factors factors;
#pragma unroll
  for (int u = 0; u < Shape::units; ++u) {
    const int row = lane / 4 + u % 2 * 8;
    const int phase = phase_tile * Shape::tile_phases + row / Tile::channels;
    const int out_channel = channel_tile * Tile::channels + row % Tile::channels;
    const int depth_tap = Shape::DepthShifts::tap(phase / (Shape::Height::stride * Shape::Width::stride),
                                                  shift / (Shape::HeightShifts::count * Shape::WidthShifts::count));
    const int row_tap = Shape::HeightShifts::tap(phase / Shape::Width::stride % Shape::Height::stride,
                                                 shift / Shape::WidthShifts::count % Shape::HeightShifts::count);
    const int tap = Shape::WidthShifts::tap(phase % Shape::Width::stride, shift % Shape::WidthShifts::count);
#pragma unroll
    for (int i = 0; i < items; ++i) {
      const int in_channel =
          k_tile * Shape::k_tile_channels + step * Shape::step_channels + (lane % 4 + u / 2 * 4) * items + i;
      Element value{};
      if (phase < Shape::phases && out_channel < Layer::group_out_channels && in_channel < Layer::group_in_channels &&
          depth_tap >= 0 && row_tap >= 0 && tap >= 0)
        value =
            load_constant(weight_at<Layer>(weight, group, in_channel, out_channel,
                                           (depth_tap * Shape::Height::kernel + row_tap) * Shape::Width::kernel + tap));
      factors.values[u * items + i] = matrix_factor<Layer>(value, plane);
    }
  }
  reinterpret_cast<Factors*>(prepared)[vector] = factors;
}

// Prepares the weights, with one thread for each of `Shape::preparing_items`.
template <class Layer, class Tile>
TCONV_DEVICE void mma_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Shape = MmaShape<Layer, Tile>;
  let_next_kernel_begin();
  const long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= Shape::preparing_items) return;
  if (Shape::tile_phases > 1) {
    mma_weights_of_phases<Layer, Tile>(weight, prepared, item);
    return;
  }
  Digits<Shape::preparing_items> digits(item / 32);
  const int tap_group = digits.next(Shape::taps / Tile::taps_together);
  const int step = digits.next(Shape::k_tiles * Shape::stage_steps);
  const int channel_tile = digits.next(Shape::prepared_channel_tiles);
  const MmaFilters<Layer, Tile> filters{prepared, static_cast<int>(digits.rest), step, channel_tile,
                                        static_cast<int>(item % 32)};
  filters.reorder(weight, tap_group * Tile::taps_together);
  if (!Shape::every_phase_has_every_shift && !Tile::gaps)
    filters.clear_gaps(tap_group, Shape::taps / Tile::taps_together);
}

// Loads the prepared weights to shared memory. They lie in global memory in the order of a block's steps, and fill one
// stage after the other. Resident weights fill all stages at once.
template <class Layer, class Tile>
struct MmaWeightStages {
  using Shape = MmaShape<Layer, Tile>;
  // A piece of a copy is a tile of rows at a shift. Pieces without a tap are left out.
  struct WithTaps {
    int first_shift, first_row_tile;

    TCONV_DEVICE bool operator()(int piece) const {
      return !Tile::gaps || Shape::has_taps((first_shift + piece / Shape::block_row_tiles) % Shape::shifts,
                                            (first_row_tile + piece % Shape::block_row_tiles) % Shape::phase_tiles);
    }
  };
  BlockCopy<Shape::threads, WithTaps> copy;
  const unsigned char* from;
  unsigned char* const stages;
  const int first_row_tile;  // of the block
  int stage = 0, shift_group = 0, left = Tile::Pipeline::resident ? 1 : Shape::steps;

  TCONV_DEVICE MmaWeightStages(const unsigned char* weights, unsigned char* stages, void* barrier, int row_block)
      : copy(barrier), from(weights), stages(stages), first_row_tile(row_block * Shape::block_row_tiles) {}

  // Asks for the weights of one more step, if there is one.
  TCONV_DEVICE void ask() {
    if (left == 0) return;
    constexpr int of_last = Shape::shifts - (Shape::shift_groups - 1) * Tile::Pipeline::k_tile_shifts;
    const bool last = shift_group == Shape::shift_groups - 1;
    const int shifts = Tile::Pipeline::resident ? Shape::weight_stages * Tile::Pipeline::k_tile_shifts
                       : last                   ? of_last
                                                : Tile::Pipeline::k_tile_shifts;
    const int pieces = Tile::gaps ? shifts * Shape::block_row_tiles : 1;
    copy.begin(stages + stage, from, Tile::gaps ? Shape::tile_bytes : shifts * Shape::shift_bytes, pieces,
               {shift_group * Tile::Pipeline::k_tile_shifts, first_row_tile});
    from += shifts * Shape::shift_bytes;
    shift_group = last ? 0 : shift_group + 1;
    stage = Shape::next_weight_stage(stage);
    --left;
  }
};

}  // namespace tconv
