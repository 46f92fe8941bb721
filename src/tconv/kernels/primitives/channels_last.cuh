// A kernel that puts contiguous inputs into channels_last order, for tiles with `prepared_inputs`. Where many blocks
// read the same inputs, transposing them once costs less than transposing them in each block.
#pragma once
#include "primitives/arithmetic.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/launch.cuh"
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// A thread loads a vector's channels at some neighbouring positions, and stores a vector for each. Sixteen lanes have
// neighbouring positions, two neighbouring vectors: what a warp loads and stores are whole sectors of memory. A group's
// channels are whole vectors. Where the layer rounds to TF32, what is stored is rounded.
template <class Layer>
struct ChannelsLast {
  using Element = typename Layer::Element;
  static constexpr int item_bytes = static_cast<int>(sizeof(Element)), vector_items = 16 / item_bytes;
  static constexpr int channels = Layer::groups * Layer::group_in_channels, vectors = channels / vector_items;
  static constexpr bool rounds = Layer::rounding != Rounding::none;
  // Of a block.
  static constexpr int tile_positions = 64, tile_vectors = preparing_threads / tile_positions;
  static constexpr int vector_tiles = ceil_div(vectors, tile_vectors);

  // How its kernel is launched, with no more blocks than tiles. Channels of all images are counted, too.
  static TCONV_CONSTANT void launch(const Sizes& sizes, Launch& of_layer) {
    const long long tiles = (plane_of(sizes.input) + tile_positions - 1) / tile_positions * vector_tiles * sizes.batch,
                    most = 8ll * sizes.multiprocessors;
    of_layer.input_blocks = static_cast<int>(tiles < most ? tiles : most);
    of_layer.counted = larger(of_layer.counted, static_cast<long long>(channels) * sizes.batch);
  }

  // Transposes all tiles of a launch, with any number of blocks. Each channel begins at a multiple of `width`.
  template <int width>
  static TCONV_DEVICE void run(const Element* x, Element* prepared, int batch, long long plane) {
    const int thread = static_cast<int>(threadIdx.x);
    const int own_position = (thread / 32 % 4 * 16 + thread % 16) * width,
              own_vector = thread / 128 * 2 + thread / 16 % 2;
    const int position_tiles = static_cast<int>((plane + tile_positions * width - 1) / (tile_positions * width));
    const int tiles = position_tiles * vector_tiles * batch;
#pragma unroll 1
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const int rest = tile / position_tiles, image = rest / vector_tiles;
      const int channel = (rest % vector_tiles * tile_vectors + own_vector) * vector_items;
      const long long position = static_cast<long long>(tile % position_tiles) * tile_positions * width + own_position;
      if (position >= plane || channel >= channels) continue;
      const long long of_image = image * channels * plane;
      const Element* const from = x + of_image + channel * plane + position;
      Vector<Element, width> loaded[vector_items];
#pragma unroll
      for (int k = 0; k < vector_items; ++k)
        loaded[k] = *reinterpret_cast<const Vector<Element, width>*>(from + k * plane);
      let_next_kernel_begin();  // what that asks for waits behind these loads
#pragma unroll
      for (int i = 0; i < width; ++i) {
        Vector<Element, vector_items> vector;
#pragma unroll
        for (int k = 0; k < vector_items; ++k)
          vector.values[k] = rounds ? matrix_factor<Layer>(loaded[k].values[i], 0) : loaded[k].values[i];
        store_vector(prepared + of_image + (position + i) * channels + channel, vector);
      }
    }
  }
};

// From x, (batch, channels, positions), to prepared, (batch, positions, channels).
template <class Layer>
TCONV_DEVICE void order_inputs(const typename Layer::Element* x, typename Layer::Element* prepared, int batch,
                               int input_depth, int input_height, int input_width) {
  using Order = ChannelsLast<Layer>;
  static_assert(Order::channels % Order::vector_items == 0, "vectors are of one position");
  const long long plane = static_cast<long long>(input_depth) * input_height * input_width;
  constexpr int most = 4 / Order::item_bytes;
  if (plane % most == 0)
    Order::template run<most>(x, prepared, batch, plane);
  else
    Order::template run<1>(x, prepared, batch, plane);
}

}  // namespace tconv
