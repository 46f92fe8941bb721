// wgmma: the blocks of a cluster, which have the same weights and bring a part of them each. `wgmma.cuh` has the
// picture.
#pragma once
#include "primitives/clusters.cuh"

namespace tconv {

template <int Count>
struct WgmmaCluster {
  // Which of its blocks this is.
  static TCONV_DEVICE int rank() { return Count > 1 ? cluster_rank() : 0; }
  // All threads, behind `show_barriers`.
  static TCONV_DEVICE void begin() {
    if (Count > 1)
      meet_cluster();
    else
      __syncthreads();
  }
  // All threads: until here, others write a block's stages and arrive at its barriers.
  static TCONV_DEVICE void end() {
    if (Count > 1) meet_cluster();
  }
  // A warp has read a stage of weights: it says so to each block that writes a part of it.
  static TCONV_DEVICE void give_back(void* empty, int lane) {
    if (lane >= Count) return;
    if (Count > 1)
      arrive_in_cluster(empty, lane);
    else
      arrive(empty);
  }
  static TCONV_DEVICE void wait_empty(void* empty, unsigned parity) {
    if (Count > 1)
      wait_cluster(empty, parity);
    else
      wait(empty, parity);
  }
  // The block's part of some bytes, to all blocks. Those of the others may come before the block expects them: its
  // barrier's phase ends no earlier.
  static TCONV_DEVICE void copy(unsigned char* stage, const unsigned char* from, int bytes, void* full) {
    const int part = bytes / Count, own = rank() * part;
    if (Count > 1)
      copy_to_cluster(stage + own, from + own, part, full, (1 << Count) - 1);
    else
      copy_to_shared(stage, from, bytes, full);
  }
};

}  // namespace tconv
