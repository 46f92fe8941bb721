// What `kernels/primitives/asynchronous.cuh` does by PTX, on the CPU: a copy lands when it is asked for, or not before
// it is waited for.
#pragma once

namespace tconv_emulator::primitives {

template <int Threads, class Wanted>
struct BlockCopy {
  struct alignas(16) Bytes {
    unsigned words[4];
  };
  Bytes* to = nullptr;
  const Bytes* from = nullptr;
  int count = 0, of_piece = 1;
  Wanted wanted{};

  explicit BlockCopy(void*) {}
  void begin(void* shared, const void* global, int piece_bytes, int pieces, const Wanted& those) {
    to = static_cast<Bytes*>(shared), from = static_cast<const Bytes*>(global), wanted = those;
    of_piece = piece_bytes / 16, count = pieces * of_piece;
    if (!copies_are_late()) wait();
  }
  void wait() {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += Threads)
      if (wanted(i / of_piece)) to[i] = from[i];
    count = 0;
  }
};

template <int Bytes, int OfGroup, int Groups>
struct ThreadCopies {
  using Land = void (*)(void*, const void*, int);
  struct Group {
    void* to[OfGroup];
    const void* from[OfGroup];
    int bytes[OfGroup], count = 0;
    Land land[OfGroup];
  };
  Group groups[Groups];
  int newest = 0;  // among all that ever were

  Group& group(int number) { return groups[number % Groups]; }
  template <int Size = Bytes>
  void begin(void* shared, const void* global, bool present) {
    begin_copy<Size>(shared, global, present ? Size : 0);
  }
  void begin_part(void* shared, const void* global, int bytes) { begin_copy<Bytes>(shared, global, bytes); }
  void end_group() { ++newest; }
  template <int N>
  void wait() {
    for (int number = newest < Groups ? 0 : newest - Groups; number < newest - N; ++number) land(group(number));
  }

  template <int Size>
  void begin_copy(void* shared, const void* global, int bytes) {
    Group& last = group(newest);
    last.to[last.count] = shared, last.from[last.count] = global;
    last.land[last.count] = land_item<Size>, last.bytes[last.count++] = bytes;
    if (!copies_are_late()) land(last);
  }
  static void land(Group& landing) {
    for (int i = 0; i < landing.count; ++i) landing.land[i](landing.to[i], landing.from[i], landing.bytes[i]);
    landing.count = 0;
  }
  template <int Size>
  static void land_item(void* to, const void* from, int bytes) {
    struct alignas(Size) Item {
      unsigned char bytes[Size];
    };
    Item item{};
    for (int b = 0; b < bytes; ++b) item.bytes[b] = static_cast<const Item*>(from)->bytes[b];
    *static_cast<Item*>(to) = item;
  }
};

}  // namespace tconv_emulator::primitives
