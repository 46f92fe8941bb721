// Places: the positions of all samples, by number, columns first. Kernels that go phase by phase share them among
// blocks.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/launch.cuh"

namespace tconv {

// A position and its sample, -1 where there is none.
struct Place {
  int sample, depth, height, width;
};

// The place of a number, where `Lead` places come before each row of positions: those have negative widths.
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

// How a kernel is launched whose blocks own `Tile::run` neighbouring places, with some channels of a phase each:
// `Tile::parts` blocks have the same places. They are neighbours, as they read the same inputs and write neighbouring
// outputs.
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
  // The last block goes beyond the places by less than 2^12. Inputs around a place lie no further off than it counts.
  const long long reached = static_cast<long long>(sizes.batch) * Depth::positions(output[0] + Depth::padding) *
                                Height::positions(output[1] + Height::padding) *
                                (Width::positions(output[2] + Width::padding) + Lead) +
                            (1 << 12);
  launch.wide_index = larger(4 * reached, larger(plane_of(sizes.input), plane_of(sizes.output))) >= index_limit;
  return launch;
}

}  // namespace tconv
