// Barriers in shared memory, on which threads and copies arrive, and copies that do: PTX mbarrier, sm_90 and newer.
#pragma once
#include "primitives/asynchronous.cuh"

namespace tconv {

// A barrier is 8 aligned bytes of shared memory. Its phase ends when so many threads have arrived as it was made for,
// and all bytes that they expect have landed; the next phase begins at once. Who waits for phase n asks for its parity,
// n % 2, and then sees what those wrote that had arrived. Who asks a barrier that was just made for parity 1 goes on:
// so a producer finds its stages empty.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
TCONV_DEVICE void make_barrier(void* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Behind the last `make_barrier`, by the thread that made them and before a `__syncthreads`.
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

// So many threads of a block, whole warps, meet at one of its barriers 1 to 15, which orders their memory. PTX
// bar.sync.
template <int Count>
TCONV_DEVICE void meet(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(Count) : "memory");
}

// Asks for a copy of so many bytes, a multiple of 16 at multiples of 16, to shared memory, by one thread; the barrier
// counts those that landed. PTX cp.async.bulk.
TCONV_DEVICE void copy_to_shared(void* shared, const void* global, int bytes, void* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// A thread's copies of `Bytes` bytes, as those of `ThreadCopies`, behind which it arrives at a barrier when all that it
// asked for has landed. PTX cp.async.mbarrier.arrive.noinc.
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
