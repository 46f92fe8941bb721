// mma: what becomes of a warp's sums. `mma.cuh` has the picture.
#pragma once
#include "mma_shape.cuh"

namespace tconv {

// What becomes of a sum before it is stored.
template <class Layer>
struct MmaBias {
  const typename Layer::Element* bias;  // of the block's group

  TCONV_DEVICE float operator()(float sum, int out_channel) const {
    return Layer::has_bias ? sum + to_accumulator(load_constant(bias + out_channel)) : sum;
  }
};

// A warp's sums.
template <class Layer, class Tile>
struct MmaSums {
  using Shape = MmaShape<Layer, Tile>;
  float values[Tile::row_tiles][Tile::position_tiles][4];

  TCONV_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
      for (int j = 0; j < Tile::position_tiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) values[i][j][k] = 0;
  }

  TCONV_DEVICE void add(const MmaSums& other) {
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
      for (int j = 0; j < Tile::position_tiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) values[i][j][k] += other.values[i][j][k];
  }
};

// Adds the sums of all sets of warps, in order, in the first set; false in the others, whose work is done.
template <class Layer, class Tile>
TCONV_DEVICE bool mma_join(MmaSums<Layer, Tile>& sums, unsigned char* shared) {
  using Shape = MmaShape<Layer, Tile>;
  if (Tile::splits == 1) return true;
  constexpr int set = 32 * Shape::warps, tiles = Tile::row_tiles * Tile::position_tiles;
  const int split = static_cast<int>(threadIdx.x) / set;
  // A thread's sums of one tile lie together, and its neighbours' beside them.
  Vector<float, 4>* const joined = reinterpret_cast<Vector<float, 4>*>(shared) + static_cast<int>(threadIdx.x) % set;
  __syncthreads();
  if (split > 0)
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const float (&own)[4] = sums.values[n / Tile::position_tiles][n % Tile::position_tiles];
      joined[((split - 1) * tiles + n) * set] = {own[0], own[1], own[2], own[3]};
    }
  __syncthreads();
  if (split > 0) return false;
#pragma unroll 1
  for (int other = 0; other < Tile::splits - 1; ++other)
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const Vector<float, 4> theirs = joined[(other * tiles + n) * set];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        sums.values[n / Tile::position_tiles][n % Tile::position_tiles][k] += theirs.values[k];
    }
  return true;
}

// Stores the outputs of a warp, from `y` on, the first of the block's group. Unless they are channels_last, those of
// two neighbouring positions and all column phases that a thread has of one channel and row lie together: they are
// stored at once where that is aligned.
template <class Layer, class Tile, class Epilogue>
TCONV_DEVICE void mma_store(const MmaSums<Layer, Tile>& sums, const Epilogue& epilogue, typename Layer::Element* y,
                            const MmaBox& box, int first_row_tile, int first_position, int batch, int depths, int rows,
                            int columns) {
  using Shape = MmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  using Height = typename Shape::Height;
  using Width = typename Shape::Width;
  constexpr bool in_runs = !Tile::channels_last && Shape::phases_known && Shape::tile_phases == 1 &&
                           Tile::origin == 0 && Tile::box_columns % 2 == 0 &&
                           2 * Width::stride * Shape::item_bytes <= 32 && is_power_of_two(Width::stride);
  constexpr int run = in_runs ? 2 * Width::stride : 1;
  constexpr int width = vector_width(run, Shape::item_bytes);
  const bool aligned = in_runs && columns % run == 0;

  // A thread has rows lane / 4 and lane / 4 + 8 of each tile. What the compiler can know of their channels and phases
  // is kept apart from the rest, so that one address serves all rows of a position.
  const int lane = static_cast<int>(threadIdx.x) % 32, lane_row = lane / 4;
  const int first_channel = first_row_tile / Shape::phase_tiles * Tile::channels + lane_row % Tile::channels;
  const Index plane = static_cast<Index>(depths) * rows * columns;
  constexpr int channels = Layer::groups * Layer::out_channels;
  // From a channel to the next, and from a column.
  const Index channel_pitch = Tile::channels_last ? 1 : plane;
  constexpr int pitch = Tile::channels_last ? channels : 1;

#pragma unroll
  for (int j = 0; j < Tile::position_tiles; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int number = first_position + j * 8 + lane % 4 * 2 + side;
      const MmaBox in_box = mma_in_box<Tile>(number);
      const int sample = box.sample + in_box.sample;
      if (number >= Shape::box_positions || sample >= batch || (in_runs && aligned && side == 1)) continue;
      const int depth = (box.depth + in_box.depth) * Shape::Depth::stride - Tile::depth_origin;
      const int row = (box.row + in_box.row) * Height::stride - Tile::row_origin;
      const int column = (box.column + in_box.column) * Width::stride - Tile::origin;
      const long long corner = static_cast<long long>(sample) * channels * plane + first_channel * channel_pitch +
                               ((static_cast<long long>(depth) * rows + row) * columns + column) * pitch;
#pragma unroll
      for (int i = 0; i < Tile::row_tiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int phase_tile =
              Shape::phases_known ? i % Shape::phase_tiles : (first_row_tile + i) % Shape::phase_tiles;
          const int tile_phase =
              Tile::channels >= 8 ? half * 8 / Tile::channels : (lane_row + half * 8) / Tile::channels;
          const int phase = phase_tile * Shape::tile_phases + tile_phase;
          const int next_channel =
              (Shape::phases_known ? i / Shape::phase_tiles
                                   : (first_row_tile + i) / Shape::phase_tiles - first_row_tile / Shape::phase_tiles) *
                  Tile::channels +
              (Tile::channels > 8 ? half * 8 : 0);
          const int depth_phase = phase / (Height::stride * Width::stride);
          const int row_phase = phase / Width::stride % Height::stride, column_phase = phase % Width::stride;
          const int channel = first_channel + next_channel;
          if (channel >= Layer::out_channels || phase >= Shape::phases || !in_range(depth + depth_phase, depths) ||
              !in_range(row + row_phase, rows))
            continue;
          Element* const to =
              y + (corner + (static_cast<long long>(next_channel) * channel_pitch +
                             (static_cast<long long>(depth_phase) * rows + row_phase) * columns * pitch));
          if (in_runs && aligned) {
            if (column_phase != 0 || column >= columns) continue;
#pragma unroll
            for (int start = 0; start < run; start += width) {
              Vector<Element, width> together;
#pragma unroll
              for (int k = start; k < start + width; ++k) {
                const int tile = (i + k % Width::stride) % Tile::row_tiles, other_side = k / Width::stride % 2;
                together.values[k - start] =
                    from_accumulator<Element>(epilogue(sums.values[tile][j][half * 2 + other_side], channel));
              }
              *reinterpret_cast<Vector<Element, width>*>(to + start) = together;
            }
          } else if (in_range(column + column_phase, columns)) {
            to[column_phase * pitch] = from_accumulator<Element>(epilogue(sums.values[i][j][half * 2 + side], channel));
          }
        }
    }
}

}  // namespace tconv
