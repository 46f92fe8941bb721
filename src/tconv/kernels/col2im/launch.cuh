// col2im: how a kernel is launched.
#pragma once
#include "col2im/shape.cuh"
#include "primitives/launch.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch col2im_launch(const Sizes& sizes) {
  using Shape = Col2imShape<Layer, Tile>;
  Launch launch = {};
  const long long block_tiles = static_cast<long long>(ceil_div(sizes.batch, Tile::BlockTile::images)) *
                                Shape::Depth::count(sizes.input[0]) * Shape::Height::count(sizes.input[1]) *
                                Shape::Width::count(sizes.input[2]);
  // Of resident weights, as many blocks as run at once share the block tiles evenly.
  const long long at_once =
      larger(1, static_cast<long long>(sizes.multiprocessors) * Tile::blocks / Shape::weight_sets);
  const long long turns = Tile::resident ? ceil_div(block_tiles, at_once) : 1;
  launch.blocks = Shape::weight_sets * ceil_div(block_tiles, turns);
  launch.counted = Shape::weight_sets * block_tiles + (Tile::resident ? launch.blocks : 0);
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  return launch;
}

}  // namespace tconv
