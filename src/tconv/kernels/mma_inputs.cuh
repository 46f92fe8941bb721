// mma: a box's inputs on their way from memory to shared memory. `mma.cuh` has the picture.
#pragma once
#include "mma_weights.cuh"

namespace tconv {

// A vector of factors of neighbouring channels at one place of a stage. Matrices are loaded by words, so a double's two
// lie apart: of 32 bytes of channels the low words first.
template <class Layer, class Tile>
TCONV_DEVICE void mma_put(const typename Layer::Element (&values)[16 / sizeof(typename Layer::Element)], int vector,
                          unsigned char* place) {
  using Shape = MmaShape<Layer, Tile>;
  constexpr int items = Shape::unit_items;
#pragma unroll
  for (int plane = 0; plane < Shape::planes; ++plane) {
    Vector<unsigned, 4> words;
#pragma unroll
    for (int u = 0; u < Shape::units; ++u) {
      typename Layer::Element factors[items];
#pragma unroll
      for (int k = 0; k < items; ++k) factors[k] = mma_factor<Layer>(values[u * items + k], plane);
      mma_pack(factors, u, words);
    }
    if (Shape::item_bytes < 8) {
      *reinterpret_cast<Vector<unsigned, 4>*>(place + plane * Shape::plane_bytes + vector * 16) = words;
    } else {
      Vector<unsigned, 2>* const low = reinterpret_cast<Vector<unsigned, 2>*>(place + vector / 2 * 32) + vector % 2;
      low[0] = {words.values[0], words.values[2]};
      low[2] = {words.values[1], words.values[3]};
    }
  }
}

// A thread's part of a box's inputs, on their way from memory to shared memory, in patches of a vector of channels by
// `patch_columns` neighbouring columns. A load brings one channel of a patch, or all of a column where inputs are
// channels_last; what is stored is a column. Patches of several columns need rows that begin at multiples of a patch:
// then patches do so too, and while a row of the halo may begin and end within one, a row of the input does not.
template <class Layer, class Tile>
struct MmaInputs {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int channels = Layer::groups * Layer::in_channels, side = Shape::vector_items;
  static constexpr int columns_together = Tile::patch_columns;
  static constexpr bool vectors = Shape::whole_vectors;
  static constexpr int load_bytes = vectors ? 16 : columns_together * Shape::item_bytes;
  static constexpr int loads = vectors ? 1 : side, words = load_bytes < 4 ? 1 : load_bytes / 4;
  const Element* x;  // of the block's group
  int batch, depths, rows, columns;
  Index plane;
  const Element* first;                  // of the box's first image
  unsigned inside;                       // by patch: whether it is one of the input
  Index offsets[Shape::thread_patches];  // of the patch's first channel and column in the first chunk
  // Words are not taken apart before they are stored: that would wait for each load.
  Vector<unsigned, words> values[Shape::thread_patches][loads];

  // Neighbouring threads load what lies together in memory. Where they have several columns each, eight beside each
  // other have other channels, which they store in other banks.
  static TCONV_DEVICE int number(int i) { return static_cast<int>(threadIdx.x) + i * Shape::threads; }
  static constexpr int vectors_first = Tile::channels_last     ? Shape::chunk_vectors
                                       : columns_together == 1 ? 1
                                       : Shape::chunk_vectors > 8 && Shape::chunk_vectors % 8 == 0
                                           ? 8
                                           : Shape::chunk_vectors;
  static TCONV_DEVICE int vector(int i) {
    return number(i) / (vectors_first * Shape::halo_patches) * vectors_first + number(i) % vectors_first;
  }
  static TCONV_DEVICE int patch(int i) { return number(i) / vectors_first % Shape::halo_patches; }
  static TCONV_DEVICE int row(int i) { return patch(i) / Shape::row_patches; }
  // In the halo's row; negative where the first patch begins before it.
  static TCONV_DEVICE int halo_column(int i) {
    return patch(i) % Shape::row_patches * columns_together - Shape::patch_lead;
  }
  // Most are known to be there; the compiler cannot see it from their numbers.
  static TCONV_DEVICE bool present(int i) {
    constexpr int all = Shape::halo_patches * Shape::chunk_vectors;
    return (i + 1) * Shape::threads <= all || number(i) < all;
  }
  static TCONV_DEVICE bool in_halo(int column) {
    constexpr bool whole = Shape::patch_lead == 0 && Shape::halo_columns % columns_together == 0;
    return whole || in_range(column, Shape::halo_columns);
  }

  TCONV_DEVICE MmaInputs(const Element* of_all, int group, int batch, int depths, int rows, int columns)
      : batch(batch), depths(depths), rows(rows), columns(columns), plane(static_cast<Index>(depths) * rows * columns) {
    x = of_all + static_cast<long long>(group) * Layer::in_channels * (Tile::channels_last ? 1 : plane);
  }

  // Whatever is loaded from now on is of this box.
  TCONV_DEVICE void begin(const MmaBox& box) {
    first = x + static_cast<long long>(box.sample) * channels * plane;
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int slab = row(i) / Shape::halo_rows, image = slab / Shape::halo_depths;
      const int column = box.column - Shape::WidthShifts::highest + halo_column(i);
      const int height = box.row - Shape::HeightShifts::highest + row(i) % Shape::halo_rows;
      const int depth = box.depth - Shape::DepthShifts::highest + slab % Shape::halo_depths;
      if (present(i) && box.sample + image < batch && in_range(depth, depths) && in_range(height, rows) &&
          in_range(column, columns))
        inside |= 1u << i;
      const Index position = (static_cast<Index>(depth) * rows + height) * columns + column;
      const int channel = vector(i) * side;
      offsets[i] = Tile::channels_last ? (image * plane + position) * channels + channel
                                       : (image * static_cast<Index>(channels) + channel) * plane + position;
    }
  }

  // Asks for one of so many parts of a chunk, if it is `wanted`.
  TCONV_DEVICE void load(int chunk, bool wanted, int part, int parts) {
    const long long channel_pitch = Tile::channels_last ? 1 : plane;
    const Element* const of_chunk = first + chunk * Shape::chunk_channels * channel_pitch;
    const unsigned here = wanted ? inside : 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int channel = chunk * Shape::chunk_channels + vector(i) * side;
      const Element* from = of_chunk + offsets[i];
#pragma unroll
      for (int k = 0; k < loads; ++k) {
        const int number = i * loads + k;
        if (number * parts / (Shape::thread_patches * loads) == part)
          values[i][k] = load_present<load_bytes>(
              from, (here >> i & 1u) != 0 && (Shape::whole_chunks || channel + k < Layer::in_channels));
        from = kept(from + channel_pitch);
      }
    }
  }

  TCONV_DEVICE void store(unsigned char* stage) const {
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      if (!present(i)) continue;
#pragma unroll
      for (int c = 0; c < columns_together; ++c) {
        if (!in_halo(halo_column(i) + c)) continue;
        Element column[side];
#pragma unroll
        for (int k = 0; k < side; ++k) {
          mma_unpack(values[i][vectors ? 0 : k], vectors ? k : c, column[k]);
        }
        mma_put<Layer, Tile>(column, vector(i),
                             stage + (row(i) * Shape::halo_columns + halo_column(i) + c) * Shape::position_bytes);
      }
    }
  }
};

}  // namespace tconv
