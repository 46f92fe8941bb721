// Clusters: neighbouring blocks of a grid that run at the same time, reach each other's shared memory, and share copies
// to it. So many are one as the function says by `__cluster_dims__`. PTX, sm_90 and newer.
#pragma once
#include "primitives/barriers.cuh"

namespace tconv {

// What lies in shared memory, a barrier or where a copy goes, is named by its address in the block's own; that of
// another block lies at the same place. Nobody reaches that of a block before it runs or after it has ended:
// `meet_cluster` stands at the start of a kernel, behind `show_barriers`, and at its end.
#if !defined(TCONV_EMULATOR)
// Which of the cluster's blocks this is. PTX %cluster_ctarank.
TCONV_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster meet, which orders their memory. Warps may be divergent. PTX
// barrier.cluster.
TCONV_DEVICE void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at a barrier of the block `rank`. What the thread did before comes before what those do who then
// `wait_cluster` for it.
TCONV_DEVICE void arrive_in_cluster(void* barrier, int rank) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
      " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// As `wait`, for phases in which threads of other blocks arrive.
TCONV_DEVICE void wait_cluster(void* barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred over; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%0], %1;"
      " @!over bra again; }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// As `copy_to_shared`, to each block whose bit is set in `blocks`; there, its barrier counts the bytes. PTX
// cp.async.bulk, multicast.
TCONV_DEVICE void copy_to_cluster(void* shared, const void* global, int bytes, void* barrier, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
#endif

}  // namespace tconv
