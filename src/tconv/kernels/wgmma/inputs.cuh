// wgmma: the warps that load inputs, a block tile with the halo around it, from global to shared memory. `wgmma.cuh`
// has the picture.
//
// A kernel uses one of the functions `wgmma_load_...`. Each thread of these warps runs it; `thread` is its number among
// them. It goes through all block tiles of the block, and through the k-tiles of each. For each k-tile it waits until
// the consumers have given the stage back (the barrier "empty"), fills its part of the stage, and arrives at the
// barrier "full" when its part has landed. Places outside the input become zeros.
#pragma once
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/block_tiles.cuh"

namespace tconv {

// The first input of a group in an image.
template <class Layer, class Tile>
TCONV_DEVICE const typename Layer::Element* wgmma_first_input(const typename Layer::Element* x, int image, int group,
                                                              typename Layer::Index plane) {
  constexpr int channels = Layer::groups * Layer::group_in_channels;
  const typename Layer::Element* const of_image = x + static_cast<long long>(image) * channels * plane;
  if (Layer::groups == 1) return of_image;
  const long long channel = static_cast<long long>(group) * Layer::group_in_channels;
  return of_image + channel * (WgmmaShape<Layer, Tile>::inputs_last ? 1 : plane);
}

// Inputs that are copied channel by channel, as they lie in global memory: a thread copies some patches of neighbouring
// columns, each in some channels of a k-tile.
//
// Finds the thread's patches of a halo: `offsets` from the first input, in the thread's first channel of the first
// k-tile, and in `inside` a bit for each patch that is in the input.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_find_patches(const InputMap<Layer, WgmmaShape<Layer, Tile>>& map, const BlockTilePosition& halo,
                                     int thread, unsigned& inside,
                                     typename Layer::Index (&offsets)[WgmmaShape<Layer, Tile>::thread_patches]) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int lanes = Shape::patch_lanes, channels = Layer::groups * Layer::group_in_channels;
  inside = 0;
  // Block tiles begin at multiples of a patch, halos anywhere: a row's first patch begins `lead` columns before the
  // halo.
  const int lead = (halo.column % Tile::patch_columns + Tile::patch_columns) % Tile::patch_columns;
#pragma unroll
  for (int i = 0; i < Shape::thread_patches; ++i) {
    const int patch = thread % lanes + i * lanes;
    const auto place =
        map.place(halo, patch / Shape::row_patches, patch % Shape::row_patches * Tile::patch_columns - lead);
    if (patch < Shape::halo_patches && place.inside) inside |= 1u << i;
    offsets[i] =
        (place.image * static_cast<typename Layer::Index>(channels) + thread / lanes) * map.plane + place.position;
  }
}

// Copies the thread's patches of one k-tile to `to`, where they lie channel by channel.
template <class Layer, class Tile, class Copies>
TCONV_DEVICE void wgmma_copy_patches(Copies& copies, int thread, int k_tile, const typename Layer::Element* first,
                                     typename Layer::Index plane, unsigned inside,
                                     const typename Layer::Index (&offsets)[WgmmaShape<Layer, Tile>::thread_patches],
                                     unsigned char* to) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int lanes = Shape::patch_lanes, sharers = Shape::loaders / lanes;
  const long long pitch = static_cast<long long>(sharers) * plane;
  const typename Layer::Element* from = first + k_tile * Shape::k_tile_channels * static_cast<long long>(plane);
  to += thread / lanes * Shape::channel_bytes + thread % lanes * Shape::patch_bytes;
  // A copy reads the registers of its address late. Unrolled, copies in flight have registers of their own.
#pragma unroll(Shape::thread_patches < 4 ? 4 / Shape::thread_patches : 1)
  for (int turn = 0; turn < ceil_div(Shape::k_tile_channels, sharers); ++turn) {
    const int channel = thread / lanes + turn * sharers;
    if (Shape::k_tile_channels % sharers != 0 && channel >= Shape::k_tile_channels) break;
    const bool present = Shape::whole_k_tiles || k_tile * Shape::k_tile_channels + channel < Layer::group_in_channels;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i)
      if ((i + 1) * lanes <= Shape::halo_patches || thread % lanes + i * lanes < Shape::halo_patches)
        copies.begin(to + turn * sharers * Shape::channel_bytes + i * lanes * Shape::patch_bytes, from + offsets[i],
                     present && (inside >> i & 1u) != 0);
    from += pitch;
  }
}

// Loads inputs that are copied channel by channel.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_load_channels(const WgmmaWork<Layer, Tile>& first_work, int thread, unsigned char* shared,
                                       unsigned char* barriers, const typename Layer::Element* x, int batch, int depths,
                                       int rows, int columns) {
  using Shape = WgmmaShape<Layer, Tile>;
  const InputMap<Layer, Shape> map(batch, depths, rows, columns);
  WgmmaStages<Tile::input_stages> stages(barriers);
  ArrivingCopies<Shape::patch_bytes> copies;
  unsigned inside;
  typename Layer::Index offsets[Shape::thread_patches];
  for (WgmmaWork<Layer, Tile> work = first_work; work.is_left(); work.next()) {
    if (Shape::some_without_taps && !work.has_taps()) continue;
    const BlockTilePosition halo = work.halo();
    const typename Layer::Element* const first =
        wgmma_first_input<Layer, Tile>(x, halo.image, work.group(), map.plane);
    wgmma_find_patches<Layer, Tile>(map, halo, thread, inside, offsets);
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      stages.wait_empty();
      wgmma_copy_patches<Layer, Tile>(copies, thread, k_tile, first, map.plane, inside, offsets,
                                      shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes);
      copies.arrive(stages.full());
      stages.next();
    }
  }
}

// Transposes a k-tile from channel by channel to place by place: the channels of a place then lie together. An item of
// a warp is eight columns of 32 channels, four matrices: ldmatrix.trans gives a lane two neighbouring channels of a
// column of each.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_transpose_patches(int thread, const unsigned char* raw, unsigned char* stage) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int vectors = Shape::k_tile_vectors, eights = Shape::row_patches * Tile::patch_columns / 8;
  constexpr int warps = Shape::loaders / 32, items = Shape::halo_all_rows * eights * (vectors / 4);
  constexpr int together = 3;  // items whose loads are in flight at once
  const int own = renewed(thread), lane = own % 32;  // renewed: no registers are taken where copies begin
  const unsigned char* const from = raw + lane * Shape::channel_bytes;
  unsigned char* const to = stage + lane % 8 * Shape::place_bytes + lane / 8 * 16;
#pragma unroll 1
  for (int first = own / 32; first < items; first += together * warps) {
    unsigned words[together][4];
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int item = first + i * warps, of_vectors = item % (vectors / 4), eight = item / (vectors / 4);
      if (item < items) load_transposed_matrices(from + of_vectors * 32 * Shape::channel_bytes + eight * 16, words[i]);
    }
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int item = first + i * warps, of_vectors = item % (vectors / 4), eight = item / (vectors / 4);
      if (item < items) store_matrices(to + eight * 8 * Shape::place_bytes + of_vectors * 64, words[i]);
    }
  }
}

// The same three steps (find, copy, transpose) for rows that begin anywhere. Patches are the 16 bytes at multiples of
// 16 that hold a part of a row. The address of a row's first column says where it lies in the row's first patch.
//
// Finds the thread's patches: each offset is where the patch's row begins, at the halo's first column.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_find_rows(const InputMap<Layer, WgmmaShape<Layer, Tile>>& map, const BlockTilePosition& halo,
                                  int thread, unsigned& inside,
                                  typename Layer::Index (&offsets)[WgmmaShape<Layer, Tile>::thread_patches]) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int lanes = Shape::patch_lanes, channels = Layer::groups * Layer::group_in_channels;
  inside = 0;
#pragma unroll
  for (int i = 0; i < Shape::thread_patches; ++i) {
    const int patch = thread % lanes + i * lanes;
    const auto place = map.place(halo, patch / Shape::row_patches, 0);
    if (patch < Shape::halo_patches && place.row_inside) inside |= 1u << i;
    offsets[i] =
        (place.image * static_cast<typename Layer::Index>(channels) + thread / lanes) * map.plane + place.position;
  }
}

// Copies the thread's patches of one k-tile. Reads no byte before the input, where the first row's halo may begin, and
// no byte after its end.
template <class Layer, class Tile, class Copies>
TCONV_DEVICE void wgmma_copy_rows(Copies& copies, int thread, int k_tile,
                                  const InputMap<Layer, WgmmaShape<Layer, Tile>>& map,
                                  const typename Layer::Element* x, const typename Layer::Element* first,
                                  unsigned inside,
                                  const typename Layer::Index (&offsets)[WgmmaShape<Layer, Tile>::thread_patches],
                                  unsigned char* raw) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Address = unsigned long long;
  constexpr int lanes = Shape::patch_lanes, sharers = Shape::loaders / lanes;
  constexpr int channels = Layer::groups * Layer::group_in_channels;
  const int lane = thread % lanes, sharer = thread / lanes;
  const Address begin = reinterpret_cast<Address>(x);
  const Address end = begin + static_cast<Address>(map.batch) * channels * map.plane * Shape::item_bytes;
  const long long pitch = static_cast<long long>(sharers) * map.plane;
  const typename Layer::Element* from = first + k_tile * Shape::k_tile_channels * static_cast<long long>(map.plane);
  unsigned char* to = raw + sharer * Shape::channel_bytes + lane * 16;
#pragma unroll 1
  for (int channel = sharer; channel < Shape::k_tile_channels; channel += sharers) {
    const bool present = Shape::whole_k_tiles || k_tile * Shape::k_tile_channels + channel < Layer::group_in_channels;
#pragma unroll
    for (int i = 0; i < Shape::thread_patches; ++i) {
      const int patch = lane + i * lanes;
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

// Transposes a k-tile. A thread does eight channels of a place at once.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_transpose_rows(int thread, int k_tile, const InputMap<Layer, WgmmaShape<Layer, Tile>>& map,
                                  const BlockTilePosition& halo, const typename Layer::Element* first_of_halo,
                                  const unsigned char* raw, unsigned char* stage) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int channels = Layer::groups * Layer::group_in_channels, vectors = Shape::k_tile_vectors;
  constexpr int places = Shape::halo_all_rows * Shape::halo_columns;
  const unsigned plane = static_cast<unsigned>(map.plane);
  // The first input of the k-tile, counted in items from address 0. Modulo eight, it is a column of a patch.
  const unsigned first =
      static_cast<unsigned>(reinterpret_cast<unsigned long long>(first_of_halo) / Shape::item_bytes) +
      static_cast<unsigned>(k_tile * Shape::k_tile_channels) * plane;
#pragma unroll 1
  for (int unit = thread; unit < places * vectors; unit += Shape::loaders) {
    const int place_number = unit % places, vector = unit / places;
    const int row = place_number / Shape::halo_columns, column = place_number % Shape::halo_columns;
    const auto place = map.place(halo, row, column);
    const unsigned of_row = first +
                            static_cast<unsigned>(place.image * channels + vector * Shape::vector_items) * plane +
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

// Raw copies run some k-tiles ahead of transposing. This says which k-tile is copied next, and where the thread's
// patches lie.
template <class Layer, class Tile>
struct WgmmaAhead {
  WgmmaWork<Layer, Tile> work;
  int k_tile, raw_stage;
  const typename Layer::Element* first;
  unsigned inside;
  typename Layer::Index offsets[WgmmaShape<Layer, Tile>::thread_patches];
};

// Begins the copies of the next k-tile. Ends a group in any case, an empty one after the last k-tile, so that waits
// can count groups.
template <class Layer, class Tile, class Copies>
TCONV_DEVICE void wgmma_copy_ahead(WgmmaAhead<Layer, Tile>& ahead, Copies& copies, int thread, unsigned char* shared,
                                   const InputMap<Layer, WgmmaShape<Layer, Tile>>& map,
                                   const typename Layer::Element* x) {
  using Shape = WgmmaShape<Layer, Tile>;
  if (Shape::some_without_taps)
    while (ahead.k_tile == 0 && ahead.work.is_left() && !ahead.work.has_taps()) ahead.work.next();
  if (ahead.work.is_left()) {
    if (ahead.k_tile == 0) {
      const BlockTilePosition halo = ahead.work.halo();
      ahead.first = wgmma_first_input<Layer, Tile>(x, halo.image, ahead.work.group(), map.plane);
      if (Shape::unaligned)
        wgmma_find_rows<Layer, Tile>(map, halo, thread, ahead.inside, ahead.offsets);
      else
        wgmma_find_patches<Layer, Tile>(map, halo, thread, ahead.inside, ahead.offsets);
    }
    unsigned char* const to = shared + Shape::raw_at + ahead.raw_stage * Shape::raw_stage_bytes;
    if (Shape::unaligned)
      wgmma_copy_rows<Layer, Tile>(copies, thread, ahead.k_tile, map, x, ahead.first, ahead.inside, ahead.offsets, to);
    else
      wgmma_copy_patches<Layer, Tile>(copies, thread, ahead.k_tile, ahead.first, map.plane, ahead.inside, ahead.offsets,
                                      to);
    if (++ahead.k_tile == Shape::k_tiles) {
      ahead.k_tile = 0;
      ahead.work.next();
    }
    ahead.raw_stage = ahead.raw_stage + 1 == Tile::raw_stages ? 0 : ahead.raw_stage + 1;
  }
  copies.end_group();
}

// Loads contiguous 16-bit inputs: copies them to raw stages, and transposes them from there to stages. The copies of
// `raw_stages` - 1 k-tiles are in flight while the oldest k-tile is transposed.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_load_transposed(const WgmmaWork<Layer, Tile>& first_work, int thread, unsigned char* shared,
                                     unsigned char* barriers, const typename Layer::Element* x, int batch, int depths,
                                     int rows, int columns) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  const InputMap<Layer, Shape> map(batch, depths, rows, columns);
  WgmmaStages<Tile::input_stages> stages(barriers);
  ThreadCopies<Shape::patch_bytes, Shape::thread_copies, Tile::raw_stages + 1> copies;
  WgmmaAhead<Layer, Tile> ahead{first_work, 0, 0};
#pragma unroll 1
  for (int i = 0; i < Tile::raw_stages; ++i) wgmma_copy_ahead<Layer, Tile>(ahead, copies, thread, shared, map, x);
  int raw_stage = 0;
  for (WgmmaWork<Layer, Tile> work = first_work; work.is_left(); work.next()) {
    if (Shape::some_without_taps && !work.has_taps()) continue;
    const BlockTilePosition halo = work.halo();
    const Element* const first = wgmma_first_input<Layer, Tile>(x, halo.image, work.group(), map.plane);
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      copies.template wait<Tile::raw_stages - 1>();
      meet<Shape::loaders>(3);  // all threads' copies have landed
      stages.wait_empty();
      const unsigned char* const from = shared + Shape::raw_at + raw_stage * Shape::raw_stage_bytes;
      unsigned char* const to = shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes;
      if (Shape::unaligned)
        wgmma_transpose_rows<Layer, Tile>(thread, k_tile, map, halo, first, from, to);
      else
        wgmma_transpose_patches<Layer, Tile>(thread, from, to);
      arrive(stages.full());
      stages.next();
      raw_stage = raw_stage + 1 == Tile::raw_stages ? 0 : raw_stage + 1;
      meet<Shape::loaders>(3);  // nobody reads what was transposed any more
      wgmma_copy_ahead<Layer, Tile>(ahead, copies, thread, shared, map, x);
    }
  }
}

// Loads channels_last inputs in whole vectors. Neighbouring lanes copy neighbouring vectors of a place. Each warp keeps
// its places' offsets in its own part of shared memory, -1 for places outside the input.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_load_places(const WgmmaWork<Layer, Tile>& first_work, int thread, unsigned char* shared,
                                     unsigned char* barriers, const typename Layer::Element* x, int batch, int depths,
                                     int rows, int columns) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  constexpr int vectors = Shape::k_tile_vectors, of_warp = 32 / vectors, together = Shape::loaders / vectors;
  constexpr int places = Shape::halo_all_rows * Shape::halo_columns;
  constexpr int at_once = 4;  // places whose offsets are in flight
  const int lane = thread % 32, first_place = thread / 32 * of_warp;
  const InputMap<Layer, Shape> map(batch, depths, rows, columns);
  long long* const offsets = reinterpret_cast<long long*>(shared + Shape::offsets_at);
  WgmmaStages<Tile::input_stages> stages(barriers);
  ArrivingCopies<16> copies;
  for (WgmmaWork<Layer, Tile> work = first_work; work.is_left(); work.next()) {
    if (Shape::some_without_taps && !work.has_taps()) continue;
    const BlockTilePosition halo = work.halo();
    const Element* const first = wgmma_first_input<Layer, Tile>(x, halo.image, work.group(), map.plane);
    __syncwarp();  // no lane reads the last block tile's offsets any more
    for (int i = lane; i < ceil_div(places, together) * of_warp; i += 32) {
      const int number = i / of_warp * together + first_place + i % of_warp;
      if (number >= places) continue;
      const auto place = map.place(halo, number / Shape::halo_columns, number % Shape::halo_columns);
      offsets[number] =
          place.inside ? static_cast<long long>(place.image * map.plane + place.position) * map.channels : -1;
    }
    __syncwarp();
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      stages.wait_empty();
      const int vector = lane % vectors, channel = k_tile * Shape::k_tile_channels + vector * Shape::vector_items;
      const bool present = Shape::whole_k_tiles || channel < Layer::group_in_channels;
      const Element* const from = first + channel;
      const int own = first_place + lane / vectors;
      unsigned char* to = shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes +
                          own * Shape::place_bytes + vector * 16;
#pragma unroll 1
      for (int number = own; number < places; number += at_once * together) {
        long long found[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i)
          found[i] = number + i * together < places ? offsets[number + i * together] : -1;
#pragma unroll
        for (int i = 0; i < at_once; ++i)
          if (number + i * together < places)
            copies.begin(to + i * together * Shape::place_bytes, from + (found[i] < 0 ? 0 : found[i]),
                         present && found[i] >= 0);
        to += at_once * together * Shape::place_bytes;
      }
      copies.arrive(stages.full());
      stages.next();
    }
  }
}

// Loads channels_last inputs whose channels are no whole vectors: item by item, through registers.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_load_items(const WgmmaWork<Layer, Tile>& first_work, int thread, unsigned char* shared,
                                    unsigned char* barriers, const typename Layer::Element* x, int batch, int depths,
                                    int rows, int columns) {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  constexpr int side = Shape::vector_items, vectors = Shape::k_tile_vectors, items = 4 / Shape::item_bytes;
  constexpr int units = Shape::halo_all_rows * Shape::halo_columns * vectors;
  constexpr int together = 2;  // vectors whose loads are in flight at once
  const InputMap<Layer, Shape> map(batch, depths, rows, columns);
  WgmmaStages<Tile::input_stages> stages(barriers);
  for (WgmmaWork<Layer, Tile> work = first_work; work.is_left(); work.next()) {
    if (Shape::some_without_taps && !work.has_taps()) continue;
    const BlockTilePosition halo = work.halo();
    const Element* const first = wgmma_first_input<Layer, Tile>(x, halo.image, work.group(), map.plane);
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::k_tiles; ++k_tile) {
      stages.wait_empty();
      unsigned char* const stage = shared + Shape::inputs_at + stages.stage() * Shape::input_stage_bytes;
#pragma unroll 1
      for (int unit = thread; unit < units; unit += together * Shape::loaders) {
        unsigned values[together][side][1];
#pragma unroll
        for (int i = 0; i < together; ++i) {
          const int own = unit + i * Shape::loaders, place_number = own / vectors;
          const auto place = map.place(halo, place_number / Shape::halo_columns, place_number % Shape::halo_columns);
          const int channel = k_tile * Shape::k_tile_channels + own % vectors * side;
          const Element* const from = first + (place.image * map.plane + place.position) * map.channels + channel;
#pragma unroll
          for (int k = 0; k < side; ++k)
            load_present<Shape::item_bytes>(
                from + k,
                own < units && place.inside && (Shape::whole_k_tiles || channel + k < Layer::group_in_channels),
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
      arrive(stages.full());
      stages.next();
    }
  }
}

// Loads all inputs of a block's block tiles, of those that have taps.
template <class Layer, class Tile>
TCONV_DEVICE void wgmma_load_inputs(const WgmmaWork<Layer, Tile>& first_work, int thread, unsigned char* shared,
                                     unsigned char* barriers, const typename Layer::Element* x, int batch, int depths,
                                     int rows, int columns) {
  using Shape = WgmmaShape<Layer, Tile>;
  if (Shape::by_channel)
    wgmma_load_channels<Layer, Tile>(first_work, thread, shared, barriers, x, batch, depths, rows, columns);
  else if (Shape::transposed)
    wgmma_load_transposed<Layer, Tile>(first_work, thread, shared, barriers, x, batch, depths, rows, columns);
  else if (Shape::by_place)
    wgmma_load_places<Layer, Tile>(first_work, thread, shared, barriers, x, batch, depths, rows, columns);
  else
    wgmma_load_items<Layer, Tile>(first_work, thread, shared, barriers, x, batch, depths, rows, columns);
}

}  // namespace tconv
