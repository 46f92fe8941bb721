// mma: how a kernel is launched.
#pragma once
#include "mma/shape.cuh"
#include "primitives/block_tiles.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch mma_launch(const Sizes& sizes) {
  using Shape = MmaShape<Layer, Tile>;
  const int positions[] = {Shape::Depth::positions(sizes.output[0] + Tile::BlockTile::depth_origin),
                           Shape::Height::positions(sizes.output[1] + Tile::BlockTile::row_origin),
                           Shape::Width::positions(sizes.output[2] + Tile::BlockTile::origin)};
  // With resident weights, there are as many blocks as run at once. A lane stores neighbouring outputs of 32 channels.
  return block_tiles_launch<Shape, Tile>(
      sizes, positions, Tile::Pipeline::resident, sizes.multiprocessors * Tile::blocks, Shape::weight_sets,
      Tile::BlockTile::images * Layer::groups * Layer::group_in_channels + Shape::k_tile_channels, 32);
}

}  // namespace tconv
