// mma: the second factors of a step, columns of positions, from shared memory to a warp's lanes. `mma.cuh` has the
// picture.
#pragma once
#include "mma/inputs.cuh"

namespace tconv {

// `Inputs` bring them there. A lane names `lane_places` of them: place i is position `number(lane)` of the warp's tile
// of positions `tile(i, lane)`, and `offset(lane)` bytes. columns[plane][tile] are the lane's two words of a tile.
//
// Inputs by position. Lane l names row l % 8 of matrix l / 8: two tiles of positions, and of each the halves of 32
// bytes of channels.
template <class Layer, class Tile>
struct MmaPositionColumns {
  using Shape = MmaShape<Layer, Tile>;
  using Inputs = MmaTurnedInputs<Layer, Tile>;
  static constexpr int lane_places = Tile::Warps::position_tiles / 2;

  static TCONV_DEVICE int tile(int i, int lane) { return 2 * i + lane / 16; }
  static TCONV_DEVICE int number(int lane) { return lane % 8; }
  static TCONV_DEVICE int offset(int lane) { return lane / 8 % 2 * 16; }

  static TCONV_DEVICE void load(const unsigned char* const (&places)[lane_places], int moved,
                                unsigned (&columns)[Shape::planes][Tile::Warps::position_tiles][2]) {
#pragma unroll
    for (int plane = 0; plane < Shape::planes; ++plane)
#pragma unroll
      for (int j = 0; j < Tile::Warps::position_tiles; j += 2) {
        unsigned words[4];
        load_matrices(places[j / 2] + moved + plane * Shape::plane_bytes, words);
        columns[plane][j][0] = words[0], columns[plane][j][1] = words[1];
        columns[plane][j + 1][0] = words[2], columns[plane][j + 1][1] = words[3];
      }
  }
};

// Inputs by channel, of 16 bits: the same from matrices of eight channels by eight positions, turned.
template <class Layer, class Tile>
struct MmaTurnedColumns {
  using Shape = MmaShape<Layer, Tile>;
  using Inputs = MmaCopiedInputs<Layer, Tile>;
  static constexpr int lane_places = Tile::Warps::position_tiles / 2;

  static TCONV_DEVICE int tile(int i, int lane) { return 2 * i + lane / 16; }
  static TCONV_DEVICE int number(int) { return 0; }
  static TCONV_DEVICE int offset(int lane) { return lane % 16 * Shape::channel_bytes; }

  static TCONV_DEVICE void load(const unsigned char* const (&places)[lane_places], int moved,
                                unsigned (&columns)[Shape::planes][Tile::Warps::position_tiles][2]) {
#pragma unroll
    for (int j = 0; j < Tile::Warps::position_tiles; j += 2) {
      unsigned words[4];
      load_turned_matrices(places[j / 2] + moved, words);
      columns[0][j][0] = words[0], columns[0][j][1] = words[1];
      columns[0][j + 1][0] = words[2], columns[0][j + 1][1] = words[3];
    }
  }
};

// Inputs by channel, of one word or two: each lane loads its own, and rounds them.
template <class Layer, class Tile>
struct MmaWordColumns {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Inputs = MmaCopiedInputs<Layer, Tile>;
  static constexpr int lane_places = Tile::Warps::position_tiles;

  static TCONV_DEVICE int tile(int i, int) { return i; }
  static TCONV_DEVICE int number(int lane) { return lane / 4; }
  static TCONV_DEVICE int offset(int lane) { return lane % 4 * Shape::channel_bytes; }

  static TCONV_DEVICE void load(const unsigned char* const (&places)[lane_places], int moved,
                                unsigned (&columns)[Shape::planes][Tile::Warps::position_tiles][2]) {
#pragma unroll
    for (int j = 0; j < Tile::Warps::position_tiles; ++j)
#pragma unroll
      for (int half = 0; half < Shape::step_channels / 4; ++half) {
        const Element value = *reinterpret_cast<const Element*>(places[j] + moved + half * 4 * Shape::channel_bytes);
        mma_words(matrix_factor<Layer>(value, 0), half, columns[0][j]);
      }
  }
};

template <class Layer, class Tile>
using MmaColumns =
    typename Choice<!MmaShape<Layer, Tile>::by_channel, MmaPositionColumns<Layer, Tile>,
                    typename Choice<MmaShape<Layer, Tile>::item_bytes == 2, MmaTurnedColumns<Layer, Tile>,
                                    MmaWordColumns<Layer, Tile>>::type>::type;

}  // namespace tconv
