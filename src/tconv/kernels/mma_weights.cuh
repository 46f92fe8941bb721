// mma: the weights: brought into the order in which the warps load them, and on their way there. `mma.cuh` has the
// picture.
#pragma once
#include "mma_shape.cuh"

namespace tconv {

// The word of four bytes in which two 16-bit items lie, or one of 32 bits.
TCONV_DEVICE unsigned mma_word(const float (&items)[1]) { return float_bits(items[0]); }
template <class Half16>
TCONV_DEVICE unsigned mma_word(const Half16 (&items)[2]) {
  return items[0].bits | static_cast<unsigned>(items[1].bits) << 16;
}

// Item `number` of a row of items, of which it gets the word that has it.
TCONV_DEVICE void mma_item(unsigned word, int, float& item) { item = bits_float(word); }
template <class Half16>
TCONV_DEVICE void mma_item(unsigned word, int number, Half16& item) {
  item.bits = static_cast<unsigned short>(word >> number % 2 * 16);
}

// A factor as the tensor core shall see it. Plane 0 is the number, rounded where the precision says so or where exact
// products need it; plane 1 is what plane 0 leaves, nothing where that is not finite.
template <class Layer>
TCONV_DEVICE float mma_factor(float value, int plane) {
  if (Layer::rounding != Rounding::none) return matrix_operand<Layer::rounding>(value);
  const float high = matrix_operand<Rounding::ties_away>(value);
  if (plane == 0) return high;
  return (float_bits(high) & 0x7f800000u) == 0x7f800000u ? 0.0f : matrix_operand<Rounding::ties_away>(value - high);
}
template <class Layer>
TCONV_DEVICE Half mma_factor(Half value, int) {
  return value;
}
template <class Layer>
TCONV_DEVICE BFloat16 mma_factor(BFloat16 value, int) {
  return value;
}

template <bool Small>
struct MmaCount {
  using type = long long;
};
template <>
struct MmaCount<true> {
  using type = int;
};

// Brings the weights into the order in which the warps load them: one thread for each vector of 16 bytes.
template <class Layer, class Tile>
TCONV_DEVICE void mma_weights(const typename Layer::Element* weight, typename Layer::Element* prepared) {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  let_kernel_behind_begin();
  const long long vector = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (vector >= Shape::weight_vectors) return;
  const int lane = static_cast<int>(vector % 32);
  // Nearly always 32 bits, which are divided much faster than 64.
  typename MmaCount<Shape::weight_vectors <= 0x7fffffff>::type rest = vector / 32;
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

// The prepared weights on their way to shared memory: they lie in memory in the order of a block's steps, and come into
// one stage after the other.
template <class Layer, class Tile>
struct MmaWeightStages {
  using Shape = MmaShape<Layer, Tile>;
  // Steps that are asked for before the first one: resident weights are those of all boxes.
  static constexpr int asked_at_first = Tile::resident ? Shape::steps : 1;
  AsynchronousCopies<asked_at_first * ceil_div(Shape::weight_stage_bytes / 16, Shape::threads)> copies;
  const unsigned char* from;
  unsigned char* const stages;
  int stage = 0, shift_group = 0, left = Shape::steps;

  TCONV_DEVICE MmaWeightStages(const unsigned char* weights, unsigned char* stages) : from(weights), stages(stages) {}

  // Asks for the weights of one more step, if there is one.
  TCONV_DEVICE void ask() {
    if (left == 0) return;
    constexpr int of_last = Shape::shifts - (Shape::shift_groups - 1) * Tile::chunk_shifts;
    const bool last = shift_group == Shape::shift_groups - 1;
    const int vectors = (last ? of_last : Tile::chunk_shifts) * (Shape::shift_bytes / 16);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += Shape::threads)
      copies.copy(stages + stage + i * 16, from + i * 16);
    from += vectors * 16;
    shift_group = last ? 0 : shift_group + 1;
    stage = Shape::next_weight_stage(stage);
    --left;
  }
};

}  // namespace tconv
