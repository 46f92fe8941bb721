// wgmma: how a kernel is launched.
#pragma once
#include "primitives/block_tiles.cuh"
#include "primitives/channels_last.cuh"
#include "wgmma/shape.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch wgmma_launch(const Sizes& sizes) {
  using Shape = WgmmaShape<Layer, Tile>;
  constexpr int channels = Layer::groups * Layer::group_in_channels;
  const int positions[] = {Shape::Depth::positions(sizes.output[0]), Shape::Height::positions(sizes.output[1]),
                           Shape::Width::positions(sizes.output[2])};
  Launch launch =
      block_tiles_launch<Shape, Tile>(sizes, positions, true, sizes.multiprocessors,
                                      Tile::resident ? Shape::weight_sets : 1, Tile::BlockTile::images * channels, 1);
  if (Tile::prepared_inputs) ChannelsLast<Layer>::launch(sizes, launch);
  return launch;
}

}  // namespace tconv
