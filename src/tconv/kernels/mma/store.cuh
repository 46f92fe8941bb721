// mma: the epilogue, from a warp's accumulators to outputs in global memory. `mma.cuh` has the picture.
#pragma once
#include "mma/accumulators.cuh"
#include "primitives/block_tiles.cuh"
#include "primitives/epilogue.cuh"

namespace tconv {

// A subtile of a warp's outputs: some row tiles by some position tiles. The warp stages it as `staged[row][position]`
// in its part of shared memory, and stores it in the order of global memory. The row tiles hold `slots` neighbouring
// phases of the same channels, from `first_slot` on. Where the tile allows it, these are whole rows of outputs.
template <class Layer, class Tile, class Program>
struct MmaSubtile {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Staged = typename Shape::Staged;
  using Index = typename Layer::Index;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  static constexpr int slots = Shape::subtile_slots;
  static constexpr int places = 8 * Shape::subtile_position_tiles, pitch = Shape::subtile_pitch / Shape::staged_bytes;
  // Neighbouring phases along the width, and how many such runs a subtile has.
  static constexpr int run = slots < Width::stride ? slots : Width::stride, runs = ceil_div(slots, run);
  static constexpr int most = 16 / Shape::item_bytes;
  // How many outputs of a row a subtile has side by side: a whole row of its block tile, or a part of each position's.
  static constexpr int side_by_side = Shape::subtile_row_tiles == Shape::phase_tiles || slots % Width::stride == 0
                                          ? Tile::BlockTile::columns * Width::stride
                                      : Width::stride % slots == 0 ? slots
                                                                   : 1;
  // The most outputs of a row, or channels of an output, that are stored at once, if rows are aligned.
  static constexpr int row_width =
      greatest_common_divisor(greatest_common_divisor(side_by_side, Tile::BlockTile::origin), most);
  static constexpr int channel_width =
      greatest_common_divisor(greatest_common_divisor(Layer::group_out_channels, Tile::channels), most);

  const Staged* staged;
  const Epilogue<Layer, Program>& epilogue;
  Element* y;  // of the block's group
  const BlockTilePosition& block_tile;
  int first_number, first_channel, first_slot;
  int y_channels, batch, depths, rows, columns;

  static TCONV_DEVICE int row_of(int slot, int channel) {
    return slot / Shape::tile_phases * 16 + slot % Shape::tile_phases * Tile::channels + channel;
  }

  // Where the output of a phase at a position of the subtile lies: image, and offset in a plane. False if nowhere.
  TCONV_DEVICE bool find(int place, int phase, int& sample, Index& offset) const {
    const int number = first_number + place;
    const BlockTilePosition in_block_tile =
        position_in_block_tile<typename Tile::BlockTile>(number, Tile::BlockTile::rows);
    sample = block_tile.image + in_block_tile.image;
    const int depth = (block_tile.depth + in_block_tile.depth) * Shape::Depth::stride - Tile::BlockTile::depth_origin +
                      phase / (Height::stride * Width::stride);
    const int row = (block_tile.row + in_block_tile.row) * Height::stride - Tile::BlockTile::row_origin +
                    phase / Width::stride % Height::stride;
    const int column =
        (block_tile.column + in_block_tile.column) * Width::stride - Tile::BlockTile::origin + phase % Width::stride;
    offset = (static_cast<Index>(depth) * rows + row) * columns + column;
    return number < Shape::block_tile_positions && sample < batch && phase < Shape::phases && in_range(depth, depths) &&
           in_range(row, rows) && in_range(column, columns);
  }

  // Stores neighbouring outputs of a channel, or neighbouring channels of an output, if they are present. A program
  // computes absent ones, too: in a branch, an output's loads and arithmetic would wait for the store before.
  template <int width>
  TCONV_DEVICE void put(Element* to, const Vector<Staged, width>& together, int channel, bool present) const {
    if (Layer::has_program) {
      const auto read = epilogue.program.template fetch<width>(to, present);
      Vector<Element, width> outputs;
#pragma unroll
      for (int i = 0; i < width; ++i)
        outputs.values[i] = epilogue.output(to_accumulator(together.values[i]),
                                            epilogue.of(channel + (Tile::channels_last ? i : 0)), read, i);
      if (present) *reinterpret_cast<Vector<Element, width>*>(to) = outputs;
    } else if (present) {
      *reinterpret_cast<Vector<Staged, width>*>(to) = together;
    }
  }

  // Neighbouring lanes store neighbouring outputs of a row, `width` each. If a row has too few, lanes share channels.
  template <int width>
  TCONV_DEVICE void store_rows() const {
    constexpr int items = places * run / width;
    constexpr int item_lanes = items >= 32 ? 32 : power_of_two_from(items), channel_lanes = 32 / item_lanes;
    // Outputs of one phase, at neighbouring positions, that a lane reads at once.
    constexpr int neighbours = width % run == 0 ? width / run : 1;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Index plane = static_cast<Index>(depths) * rows * columns;
#pragma unroll 1
    for (int q = 0; q < runs; ++q)
#pragma unroll 1
      for (int item = lane % item_lanes; item < items; item += item_lanes) {
        const int place = item * width / run, slot = q * run + item * width % run;
        int sample;
        Index offset;
        if (slot >= slots || !find(place, first_slot + slot, sample, offset)) continue;
        Element* to =
            y + (static_cast<long long>(sample) * y_channels + first_channel + lane / item_lanes) * plane + offset;
#pragma unroll 4
        for (int channel = lane / item_lanes; channel < Tile::channels; channel += channel_lanes) {
          if (first_channel + channel >= Layer::group_out_channels) break;
          Vector<Staged, width> together;
#pragma unroll
          for (int i = 0; i < width / neighbours; ++i) {
            const int at = neighbours > 1 ? i : slot % run + i;
            const auto* const of_phase =
                staged + row_of(q * run + at % run, channel) * pitch + place + (neighbours > 1 ? 0 : at / run);
            const auto part = *reinterpret_cast<const Vector<Staged, neighbours>*>(of_phase);
#pragma unroll
            for (int n = 0; n < neighbours; ++n) together.values[n * run + i] = part.values[n];
          }
          put(to, together, first_channel + channel, true);
          to += channel_lanes * plane;
        }
      }
  }

  // Neighbouring lanes store neighbouring channels of an output.
  template <int width>
  TCONV_DEVICE void store_channels() const {
    constexpr int channel_lanes = Tile::channels / width, place_lanes = 32 / channel_lanes;
    const int lane = static_cast<int>(threadIdx.x) % 32, channel = lane % channel_lanes * width;
    if (first_channel + channel >= Layer::group_out_channels) return;
    const Index plane = static_cast<Index>(depths) * rows * columns;
#pragma unroll 1
    for (int place = lane / channel_lanes; place < places; place += place_lanes)
#pragma unroll 1
      for (int slot = 0; slot < slots; ++slot) {
        int sample;
        Index offset;
        const bool present = find(place, first_slot + slot, sample, offset);
        Element* const to =
            y + (static_cast<long long>(sample) * plane + offset) * y_channels + first_channel + channel;
        Vector<Staged, width> together;
#pragma unroll
        for (int i = 0; i < width; ++i) together.values[i] = staged[row_of(slot, channel + i) * pitch + place];
        put(to, together, first_channel + channel, present);
      }
  }

  TCONV_DEVICE void store() const {
    if (Tile::channels_last) {
      store_channels<channel_width>();
      return;
    }
    constexpr int half = row_width > 1 ? row_width / 2 : 1, quarter = half > 1 ? half / 2 : 1;
    if (columns % row_width == 0)
      store_rows<row_width>();
    else if (row_width > 2 && columns % half == 0)
      store_rows<half>();
    else if (row_width > 4 && columns % quarter == 0)
      store_rows<quarter>();
    else
      store_rows<1>();
  }
};

// Stores the outputs of a warp through its part of shared memory. `y` is the first output of the block's group.
template <class Layer, class Tile, class Program>
TCONV_DEVICE void mma_store(const MmaAccumulators<Layer, Tile>& accumulators, const Epilogue<Layer, Program>& epilogue,
                            unsigned char* shared, typename Layer::Element* y, const BlockTilePosition& block_tile,
                            int first_row_tile, int first_position, int y_channels, int batch, int depths, int rows,
                            int columns) {
  using Shape = MmaShape<Layer, Tile>;
  using Staged = typename Shape::Staged;
  constexpr int groups = Tile::Warps::row_tiles / Shape::subtile_row_tiles;
  constexpr int subtiles = groups * (Tile::Warps::position_tiles / Shape::subtile_position_tiles);
  constexpr int pitch = MmaSubtile<Layer, Tile, Program>::pitch;
  Staged* const staged = reinterpret_cast<Staged*>(shared);
  // A lane has rows lane / 4 and lane / 4 + 8 of each tile, at two neighbouring positions.
  const int lane = static_cast<int>(threadIdx.x) % 32;

#pragma unroll 1
  for (int subtile = 0; subtile < subtiles; ++subtile) {
    const int row_tile = first_row_tile + subtile % groups * Shape::subtile_row_tiles;
    const int first_channel = row_tile / Shape::phase_tiles * Tile::channels;
    __syncwarp();
    // Registers cannot be indexed at run time: each subtile has its own copy of the code that stages it.
#pragma unroll
    for (int known = 0; known < subtiles; ++known) {
      if (known != subtile) continue;
#pragma unroll
      for (int i = 0; i < Shape::subtile_row_tiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4 + half * 8, channel = first_channel + row % Tile::channels;
          const auto of_channel = epilogue.of(channel < Layer::group_out_channels ? channel : 0);
#pragma unroll
          for (int j = 0; j < Shape::subtile_position_tiles; ++j) {
            const auto& own = accumulators.values[known % groups * Shape::subtile_row_tiles + i]
                                         [known / groups * Shape::subtile_position_tiles + j];
            Vector<Staged, 2> two;
            from_accumulators(of_channel.y(own[half * 2]), of_channel.y(own[half * 2 + 1]), two.values);
            *reinterpret_cast<Vector<Staged, 2>*>(staged + (i * 16 + row) * pitch + j * 8 + lane % 4 * 2) = two;
          }
        }
    }
    __syncwarp();
    MmaSubtile<Layer, Tile, Program>{staged,
                                  epilogue,
                                  y,
                                  block_tile,
                                  first_position + subtile / groups * Shape::subtile_position_tiles * 8,
                                  first_channel,
                                  row_tile % Shape::phase_tiles * Shape::tile_phases,
                                  y_channels,
                                  batch,
                                  depths,
                                  rows,
                                  columns}
        .store();
  }
}

}  // namespace tconv
