// Barriers in shared memory, at which threads and copies arrive, and copies that arrive: PTX mbarrier, from sm_90 on.
#pragma once
#include "primitives/asynchronous.cuh"

namespace tconv {

// A barrier is 8 aligned bytes of shared memory, made for a number of arrivals. Its phase ends when these arrivals have
// happened and all expected bytes have landed; the next phase begins at once. A thread that waits for phase n passes
// the parity n % 2. It then sees all that arriving threads wrote before they arrived. On a new barrier, a wait for
// parity 1 returns at once: so a producer finds its stages empty.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
TCONV_DEVICE void make_barrier(void* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes barriers visible to copies. The thread that made them calls this after its last `make_barrier`; a
// `__syncthreads` must follow.
TCONV_DEVICE void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
TCONV_DEVICE void arrive(void* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
TCONV_DEVICE void arrive_and_expect(void* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
TCONV_DEVICE void wait(void* barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred over; again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1; @!over bra again; }" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// A barrier of `Count` threads of a block, in whole warps; it orders their memory. `number` is 1 to 15, as
// __syncthreads has 0. PTX bar.sync.
template <int Count>
TCONV_DEVICE void meet(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(Count) : "memory");
}

// One thread begins a copy of `bytes` bytes to shared memory; addresses and `bytes` are multiples of 16. The barrier
// counts the bytes that have landed, which a thread must expect there. PTX cp.async.bulk.
TCONV_DEVICE void copy_to_shared(void* shared, const void* global, int bytes, void* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// A thread's copies of `Bytes` bytes, as in `ThreadCopies`. After `arrive` the thread goes on at once; its arrival at
// the barrier happens when all its copies have landed. PTX cp.async.mbarrier.arrive.noinc.
template <int Bytes>
struct ArrivingCopies {
  TCONV_DEVICE void begin(void* shared, const void* global, bool present) {
    copy_item<Bytes>(shared, global, present ? Bytes : 0);
  }
  TCONV_DEVICE void arrive(void* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
};
#endif

}  // namespace tconv
