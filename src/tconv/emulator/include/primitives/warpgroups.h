// What `kernels/primitives/warpgroups.cuh` does by PTX, on the CPU. Where copies are late, products are taken when they are
// asked for: they show what has not landed. Else they are taken when they are waited for: they show what was overwritten.
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

inline void show_to_products() {}

inline void begin_accumulator(float& accumulator, float value) { accumulator = value; }
inline void move_accumulator(float& accumulator, float value) { accumulator = value; }

inline void end_factor(unsigned&) {}

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

template <int Depth>
struct FactorColumns {
  const unsigned char* start;

  explicit FactorColumns(const void* shared) : start(static_cast<const unsigned char*>(shared)) {}
  unsigned item(int bytes, int k, int column) const {
    const auto address = reinterpret_cast<unsigned long long>(start) + bytes + (column / 64 * Depth + k) * 128 +
                         column % 64 * 2;
    return *reinterpret_cast<const unsigned short*>(address ^ (address >> 7 & 7) << 4);
  }
  // A column's items 2 * number and the next one along k.
  unsigned word(int bytes, int column, int number) const {
    return item(bytes, 2 * number, column) | item(bytes, 2 * number + 1, column) << 16;
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
    const unsigned (*a)[4];  // registers, or nullptr
    const unsigned char* a_start;
    const unsigned char* b;
    int a_bytes, bytes, group;
  };
  static constexpr int most_asked = 256;
  Asked asked[most_asked];
  int count = 0, newest = 0;

  void begin_group() {}
  template <class Element, int Rows, int RowBytes>
  void add(float (&accumulators)[Rows / 2], const unsigned (&a)[4], const FactorRows<RowBytes>& b, int bytes) {
    ask({take<Element, Rows, FactorRows<RowBytes>, FactorColumns<16>>, accumulators, &a, nullptr, b.start, 0, bytes,
         newest});
  }
  void end_group() { ++newest; }
  template <int N>
  void wait() {
    int done = 0;
    for (; done < count && asked[done].group < newest - N; ++done) asked[done].run(asked[done]);
    for (int i = done; i < count; ++i) asked[i - done] = asked[i];
    count -= done;
  }

  void ask(const Asked& product) {
    if (copies_are_late()) return product.run(product);
    if (count == most_asked) refuse("wgmma: more products on their way than the emulator keeps", Place::here());
    asked[count++] = product;
  }
  template <class Element, int Rows, class Second, class First>
  static void take(const Asked& product) {
    const Second second(product.b);
    unsigned words[Rows < 32 ? 1 : Rows / 32 + 1][8];
    for (int row = static_cast<int>(lane_index()); row < Rows; row += 32)
      for (int word = 0; word < 8; ++word) words[row / 32][word] = second.word(product.bytes, row, word);
    unsigned own[4];
    if (product.a == nullptr) {
      const First first(product.a_start);
      const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(lane_index());
      for (int word = 0; word < 4; ++word)
        own[word] = first.word(product.a_bytes, warp * 16 + word % 2 * 8 + lane / 4, word / 2 * 4 + lane % 4);
    }
    multiply_rows(WarpgroupProductOf<Element>::value, product.accumulators, product.a == nullptr ? own : *product.a,
                  words, Rows, Place::here());
  }
};

template <class Element, int Rows, int Depth, int RowBytes>
void add_shared(WarpgroupProducts& products, float (&accumulators)[Rows / 2], const FactorColumns<Depth>& a,
                int a_bytes, const FactorRows<RowBytes>& b, int bytes) {
  products.ask({WarpgroupProducts::take<Element, Rows, FactorRows<RowBytes>, FactorColumns<Depth>>, accumulators,
                nullptr, a.start, b.start, a_bytes, bytes, products.newest});
}
template <class Element, int Rows, int Depth>
void add_shared(WarpgroupProducts& products, float (&accumulators)[Rows / 2], const FactorColumns<Depth>& a,
                int a_bytes, const FactorColumns<Depth>& b, int bytes) {
  products.ask({WarpgroupProducts::take<Element, Rows, FactorColumns<Depth>, FactorColumns<Depth>>, accumulators,
                nullptr, a.start, b.start, a_bytes, bytes, products.newest});
}

}  // namespace tconv_emulator::primitives
