// mma: transposed convolution as a product of matrices on tensor cores, from sm_80 on.
//
// Computes what `direct` computes. x and y are contiguous, or channels_last; `mma_weights` must have prepared the
// weights, which were contiguous.
//
// The matrices. A position q owns stride_d * stride_h * stride_w neighbouring outputs, its phases, and each tap of each
// phase reads the input at q - shift. So for all phases together
//
//     rows (phase, output channel)  x  depth (shift, input channel)   weights, 0 where a phase has no tap at a shift
//   * depth                         x  columns (position)             inputs, moved by the shift
//   = rows                          x  columns                        outputs, position by position
//
// Where the kernel is a multiple of the stride every phase has a tap at every shift. Elsewhere a tile of 16 rows, which
// is 16 channels of one phase, leaves out the shifts at which its phase has no tap.
//
//     warps_wide = 2, warps_high = 2                  a block owns a box of positions: box_images x box_depths x
//                  positions                          box_rows x box_columns of them, numbered one after the other;
//              ............ ............              numbers beyond the box repeat the first position and are not
//        rows  : warp 0   : : warp 2   :              stored. A warp owns row_tiles tiles of 16 rows by position_tiles
//              :..........: :..........:              tiles of 8 positions. Neighbouring row tiles are the phases of
//              : warp 1   : : warp 3   :              the same channels, the column phase running fastest: a thread
//              :..........: :..........:              holds neighbouring outputs.
//
// `splits` such sets of warps share the input channels, a part of each chunk for each; the first adds the others' sums
// to its own, in order.
//
// Shared memory. The box's inputs with the halo around it lie position by position, the channels of a chunk together:
// ldmatrix then finds its rows at any shift, as moving by a shift is adding a constant. Places outside the input are 0.
// Weights lie as the lanes want them, so that a fragment is one load of 16 bytes. There are two stages of both, if
// there are several steps:
//
//     step n:    wait; barrier; ask for the weights of step n+1;  multiply  ;  write the next chunk's inputs, if
//                               and, of a new chunk, for the                   this is the chunk's last step
//                               next chunk's inputs
//
// A step is one chunk of channels and one group of shifts. Weights come by asynchronous copies; inputs come through
// registers, where they are rounded and, unless they are channels_last, transposed.
//
// Exact fp32 splits each factor into its rounding to TF32 and the rest, and adds three products. The tensor core drops
// bits of long sums: they go to registers of their own at least every 32 channels.
//
// Not-a-number: an input outside the map counts as 0, and so does a weight that a phase does not have: an infinite or
// NaN input reaches all outputs of the positions that read it, an infinite or NaN weight also those at the border.
//
// Sizes: one plane of a channel must stay below 2^31 unless wide_index; the rest is 64-bit. Shared memory:
// MmaShape<Layer, Tile>::shared_bytes.
#pragma once
#include "mma_shape.cuh"

namespace tconv {

// The word of four bytes in which two 16-bit items lie, or one of 32 bits.
TCONV_DEVICE unsigned mma_word(const float (&items)[1]) { return float_bits(items[0]); }
template <class Half16>
TCONV_DEVICE unsigned mma_word(const Half16 (&items)[2]) {
  return items[0].bits | static_cast<unsigned>(items[1].bits) << 16;
}

// A factor as the tensor core shall see it. Plane 0 is the number, rounded where the precision says so or where exact
// products need it; plane 1 is what plane 0 leaves, nothing where that is not finite.
template <class Layer>
TCONV_DEVICE float mma_factor(float value, int plane) {
  if (Layer::rounding != Rounding::none) return operand<Layer::rounding>(value);
  const float high = operand<Rounding::ties_away>(value);
  if (plane == 0) return high;
  return (float_bits(high) & 0x7f800000u) == 0x7f800000u ? 0.0f : operand<Rounding::ties_away>(value - high);
}
template <class Layer>
TCONV_DEVICE Half mma_factor(Half value, int) {
  return value;
}
template <class Layer>
TCONV_DEVICE BFloat16 mma_factor(BFloat16 value, int) {
  return value;
}

// Brings the weights into the order in which the warps load them: one thread for each vector of 16 bytes.
template <class Layer, class Tile>
TCONV_DEVICE void mma_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  const long long vector = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (vector >= Shape::weight_vectors) return;
  const int lane = static_cast<int>(vector % 32);
  long long rest = vector / 32;
  const auto digit = [&rest](int base) {
    const int value = static_cast<int>(rest % base);
    rest /= base;
    return value;
  };
  const int row_tile = digit(Shape::block_row_tiles), plane = digit(Shape::planes), step = digit(Shape::stage_steps);
  const int shift = digit(Shape::shifts), chunk = digit(Shape::chunks), row_block = digit(Shape::row_blocks);
  const int group = static_cast<int>(rest);

  const int tile = row_block * Shape::block_row_tiles + row_tile;
  const int channel_tile = tile / Shape::phase_tiles, phase_tile = tile % Shape::phase_tiles;
  constexpr int items = 4 / Shape::item_bytes;
  Vector<unsigned, 4> words;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int row = lane / 4 + w % 2 * 8;
    const int phase = phase_tile * Shape::tile_phases + row / Tile::channels;
    const int out_channel = channel_tile * Tile::channels + row % Tile::channels;
    const int depth_tap = Shape::DepthShifts::tap(phase / (Shape::Height::stride * Shape::Width::stride),
                                                  shift / (Shape::HeightShifts::count * Shape::WidthShifts::count));
    const int row_tap = Shape::HeightShifts::tap(phase / Shape::Width::stride % Shape::Height::stride,
                                                 shift / Shape::WidthShifts::count % Shape::HeightShifts::count);
    const int tap = Shape::WidthShifts::tap(phase % Shape::Width::stride, shift % Shape::WidthShifts::count);
    Element values[items];
#pragma unroll
    for (int i = 0; i < items; ++i) {
      const int in_channel =
          chunk * Shape::chunk_channels + step * Shape::step_channels + (lane % 4 + w / 2 * 4) * items + i;
      Element value{};
      if (phase < Shape::phases && out_channel < Layer::out_channels && in_channel < Layer::in_channels &&
          depth_tap >= 0 && row_tap >= 0 && tap >= 0) {
        const long long filter =
            (static_cast<long long>(group) * Layer::in_channels + in_channel) * Layer::out_channels + out_channel;
        value = load_constant(weight +
                              ((filter * Shape::Depth::kernel + depth_tap) * Shape::Height::kernel + row_tap) *
                                  Shape::Width::kernel +
                              tap);
      }
      values[i] = mma_factor<Layer>(value, plane);
    }
    words.values[w] = mma_word(values);
  }
  reinterpret_cast<Vector<unsigned, 4>*>(prepared)[vector] = words;
}

// Where a block's box starts: its first image, and the position of its first corner.
struct MmaBox {
  int sample, depth, row, column;
};

// A position of a box, by its number.
template <class Tile>
TCONV_DEVICE MmaBox mma_in_box(int number) {
  const int column = number % Tile::box_columns, rows = number / Tile::box_columns;
  const int row = rows % Tile::box_rows, slabs = rows / Tile::box_rows;
  return {slabs / Tile::box_depths, slabs % Tile::box_depths, row, column};
}

// A thread's part of a box's inputs, on their way from memory to shared memory: vectors of neighbouring channels at one
// place of the halo.
template <class Layer, class Tile>
struct MmaInputs {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int channels = Layer::groups * Layer::in_channels;
  // Whether a vector of channels_last inputs may be loaded at once, if x is aligned.
  static constexpr bool in_vectors = Tile::channels_last && Layer::in_channels % Shape::vector_items == 0;
  const Element* first;  // of the block's group, in its first image
  Index plane;
  bool aligned;
  Index offsets[Shape::thread_vectors];  // of the vector's first channel in the first chunk; -1 outside the input
  Element values[Shape::thread_vectors][Shape::vector_items];

  // Neighbouring threads load what lies together in memory.
  static TCONV_DEVICE int place(int i) {
    const int number = static_cast<int>(threadIdx.x) + i * Shape::threads;
    return Tile::channels_last ? number / Shape::chunk_vectors : number % Shape::halo_positions;
  }
  static TCONV_DEVICE int vector(int i) {
    const int number = static_cast<int>(threadIdx.x) + i * Shape::threads;
    return Tile::channels_last ? number % Shape::chunk_vectors : number / Shape::halo_positions;
  }
  static TCONV_DEVICE bool present(int i) {
    return static_cast<int>(threadIdx.x) + i * Shape::threads < Shape::halo_positions * Shape::chunk_vectors;
  }

  TCONV_DEVICE MmaInputs(const Element* x, const MmaBox& box, int group, int batch, int depths, int rows, int columns)
      : plane(static_cast<Index>(depths) * rows * columns) {
    first = x + static_cast<long long>(box.sample) * channels * plane +
            static_cast<long long>(group) * Layer::in_channels * (Tile::channels_last ? 1 : plane);
    aligned = in_vectors && reinterpret_cast<unsigned long long>(x) % 16 == 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_vectors; ++i) {
      const int column = box.column - Shape::WidthShifts::highest + place(i) % Shape::halo_columns;
      const int row = box.row - Shape::HeightShifts::highest + place(i) / Shape::halo_columns % Shape::halo_rows;
      const int slab = place(i) / (Shape::halo_columns * Shape::halo_rows);
      const int depth = box.depth - Shape::DepthShifts::highest + slab % Shape::halo_depths;
      const int image = slab / Shape::halo_depths;
      const bool inside = present(i) && box.sample + image < batch && in_range(depth, depths) && in_range(row, rows) &&
                          in_range(column, columns);
      const Index position = (static_cast<Index>(depth) * rows + row) * columns + column;
      const int channel = vector(i) * Shape::vector_items;
      offsets[i] = !inside               ? -1
                   : Tile::channels_last ? (image * plane + position) * channels + channel
                                         : (image * static_cast<Index>(channels) + channel) * plane + position;
    }
  }

  TCONV_DEVICE void load(int chunk) {
    const long long channel_pitch = Tile::channels_last ? 1 : plane;
    const Element* const x = first + chunk * Shape::chunk_channels * channel_pitch;
#pragma unroll
    for (int i = 0; i < Shape::thread_vectors; ++i) {
      const int channel = chunk * Shape::chunk_channels + vector(i) * Shape::vector_items;
      if (in_vectors && aligned) {
        Vector<Element, Shape::vector_items> together{};
        if (offsets[i] >= 0 && (Shape::whole_chunks || channel < Layer::in_channels))
          together = *reinterpret_cast<const Vector<Element, Shape::vector_items>*>(x + offsets[i]);
#pragma unroll
        for (int k = 0; k < Shape::vector_items; ++k) values[i][k] = together.values[k];
        continue;
      }
#pragma unroll
      for (int k = 0; k < Shape::vector_items; ++k) {
        Element value{};
        if (offsets[i] >= 0 && (Shape::whole_chunks || channel + k < Layer::in_channels))
          value = load_constant(x + offsets[i] + k * channel_pitch);
        values[i][k] = value;
      }
    }
  }

  TCONV_DEVICE void store(unsigned char* stage) const {
    constexpr int items = 4 / Shape::item_bytes;
#pragma unroll
    for (int i = 0; i < Shape::thread_vectors; ++i) {
      if (!present(i)) continue;
#pragma unroll
      for (int plane_number = 0; plane_number < Shape::planes; ++plane_number) {
        Vector<unsigned, 4> words;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          Element factors[items];
#pragma unroll
          for (int k = 0; k < items; ++k) factors[k] = mma_factor<Layer>(values[i][w * items + k], plane_number);
          words.values[w] = mma_word(factors);
        }
        *reinterpret_cast<Vector<unsigned, 4>*>(stage + place(i) * Shape::position_bytes +
                                                plane_number * Shape::plane_bytes + vector(i) * 16) = words;
      }
    }
  }
};

// What becomes of a sum before it is stored.
template <class Layer>
struct MmaBias {
  const typename Layer::Element* bias;  // of the block's group

  TCONV_DEVICE float operator()(float sum, int out_channel) const {
    return Layer::has_bias ? sum + to_accumulator(load_constant(bias + out_channel)) : sum;
  }
};

// A warp's sums.
template <class Layer, class Tile>
struct MmaSums {
  using Shape = MmaShape<Layer, Tile>;
  float values[Tile::row_tiles][Tile::position_tiles][4];

  TCONV_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
      for (int j = 0; j < Tile::position_tiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) values[i][j][k] = 0;
  }

  TCONV_DEVICE void add(const MmaSums& other) {
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
      for (int j = 0; j < Tile::position_tiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) values[i][j][k] += other.values[i][j][k];
  }
};

// Multiplies a set's part of one chunk of channels at one shift. `weights` points to the lane's fragment of the warp's
// first row tile, `inputs` to the row of each pair of position tiles that the lane names, at the highest shift.
template <class Layer, class Tile>
TCONV_DEVICE void mma_multiply(MmaSums<Layer, Tile>& sums, int shift, int first_row_tile, const unsigned char* weights,
                               const unsigned char* const (&inputs)[Tile::position_tiles / 2]) {
  using Shape = MmaShape<Layer, Tile>;
  const int moved = Shape::halo_offset(shift) * Shape::position_bytes;
#pragma unroll
  for (int step = 0; step < Tile::chunk_steps; ++step) {
    unsigned columns[Shape::planes][Tile::position_tiles][2];
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane)
#pragma unroll
      for (int j = 0; j < Tile::position_tiles; j += 2) {
        unsigned words[4];
        load_matrices(inputs[j / 2] + moved + plane * Shape::plane_bytes + step * 32, words);
        columns[plane][j][0] = words[0], columns[plane][j][1] = words[1];
        columns[plane][j + 1][0] = words[2], columns[plane][j + 1][1] = words[3];
      }
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i) {
      if (!Shape::has_taps(shift, (Shape::phases_known ? i : first_row_tile + i) % Shape::phase_tiles)) continue;
      // The small products first.
#pragma unroll
      for (int row_plane = Shape::planes - 1; row_plane >= 0; --row_plane) {
        const Vector<unsigned, 4> row = *reinterpret_cast<const Vector<unsigned, 4>*>(
            weights + ((step * Shape::planes + row_plane) * Shape::block_row_tiles + i) * Shape::fragment_bytes);
#pragma unroll
        for (int column_plane = Shape::planes - 1 - row_plane; column_plane >= 0; --column_plane)
#pragma unroll
          for (int j = 0; j < Tile::position_tiles; ++j)
            MatrixProduct<typename Layer::Element>::add(sums.values[i][j], row.values, columns[column_plane][j]);
      }
    }
  }
}

// Adds the sums of all sets of warps, in order, in the first set; false in the others, whose work is done.
template <class Layer, class Tile>
TCONV_DEVICE bool mma_join(MmaSums<Layer, Tile>& sums, unsigned char* shared) {
  using Shape = MmaShape<Layer, Tile>;
  if (Tile::splits == 1) return true;
  constexpr int set = 32 * Shape::warps, tiles = Tile::row_tiles * Tile::position_tiles;
  const int split = static_cast<int>(threadIdx.x) / set;
  // A thread's sums of one tile lie together, and its neighbours' beside them.
  Vector<float, 4>* const joined = reinterpret_cast<Vector<float, 4>*>(shared) + static_cast<int>(threadIdx.x) % set;
  __syncthreads();
  if (split > 0)
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const float (&own)[4] = sums.values[n / Tile::position_tiles][n % Tile::position_tiles];
      joined[((split - 1) * tiles + n) * set] = {own[0], own[1], own[2], own[3]};
    }
  __syncthreads();
  if (split > 0) return false;
#pragma unroll 1
  for (int other = 0; other < Tile::splits - 1; ++other)
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const Vector<float, 4> theirs = joined[(other * tiles + n) * set];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        sums.values[n / Tile::position_tiles][n % Tile::position_tiles][k] += theirs.values[k];
    }
  return true;
}

// Stores the outputs of a warp, from `y` on, the first of the block's group. Unless they are channels_last, those of
// two neighbouring positions and all column phases that a thread has of one channel and row lie together: they are
// stored at once where that is aligned.
template <class Layer, class Tile, class Epilogue>
TCONV_DEVICE void mma_store(const MmaSums<Layer, Tile>& sums, const Epilogue& epilogue, typename Layer::Element* y,
                            const MmaBox& box, int first_row_tile, int first_position, int batch, int depths, int rows,
                            int columns) {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  constexpr bool in_runs = !Tile::channels_last && Shape::phases_known && Shape::tile_phases == 1 &&
                           Tile::origin == 0 && Tile::box_columns % 2 == 0 &&
                           2 * Width::stride * Shape::item_bytes <= 32 && is_power_of_two(Width::stride);
  constexpr int run = in_runs ? 2 * Width::stride : 1;
  constexpr int width = vector_width(run, Shape::item_bytes);
  const bool aligned = in_runs && columns % run == 0;

  // A thread has rows lane / 4 and lane / 4 + 8 of each tile. What the compiler can know of their channels and phases
  // is kept apart from the rest, so that one address serves all rows of a position.
  const int lane = static_cast<int>(threadIdx.x) % 32, lane_row = lane / 4;
  const int first_channel = first_row_tile / Shape::phase_tiles * Tile::channels + lane_row % Tile::channels;
  const Index plane = static_cast<Index>(depths) * rows * columns;
  constexpr int channels = Layer::groups * Layer::out_channels;
  // From a channel to the next, and from a column.
  const Index channel_pitch = Tile::channels_last ? 1 : plane;
  constexpr int pitch = Tile::channels_last ? channels : 1;

#pragma unroll
  for (int j = 0; j < Tile::position_tiles; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int number = first_position + j * 8 + lane % 4 * 2 + side;
      const MmaBox in_box = mma_in_box<Tile>(number);
      const int sample = box.sample + in_box.sample;
      if (number >= Shape::box_positions || sample >= batch || (in_runs && aligned && side == 1)) continue;
      const int depth = (box.depth + in_box.depth) * Shape::Depth::stride - Tile::depth_origin;
      const int row = (box.row + in_box.row) * Height::stride - Tile::row_origin;
      const int column = (box.column + in_box.column) * Width::stride - Tile::origin;
      const long long corner = static_cast<long long>(sample) * channels * plane + first_channel * channel_pitch +
                               ((static_cast<long long>(depth) * rows + row) * columns + column) * pitch;
#pragma unroll
      for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int phase_tile =
              Shape::phases_known ? i % Shape::phase_tiles : (first_row_tile + i) % Shape::phase_tiles;
          const int tile_phase =
              Tile::channels >= 8 ? half * 8 / Tile::channels : (lane_row + half * 8) / Tile::channels;
          const int phase = phase_tile * Shape::tile_phases + tile_phase;
          const int next_channel =
              (Shape::phases_known ? i / Shape::phase_tiles
                                   : (first_row_tile + i) / Shape::phase_tiles - first_row_tile / Shape::phase_tiles) *
                  Tile::channels +
              (Tile::channels > 8 ? half * 8 : 0);
          const int depth_phase = phase / (Height::stride * Width::stride);
          const int row_phase = phase / Width::stride % Height::stride, column_phase = phase % Width::stride;
          const int channel = first_channel + next_channel;
          if (channel >= Layer::out_channels || phase >= Shape::phases || !in_range(depth + depth_phase, depths) ||
              !in_range(row + row_phase, rows))
            continue;
          Element* const to =
              y + (corner + (static_cast<long long>(next_channel) * channel_pitch +
                             (static_cast<long long>(depth_phase) * rows + row_phase) * columns * pitch));
          if (in_runs && aligned) {
            if (column_phase != 0 || column >= columns) continue;
#pragma unroll
            for (int start = 0; start < run; start += width) {
              Vector<Element, width> together;
#pragma unroll
              for (int k = start; k < start + width; ++k) {
                const int tile = (i + k % Width::stride) % Tile::row_tiles, other_side = k / Width::stride % 2;
                together.values[k - start] =
                    from_accumulator<Element>(epilogue(sums.values[tile][j][half * 2 + other_side], channel));
              }
              *reinterpret_cast<Vector<Element, width>*>(to + start) = together;
            }
          } else if (in_range(column + column_phase, columns)) {
            to[column_phase * pitch] = from_accumulator<Element>(epilogue(sums.values[i][j][half * 2 + side], channel));
          }
        }
    }
}

template <class Layer, class Tile>
TCONV_DEVICE void mma(const typename Layer::Element* x, const typename Layer::Element* weight,
                      const typename Layer::Element* bias, typename Layer::Element* y, int batch, int input_depth,
                      int input_height, int input_width, int output_depth, int output_height, int output_width) {
  using Shape = MmaShape<Layer, Tile>;
  TCONV_SHARED(shared);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int warp_high = warp % Tile::warps_high, warp_wide = warp / Tile::warps_high % Tile::warps_wide;
  const int first_step = warp / Shape::warps * Tile::chunk_steps;  // of each chunk, for the warp's set

  // Blocks with the same inputs follow each other.
  int rest = static_cast<int>(blockIdx.x);
  const int row_block = rest % Shape::row_blocks;
  rest /= Shape::row_blocks;
  const int columns = ceil_div(Shape::Width::positions(output_width + Tile::origin), Tile::box_columns);
  const int rows = ceil_div(Shape::Height::positions(output_height + Tile::row_origin), Tile::box_rows);
  const int depths = ceil_div(Shape::Depth::positions(output_depth + Tile::depth_origin), Tile::box_depths);
  MmaBox box;
  box.column = rest % columns * Tile::box_columns;
  rest /= columns;
  box.row = rest % rows * Tile::box_rows;
  rest /= rows;
  box.depth = rest % depths * Tile::box_depths;
  rest /= depths;
  const int group = rest % Layer::groups;
  box.sample = rest / Layer::groups * Tile::box_images;

  unsigned char* const input_stages = shared;
  unsigned char* const weight_stages = shared + Shape::input_stages * Shape::input_stage_bytes;
  const unsigned char* const weights =
      reinterpret_cast<const unsigned char*>(weight) +
      (static_cast<long long>(group) * Shape::row_blocks + row_block) * Shape::block_weight_bytes;

  constexpr int stage_vectors = Shape::weight_stage_bytes / 16;
  AsynchronousCopies<ceil_div(stage_vectors, Shape::threads)> copies;
  const auto bring_weights = [&](int step) {
    const int chunk = step / Shape::shift_groups, first = step % Shape::shift_groups * Tile::chunk_shifts;
    const int present = Shape::shifts - first < Tile::chunk_shifts ? Shape::shifts - first : Tile::chunk_shifts;
    const int vectors = present * (Shape::shift_bytes / 16);
    const unsigned char* const from =
        weights + (static_cast<long long>(chunk) * Shape::shifts + first) * Shape::shift_bytes;
    unsigned char* const to = weight_stages + step % 2 * Shape::weight_stage_bytes;
#pragma unroll 4
    for (int i = thread; i < vectors; i += Shape::threads) copies.copy(to + i * 16, from + i * 16);
  };

  // Lane l names row l % 8 of matrix l / 8: two tiles of positions, and of each the halves of 32 bytes of channels.
  int places[Tile::position_tiles / 2];
#pragma unroll
  for (int j = 0; j < Tile::position_tiles; j += 2) {
    const int number = (warp_wide * Tile::position_tiles + j + lane / 16) * 8 + lane % 8;
    const MmaBox in_box = mma_in_box<Tile>(number < Shape::box_positions ? number : 0);
    places[j / 2] =
        (((in_box.sample * Shape::halo_depths + in_box.depth) * Shape::halo_rows + in_box.row) * Shape::halo_columns +
         in_box.column) *
            Shape::position_bytes +
        first_step * 32 + lane / 8 % 2 * 16;
  }
  const int first_row_tile = row_block * Shape::block_row_tiles + warp_high * Tile::row_tiles;

  MmaInputs<Layer, Tile> inputs(x, box, group, batch, input_depth, input_height, input_width);
  MmaSums<Layer, Tile> sums;
  sums.clear();
  bring_weights(0);
  inputs.load(0);
  inputs.store(input_stages);

  constexpr int steps = Shape::chunks * Shape::shift_groups;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int chunk = step / Shape::shift_groups, shift_group = step % Shape::shift_groups;
    copies.wait();
    __syncthreads();
    if (step + 1 < steps) bring_weights(step + 1);
    if (shift_group == 0 && chunk + 1 < Shape::chunks) inputs.load(chunk + 1);

    const unsigned char* const stage = input_stages + chunk % 2 * Shape::input_stage_bytes;
    const unsigned char* rows_of_lane[Tile::position_tiles / 2];
#pragma unroll
    for (int j = 0; j < Tile::position_tiles / 2; ++j) rows_of_lane[j] = stage + places[j];
    const unsigned char* const fragments =
        weight_stages + step % 2 * Shape::weight_stage_bytes +
        (first_step * Shape::planes * Shape::block_row_tiles + warp_high * Tile::row_tiles) * Shape::fragment_bytes +
        lane * 16;
    const auto multiply = [&](int number) {
      const int shift = (Shape::shift_groups == 1 ? 0 : shift_group * Tile::chunk_shifts) + number;
      if (shift >= Shape::shifts) return;
      if (Shape::exact) {
        MmaSums<Layer, Tile> partial;
        partial.clear();
        mma_multiply<Layer, Tile>(partial, shift, first_row_tile, fragments + number * Shape::shift_bytes,
                                  rows_of_lane);
        sums.add(partial);
      } else {
        mma_multiply<Layer, Tile>(sums, shift, first_row_tile, fragments + number * Shape::shift_bytes, rows_of_lane);
      }
    };
    if (Shape::unrolled) {
#pragma unroll
      for (int number = 0; number < Tile::chunk_shifts; ++number) multiply(number);
    } else {
#pragma unroll 1
      for (int number = 0; number < Tile::chunk_shifts; ++number) multiply(number);
    }

    if (shift_group == Shape::shift_groups - 1 && chunk + 1 < Shape::chunks)
      inputs.store(input_stages + (chunk + 1) % 2 * Shape::input_stage_bytes);
  }

  if (!mma_join(sums, shared)) return;
  const MmaBias<Layer> epilogue{Layer::has_bias ? bias + static_cast<long long>(group) * Layer::out_channels : bias};
  const long long first_channel = static_cast<long long>(group) * Layer::out_channels;
  const long long plane = static_cast<long long>(output_depth) * output_height * output_width;
  mma_store(sums, epilogue, y + first_channel * (Tile::channels_last ? 1 : plane), box, first_row_tile,
            warp_wide * Tile::position_tiles * 8, batch, output_depth, output_height, output_width);
}

}  // namespace tconv
