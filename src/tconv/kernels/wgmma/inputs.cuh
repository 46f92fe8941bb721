// wgmma: a box's inputs on their way from memory to shared memory. `wgmma.cuh` has the picture.
//
// Most kinds have the same functions: `begin` with a halo, then `bring` for each chunk of channels, by all threads that
// bring inputs, each by its number among them. It arrives at the barrier when the thread's part has landed. What is
// turned in shared memory comes there some chunks ahead: those kinds `begin` and `copy` for the one that is asked for,
// and `enter_turned` and `turn` for the one whose chunks have come.
#pragma once
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/boxes.cuh"

namespace tconv {

// The input, and the halo that a block has of it.
template <class Layer, class Tile>
struct WgmmaInputMap : InputMap<Layer, WgmmaShape<Layer, Tile>> {
  using Base = InputMap<Layer, WgmmaShape<Layer, Tile>>;
  const typename Layer::Element* const x;
  BoxPosition halo;

  TCONV_DEVICE WgmmaInputMap(const typename Layer::Element* x, int batch, int depths, int rows, int columns)
      : Base(batch, depths, rows, columns), x(x) {}

  TCONV_DEVICE const typename Layer::Element* first_of(const BoxPosition& halo, int group) const {
    return x + static_cast<long long>(halo.image) * Base::channels * this->plane +
           static_cast<long long>(group) * Layer::group_in_channels *
               (WgmmaShape<Layer, Tile>::inputs_last ? 1 : this->plane);
  }
  TCONV_DEVICE void enter(const BoxPosition& of_box, int group) {
    halo = of_box;
    this->first = first_of(halo, group);
  }
  TCONV_DEVICE typename Base::Place place(int halo_row, int halo_column) const {
    return Base::place(halo, halo_row, halo_column);
  }
};

// Copies channel by channel, as they lie in memory, in patches of some neighbouring columns.
template <class Layer, class Tile, class Copies>
struct WgmmaChannelCopies : WgmmaInputMap<Layer, Tile> {
  using Map = WgmmaInputMap<Layer, Tile>;
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int lanes = Shape::patch_lanes, sharers = Shape::loaders / lanes;
  static constexpr int turns = ceil_div(Shape::chunk_channels, sharers);
  const int number;
  unsigned inside;                       // by patch: whether it is one of the input
  Index offsets[Shape::thread_patches];  // of the patch in the thread's first channel of the first chunk
  Copies copies;

  TCONV_DEVICE WgmmaChannelCopies(int number, const Element* x, int batch, int depths, int rows, int columns)
      : Map(x, batch, depths, rows, columns), number(number) {}
  TCONV_DEVICE int patch_number() const { return number % lanes; }
  TCONV_DEVICE int channel_number() const { return number / lanes; }

  TCONV_DEVICE void begin(const BoxPosition& halo, int group) {
    this->enter(halo, group);
    inside = 0;
    // Boxes begin at multiples of patches.
    const int lead = (halo.column % Tile::patch_columns + Tile::patch_columns) % Tile::patch_columns;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int patch = patch_number() + i * lanes;
      const auto place =
          this->place(patch / Shape::row_patches, patch % Shape::row_patches * Tile::patch_columns - lead);
      if (patch < Shape::halo_patches && place.inside) inside |= 1u << i;
      offsets[i] = (place.image * static_cast<Index>(Map::channels) + channel_number()) * this->plane + place.position;
    }
  }

  TCONV_DEVICE void copy(int chunk, unsigned char* stage) {
    const long long pitch = static_cast<long long>(sharers) * this->plane;
    const Element* from = this->first + chunk * Shape::chunk_channels * static_cast<long long>(this->plane);
    unsigned char* to = stage + channel_number() * Shape::channel_bytes + patch_number() * Shape::patch_bytes;
    // A copy reads the registers of its addresses late: each of some has registers of its own.
#pragma unroll(Shape::thread_patches < 4 ? 4 / Shape::thread_patches : 1)
    for (int turn = 0; turn < turns; ++turn) {
      const int channel = channel_number() + turn * sharers;
      if (Shape::chunk_channels % sharers != 0 && channel >= Shape::chunk_channels) break;
      const bool present = Shape::whole_chunks || chunk * Shape::chunk_channels + channel < Layer::group_in_channels;
#pragma unroll
      for (int i = 0; i < Shape::thread_patches; ++i)
        if ((i + 1) * lanes <= Shape::halo_patches || patch_number() + i * lanes < Shape::halo_patches)
          copies.begin(to + turn * sharers * Shape::channel_bytes + i * lanes * Shape::patch_bytes, from + offsets[i],
                       present && (inside >> i & 1u) != 0);
      from += pitch;
    }
  }
};

// Inputs that stay channel by channel.
template <class Layer, class Tile>
struct WgmmaCopiedChannels : WgmmaChannelCopies<Layer, Tile, ArrivingCopies<WgmmaShape<Layer, Tile>::patch_bytes>> {
  using Base = WgmmaChannelCopies<Layer, Tile, ArrivingCopies<WgmmaShape<Layer, Tile>::patch_bytes>>;
  TCONV_DEVICE WgmmaCopiedChannels(int number, const typename Layer::Element* x, int batch, int depths, int rows,
                                   int columns, unsigned char*)
      : Base(number, x, batch, depths, rows, columns) {}

  TCONV_DEVICE void bring(int chunk, unsigned char* stage, void* barrier) {
    this->copy(chunk, stage);
    this->copies.arrive(barrier);
  }
};

// The channels of a place together, from channels_last inputs: vectors of them are copied. Neighbouring lanes copy
// neighbouring vectors; where the places of a warp lie it keeps in a part of `offsets` of its own, -1 outside the
// input.
template <class Layer, class Tile>
struct WgmmaCopiedPlaces : WgmmaInputMap<Layer, Tile> {
  using Map = WgmmaInputMap<Layer, Tile>;
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int vectors = Shape::chunk_vectors, of_warp = 32 / vectors, together = Shape::loaders / vectors;
  static constexpr int places = Shape::halo_all_rows * Shape::halo_columns;
  static constexpr int at_once = 4;  // places whose offsets are on their way
  const int lane, first_place;       // of the warp
  long long* const offsets;
  ArrivingCopies<16> copies;

  TCONV_DEVICE WgmmaCopiedPlaces(int number, const Element* x, int batch, int depths, int rows, int columns,
                                 unsigned char* offsets)
      : Map(x, batch, depths, rows, columns),
        lane(number % 32),
        first_place(number / 32 * of_warp),
        offsets(reinterpret_cast<long long*>(offsets)) {}

  TCONV_DEVICE void begin(const BoxPosition& halo, int group) {
    this->enter(halo, group);
    __syncwarp();  // nobody reads the box before any more
    for (int i = lane; i < ceil_div(places, together) * of_warp; i += 32) {
      const int number = i / of_warp * together + first_place + i % of_warp;
      if (number >= places) continue;
      const auto place = this->place(number / Shape::halo_columns, number % Shape::halo_columns);
      offsets[number] =
          place.inside ? static_cast<long long>(place.image * this->plane + place.position) * Map::channels : -1;
    }
    __syncwarp();
  }

  TCONV_DEVICE void bring(int chunk, unsigned char* stage, void* barrier) {
    const int vector = lane % vectors, channel = chunk * Shape::chunk_channels + vector * Shape::vector_items;
    const bool present = Shape::whole_chunks || channel < Layer::group_in_channels;
    const Element* const from = this->first + channel;
    const int own = first_place + lane / vectors;
    unsigned char* to = stage + own * Shape::place_bytes + vector * 16;
#pragma unroll 1
    for (int number = own; number < places; number += at_once * together) {
      long long found[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) found[i] = number + i * together < places ? offsets[number + i * together] : -1;
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (number + i * together < places)
          copies.begin(to + i * together * Shape::place_bytes, from + (found[i] < 0 ? 0 : found[i]),
                       present && found[i] >= 0);
      to += at_once * together * Shape::place_bytes;
    }
    copies.arrive(barrier);
  }
};

// The channels of a place together, from channels_last inputs that are no whole vectors: by way of registers, one by
// one.
template <class Layer, class Tile>
struct WgmmaSingleChannels : WgmmaInputMap<Layer, Tile> {
  using Map = WgmmaInputMap<Layer, Tile>;
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int side = Shape::vector_items, vectors = Shape::chunk_vectors, items = 4 / Shape::item_bytes;
  static constexpr int units = Shape::halo_all_rows * Shape::halo_columns * vectors;
  static constexpr int together = 2;  // vectors whose loads are on their way at once
  const int number;

  TCONV_DEVICE WgmmaSingleChannels(int number, const Element* x, int batch, int depths, int rows, int columns,
                                   unsigned char*)
      : Map(x, batch, depths, rows, columns), number(number) {}

  TCONV_DEVICE void begin(const BoxPosition& halo, int group) { this->enter(halo, group); }

  TCONV_DEVICE void bring(int chunk, unsigned char* stage, void* barrier) {
#pragma unroll 1
    for (int unit = number; unit < units; unit += together * Shape::loaders) {
      unsigned values[together][side][1];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int own = unit + i * Shape::loaders, place_number = own / vectors;
        const auto place = this->place(place_number / Shape::halo_columns, place_number % Shape::halo_columns);
        const int channel = chunk * Shape::chunk_channels + own % vectors * side;
        const Element* const from =
            this->first + (place.image * this->plane + place.position) * Map::channels + channel;
#pragma unroll
        for (int k = 0; k < side; ++k)
          load_present<Shape::item_bytes>(
              from + k, own < units && place.inside && (Shape::whole_chunks || channel + k < Layer::group_in_channels),
              values[i][k]);
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int own = unit + i * Shape::loaders;
        if (own >= units) break;
        Vector<unsigned, 4> vector;
#pragma unroll
        for (int w = 0; w < 4; ++w)
          vector.values[w] =
              items == 1 ? values[i][w][0] : values[i][2 * w % side][0] | values[i][(2 * w + 1) % side][0] << 16;
        *reinterpret_cast<Vector<unsigned, 4>*>(stage + own / vectors * Shape::place_bytes + own % vectors * 16) =
            vector;
      }
    }
    arrive(barrier);
  }
};

// What a thread copies raw.
template <class Shape, class Tile>
using WgmmaRawCopies = ThreadCopies<Shape::patch_bytes, Shape::thread_copies, Tile::raw_stages + 1>;

// 16-bit inputs that lie channel by channel: copied so, and turned in shared memory.
template <class Layer, class Tile>
struct WgmmaTurnedChannels : WgmmaChannelCopies<Layer, Tile, WgmmaRawCopies<WgmmaShape<Layer, Tile>, Tile>> {
  using Base = WgmmaChannelCopies<Layer, Tile, WgmmaRawCopies<WgmmaShape<Layer, Tile>, Tile>>;
  using Shape = WgmmaShape<Layer, Tile>;
  static constexpr int eights = Shape::row_patches * Tile::patch_columns / 8, vectors = Shape::chunk_vectors;

  TCONV_DEVICE WgmmaTurnedChannels(int number, const typename Layer::Element* x, int batch, int depths, int rows,
                                   int columns)
      : Base(number, x, batch, depths, rows, columns) {}

  TCONV_DEVICE void enter_turned(const BoxPosition&, int) {}

  // Turns a chunk. A warp takes eight columns of 32 channels as an item: a lane gets of each eight channels those two
  // of a column that lie together afterwards. Some items' loads are on their way at once.
  TCONV_DEVICE void turn(int, const unsigned char* raw, unsigned char* stage) const {
    constexpr int warps = Shape::loaders / 32, items = Shape::halo_all_rows * eights * (vectors / 4), together = 3;
    const int thread = renewed(this->number), lane = thread % 32;  // not kept where copies are begun
    const unsigned char* const from = raw + lane * Shape::channel_bytes;
    unsigned char* const to = stage + lane % 8 * Shape::place_bytes + lane / 8 * 16;
#pragma unroll 1
    for (int first = thread / 32; first < items; first += together * warps) {
      unsigned words[together][4];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int item = first + i * warps, of_vectors = item % (vectors / 4), eight = item / (vectors / 4);
        if (item < items) load_turned_matrices(from + of_vectors * 32 * Shape::channel_bytes + eight * 16, words[i]);
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int item = first + i * warps, of_vectors = item % (vectors / 4), eight = item / (vectors / 4);
        if (item < items) store_matrices(to + eight * 8 * Shape::place_bytes + of_vectors * 64, words[i]);
      }
    }
  }
};

// The same of rows that begin anywhere. Where a row's first column lies in its first patch follows from its address.
template <class Layer, class Tile>
struct WgmmaUnalignedRows : WgmmaInputMap<Layer, Tile> {
  using Map = WgmmaInputMap<Layer, Tile>;
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  using Address = unsigned long long;
  static constexpr int lanes = Shape::patch_lanes, sharers = Shape::loaders / lanes, vectors = Shape::chunk_vectors;
  static constexpr int places = Shape::halo_all_rows * Shape::halo_columns;
  const int number, patch_number, channel_number;
  unsigned inside;                       // by patch: whether its row is one of the input
  Index offsets[Shape::thread_patches];  // of its row, from the halo's first column on, in the thread's first channel
  BoxPosition turned_halo;
  const Element* turned_first;
  WgmmaRawCopies<Shape, Tile> copies;

  TCONV_DEVICE WgmmaUnalignedRows(int number, const Element* x, int batch, int depths, int rows, int columns)
      : Map(x, batch, depths, rows, columns),
        number(number),
        patch_number(number % lanes),
        channel_number(number / lanes) {}

  TCONV_DEVICE void begin(const BoxPosition& halo, int group) {
    this->enter(halo, group);
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int patch = patch_number + i * lanes;
      const auto place = this->place(patch / Shape::row_patches, 0);
      if (patch < Shape::halo_patches && place.row_inside) inside |= 1u << i;
      offsets[i] = (place.image * static_cast<Index>(Map::channels) + channel_number) * this->plane + place.position;
    }
  }

  // No byte outside the input is read: not before it, where its first row's halo begins, and not behind it.
  TCONV_DEVICE void copy(int chunk, unsigned char* raw) {
    const Address begin = reinterpret_cast<Address>(this->x);
    const Address end = begin + static_cast<Address>(this->batch) * Map::channels * this->plane * Shape::item_bytes;
    const long long pitch = static_cast<long long>(sharers) * this->plane;
    const Element* from = this->first + chunk * Shape::chunk_channels * static_cast<long long>(this->plane);
    unsigned char* to = raw + channel_number * Shape::channel_bytes + patch_number * 16;
#pragma unroll 1
    for (int channel = channel_number; channel < Shape::chunk_channels; channel += sharers) {
      const bool present = Shape::whole_chunks || chunk * Shape::chunk_channels + channel < Layer::group_in_channels;
#pragma unroll
      for (int i = 0; i < Shape::thread_patches; ++i) {
        const int patch = patch_number + i * lanes;
        if ((i + 1) * lanes > Shape::halo_patches && patch >= Shape::halo_patches) break;
        const Address row = reinterpret_cast<Address>(from) + static_cast<long long>(offsets[i]) * Shape::item_bytes;
        const Address at = (row & ~15ull) + patch % Shape::row_patches * 16;
        const bool wanted = present && (inside >> i & 1u) != 0 && at >= begin && at < end;
        const int bytes = end - at < 16 ? static_cast<int>(end - at) : 16;
        copies.begin_part(to + i * lanes * 16, reinterpret_cast<const void*>(at), wanted ? bytes : 0);
      }
      from += pitch;
      to += sharers * Shape::channel_bytes;
    }
  }

  TCONV_DEVICE void enter_turned(const BoxPosition& halo, int group) {
    turned_halo = halo;
    turned_first = this->first_of(halo, group);
  }

  // Turns a chunk: eight channels of a place at once.
  TCONV_DEVICE void turn(int chunk, const unsigned char* raw, unsigned char* stage) const {
    const unsigned plane = static_cast<unsigned>(this->plane);
    // Of eight columns at a multiple of 16 bytes, which one is the first of the chunk's: modulo eight.
    const unsigned first = static_cast<unsigned>(reinterpret_cast<Address>(turned_first) / Shape::item_bytes) +
                           static_cast<unsigned>(chunk * Shape::chunk_channels) * plane;
#pragma unroll 1
    for (int unit = number; unit < places * vectors; unit += Shape::loaders) {
      const int place_number = unit % places, vector = unit / places;
      const int row = place_number / Shape::halo_columns, column = place_number % Shape::halo_columns;
      const auto place = Map::Base::place(turned_halo, row, column);
      const unsigned of_row =
          first + static_cast<unsigned>(place.image * Map::channels + vector * Shape::vector_items) * plane +
          static_cast<unsigned>(place.position) - static_cast<unsigned>(column);
      const unsigned char* const from = raw + vector * Shape::vector_items * Shape::channel_bytes +
                                        row * Shape::row_patches * 16 + column * Shape::item_bytes;
      Vector<unsigned, 4> together{};
#pragma unroll
      for (int k = 0; k < Shape::vector_items; ++k) {
        const unsigned item = *reinterpret_cast<const unsigned short*>(from + k * Shape::channel_bytes +
                                                                       (of_row + k * plane & 7u) * Shape::item_bytes);
        if (place.inside) together.values[k * Shape::item_bytes / 4] |= item << k % 2 * 16;
      }
      *reinterpret_cast<Vector<unsigned, 4>*>(stage + place_number * Shape::place_bytes + vector * 16) = together;
    }
  }
};

// Brings all inputs of a block's work, into stages that go round.
template <class Layer, class Tile>
struct WgmmaInputs {
  using Shape = WgmmaShape<Layer, Tile>;
  using Inputs = typename Choice<
      Shape::by_channel, WgmmaCopiedChannels<Layer, Tile>,
      typename Choice<Shape::by_place, WgmmaCopiedPlaces<Layer, Tile>, WgmmaSingleChannels<Layer, Tile>>::type>::type;

  static TCONV_DEVICE void run(WgmmaWork<Layer, Tile> work, int number, unsigned char* shared, unsigned char* barriers,
                               const typename Layer::Element* x, int batch, int depths, int rows, int columns) {
    Inputs inputs(number, x, batch, depths, rows, columns, shared + Shape::offsets_at);
    WgmmaStages<Tile::input_stages> stages(barriers);
    for (; work.is_left(); work.next()) {
      inputs.begin(work.halo(), work.group());
#pragma unroll 1
      for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
        stages.wait_empty();
        inputs.bring(chunk, shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes, stages.full());
        stages.next();
      }
    }
  }
};

// The same of inputs that are turned: copies of them go on while the oldest is turned.
template <class Layer, class Tile>
struct WgmmaTurnedInputs {
  using Shape = WgmmaShape<Layer, Tile>;
  using Inputs =
      typename Choice<Shape::unaligned, WgmmaUnalignedRows<Layer, Tile>, WgmmaTurnedChannels<Layer, Tile>>::type;

  static TCONV_DEVICE void run(WgmmaWork<Layer, Tile> work, int number, unsigned char* shared, unsigned char* barriers,
                               const typename Layer::Element* x, int batch, int depths, int rows, int columns) {
    Inputs inputs(number, x, batch, depths, rows, columns);
    WgmmaStages<Tile::input_stages> stages(barriers);
    WgmmaWork<Layer, Tile> ahead = work;  // what is copied next
    int chunk_ahead = 0, raw_ahead = 0, raw = 0;
    const auto copy = [&] {
      if (ahead.is_left()) {
        if (chunk_ahead == 0) inputs.begin(ahead.halo(), ahead.group());
        inputs.copy(chunk_ahead, shared + Shape::raw_at + raw_ahead * Shape::raw_stage_bytes);
        if (++chunk_ahead == Shape::chunks) {
          chunk_ahead = 0;
          ahead.next();
        }
        raw_ahead = raw_ahead + 1 == Tile::raw_stages ? 0 : raw_ahead + 1;
      }
      inputs.copies.end_group();
    };
#pragma unroll 1
    for (int i = 0; i < Tile::raw_stages; ++i) copy();
    for (; work.is_left(); work.next()) {
      inputs.enter_turned(work.halo(), work.group());
#pragma unroll 1
      for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
        inputs.copies.template wait<Tile::raw_stages - 1>();
        meet<Shape::loaders>(3);  // all threads' copies have landed
        stages.wait_empty();
        inputs.turn(chunk, shared + Shape::raw_at + raw * Shape::raw_stage_bytes,
                    shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes);
        arrive(stages.full());
        stages.next();
        raw = raw + 1 == Tile::raw_stages ? 0 : raw + 1;
        meet<Shape::loaders>(3);  // nobody reads what was turned any more
        copy();
      }
    }
  }
};

template <class Layer, class Tile>
using WgmmaProducer =
    typename Choice<WgmmaShape<Layer, Tile>::turned, WgmmaTurnedInputs<Layer, Tile>, WgmmaInputs<Layer, Tile>>::type;

}  // namespace tconv
