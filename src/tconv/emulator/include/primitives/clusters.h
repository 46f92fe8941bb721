// What `kernels/primitives/clusters.cuh` does by PTX, on the CPU.
#pragma once

namespace tconv_emulator::primitives {

inline int cluster_rank() { return static_cast<int>(current->block->cluster_rank); }
inline void meet_cluster() { cluster_barrier(Place::here()); }
inline void arrive_in_cluster(void* barrier, int rank) {
  tconv_emulator::arrive_in_cluster(barrier, rank, Place::here());
}
inline void wait_cluster(void* barrier, unsigned parity) {
  wait_at_barrier(barrier, parity, Scope::cluster, Place::here());
}
inline void copy_to_cluster(void* shared, const void* global, int bytes, void* barrier, unsigned short blocks) {
  in_background_of_cluster({copy_items<16>, shared, global, bytes, barrier, false}, blocks, Place::here());
}

}  // namespace tconv_emulator::primitives
