// Places: the positions of all samples, numbered columns first. Kernels that go phase by phase share them among blocks.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/launch.cuh"

namespace tconv {

// A position and its sample; the sample is -1 beyond the batch.
struct Place {
  int sample, depth, height, width;
};

// The place with the given number. Each row of positions begins with `Lead` extra places, whose widths are negative.
template <class Layer, int Lead>
TCONV_DEVICE Place place_of(typename Layer::Index number, int batch, int output_depth, int output_height,
                            int output_width) {
  using Index = typename Layer::Index;
  const Index columns = static_cast<Index>(Layer::Width::positions(output_width)) + Lead;
  const Index row = number / columns;
  const Index slab = row / Layer::Height::positions(output_height);
  const Index sample = slab / Layer::Depth::positions(output_depth);
  return {sample < batch ? static_cast<int>(sample) : -1,
          static_cast<int>(slab - sample * Layer::Depth::positions(output_depth)),
          static_cast<int>(row - slab * Layer::Height::positions(output_height)),
          static_cast<int>(number - row * columns) - Lead};
}

// The launch of a kernel whose blocks each own `Tile::run` neighbouring places and some channels of one phase.
// `Tile::parts` blocks have the same places. They are neighbours in the grid, as they read the same inputs and write
// neighbouring outputs.
template <class Layer, class Tile, int Lead>
TCONV_CONSTANT Launch places_launch(const Sizes& sizes) {
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  const int(&output)[3] = sizes.output;
  const long long places = static_cast<long long>(sizes.batch) * Depth::positions(output[0]) *
                           Height::positions(output[1]) * (Width::positions(output[2]) + Lead);
  Launch launch = {};
  launch.counted = launch.blocks = ceil_div(places, static_cast<long long>(Tile::run)) * Tile::parts;
  launch.threads = Tile::threads, launch.shared_bytes = Tile::shared_bytes;
  // The last block goes beyond the places by less than 2^12. With padding added, `reached` bounds input offsets, too.
  const long long reached = static_cast<long long>(sizes.batch) * Depth::positions(output[0] + Depth::padding) *
                                Height::positions(output[1] + Height::padding) *
                                (Width::positions(output[2] + Width::padding) + Lead) +
                            (1 << 12);
  launch.wide_index = larger(4 * reached, larger(plane_of(sizes.input), plane_of(sizes.output))) >= index_limit;
  return launch;
}

}  // namespace tconv
