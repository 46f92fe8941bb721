// col2im_wgmma: the products of a k-tile.
#pragma once
#include "col2im_wgmma/shape.cuh"
#include "primitives/barriers.cuh"
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"
#include "primitives/warpgroups.cuh"

namespace tconv {

// Accumulators of a lane, and sums[row][position] of its set to which they go.
template <class Layer, class Tile>
struct Col2imWgmmaAccumulators {
  using Shape = Col2imWgmmaShape<Layer, Tile>;
  float values[Shape::row_tiles][Shape::product_rows / 2];

  TCONV_DEVICE void clear() {
#pragma unroll
    for (int tile = 0; tile < Shape::row_tiles; ++tile)
#pragma unroll
      for (int k = 0; k < Shape::product_rows / 2; ++k) begin_accumulator(values[tile][k], 0);
  }
  // `warp` counts the warps that share rows.
  TCONV_DEVICE void put(float* sums, int warp, int first_position, int lane) const {
#pragma unroll
    for (int tile = 0; tile < Shape::row_tiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < Shape::product_rows / 8; ++j)
          *reinterpret_cast<Vector<float, 2>*>(
              sums + Shape::row_of(warp, tile, half * 8 + lane / 4) * Shape::sums_pitch + first_position + j * 8 +
              lane % 4 * 2) = {{values[tile][4 * j + 2 * half], values[tile][4 * j + 2 * half + 1]}};
  }
};

// The weights of a lane in a k-tile, of 32 bits: of each step two channels, and of each its neighbouring rows.
template <class Layer, class Tile>
struct Col2imWgmmaWeights {
  using Shape = Col2imWgmmaShape<Layer, Tile>;
  // Of a step: word 2 * half + low of a tile is of channel lane % 4 + 4 * half and of row lane / 4 + 8 * low.
  unsigned fragments[Tile::k_tile_steps][Shape::row_tiles][4];

  TCONV_DEVICE void load(const unsigned char* stage, int warp, int lane) {
#pragma unroll
    for (int step = 0; step < Tile::k_tile_steps; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[Shape::lane_rows];
        load_shared<float, Shape::lane_rows>(
            reinterpret_cast<const float*>(stage + (step * 8 + lane % 4 + half * 4) * Shape::weight_pitch) +
                Shape::row_of(warp, 0, lane / 4),
            values);
#pragma unroll
        for (int row = 0; row < Shape::lane_rows; ++row)
          fragments[step][row / 2][2 * half + row % 2] = float_bits(matrix_factor<Layer>(values[row], 0));
      }
  }
};

// The products of k-tiles.
template <class Layer, class Tile>
struct Col2imWgmmaProducts {
  using Shape = Col2imWgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  static constexpr int positions = Shape::product_rows;
  WarpgroupProducts products;
  Col2imWgmmaWeights<Layer, Tile> weights;

  // Begins those of a k-tile, whose weights lie at `first` and whose inputs at `second`. Those of the one before are
  // done, or those of the one before that where no thread loads anything for them.
  TCONV_DEVICE void begin(Col2imWgmmaAccumulators<Layer, Tile>& accumulators, const unsigned char* first,
                          const unsigned char* second, int set, int thread) {
    if (!Shape::factors_in_stages) {
      // Before anything is loaded for these products' fragments: compilers use the same registers.
      products.template wait<0>();
      weights.load(first, Shape::high_warp(thread), thread % 32);
    }
    if (!Shape::inputs_in_stages) meet<Shape::set_threads>(1 + set);  // all inputs are moved
    first += Shape::high_warp(thread) / 4 * Shape::row_tiles * Shape::block_bytes;
    second += Shape::second_bytes(Shape::first_position(thread));
    using Columns = FactorColumns<Shape::k_tile_channels>;
    const FactorRows<Shape::k_tile_bytes> inputs(second);
    products.begin_group();
#pragma unroll
    for (int step = 0; step < Tile::k_tile_steps; ++step)
#pragma unroll
      for (int tile = 0; tile < Shape::row_tiles; ++tile) {
        auto& own = accumulators.values[tile];
        const int of_rows = tile * Shape::block_bytes + step * 16 * 128;
        if (!Shape::factors_in_stages)
          products.template add<Element, positions>(own, weights.fragments[step][tile], inputs, step * 32);
        else if (Shape::rows_of_positions)
          add_shared<Element, positions>(products, own, Columns(first), of_rows, inputs, step * 32);
        else
          add_shared<Element, positions>(products, own, Columns(first), of_rows, Columns(second), step * 16 * 128);
      }
    products.end_group();
    if (Shape::factors_in_stages) products.template wait<1>();
  }
};

}  // namespace tconv
