// direct: how a kernel is launched.
#pragma once
#include "direct/shape.cuh"
#include "primitives/launch.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch direct_launch(const Sizes& sizes) {
  using Shape = DirectShape<Layer, Tile>;
  constexpr int group_rows = Shape::tiled ? Shape::tile_rows : Tile::rows;
  constexpr int step_columns = Shape::tiled ? Shape::tile_columns : Shape::run_columns;
  const long long runs_a_row = (Shape::Width::positions(sizes.output[2] + Tile::origin) - 1) / step_columns + 1;
  const long long row_groups = static_cast<long long>(sizes.batch) * Shape::Depth::positions(sizes.output[0]) *
                               ((Shape::Height::positions(sizes.output[1] + Tile::row_origin) - 1) / group_rows + 1);
  const long long runs =
      (Shape::tiled ? row_groups * Shape::block_runs : (row_groups - 1) / Shape::run_rows + 1) * runs_a_row;
  const long long all = (runs - 1) / Shape::block_runs + 1;
  // Blocks with resident weights walk over the runs, so 32 blocks a multiprocessor are enough.
  const long long most = Shape::resident ? larger(1, 32ll * sizes.multiprocessors / Shape::parts) : all;
  Launch launch = {};
  launch.counted = launch.blocks = Shape::parts * (most < all ? most : all);
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  // A block's walk ends beyond the last run, by less than the number of runs: hence the factor 2.
  launch.wide_index = larger(2 * (row_groups + runs + Shape::block_runs),
                             larger(plane_of(sizes.input), plane_of(sizes.output))) >= index_limit;
  return launch;
}

}  // namespace tconv
