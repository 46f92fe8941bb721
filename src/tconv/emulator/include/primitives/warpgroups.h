// What `kernels/primitives/warpgroups.cuh` does by PTX, on the CPU: products are taken when they are asked for, or not
// before they are waited for.
#pragma once

namespace tconv {
struct Half;
struct BFloat16;
}  // namespace tconv

namespace tconv_emulator::primitives {

template <int Count>
inline void take_registers() {}
template <int Count>
inline void give_registers() {}

inline void store_matrices(void* row, const unsigned (&words)[4]) {
  void* rows[4];
  matrix_rows(MatrixAccess::store, row, lane_index() / 4, rows, Place::here());
  for (int m = 0; m < 4; ++m) static_cast<unsigned*>(rows[m])[lane_index() % 4] = words[m];
}

inline void begin_accumulator(float& accumulator, float value) { accumulator = value; }

template <int RowBytes>
struct FactorRows {
  const unsigned char* start;

  explicit FactorRows(const void* shared) : start(static_cast<const unsigned char*>(shared)) {}
  // A word of a row, where the swizzle puts it: it moves the bits of the address.
  unsigned word(int bytes, int row, int number) const {
    const auto address = reinterpret_cast<unsigned long long>(start) + bytes + row * RowBytes + number * 4;
    return *reinterpret_cast<const unsigned*>(address ^ (address >> 7 & (RowBytes / 16 - 1)) << 4);
  }
};

template <class Element>
struct WarpgroupProductOf {
  static constexpr WarpgroupProduct value = WarpgroupProduct::k8_tf32;
};
template <>
struct WarpgroupProductOf<tconv::Half> {
  static constexpr WarpgroupProduct value = WarpgroupProduct::k16_f16;
};
template <>
struct WarpgroupProductOf<tconv::BFloat16> {
  static constexpr WarpgroupProduct value = WarpgroupProduct::k16_bf16;
};

struct WarpgroupProducts {
  struct Asked {
    void (*run)(const Asked&);
    float* accumulators;
    const unsigned (*a)[4];
    const unsigned char* b;
    int bytes, group;
  };
  static constexpr int most_asked = 256;
  Asked asked[most_asked];
  int count = 0, newest = 0;

  void begin_group() {}
  template <class Element, int Rows, int RowBytes>
  void add(float (&accumulators)[Rows / 2], const unsigned (&a)[4], const FactorRows<RowBytes>& b, int bytes) {
    const Asked product = {take<Element, Rows, RowBytes>, accumulators, &a, b.start, bytes, newest};
    if (!copies_are_late()) return product.run(product);
    if (count == most_asked) refuse("wgmma: more products on their way than the emulator keeps", Place::here());
    asked[count++] = product;
  }
  void end_group() { ++newest; }
  template <int N>
  void wait() {
    int done = 0;
    for (; done < count && asked[done].group < newest - N; ++done) asked[done].run(asked[done]);
    for (int i = done; i < count; ++i) asked[i - done] = asked[i];
    count -= done;
  }
  template <class Element, int Rows, int RowBytes>
  static void take(const Asked& product) {
    const FactorRows<RowBytes> rows(product.b);
    unsigned words[Rows < 32 ? 1 : Rows / 32 + 1][8];
    for (int row = static_cast<int>(lane_index()); row < Rows; row += 32)
      for (int word = 0; word < 8; ++word) words[row / 32][word] = rows.word(product.bytes, row, word);
    multiply_rows(WarpgroupProductOf<Element>::value, product.accumulators, *product.a, words, Rows, Place::here());
  }
};

}  // namespace tconv_emulator::primitives
