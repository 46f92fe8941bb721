// What `kernels/primitives/barriers.cuh` does by PTX, on the CPU.
#pragma once

namespace tconv_emulator::primitives {

inline void make_barrier(void* barrier, int arrivals) {
  tconv_emulator::make_barrier(barrier, arrivals, Place::here());
}
inline void show_barriers() {}
inline void arrive(void* barrier) { arrive_at_barrier(barrier, Place::here()); }
inline void arrive_and_expect(void* barrier, int bytes) {
  expect_at_barrier(barrier, bytes, Place::here());
  arrive_at_barrier(barrier, Place::here());
}
inline void wait(void* barrier, unsigned parity) { wait_at_barrier(barrier, parity, Place::here()); }

template <int Bytes>
inline void copy_items(void* to, const void* from, int bytes) {
  struct alignas(Bytes) Item {
    unsigned char bytes[Bytes];
  };
  for (int i = 0; i < bytes / Bytes; ++i)
    static_cast<Item*>(to)[i] = from == nullptr ? Item{} : static_cast<const Item*>(from)[i];
}

inline void copy_to_shared(void* shared, const void* global, int bytes, void* barrier) {
  in_background({copy_items<16>, shared, global, bytes, barrier, false}, Place::here());
}

template <int Count>
inline void meet(int number) {
  meet_threads(number, Count, Place::here());
}

template <int Bytes>
struct ArrivingCopies {
  void begin(void* shared, const void* global, bool present) {
    in_background({copy_items<Bytes>, shared, present ? global : nullptr, Bytes, nullptr, false}, Place::here());
  }
  void arrive(void* barrier) { in_background({nullptr, nullptr, nullptr, 0, barrier, true}, Place::here()); }
};

}  // namespace tconv_emulator::primitives
