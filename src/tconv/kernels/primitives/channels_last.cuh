// A kernel that puts contiguous inputs into channels_last order, for tiles with `prepared_inputs`. Where many blocks
// read the same inputs, transposing them once costs less than transposing them in each block.
#pragma once
#include "primitives/arithmetic.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/launch.cuh"
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// A thread loads a vector's channels at some positions of all images, and stores a vector for each. Sixteen lanes have
// neighbouring positions, two neighbouring vectors: what a warp loads and stores are whole sectors of memory. A group's
// channels are whole vectors. Where the layer rounds to TF32, what is stored is rounded.
template <class Layer>
struct ChannelsLast {
  using Element = typename Layer::Element;
  static constexpr int item_bytes = static_cast<int>(sizeof(Element)), vector_items = 16 / item_bytes;
  static constexpr int channels = Layer::groups * Layer::group_in_channels, vectors = channels / vector_items;
  static constexpr bool rounds = Layer::rounding != Rounding::none;
  // Of a block at once.
  static constexpr int tile_positions = 64, tile_vectors = preparing_threads / tile_positions;
  static constexpr int vector_tiles = ceil_div(vectors, tile_vectors);
  // Blocks that have so many tiles each may as well have fewer that are larger.
  static constexpr int many_tiles = 16;

  // How its kernel is launched, with no more blocks than tiles. Positions and channels of all images are counted, too.
  static TCONV_CONSTANT void launch(const Sizes& sizes, Launch& of_layer) {
    const long long positions = plane_of(sizes.input) * sizes.batch,
                    tiles = (positions + tile_positions - 1) / tile_positions * vector_tiles,
                    most = 8ll * sizes.multiprocessors;
    of_layer.input_blocks = static_cast<int>(tiles < most ? tiles : most);
    of_layer.counted = larger(of_layer.counted, larger(positions, static_cast<long long>(channels) * sizes.batch));
  }

  // Transposes all inputs, with any number of blocks. Each channel begins at a multiple of `width`. Where each block
  // has many tiles, more loads of a thread are on their way at once.
  template <int width>
  static TCONV_DEVICE void run(const Element* x, Element* prepared, int batch, unsigned plane) {
    const long long tiles = ceil_div(1ll * batch * plane, 1ll * tile_positions * width) * vector_tiles;
    if (tiles < many_tiles * static_cast<long long>(gridDim.x))
      run_tiles<width, 2>(x, prepared, batch, plane);
    else
      run_tiles<width, 4>(x, prepared, batch, plane);
  }

 private:
  // A thread has `together` places of a tile.
  template <int width, int together>
  static TCONV_DEVICE void run_tiles(const Element* x, Element* prepared, int batch, unsigned plane) {
    const int thread = static_cast<int>(threadIdx.x);
    const int own_position = (thread / 32 % 4 * 16 + thread % 16) * width,
              own_vector = thread / 128 * 2 + thread / 16 % 2;
    const unsigned positions = batch * plane;  // of all images, one behind the other
    constexpr unsigned of_turn = tile_positions * width, of_tile = of_turn * together;
    const int tiles = static_cast<int>(ceil_div(positions, of_tile)) * vector_tiles;
#pragma unroll 1
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const int channel = (tile % vector_tiles * tile_vectors + own_vector) * vector_items;
      const unsigned first = static_cast<unsigned>(tile / vector_tiles) * of_tile + own_position;
      if (channel >= channels) continue;
      Vector<Element, width> loaded[together][vector_items];
#pragma unroll
      for (int turn = 0; turn < together; ++turn) {
        const unsigned position = first + turn * of_turn;
        if (position >= positions) continue;
        const unsigned image = position / plane;
        const Element* const from =
            x + (static_cast<long long>(image) * channels + channel) * plane + (position - image * plane);
#pragma unroll
        for (int k = 0; k < vector_items; ++k)
          loaded[turn][k] = *reinterpret_cast<const Vector<Element, width>*>(from + static_cast<long long>(k) * plane);
      }
      let_next_kernel_begin();  // what that asks for waits behind these loads
#pragma unroll
      for (int turn = 0; turn < together; ++turn) {
        const unsigned position = first + turn * of_turn;
        if (position >= positions) continue;
#pragma unroll
        for (int i = 0; i < width; ++i) {
          Vector<Element, vector_items> vector;
#pragma unroll
          for (int k = 0; k < vector_items; ++k) {
            const Element value = loaded[turn][k].values[i];
            vector.values[k] = rounds ? matrix_factor<Layer>(value, 0) : value;
          }
          store_vector(prepared + static_cast<long long>(position + i) * channels + channel, vector);
        }
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
  const unsigned plane = static_cast<unsigned>(input_depth) * input_height * input_width;
  constexpr int most = 4 / Order::item_bytes;
  if (plane % most == 0)
    Order::template run<most>(x, prepared, batch, plane);
  else
    Order::template run<1>(x, prepared, batch, plane);
}

}  // namespace tconv
