// Work that runs beside threads: copies to shared memory, and the kernel before or after this one.
#pragma once
#include "primitives/language.cuh"

namespace tconv {

// A block's asynchronous copy of pieces from global to shared memory, one copy at a time. A piece is a multiple of 16
// bytes, and pieces keep their places to each other. Only pieces for which `wanted(number)` is true are copied. All
// threads make all calls. Before `begin` they must meet at a barrier after their last use of the place; after `wait`
// they must meet at one before they read. From sm_90 on one lane copies one piece at a time, by PTX cp.async.bulk. An
// mbarrier in `memory`, 8 bytes of shared memory, then counts the bytes. Before sm_90 each thread copies 16 bytes at a
// time, by cp.async.cg.
#if !defined(TCONV_EMULATOR)
template <int Threads, class Wanted>
struct BlockCopy {
#if __CUDA_ARCH__ >= 900
  unsigned barrier, parity = 0;

  TCONV_DEVICE explicit BlockCopy(void* memory) : barrier(static_cast<unsigned>(__cvta_generic_to_shared(memory))) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "n"(Threads / 32) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }
  TCONV_DEVICE void begin(void* shared, const void* global, int piece_bytes, int pieces, const Wanted& wanted) {
    constexpr int warps = Threads / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned char* from = static_cast<const unsigned char*>(global);
    for (int piece = lane * warps + warp; piece < pieces; piece += Threads) {
      if (!wanted(piece)) continue;
      asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(piece_bytes)
                   : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       to + piece * piece_bytes),
                   "l"(from + piece * piece_bytes), "r"(piece_bytes), "r"(barrier)
                   : "memory");
    }
    __syncwarp();
    if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  }
  TCONV_DEVICE void wait() {
    unsigned landed;
    do {
      asm volatile(
          "{ .reg .pred landed; mbarrier.try_wait.parity.shared::cta.b64 landed, [%1], %2; selp.u32 %0, 1, 0, landed; }"
          : "=r"(landed)
          : "r"(barrier), "r"(parity)
          : "memory");
    } while (landed == 0);
    parity ^= 1;
  }
#else
  TCONV_DEVICE explicit BlockCopy(void*) {}
  TCONV_DEVICE void begin(void* shared, const void* global, int piece_bytes, int pieces, const Wanted& wanted) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned char* from = static_cast<const unsigned char*>(global);
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x) * 16; i < pieces * piece_bytes; i += 16 * Threads)
      if (wanted(i / piece_bytes))
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(from + i) : "memory");
  }
  TCONV_DEVICE void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif
};
#endif

// A thread's own asynchronous copies of `Bytes` bytes (4, 8 or 16, aligned to their number) from global to shared
// memory; some may have another `Size`. A group has at most `OfGroup` copies; at most `Groups` groups are on their way
// at once. Where a copy is not `present`, zeros are written and the address is not read. `wait<N>` returns when all
// groups but the last N have landed. They are then visible to the thread itself, and to others after a barrier. PTX
// cp.async, cp.async.commit_group and cp.async.wait_group.
#if !defined(TCONV_EMULATOR)
template <int Bytes>
TCONV_DEVICE void copy_item(void* shared, const void* global, int bytes) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(Bytes == 16 ? 8 : Bytes),
                 "r"(bytes)
                 : "memory");
}
template <int Bytes, int OfGroup, int Groups>
struct ThreadCopies {
  template <int Size = Bytes>
  TCONV_DEVICE void begin(void* shared, const void* global, bool present) {
    copy_item<Size>(shared, global, present ? Size : 0);
  }
  // Copies the first `bytes` bytes, and writes zeros behind them.
  TCONV_DEVICE void begin_part(void* shared, const void* global, int bytes) { copy_item<Bytes>(shared, global, bytes); }
  TCONV_DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int N>
  TCONV_DEVICE void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }
};
#endif

// Waits until the kernel before this one has ended and its writes are visible. A kernel that was launched to overlap
// must not touch them earlier. PTX griddepcontrol.wait; before sm_90 kernels never overlap.
TCONV_DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin, if it was launched to overlap, once all blocks of this one have called this. PTX
// griddepcontrol.launch_dependents.
TCONV_DEVICE void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tconv
