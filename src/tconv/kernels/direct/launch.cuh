// direct: how a kernel is launched.
#pragma once
#include "direct/shape.cuh"
#include "primitives/launch.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch direct_launch(const Sizes& sizes) {
  using Shape = DirectShape<Layer, Tile>;
  const long long heights = Shape::Height::positions(sizes.output[1] + Tile::row_origin);
  const long long widths = Shape::Width::positions(sizes.output[2] + Tile::origin);
  const long long row_groups = static_cast<long long>(sizes.batch) * Shape::Depth::positions(sizes.output[0]) *
                               ceil_div(heights, static_cast<long long>(Shape::tiled ? Shape::tile_rows : Tile::rows));
  const long long runs =
      (Shape::tiled ? row_groups * Shape::block_runs : ceil_div(row_groups, static_cast<long long>(Shape::run_rows))) *
      ceil_div(widths, static_cast<long long>(Shape::tiled ? Shape::tile_columns : Shape::run_columns));
  const long long all = ceil_div(runs, static_cast<long long>(Shape::block_runs));
  // Blocks with resident weights go on to further positions.
  const long long most = Shape::resident ? larger(1, 32ll * sizes.multiprocessors / Shape::parts) : all;
  Launch launch = {};
  launch.counted = launch.blocks = Shape::parts * (most < all ? most : all);
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  // A block's walk over the runs passes their end by less than as many again.
  launch.wide_index = larger(2 * (row_groups + runs + Shape::block_runs),
                             larger(plane_of(sizes.input), plane_of(sizes.output))) >= index_limit;
  return launch;
}

}  // namespace tconv
