// gemm: transposed convolution as an implicit GEMM on tensor cores, from sm_80 on, in few lines and at every size, for
// layers with channels enough to fill a product. Written files carry it for what they have no kernel of their own for.
//
// Computes what `plain` computes, with factors rounded as the precision says; exact float32 takes two operands for each
// number, its rounding to TF32 and what that leaves, and three products. x and y are contiguous; `gemm_weights` must
// have prepared the weights, to a multiple of 16 bytes.
//
// Each phase is a product of matrices of its own:
//
//     rows (output channel)      x  depth (tap of the phase, input channel)    weights
//   * depth                      x  columns (position, anywhere in the batch)  inputs, moved by the tap
//
//             columns                    A block has `rows` channels of a group, at a run of places, of one phase.
//            .............. .........    Places are positions and, before each row of them, `halo` columns that are
//      rows  :    warp 0    : warp 2     none: to move along the width is to move by so many places, whatever row
//            :..............:........    that leads to. Four warps, `high` of them above each other, multiply
//            :    warp 1    : warp 3     16 * row_tiles rows by 8 * column_tiles columns each. A thread brings the
//            :..............:........    inputs of every 128th place.
//
// A step is 64 bytes of channels at one row of taps, of which it takes `taps_together`: its inputs are brought once and
// read at several shifts. There are two stages in shared memory. Weights are copied and inputs loaded for the next step
// while one is multiplied; inputs are written, rounded, between and behind its products. Rows lie there as 64 bytes of
// each operand and 16 more, so that the eight rows of a matrix are in different banks.
//
// Not-a-number: an input outside the map counts as 0, so an infinite or NaN *weight* also reaches the outputs at the
// border whose tap would read there. Non-finite inputs reach exactly the outputs that depend on them.
//
// Sizes: batch times places and one plane of a channel must stay below 2^31 unless wide_index; every axis below
// 2^31 - stride - padding.
#pragma once
#include "primitives/asynchronous.cuh"
#include "primitives/epilogue.cuh"
#include "primitives/layer.cuh"
#include "primitives/places.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// How the blocks of a layer share its work, and what lies where.
template <class Layer>
struct GemmTile {
  using Width = typename Layer::Width;
  static constexpr int item_bytes = static_cast<int>(sizeof(typename Layer::Element)), vector_items = 16 / item_bytes;
  static constexpr int planes = item_bytes == 4 && Layer::rounding == Rounding::none ? 2 : 1;  // operands of a number
  static constexpr int threads = 128;
  static constexpr int row_tiles = Layer::group_out_channels > 32 ? 4 : Layer::group_out_channels > 16 ? 2 : 1;
  static constexpr int blocks = row_tiles > 2 ? 2 : 3;
  static constexpr int high = planes == 1 && Layer::group_out_channels > 64 ? 2 : 1;
  static constexpr int column_tiles = planes == 1 ? 8 : 4;
  static constexpr int rows = 16 * row_tiles * high, columns = 8 * column_tiles * (4 / high);
  static constexpr int input_parts = columns / threads;
  static constexpr int row_blocks = ceil_div(Layer::group_out_channels, rows);
  static constexpr long long parts =
      static_cast<long long>(Layer::Depth::stride) * Layer::Height::stride * Width::stride * row_blocks * Layer::groups;
  // As many taps of the width as shared memory holds weights of, and as do not make the halo too wide.
  static constexpr int most_taps = 1 + columns / 4 / Width::shift_period;
  static constexpr int fitting_taps = (planes == 1 ? 384 : 192) / rows;
  static constexpr int fewest = most_taps < fitting_taps ? most_taps : fitting_taps;
  static constexpr int taps_together = Width::taps_per_phase < fewest ? Width::taps_per_phase : fewest;
  static constexpr int halo = (taps_together - 1) * Width::shift_period, run = columns - halo;
  static constexpr int taps = Layer::Depth::kernel * Layer::Height::kernel * Width::kernel;
  static constexpr int chunk_channels = 64 / item_bytes, chunks = ceil_div(Layer::group_in_channels, chunk_channels);
  static constexpr int row_bytes = planes * 64, pitch = row_bytes + 16, inputs_at = taps_together * rows * pitch;
  static constexpr int stage_bytes = inputs_at + (columns + halo) * pitch;
  // Sums go through shared memory to the threads that store them. Lanes that write two columns of eight rows find
  // different banks.
  static constexpr int sums_pitch = columns + 8, sums_bytes = 16 * high * sums_pitch * 4;
  static constexpr int shared_bytes = sums_bytes > 2 * stage_bytes ? sums_bytes : 2 * stage_bytes;
  // The prepared weights: [group][block of rows][tap][chunk][row][plane] of 64 bytes, 0 where a channel does not exist.
  static constexpr int piece_bytes = rows * row_bytes;
  static constexpr long long weight_bytes =
      static_cast<long long>(Layer::groups) * row_blocks * taps * chunks * piece_bytes;
};

template <class Layer, class Tile>
TCONV_CONSTANT Launch gemm_launch(const Sizes& sizes) {
  Launch launch = places_launch<Layer, Tile, Tile::halo>(sizes);
  launch.weight_blocks = ceil_div(Tile::weight_bytes / Tile::planes / 16, static_cast<long long>(preparing_threads));
  launch.weight_bytes = Tile::weight_bytes;
  return launch;
}

// Brings the weights into order, rounded: a thread for 16 bytes of an operand. Neighbours read what lies together.
template <class Layer, class Tile>
TCONV_DEVICE void gemm_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Factors = Vector<typename Layer::Element, Tile::vector_items>;
  let_kernel_behind_begin();
  const long long item = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= Tile::weight_bytes / Tile::planes / 16) return;
  Digits<Tile::weight_bytes> digits(item);
  const int tap = digits.next(Tile::taps), out_channel = digits.next(Tile::row_blocks * Tile::rows);
  const int vector = digits.next(Tile::chunks * 4), group = static_cast<int>(digits.rest);
  Factors factors[Tile::planes];
#pragma unroll
  for (int k = 0; k < Tile::vector_items; ++k) {
    const int in_channel = vector * Tile::vector_items + k;
    typename Layer::Element value{};
    if (in_channel < Layer::group_in_channels && out_channel < Layer::group_out_channels)
      value = load_constant(weight_at<Layer>(weight, group, in_channel, out_channel, tap));
#pragma unroll
    for (int plane = 0; plane < Tile::planes; ++plane) factors[plane].values[k] = matrix_factor<Layer>(value, plane);
  }
  const long long set = static_cast<long long>(group) * Tile::row_blocks + out_channel / Tile::rows;
  const long long piece = (set * Tile::taps + tap) * Tile::chunks + vector / 4;
  unsigned char* const row = reinterpret_cast<unsigned char*>(prepared) + piece * Tile::piece_bytes +
                             out_channel % Tile::rows * Tile::row_bytes + vector % 4 * 16;
#pragma unroll
  for (int plane = 0; plane < Tile::planes; ++plane) *reinterpret_cast<Factors*>(row + plane * 64) = factors[plane];
}

// An axis' part of a phase's taps, some together after the others, and how far behind a position the first one's input
// lies.
template <class Axis, int Together>
struct GemmTaps {
  int first, tap, shift;

  TCONV_DEVICE explicit GemmTaps(int phase) : first(Axis::first_tap(phase)) { begin(); }
  TCONV_DEVICE void begin() { tap = first, shift = Axis::shift_of(first); }
  TCONV_DEVICE bool has(int further) const { return tap + further * Axis::tap_period < Axis::kernel; }
  TCONV_DEVICE int left() const { return (Axis::kernel - 1 - tap) / Axis::tap_period + 1; }
  // Whether there were others; else the first come again.
  TCONV_DEVICE bool next() {
    tap += Together * Axis::tap_period, shift += Together * Axis::shift_period;
    if (!has(0)) begin();
    return tap != first;
  }
};

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void gemm(const typename Layer::Element* x, const typename Layer::Element* weight,
                       const typename Layer::Element* bias, typename Layer::Element* y, int batch, int input_depth,
                       int input_height, int input_width, int output_depth, int output_height, int output_width,
                       const Program& program = {}) {
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  constexpr int CI = Layer::group_in_channels, CO = Layer::group_out_channels;  // of one group
  TCONV_SHARED(shared);

  // The unused axes of 1-D and 2-D layers disappear here.
  if (Layer::spatial_dims < 3) input_depth = output_depth = 1;
  if (Layer::spatial_dims < 2) input_height = output_height = 1;
  const Index plane = static_cast<Index>(input_depth) * input_height * input_width;

  Digits<Tile::parts> part(blockIdx.x % Tile::parts);
  const int width_phase = part.next(Width::stride), height_phase = part.next(Height::stride);
  const int depth_phase = part.next(Depth::stride), weight_set = static_cast<int>(part.rest);
  const int group = weight_set / Tile::row_blocks, first_channel = weight_set % Tile::row_blocks * Tile::rows;
  const Index first_place = static_cast<Index>(blockIdx.x / Tile::parts) * Tile::run;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int warp_row = warp % Tile::high * Tile::row_tiles * 16;
  const int warp_column = warp / Tile::high * Tile::column_tiles * 8;

  // The places whose inputs this thread brings, and the step that is asked for next.
  Place places[Tile::input_parts];
#pragma unroll
  for (int p = 0; p < Tile::input_parts; ++p)
    places[p] = place_of<Layer, Tile::halo>(first_place + p * Tile::threads + thread, batch, output_depth,
                                            output_height, output_width);
  GemmTaps<Depth, 1> depths(depth_phase);
  GemmTaps<Height, 1> heights(height_phase);
  GemmTaps<Width, Tile::taps_together> widths(width_phase);
  int chunk = 0;
  bool is_left = depths.has(0) && heights.has(0) && widths.has(0), inside[Tile::input_parts];
  const Element* from[Tile::input_parts];
  const unsigned char* piece = nullptr;
  ThreadCopies<16, Tile::taps_together * ceil_div(Tile::piece_bytes / 16, Tile::threads), 1> copies;
  const auto ask_for_weights = [&](unsigned char* stage) {
    if (chunk == 0) {
      const int tap = (depths.tap * Height::kernel + heights.tap) * Width::kernel + widths.tap;
      piece = reinterpret_cast<const unsigned char*>(weight) + thread * 16 +
              (static_cast<long long>(weight_set) * Tile::taps + tap) * Tile::chunks * Tile::piece_bytes;
    }
#pragma unroll
    for (int k = 0; k < Tile::taps_together; ++k)
#pragma unroll
      for (int i = 0; i < Tile::piece_bytes; i += Tile::threads * 16)
        if (widths.has(k) && i + thread * 16 < Tile::piece_bytes)
          copies.begin(stage + (k * Tile::rows + (i + thread * 16) / Tile::row_bytes) * Tile::pitch +
                           thread * 16 % Tile::row_bytes,
                       piece + k * (static_cast<long long>(Width::tap_period) * Tile::chunks * Tile::piece_bytes) + i,
                       true);
    copies.end_group();
    piece += Tile::piece_bytes;
    return widths.left();
  };
  Element values[4][Tile::vector_items];
  const auto ask_for_inputs = [&](int p) {
    if (chunk == 0) {
      const int depth = places[p].depth - depths.shift, row = places[p].height - heights.shift;
      const int column = places[p].width - widths.shift;
      inside[p] = places[p].sample >= 0 && in_range(depth, input_depth) && in_range(row, input_height) &&
                  in_range(column, input_width);
      from[p] = x + (static_cast<long long>(places[p].sample) * Layer::groups + group) * CI * plane +
                ((static_cast<Index>(depth) * input_height + row) * input_width + column);
    }
#pragma unroll
    for (int i = 0; i < 4 * Tile::vector_items; ++i) {
      Element& value = values[i / Tile::vector_items][i % Tile::vector_items];
      value = Element{};
      if (inside[p] && (CI % Tile::chunk_channels == 0 || chunk * Tile::chunk_channels + i < CI))
        value = load_constant(from[p] + i * static_cast<long long>(plane));
    }
    from[p] += static_cast<long long>(plane) * Tile::chunk_channels;
  };
  // Writes the inputs that were asked for last, rounded.
  const auto put = [&](int p, unsigned char* stage) {
#pragma unroll
    for (int v = 0; v < 4; ++v)
#pragma unroll
      for (int operand_plane = 0; operand_plane < Tile::planes; ++operand_plane) {
        Vector<Element, Tile::vector_items> factors;
#pragma unroll
        for (int k = 0; k < Tile::vector_items; ++k)
          factors.values[k] = matrix_factor<Layer>(values[v][k], operand_plane);
        *reinterpret_cast<Vector<Element, Tile::vector_items>*>(
            stage + Tile::inputs_at + (p * Tile::threads + thread) * Tile::pitch + operand_plane * 64 + v * 16) =
            factors;
      }
  };

  float sums[Tile::row_tiles][Tile::column_tiles][4] = {};
  // Half of the channels of a step at one of its taps.
  const auto multiply = [&](const unsigned char* stage, int tap, int half) {
    unsigned weights[Tile::planes][Tile::row_tiles][4], inputs[Tile::planes][Tile::column_tiles / 2][4];
#pragma unroll
    for (int p = 0; p < Tile::planes; ++p) {
      const unsigned char* const at = stage + p * 64 + half * 32;
#pragma unroll
      for (int i = 0; i < Tile::row_tiles; ++i)
        load_matrices(at + (tap * Tile::rows + warp_row + i * 16 + lane % 16) * Tile::pitch + lane / 16 * 16,
                      weights[p][i]);
      const int column = warp_column + Tile::halo - tap * Width::shift_period + lane / 16 * 8 + lane % 8;
#pragma unroll
      for (int j = 0; j < Tile::column_tiles / 2; ++j)
        load_matrices(at + Tile::inputs_at + (column + j * 16) * Tile::pitch + lane / 8 % 2 * 16, inputs[p][j]);
    }
    // Exact products leave the tensor core, which drops bits of long sums. The small ones come first.
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
      for (int j = 0; j < Tile::column_tiles; ++j) {
        float exact[4] = {};
        auto& to = Tile::planes > 1 ? exact : sums[i][j];
#pragma unroll
        for (int p = Tile::planes - 1; p >= 0; --p)
#pragma unroll
          for (int q = Tile::planes - 1 - p; q >= 0; --q) {
            const unsigned words[2] = {inputs[q][j / 2][j % 2 * 2], inputs[q][j / 2][j % 2 * 2 + 1]};
            MatrixProduct<Element>::add(to, weights[p][i], words);
          }
#pragma unroll
        for (int k = 0; k < 4 && Tile::planes > 1; ++k) sums[i][j][k] += exact[k];
      }
  };

  wait_for_kernel_before();  // which prepared the weights
  int taps_asked = 0;
  const auto next_step = [&] {
    if (++chunk < Tile::chunks) return;
    chunk = 0;
    is_left = widths.next() || heights.next() || depths.next();
  };
  bool is_there = is_left;  // a step that was asked for
  if (is_there) {
    taps_asked = ask_for_weights(shared);
#pragma unroll
    for (int p = 0; p < Tile::input_parts; ++p) {
      ask_for_inputs(p);
      put(p, shared);
    }
    next_step();
  }
  unsigned char *stage = shared, *other = shared + Tile::stage_bytes;
  while (is_there) {
    copies.template wait<0>();
    __syncthreads();  // this step has landed, and nobody reads the other stage any more
    const int taps = taps_asked;
    is_there = is_left;
    if (is_there) taps_asked = ask_for_weights(other);
#pragma unroll
    for (int p = 0; p < Tile::input_parts; ++p) {
      if (is_there) ask_for_inputs(p);
      constexpr int halves = 2 * Tile::taps_together / Tile::input_parts;
#pragma unroll(Tile::planes > 1 ? 1 : 2)
      for (int half = p * halves; half < (p + 1) * halves && half < 2 * taps; ++half)
        multiply(stage, half / 2, half % 2);
      if (is_there) put(p, other);
    }
    if (is_there) next_step();
    unsigned char* const next = other;
    other = stage, stage = next;
  }

  const Epilogue<Layer, Program> epilogue = {bias + (Layer::has_bias ? group * CO : 0), program, group * CO};
  const long long output_plane = static_cast<long long>(output_depth) * output_height * output_width;
  float* const staged = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Tile::row_tiles; ++i) {
    __syncthreads();  // nobody reads what was there any more
#pragma unroll
    for (int j = 0; j < Tile::column_tiles * 4; ++j)
      staged[(warp % Tile::high * 16 + j % 4 / 2 * 8 + lane / 4) * Tile::sums_pitch + warp_column + j / 4 * 8 +
             lane % 4 * 2 + j % 2] = sums[i][j / 4][j % 4];
    __syncthreads();
    for (int column = thread; column < Tile::run; column += Tile::threads) {
      const Place place = place_of<Layer, Tile::halo>(first_place + Tile::halo + column, batch, output_depth,
                                                      output_height, output_width);
      const int depth = place.depth * Depth::stride + depth_phase, row = place.height * Height::stride + height_phase;
      const int output_column = place.width * Width::stride + width_phase;
      if (place.sample < 0 || place.width < 0 || depth >= output_depth || row >= output_height ||
          output_column >= output_width)
        continue;
      Element* const at = y + first_output_channel<Layer>(place.sample, group) * output_plane +
                          (static_cast<long long>(depth) * output_height + row) * output_width + output_column;
      for (int r = 0; r < 16 * Tile::high; ++r) {
        const int channel = first_channel + (r / 16 * Tile::row_tiles + i) * 16 + r % 16;
        if (channel >= CO) continue;
        Element* const to = at + channel * output_plane;
        const auto of_channel = epilogue.of(channel);
        *to = epilogue.output(of_channel.y(staged[r * Tile::sums_pitch + column]), of_channel,
                              program.template fetch<1>(to, true));
      }
    }
  }
}

}  // namespace tconv
