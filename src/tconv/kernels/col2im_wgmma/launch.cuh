// col2im_wgmma: how a kernel is launched.
#pragma once
#include "col2im_wgmma/shape.cuh"
#include "primitives/channels_last.cuh"
#include "primitives/launch.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch col2im_wgmma_launch(const Sizes& sizes) {
  using Shape = Col2imWgmmaShape<Layer, Tile>;
  Launch launch = {};
  launch.blocks = static_cast<long long>(Shape::weight_sets) * ceil_div(sizes.batch, Tile::BlockTile::images) *
                  Shape::Depth::count(sizes.input[0]) * Shape::Height::count(sizes.input[1]) *
                  Shape::Width::count(sizes.input[2]);
  launch.counted = launch.blocks;
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  if (Tile::prepared_inputs) ChannelsLast<Layer>::launch(sizes, launch);
  return launch;
}

}  // namespace tconv
