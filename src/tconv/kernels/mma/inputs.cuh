// mma: a block tile's inputs on their way from global to shared memory, transposed or copied. `mma.cuh` has the
// picture.
//
// `MmaInputs` is a thread's part. Its order of calls: `begin` a block tile; `load` all parts of a k-tile into a stage;
// `end_k_tile`. Before a k-tile is read that was asked for `Shape::stages_ahead` k-tiles ago: `wait`, then a barrier.
#pragma once
#include "mma/factors.cuh"
#include "mma/shape.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/block_tiles.cuh"

namespace tconv {

// Stores a vector of neighbouring channels at one place of a stage, as factors: rounded, or split into planes.
template <class Layer, class Tile>
TCONV_DEVICE void mma_put(const typename Layer::Element (&values)[16 / sizeof(typename Layer::Element)], int vector,
                          unsigned char* place) {
  using Shape = MmaShape<Layer, Tile>;
  using Factors = Vector<typename Layer::Element, Shape::vector_items>;
#pragma unroll
  for (int plane = 0; plane < Shape::planes; ++plane) {
    Factors factors;
#pragma unroll
    for (int k = 0; k < Shape::vector_items; ++k) factors.values[k] = matrix_factor<Layer>(values[k], plane);
    if (Shape::item_bytes < 8) {
      *reinterpret_cast<Factors*>(place + plane * Shape::plane_bytes + vector * 16) = factors;
    } else {
      // ldmatrix gives words to lanes, so a double's two words lie apart: of 32 bytes of channels, first all low words.
      const double first = to_accumulator(factors.values[0]), second = to_accumulator(factors.values[1]);
      Vector<unsigned, 2>* const low = reinterpret_cast<Vector<unsigned, 2>*>(place + vector / 2 * 32) + vector % 2;
      low[0] = {low_word(first), low_word(second)};
      low[2] = {high_word(first), high_word(second)};
    }
  }
}

// The first input of a block's group.
template <class Layer, class Tile>
TCONV_DEVICE const typename Layer::Element* mma_first_input(const typename Layer::Element* x, int group,
                                                            typename Layer::Index plane) {
  return x + static_cast<long long>(group) * Layer::group_in_channels * (Tile::channels_last ? 1 : plane);
}

// A thread's part of inputs that go through registers. There they are rounded and, unless channels_last, transposed.
// The next k-tile is in flight while a k-tile is multiplied. In shared memory inputs lie position by position, the
// channels of a k-tile together, as ldmatrix reads them.
//
// A patch is a vector of channels by `patch_columns` neighbouring columns. A load takes one channel of a patch or, from
// channels_last inputs, all channels of a column; a store takes a column. Patches of several columns need rows that
// begin at multiples of a patch. Then a patch is in the input as a whole or not at all. The halo's rows may begin and
// end within a patch.
template <class Layer, class Tile>
struct MmaTransposedInputs {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int side = Shape::vector_items, columns_together = Tile::Pipeline::patch_columns;
  static constexpr bool vectors = Shape::whole_vectors;
  static constexpr int load_bytes = vectors ? 16 : columns_together * Shape::item_bytes;
  static constexpr int loads = vectors ? 1 : side, words = load_bytes < 4 ? 1 : load_bytes / 4;
  const InputMap<Layer, Shape> map;
  const Element* const x;                // of the block's group
  const Element* first;                  // of the block tile's first image
  unsigned inside;                       // by patch: whether it is one of the input
  Index offsets[Shape::thread_patches];  // of the patch's first channel and column in the first k-tile
  // Words are unpacked when they are stored: unpacking them sooner would wait for each load.
  Vector<unsigned, words> values[Shape::thread_patches][loads];

  // Neighbouring threads load neighbouring memory. With patches of several columns, eight neighbouring threads have
  // different channels, which they store to different banks.
  static TCONV_DEVICE int number(int i) { return static_cast<int>(threadIdx.x) + i * Shape::threads; }
  static constexpr int vectors_first = Tile::channels_last     ? Shape::k_tile_vectors
                                       : columns_together == 1 ? 1
                                       : Shape::k_tile_vectors > 8 && Shape::k_tile_vectors % 8 == 0
                                           ? 8
                                           : Shape::k_tile_vectors;
  static TCONV_DEVICE int vector(int i) {
    return number(i) / (vectors_first * Shape::halo_patches) * vectors_first + number(i) % vectors_first;
  }
  static TCONV_DEVICE int patch(int i) { return number(i) / vectors_first % Shape::halo_patches; }
  static TCONV_DEVICE int row(int i) { return patch(i) / Shape::row_patches; }
  // A column of the halo's row; negative where the row's first patch begins before the halo.
  static TCONV_DEVICE int halo_column(int i) {
    return patch(i) % Shape::row_patches * columns_together - Shape::patch_lead;
  }
  // Whether the thread has an i-th patch. The compiler knows the first comparison, which mostly decides.
  static TCONV_DEVICE bool present(int i) {
    constexpr int all = Shape::halo_patches * Shape::k_tile_vectors;
    return (i + 1) * Shape::threads <= all || number(i) < all;
  }
  static TCONV_DEVICE bool in_halo(int column) {
    constexpr bool whole = Shape::patch_lead == 0 && Shape::halo_columns % columns_together == 0;
    return whole || in_range(column, Shape::halo_columns);
  }

  TCONV_DEVICE MmaTransposedInputs(const Element* x, int group, int batch, int depths, int rows, int columns)
      : map(batch, depths, rows, columns), x(mma_first_input<Layer, Tile>(x, group, map.plane)) {}

  // Later loads are of this block tile.
  TCONV_DEVICE void begin(const BlockTilePosition& block_tile) {
    first = x + static_cast<long long>(block_tile.image) * map.channels * map.plane;
    const BlockTilePosition halo = halo_of<Shape>(block_tile);
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const auto place = map.place(halo, row(i), halo_column(i));
      if (present(i) && place.inside) inside |= 1u << i;
      const int channel = vector(i) * side;
      offsets[i] = Tile::channels_last
                       ? (place.image * map.plane + place.position) * map.channels + channel
                       : (place.image * static_cast<Index>(map.channels) + channel) * map.plane + place.position;
    }
  }

  // Asks for one of `parts` parts of a k-tile, if it is `wanted`.
  TCONV_DEVICE void load(int k_tile, bool wanted, int part, int parts, unsigned char*) {
    const long long channel_pitch = Tile::channels_last ? 1 : map.plane;
    const Element* const of_k_tile = first + k_tile * Shape::k_tile_channels * channel_pitch;
    const unsigned here = wanted ? inside : 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int channel = k_tile * Shape::k_tile_channels + vector(i) * side;
      const Element* from = of_k_tile + offsets[i];
#pragma unroll
      for (int k = 0; k < loads; ++k) {
        const int number = i * loads + k;
        if (number * parts / (Shape::thread_patches * loads) == part)
          load_present<load_bytes>(
              from, (here >> i & 1u) != 0 && (Shape::whole_k_tiles || channel + k < Layer::group_in_channels),
              values[i][k].values);
        from = kept(from + channel_pitch);
      }
    }
  }

  TCONV_DEVICE void wait() {}

  // Comes after the last part of a k-tile: stores the k-tile.
  TCONV_DEVICE void end_k_tile(bool wanted, unsigned char* stage) const {
    if (!wanted) return;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      if (!present(i)) continue;
#pragma unroll
      for (int c = 0; c < columns_together; ++c) {
        if (!in_halo(halo_column(i) + c)) continue;
        Element column[side];
#pragma unroll
        for (int k = 0; k < side; ++k) mma_unpack(values[i][vectors ? 0 : k], vectors ? k : c, column[k]);
        mma_put<Layer, Tile>(column, vector(i),
                             stage + (row(i) * Shape::halo_columns + halo_column(i) + c) * Shape::place_bytes);
      }
    }
  }
};

// A thread's part of inputs that are copied channel by channel: some patches of some channels, several k-tiles ahead.
// Warps round or transpose them when they load fragments. 16-bit inputs are copied only where no shift moves along the
// row, because eight aligned columns are transposed at once. Before sm_90, a wait for weights waits for all copies, so
// only the next k-tile is in flight.
template <class Layer, class Tile>
struct MmaCopiedInputs {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int lanes = Shape::patch_lanes, sharers = Shape::threads / lanes;
  static constexpr int patch_bytes = Tile::Pipeline::patch_columns * Shape::item_bytes;
  const InputMap<Layer, Shape> map;
  const Element* const x;                // of the block's group
  const Element* first;                  // of the block tile's first image
  unsigned inside;                       // by patch: whether it is one of the input
  Index offsets[Shape::thread_patches];  // of the patch in the thread's first channel of the first k-tile
  ThreadCopies<patch_bytes, Shape::thread_loads, Shape::input_stages> copies;

  TCONV_DEVICE MmaCopiedInputs(const Element* x, int group, int batch, int depths, int rows, int columns)
      : map(batch, depths, rows, columns), x(mma_first_input<Layer, Tile>(x, group, map.plane)) {}

  // Later copies are of this block tile.
  TCONV_DEVICE void begin(const BlockTilePosition& block_tile) {
    first = x + static_cast<long long>(block_tile.image) * map.channels * map.plane;
    const BlockTilePosition halo = halo_of<Shape>(block_tile);
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int patch = static_cast<int>(threadIdx.x) % lanes + i * lanes;
      const auto place = map.place(halo, patch / Shape::row_patches,
                                   patch % Shape::row_patches * Tile::Pipeline::patch_columns - Shape::patch_lead);
      if (place.inside) inside |= 1u << i;
      const int channel = static_cast<int>(threadIdx.x) / lanes;
      offsets[i] = (place.image * static_cast<Index>(map.channels) + channel) * map.plane + place.position;
    }
  }

  // Asks for one of `parts` parts of a k-tile, if it is `wanted`.
  TCONV_DEVICE void load(int k_tile, bool wanted, int part, int parts, unsigned char* stage) {
    if (!wanted) return;
    const int thread = static_cast<int>(threadIdx.x), first_patch = thread % lanes, first_channel = thread / lanes;
    const long long pitch = static_cast<long long>(sharers) * map.plane;
    const Element* const of_k_tile = first + k_tile * Shape::k_tile_channels * static_cast<long long>(map.plane);
    unsigned char* const own = stage + first_channel * Shape::channel_bytes + first_patch * patch_bytes;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const Element* from = of_k_tile + offsets[i];
#pragma unroll
      for (int k = 0; k < Shape::thread_channels; ++k) {
        const int number = i * Shape::thread_channels + k, channel = first_channel + k * sharers;
        const bool present =
            Shape::whole_k_tiles || k_tile * Shape::k_tile_channels + channel < Layer::group_in_channels;
        if (number * parts / Shape::thread_loads == part &&
            ((i + 1) * lanes <= Shape::halo_patches || first_patch + i * lanes < Shape::halo_patches) &&
            ((k + 1) * sharers <= Shape::k_tile_channels || channel < Shape::k_tile_channels))
          copies.begin(own + i * lanes * patch_bytes + k * sharers * Shape::channel_bytes, from,
                       (inside >> i & 1u) != 0 && present);
        from = kept(from + pitch);
      }
    }
  }

  // Comes after the last part of a k-tile.
  TCONV_DEVICE void end_k_tile(bool, unsigned char*) { copies.end_group(); }
  // Waits until the thread's copies of the oldest k-tile in flight have landed.
  TCONV_DEVICE void wait() { copies.template wait<Shape::stages_ahead - 1>(); }
};

template <class Layer, class Tile>
using MmaInputs = typename Choice<MmaShape<Layer, Tile>::by_channel, MmaCopiedInputs<Layer, Tile>,
                                  MmaTransposedInputs<Layer, Tile>>::type;

}  // namespace tconv
