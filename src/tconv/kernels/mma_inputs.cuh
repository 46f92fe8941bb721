// mma: what is multiplied. Weights in the order in which the warps load them, and a box's inputs on their way from
// memory to shared memory. `mma.cuh` has the picture.
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

}  // namespace tconv
