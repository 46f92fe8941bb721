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
inline void wait(void* barrier, unsigned parity) { wait_at_barrier(barrier, parity, Scope::block, Place::here()); }

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

struct ArrivingCopies {
  template <int Bytes>
  void begin(void* shared, const void* global, bool present) {
    in_background({copy_items<Bytes>, shared, present ? global : nullptr, Bytes, nullptr, false}, Place::here());
  }
  void arrive(void* barrier) { in_background({nullptr, nullptr, nullptr, 0, barrier, true}, Place::here()); }
};

// Late groups land when they are waited for.
struct GroupedCopies {
  struct Asked {
    void (*copy)(void*, const void*, int);
    void* to;
    const void* from;
    int bytes, group;
  };
  static constexpr int most_asked = 512;
  Asked asked[most_asked];
  int count = 0, newest = 0;

  template <int Bytes>
  void begin(void* shared, const void* global, bool present) {
    const void* const from = present ? global : nullptr;
    if (!copies_are_late()) return copy_items<Bytes>(shared, from, Bytes);
    if (count == most_asked) refuse("cp.async: more copies on their way than the emulator keeps", Place::here());
    asked[count++] = {copy_items<Bytes>, shared, from, Bytes, newest};
  }
  void end_group() { ++newest; }
  template <int N>
  void wait() {
    int done = 0;
    for (; done < count && asked[done].group < newest - N; ++done)
      asked[done].copy(asked[done].to, asked[done].from, asked[done].bytes);
    for (int i = done; i < count; ++i) asked[i - done] = asked[i];
    count -= done;
  }
};

}  // namespace tconv_emulator::primitives
