// mma: a box's inputs on their way from memory to shared memory, turned or copied. `mma.cuh` has the picture.
//
// Both have the same functions: `begin` with a box, `load` all parts of a chunk into a stage, then `end_chunk`; `wait`,
// and a barrier behind it, before the chunk is read that was asked for `Shape::stages_ahead` chunks ago.
#pragma once
#include "mma/factors.cuh"
#include "mma/shape.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/boxes.cuh"

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
      for (int k = 0; k < items; ++k) factors[k] = matrix_factor<Layer>(values[u * items + k], plane);
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

// The input of a block's group.
template <class Layer, class Tile>
struct MmaInputMap : InputMap<Layer, MmaShape<Layer, Tile>> {
  using Base = InputMap<Layer, MmaShape<Layer, Tile>>;
  const typename Layer::Element* x;

  TCONV_DEVICE MmaInputMap(const typename Layer::Element* of_all, int group, int batch, int depths, int rows,
                           int columns)
      : Base(batch, depths, rows, columns) {
    x = of_all + static_cast<long long>(group) * Layer::group_in_channels * (Tile::channels_last ? 1 : this->plane);
  }

  TCONV_DEVICE void enter(const BoxPosition& box) {
    this->first = x + static_cast<long long>(box.image) * Base::channels * this->plane;
  }
};

// A thread's part of a box's inputs, on their way from memory to shared memory, in patches of a vector of channels by
// `patch_columns` neighbouring columns. A load brings one channel of a patch, or all of a column where inputs are
// channels_last; what is stored is a column. Patches of several columns need rows that begin at multiples of a patch:
// then patches do so too, and while a row of the halo may begin and end within one, a row of the input does not.
template <class Layer, class Tile>
struct MmaTurnedInputs : MmaInputMap<Layer, Tile> {
  using Map = MmaInputMap<Layer, Tile>;
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int side = Shape::vector_items, columns_together = Tile::Pipeline::patch_columns;
  static constexpr bool vectors = Shape::whole_vectors;
  static constexpr int load_bytes = vectors ? 16 : columns_together * Shape::item_bytes;
  static constexpr int loads = vectors ? 1 : side, words = load_bytes < 4 ? 1 : load_bytes / 4;
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

  using Map::Map;

  // Whatever is loaded from now on is of this box.
  TCONV_DEVICE void begin(const BoxPosition& box) {
    this->enter(box);
    const BoxPosition halo = halo_of<Shape>(box);
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const auto place = this->place(halo, row(i), halo_column(i));
      if (present(i) && place.inside) inside |= 1u << i;
      const int channel = vector(i) * side;
      offsets[i] = Tile::channels_last
                       ? (place.image * this->plane + place.position) * Map::channels + channel
                       : (place.image * static_cast<Index>(Map::channels) + channel) * this->plane + place.position;
    }
  }

  // Asks for one of so many parts of a chunk, if it is `wanted`.
  TCONV_DEVICE void load(int chunk, bool wanted, int part, int parts, unsigned char*) {
    const long long channel_pitch = Tile::channels_last ? 1 : this->plane;
    const Element* const of_chunk = this->first + chunk * Shape::chunk_channels * channel_pitch;
    const unsigned here = wanted ? inside : 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int channel = chunk * Shape::chunk_channels + vector(i) * side;
      const Element* from = of_chunk + offsets[i];
#pragma unroll
      for (int k = 0; k < loads; ++k) {
        const int number = i * loads + k;
        if (number * parts / (Shape::thread_patches * loads) == part)
          load_present<load_bytes>(
              from, (here >> i & 1u) != 0 && (Shape::whole_chunks || channel + k < Layer::group_in_channels),
              values[i][k].values);
        from = kept(from + channel_pitch);
      }
    }
  }

  TCONV_DEVICE void wait() {}

  // Behind the last part of a chunk: stores it.
  TCONV_DEVICE void end_chunk(bool wanted, unsigned char* stage) const {
    if (!wanted) return;
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
                             stage + (row(i) * Shape::halo_columns + halo_column(i) + c) * Shape::place_bytes);
      }
    }
  }
};

// A thread's part of a box's inputs that lie channel by channel: some patches of some channels, copied as they are.
template <class Layer, class Tile>
struct MmaCopiedInputs : MmaInputMap<Layer, Tile> {
  using Map = MmaInputMap<Layer, Tile>;
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int lanes = Shape::patch_lanes, sharers = Shape::threads / lanes;
  static constexpr int patch_bytes = Tile::Pipeline::patch_columns * Shape::item_bytes;
  unsigned inside;                       // by patch: whether it is one of the input
  Index offsets[Shape::thread_patches];  // of the patch in the thread's first channel of the first chunk
  ThreadCopies<patch_bytes, Shape::thread_loads, Shape::input_stages> copies;

  static TCONV_DEVICE int patch(int i) { return static_cast<int>(threadIdx.x) % lanes + i * lanes; }
  static TCONV_DEVICE int channel(int k) { return static_cast<int>(threadIdx.x) / lanes + k * sharers; }
  static TCONV_DEVICE bool present(int i) {
    return (i + 1) * lanes <= Shape::halo_patches || patch(i) < Shape::halo_patches;
  }
  static TCONV_DEVICE bool in_chunk(int k) {
    return (k + 1) * sharers <= Shape::chunk_channels || channel(k) < Shape::chunk_channels;
  }

  using Map::Map;

  // Whatever is copied from now on is of this box.
  TCONV_DEVICE void begin(const BoxPosition& box) {
    this->enter(box);
    const BoxPosition halo = halo_of<Shape>(box);
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const auto place = this->place(halo, patch(i) / Shape::row_patches,
                                     patch(i) % Shape::row_patches * Tile::Pipeline::patch_columns - Shape::patch_lead);
      if (place.inside) inside |= 1u << i;
      offsets[i] = (place.image * static_cast<Index>(Map::channels) + channel(0)) * this->plane + place.position;
    }
  }

  // Asks for one of so many parts of a chunk, if it is `wanted`.
  TCONV_DEVICE void load(int chunk, bool wanted, int part, int parts, unsigned char* stage) {
    if (!wanted) return;
    constexpr int in_channels = Layer::group_in_channels;
    const long long pitch = static_cast<long long>(sharers) * this->plane;
    const Element* const of_chunk = this->first + chunk * Shape::chunk_channels * static_cast<long long>(this->plane);
    unsigned char* const own = stage + channel(0) * Shape::channel_bytes + patch(0) * patch_bytes;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const Element* from = of_chunk + offsets[i];
#pragma unroll
      for (int k = 0; k < Shape::thread_channels; ++k) {
        const int number = i * Shape::thread_channels + k;
        if (number * parts / Shape::thread_loads == part && present(i) && in_chunk(k))
          copies.begin(own + i * lanes * patch_bytes + k * sharers * Shape::channel_bytes, from,
                       (inside >> i & 1u) != 0 &&
                           (Shape::whole_chunks || chunk * Shape::chunk_channels + channel(k) < in_channels));
        from = kept(from + pitch);
      }
    }
  }

  // Behind the last part of a chunk.
  TCONV_DEVICE void end_chunk(bool, unsigned char*) { copies.end_group(); }
  // Returns when the oldest chunk that was asked for has come.
  TCONV_DEVICE void wait() { copies.template wait<Shape::stages_ahead - 1>(); }
};

}  // namespace tconv
