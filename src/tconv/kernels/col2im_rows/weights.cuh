// col2im_rows: weights, from memory to the second factor.
#pragma once
#include "col2im_rows/shape.cuh"
#include "primitives/layer.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

template <class Layer, class Tile>
struct Col2imRowsWeights {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Depth = typename Shape::Depth;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  static constexpr int taps = Layer::Depth::kernel * Layer::Height::kernel * Layer::Width::kernel;

  // All threads of a block: zeros, which stay where a shift and a phase have no tap. A barrier must follow.
  static TCONV_DEVICE void clear(unsigned char* factor) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Shape::weight_bytes / 16; i += Shape::threads)
      *reinterpret_cast<Vector<unsigned, 4>*>(factor + i * 16) = {{0, 0, 0, 0}};
  }
  // Which of a block's weights for an input channel, in the order of memory: of an output channel, a tap.
  static TCONV_DEVICE int channel_of(int at) { return Layer::weights_last ? at % Tile::channels : at / taps; }
  static TCONV_DEVICE int tap_of(int at) { return Layer::weights_last ? at / Tile::channels : at % taps; }
  // The weights of a block's channels. A thread has the same taps of the same output channels, in every so many input
  // channels; neighbouring ones have neighbouring weights. Asks for the thread's first batch.
  TCONV_DEVICE Col2imRowsWeights(const Element* weight, int group, int first_channel)
      : weight(weight), group(group), first_channel(first_channel) {
    ask(number(), in_first());
  }
  // All threads of a block.
  TCONV_DEVICE void put(unsigned char* factor) {
    bool asked = true;
#pragma unroll 1
    for (int at = number(); at < run; at += run_threads)
#pragma unroll 1
      for (int first = in_first(); first < Layer::group_in_channels; first += batch * together) {
        if (!asked) ask(at, first);
        asked = false;
        put_batch(factor, at, first);
      }
  }

 private:
  const Element* weight;
  int group, first_channel;
  // Of an input channel, a block's weights are one run. So many threads have one, and so many runs are loaded together.
  static constexpr int run = Tile::channels * taps;
  static constexpr int run_threads = run < Shape::threads ? run : Shape::threads;
  static constexpr int most_together = Shape::threads / run_threads;
  static constexpr int evenly = largest_divisor(Layer::group_in_channels, most_together);
  static constexpr int together = 2 * evenly >= most_together ? evenly : most_together;
  static constexpr int turns = ceil_div(Layer::group_in_channels, together), batch = turns < 16 ? turns : 16;
  static constexpr bool whole = Layer::group_in_channels % (batch * together) == 0;
  Element loaded[batch];  // on their way together

  static TCONV_DEVICE int number() { return static_cast<int>(threadIdx.x) % run_threads; }
  // Threads behind the last run have none.
  static TCONV_DEVICE int in_first() {
    const int first = static_cast<int>(threadIdx.x) / run_threads;
    return first < together ? first : Layer::group_in_channels;
  }
  TCONV_DEVICE bool has_channel(int channel) const {
    return Layer::group_out_channels % Tile::channels == 0 || first_channel + channel < Layer::group_out_channels;
  }
  static TCONV_DEVICE bool is_there(int in_channel) { return whole || in_channel < Layer::group_in_channels; }

  TCONV_DEVICE void ask(int at, int first) {
    const int channel = channel_of(at), tap = tap_of(at);
    if (first >= Layer::group_in_channels || !has_channel(channel)) return;
    const Element* const from = weight_at<Layer>(weight, group, first, first_channel + channel, tap);
#pragma unroll
    for (int i = 0; i < batch; ++i)
      if (is_there(first + i * together))
        loaded[i] = load_constant(from + 1ll * i * together * Layer::group_out_channels * taps);
  }
  TCONV_DEVICE void put_batch(unsigned char* factor, int at, int first) const {
    const int channel = channel_of(at), tap = tap_of(at);
    if (!has_channel(channel)) return;
    const int d = tap / (Layer::Height::kernel * Layer::Width::kernel) * Layer::Depth::dilation;
    const int h = tap / Layer::Width::kernel % Layer::Height::kernel * Layer::Height::dilation,
              w = tap % Layer::Width::kernel * Layer::Width::dilation;
    const int output_row = (channel * Depth::phases + d % Depth::phases) * Height::phases + h % Height::phases;
    const int row = h / Height::phases * Shape::shift_columns +
                    (output_row * Width::shifts + w / Width::phases) * Width::phases + w % Width::phases;
    const int first_k = d / Depth::phases * Shape::channel_steps * Shape::step_channels;
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (!is_there(first + i * together)) continue;
      const int k = first_k + first + i * together;
      const unsigned byte = (Tile::channels_last ? Shape::last_place(k) : k) * Shape::item_bytes;
      *reinterpret_cast<Element*>(factor + byte / 128 * Shape::weight_block_bytes +
                                  swizzled(row * 128 + static_cast<int>(byte % 128), 128)) =
          matrix_factor<Layer>(loaded[i], 0);
    }
  }
};

}  // namespace tconv
