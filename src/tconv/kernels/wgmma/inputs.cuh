// wgmma: a box's inputs on their way from memory to shared memory. `wgmma.cuh` has the picture.
//
// Most kinds have the same functions: `begin` with a box, then `bring` for each chunk of channels, by all threads that
// bring inputs, each by its number among them. It arrives at the barrier when the thread's part has landed. What is
// turned in shared memory comes there first.
#pragma once
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/boxes.cuh"

namespace tconv {

// The input, and the box of it that a block has.
template <class Layer, class Tile>
struct WgmmaInputMap : InputMap<Layer, WgmmaShape<Layer, Tile>> {
  using Base = InputMap<Layer, WgmmaShape<Layer, Tile>>;
  const typename Layer::Element* const x;
  BoxPosition box;

  TCONV_DEVICE WgmmaInputMap(const typename Layer::Element* x, int batch, int depths, int rows, int columns)
      : Base(batch, depths, rows, columns), x(x) {}

  TCONV_DEVICE void enter(const BoxPosition& of_box, int group) {
    box = of_box;
    this->first = x + static_cast<long long>(box.image) * Base::channels * this->plane +
                  static_cast<long long>(group) * Layer::group_in_channels * (Tile::channels_last ? 1 : this->plane);
  }
  TCONV_DEVICE typename Base::Place place(int halo_row, int halo_column) const {
    return Base::place(box, halo_row, halo_column);
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
  const int patch_number, channel_number;
  unsigned inside;                       // by patch: whether it is one of the input
  Index offsets[Shape::thread_patches];  // of the patch in the thread's first channel of the first chunk
  Copies copies;

  TCONV_DEVICE WgmmaChannelCopies(int number, const Element* x, int batch, int depths, int rows, int columns)
      : Map(x, batch, depths, rows, columns), patch_number(number % lanes), channel_number(number / lanes) {}

  TCONV_DEVICE void begin(const BoxPosition& box, int group) {
    this->enter(box, group);
    inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int patch = patch_number + i * lanes;
      const auto place =
          this->place(patch / Shape::row_patches, patch % Shape::row_patches * Tile::patch_columns - Shape::patch_lead);
      if (patch < Shape::halo_patches && place.inside) inside |= 1u << i;
      offsets[i] = (place.image * static_cast<Index>(Map::channels) + channel_number) * this->plane + place.position;
    }
  }

  TCONV_DEVICE void copy(int chunk, unsigned char* stage) {
    const long long pitch = static_cast<long long>(sharers) * this->plane;
    const Element* from = this->first + chunk * Shape::chunk_channels * static_cast<long long>(this->plane);
    unsigned char* to = stage + channel_number * Shape::channel_bytes + patch_number * Shape::patch_bytes;
#pragma unroll 1
    for (int channel = channel_number; channel < Shape::chunk_channels; channel += sharers) {
      const bool present = Shape::whole_chunks || chunk * Shape::chunk_channels + channel < Layer::group_in_channels;
#pragma unroll
      for (int i = 0; i < Shape::thread_patches; ++i)
        if ((i + 1) * lanes <= Shape::halo_patches || patch_number + i * lanes < Shape::halo_patches)
          copies.begin(to + i * lanes * Shape::patch_bytes, from + offsets[i], present && (inside >> i & 1u) != 0);
      from += pitch;
      to += sharers * Shape::channel_bytes;
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
  const int lane, first_place;  // of the warp
  long long* const offsets;
  ArrivingCopies<16> copies;

  TCONV_DEVICE WgmmaCopiedPlaces(int number, const Element* x, int batch, int depths, int rows, int columns,
                                 unsigned char* offsets)
      : Map(x, batch, depths, rows, columns),
        lane(number % 32),
        first_place(number / 32 * of_warp),
        offsets(reinterpret_cast<long long*>(offsets)) {}

  TCONV_DEVICE void begin(const BoxPosition& box, int group) {
    this->enter(box, group);
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
#pragma unroll 4
    for (int number = own; number < places; number += together) {
      const long long offset = offsets[number];
      copies.begin(to, from + (offset < 0 ? 0 : offset), present && offset >= 0);
      to += together * Shape::place_bytes;
    }
    copies.arrive(barrier);
  }
};

// The channels of a place together, by way of registers: 16-bit inputs whose rows begin anywhere are turned, and
// channels_last ones come one by one where they are no whole vectors. A patch is some neighbouring columns of a vector
// of channels; a load brings those of one channel.
template <class Layer, class Tile>
struct WgmmaTurnedInputs : WgmmaInputMap<Layer, Tile> {
  using Map = WgmmaInputMap<Layer, Tile>;
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  static constexpr int side = Shape::vector_items, columns_together = Tile::patch_columns;
  static constexpr int load_bytes = columns_together * Shape::item_bytes, words = load_bytes < 4 ? 1 : load_bytes / 4;
  static constexpr int together = columns_together > 4 ? 1 : 2;  // patches whose loads are on their way at once
  static constexpr int units = Shape::halo_patches * Shape::chunk_vectors;
  const int number;

  TCONV_DEVICE WgmmaTurnedInputs(int number, const Element* x, int batch, int depths, int rows, int columns,
                                 unsigned char*)
      : Map(x, batch, depths, rows, columns), number(number) {}

  TCONV_DEVICE void begin(const BoxPosition& box, int group) { this->enter(box, group); }

  // Neighbouring threads load what lies together in memory. Where they have several columns each, eight beside each
  // other have other channels, which they store in other banks.
  static constexpr int vectors_first = Tile::channels_last || columns_together > 1 ? Shape::chunk_vectors : 1;
  static TCONV_DEVICE int vector(int unit) {
    return unit / (vectors_first * Shape::halo_patches) * vectors_first + unit % vectors_first;
  }
  static TCONV_DEVICE int patch(int unit) { return unit / vectors_first % Shape::halo_patches; }
  // In the halo's row; negative where the first patch begins before it.
  static TCONV_DEVICE int halo_column(int unit) {
    return patch(unit) % Shape::row_patches * columns_together - Shape::patch_lead;
  }

  TCONV_DEVICE void bring(int chunk, unsigned char* stage, void* barrier) {
    const long long pitch = Tile::channels_last ? 1 : this->plane;
    const int first_channel = chunk * Shape::chunk_channels;
#pragma unroll 1
    for (int unit = number; unit < units; unit += together * Shape::loaders) {
      Vector<unsigned, words> values[together][side];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int own = unit + i * Shape::loaders;
        const auto place = this->place(patch(own) / Shape::row_patches, halo_column(own));
        const int channel = first_channel + vector(own) * side;
        const Index offset =
            Tile::channels_last
                ? (place.image * this->plane + place.position) * Map::channels + channel
                : (place.image * static_cast<Index>(Map::channels) + channel) * this->plane + place.position;
        const Element* from = this->first + offset;
#pragma unroll
        for (int k = 0; k < side; ++k) {
          load_present<load_bytes>(
              from, own < units && place.inside && (Shape::whole_chunks || channel + k < Layer::group_in_channels),
              values[i][k].values);
          from += pitch;
        }
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int own = unit + i * Shape::loaders;
        if (own >= units) break;
#pragma unroll
        for (int c = 0; c < columns_together; ++c) {
          if (!in_range(halo_column(own) + c, Shape::halo_columns)) continue;
          Vector<unsigned, 4> together_at;
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            if (Shape::item_bytes == 4) {
              together_at.values[w] = values[i][w].values[c];
            } else {
              const unsigned low = values[i][2 * w].values[c / 2] >> c % 2 * 16;
              const unsigned high = values[i][2 * w + 1].values[c / 2] >> c % 2 * 16;
              together_at.values[w] = (low & 0xffffu) | high << 16;
            }
          }
          *reinterpret_cast<Vector<unsigned, 4>*>(
              stage +
              (patch(own) / Shape::row_patches * Shape::halo_columns + halo_column(own) + c) * Shape::place_bytes +
              vector(own) * 16) = together_at;
        }
      }
    }
    arrive(barrier);
  }
};

template <class Shape, class Tile>
using WgmmaRawCopies = ThreadCopies<Shape::patch_bytes, Shape::thread_copies, Tile::raw_stages + 1>;
// 16-bit inputs that lie channel by channel: copied so, and turned where they are in shared memory. Chunks are copied
// some ahead.
template <class Layer, class Tile>
struct WgmmaTurnedChannels : WgmmaChannelCopies<Layer, Tile, WgmmaRawCopies<WgmmaShape<Layer, Tile>, Tile>> {
  using Base = WgmmaChannelCopies<Layer, Tile, WgmmaRawCopies<WgmmaShape<Layer, Tile>, Tile>>;
  using Shape = WgmmaShape<Layer, Tile>;
  static constexpr int eights = Shape::row_patches * Tile::patch_columns / 8, vectors = Shape::chunk_vectors;
  const int number;

  TCONV_DEVICE WgmmaTurnedChannels(int number, const typename Layer::Element* x, int batch, int depths, int rows,
                                   int columns)
      : Base(number, x, batch, depths, rows, columns), number(number) {}

  // Turns a chunk. A warp takes eight columns of 32 channels as an item: a lane gets of each eight channels those two
  // of a column that lie together afterwards. Some items' loads are on their way at once.
  TCONV_DEVICE void turn(const unsigned char* raw, unsigned char* stage) const {
    constexpr int warps = Shape::loaders / 32, items = Shape::halo_all_rows * eights * (vectors / 4), together = 2;
    const int lane = number % 32;
    const unsigned char* const from = raw + lane * Shape::channel_bytes;
#pragma unroll 1
    for (int first = number / 32; first < items; first += together * warps) {
      unsigned words[together][4];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int item = first + i * warps, of_vectors = item % (vectors / 4), eight = item / (vectors / 4);
        if (item < items) load_turned_matrices(from + of_vectors * 32 * Shape::channel_bytes + eight * 16, words[i]);
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int item = first + i * warps, of_vectors = item % (vectors / 4), eight = item / (vectors / 4);
        const int column = eight % eights * 8 - Shape::patch_lead + lane / 4;
        if (item >= items || !in_range(column, Shape::halo_columns)) continue;
        unsigned char* const to = stage + (eight / eights * Shape::halo_columns + column) * Shape::place_bytes +
                                  of_vectors * 64 + lane % 4 * 4;
#pragma unroll
        for (int v = 0; v < 4; ++v) *reinterpret_cast<unsigned*>(to + v * 16) = words[i][v];
      }
    }
  }
};

template <class Layer, class Tile, bool ByChannel, bool ByPlace>
struct WgmmaInputsOf {
  using type = WgmmaTurnedInputs<Layer, Tile>;
};
template <class Layer, class Tile>
struct WgmmaInputsOf<Layer, Tile, true, false> {
  using type = WgmmaCopiedChannels<Layer, Tile>;
};
template <class Layer, class Tile>
struct WgmmaInputsOf<Layer, Tile, false, true> {
  using type = WgmmaCopiedPlaces<Layer, Tile>;
};

// Brings all inputs of a block's work, into stages that go round.
template <class Layer, class Tile, bool Turned>
struct WgmmaProducer {
  using Shape = WgmmaShape<Layer, Tile>;
  using Inputs = typename WgmmaInputsOf<Layer, Tile, Shape::by_channel, Shape::by_place>::type;

  static TCONV_DEVICE void run(WgmmaWork<Layer, Tile> work, int number, unsigned char* shared, unsigned char* barriers,
                               const typename Layer::Element* x, int batch, int depths, int rows, int columns) {
    Inputs inputs(number, x, batch, depths, rows, columns, shared + Shape::offsets_at);
    WgmmaStages<Tile::input_stages> stages(barriers);
    for (; work.is_left(); work.next()) {
      inputs.begin(work.box(), work.group());
#pragma unroll 1
      for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
        stages.wait_empty();
        inputs.bring(chunk, shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes, stages.full());
        stages.next();
      }
    }
  }
};
template <class Layer, class Tile>
struct WgmmaProducer<Layer, Tile, true> {
  using Shape = WgmmaShape<Layer, Tile>;

  static TCONV_DEVICE void run(WgmmaWork<Layer, Tile> work, int number, unsigned char* shared, unsigned char* barriers,
                               const typename Layer::Element* x, int batch, int depths, int rows, int columns) {
    WgmmaTurnedChannels<Layer, Tile> inputs(number, x, batch, depths, rows, columns);
    WgmmaStages<Tile::input_stages> stages(barriers);
    WgmmaWork<Layer, Tile> ahead = work;  // what is copied next
    int chunk_ahead = 0, raw_ahead = 0, raw = 0;
    const auto copy = [&] {
      if (ahead.is_left()) {
        if (chunk_ahead == 0) inputs.begin(ahead.box(), ahead.group());
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
    for (; work.is_left(); work.next())
#pragma unroll 1
      for (int chunk = 0; chunk < Shape::chunks; ++chunk) {
        inputs.copies.template wait<Tile::raw_stages - 1>();
        meet<Shape::loaders>(3);  // all threads' copies have landed
        stages.wait_empty();
        inputs.turn(shared + Shape::raw_at + raw * Shape::raw_stage_bytes,
                    shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes);
        arrive(stages.full());
        stages.next();
        raw = raw + 1 == Tile::raw_stages ? 0 : raw + 1;
        meet<Shape::loaders>(3);  // nobody reads what was turned any more
        copy();
      }
  }
};

}  // namespace tconv
