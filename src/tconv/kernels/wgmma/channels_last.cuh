// wgmma: a kernel that puts contiguous inputs into channels_last order, for tiles with `prepared_inputs`. Where many
// blocks read the same inputs, transposing them once costs less than transposing them in each block.
#pragma once
#include "primitives/asynchronous.cuh"
#include "primitives/axis.cuh"
#include "primitives/elements.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// A block transposes tiles through shared memory: 128 bytes of channels at 64 positions of an image.
template <class Layer>
struct WgmmaOrder {
  using Element = typename Layer::Element;
  static constexpr int item_bytes = static_cast<int>(sizeof(Element)), vector_items = 16 / item_bytes;
  static constexpr int word_items = 4 / item_bytes;
  static constexpr int channels = Layer::groups * Layer::group_in_channels;
  static constexpr int tile_channels = 128 / item_bytes, tile_positions = 64, threads = 256;
  static constexpr int channel_tiles = ceil_div(channels, tile_channels);
  // Lanes read a word of eight vectors of channels each, at four neighbouring words: 32-bit items are in 32 different
  // banks, 16-bit items in 16.
  static constexpr int pitch = tile_positions + word_items;
  static constexpr int vectors = tile_channels / vector_items;
  static constexpr int shared_bytes = tile_channels * pitch * item_bytes;

  Element* const staged;
  const int thread;

  // Loads a tile to shared memory, `width` neighbouring positions of a channel at once.
  template <int width>
  TCONV_DEVICE void read(const Element* first, long long plane, int positions_left, int channels_left) const {
    constexpr int of_row = tile_positions / width, together = threads / of_row, loads = tile_channels / together;
    constexpr int pieces = width > word_items ? width / word_items : 1, piece = width / pieces;
    const int position = thread % of_row * width, channel = thread / of_row;
    const Element* from = first + channel * plane + position;
    unsigned words[loads][(width * item_bytes + 3) / 4];
#pragma unroll
    for (int i = 0; i < loads; ++i, from += together * plane)
      load_present<width * item_bytes>(from, position < positions_left && channel + i * together < channels_left,
                                       words[i]);
    __syncthreads();  // nobody reads the tile before any more
#pragma unroll
    for (int i = 0; i < loads; ++i)
#pragma unroll
      for (int k = 0; k < pieces; ++k) {
        Element* const to = staged + (channel + i * together) * pitch + position + k * piece;
        if (piece * item_bytes == 4)
          *reinterpret_cast<unsigned*>(to) = words[i][k];
        else
          *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(words[i][k]);
      }
    __syncthreads();
  }

  TCONV_DEVICE void write(Element* first, int positions_left, int channels_left) const {
    const int channel = thread % vectors * vector_items;
#pragma unroll
    for (int word = thread / vectors; word < tile_positions / word_items; word += threads / vectors) {
      Vector<Element, word_items> words[vector_items];
#pragma unroll
      for (int k = 0; k < vector_items; ++k)
        words[k] =
            *reinterpret_cast<const Vector<Element, word_items>*>(staged + (channel + k) * pitch + word * word_items);
#pragma unroll
      for (int i = 0; i < word_items; ++i) {
        const int position = word * word_items + i;
        Vector<Element, vector_items> vector;
#pragma unroll
        for (int k = 0; k < vector_items; ++k) vector.values[k] = words[k].values[i];
        if (position < positions_left && channel < channels_left)
          store_vector(first + static_cast<long long>(position) * channels + channel, vector);
      }
    }
  }

  // Transposes all tiles of a launch, with any number of blocks. Each channel begins at a multiple of `width`.
  template <int width>
  TCONV_DEVICE void run(const Element* x, Element* prepared, int batch, long long plane) const {
    const long long position_tiles = (plane + tile_positions - 1) / tile_positions;
    const long long tiles = position_tiles * channel_tiles * batch;
#pragma unroll 1
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int channel = static_cast<int>(tile % channel_tiles) * tile_channels;
      const long long rest = tile / channel_tiles, image = rest / position_tiles;
      const long long position = rest % position_tiles * tile_positions, left = plane - position;
      const int positions_left = left < tile_positions ? static_cast<int>(left) : tile_positions;
      const long long of_image = image * channels * plane;
      read<width>(x + of_image + channel * plane + position, plane, positions_left, channels - channel);
      write(prepared + of_image + position * channels + channel, positions_left, channels - channel);
    }
  }
};

// From x, (batch, channels, positions), to prepared, (batch, positions, channels).
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_inputs(const typename Layer::Element* x, typename Layer::Element* prepared, int batch,
                               int input_depth, int input_height, int input_width) {
  using Order = WgmmaOrder<Layer>;
  TCONV_SHARED(shared);
  let_next_kernel_begin();
  const Order order{reinterpret_cast<typename Layer::Element*>(shared), static_cast<int>(threadIdx.x)};
  const long long plane = static_cast<long long>(input_depth) * input_height * input_width;
  constexpr int most = Order::vector_items, half = most / 2, quarter = half > 1 ? half / 2 : 1;
  if (plane % most == 0)
    order.template run<most>(x, prepared, batch, plane);
  else if (plane % half == 0)
    order.template run<half>(x, prepared, batch, plane);
  else if (plane % quarter == 0)
    order.template run<quarter>(x, prepared, batch, plane);
  else
    order.template run<1>(x, prepared, batch, plane);
}

}  // namespace tconv
