// col2im_rows: how a kernel is launched.
#pragma once
#include "col2im_rows/lines.cuh"
#include "primitives/launch.cuh"

namespace tconv {

template <class Layer, class Tile>
TCONV_CONSTANT Launch col2im_rows_launch(const Sizes& sizes) {
  using Shape = Col2imRowsShape<Layer, Tile>;
  Launch launch = {};
  launch.blocks =
      Shape::weight_sets * ceil_div(col2im_rows_works<Layer, Tile>(sizes.batch, sizes.output, sizes.input[2]),
                                    static_cast<long long>(Shape::teams));
  launch.counted = launch.blocks * Shape::teams;
  launch.threads = Shape::threads, launch.shared_bytes = Shape::shared_bytes;
  return launch;
}

}  // namespace tconv
