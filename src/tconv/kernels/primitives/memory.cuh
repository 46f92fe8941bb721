// Memory: loads, and vectors of several elements.
#pragma once
#include "primitives/elements.cuh"

namespace tconv {

// Loads through the read-only path: no thread of the grid may write there.
TCONV_DEVICE float load_constant(const float* address) { return __ldg(address); }
TCONV_DEVICE double load_constant(const double* address) { return __ldg(address); }
TCONV_DEVICE Half load_constant(const Half* address) {
  return Half{__ldg(reinterpret_cast<const unsigned short*>(address))};
}
TCONV_DEVICE BFloat16 load_constant(const BFloat16* address) {
  return BFloat16{__ldg(reinterpret_cast<const unsigned short*>(address))};
}

// The same value, hidden from the compiler. The compiler then keeps a common part of several addresses in a register
// and does not compute each address anew.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE long long kept(long long value) {
  asm("" : "+l"(value));
  return value;
}
template <class T>
TCONV_DEVICE const T* kept(const T* value) {
  asm("" : "+l"(value));
  return value;
}
#endif

// The same value, hidden from the compiler anew at each call (the asm is volatile). In a loop, the compiler then cannot
// compute values that depend on it before the loop and hold registers for them.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE int renewed(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
#endif

// N elements that are loaded or stored at once; the address must be a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) TCONV_MAY_ALIAS Vector {
  T values[N];
};

// A 32-bit word of a vector: one float, two 16-bit items, or a single 16-bit item in the low half.
template <int N>
TCONV_DEVICE unsigned word_of(const Vector<float, N>& vector, int number) {
  return float_bits(vector.values[number]);
}
template <class Half16, int N>
TCONV_DEVICE unsigned word_of(const Vector<Half16, N>& vector, int number) {
  const unsigned low = vector.values[2 * number].bits;
  return N == 1 ? low : low | static_cast<unsigned>(vector.values[(2 * number + 1) % N].bits) << 16;
}

// Loads 2, 4, 8 or 16 bytes, aligned to their number, that no thread of the grid writes: PTX ld.global.nc. Two bytes go
// to the low half of a word. If not `present`, words become 0 and the address is not read. The load is predicated, not
// branched. As it is volatile, compilers mostly leave it where it stands, between products, so that it does not delay
// their operands. (Words are no early clobbers, which CUDA 11 does not know. A word may thus share a register only with
// `present`, which is read first.)
#if !defined(TCONV_EMULATOR)
template <int Bytes>
TCONV_DEVICE void load_present(const void* address, bool present, unsigned (&words)[(Bytes + 3) / 4]);
template <>
TCONV_DEVICE void load_present<2>(const void* address, bool present, unsigned (&words)[1]) {
  asm volatile(
      "{ .reg .pred there; .reg .b16 half; setp.ne.b32 there, %2, 0; mov.b16 half, 0;"
      " @there ld.global.nc.b16 half, [%1]; cvt.u32.u16 %0, half; }"
      : "=r"(words[0])
      : "l"(address), "r"(static_cast<int>(present)));
}
template <>
TCONV_DEVICE void load_present<4>(const void* address, bool present, unsigned (&words)[1]) {
  asm volatile("{ .reg .pred there; setp.ne.b32 there, %2, 0; mov.b32 %0, 0; @there ld.global.nc.b32 %0, [%1]; }"
               : "=r"(words[0])
               : "l"(address), "r"(static_cast<int>(present)));
}
template <>
TCONV_DEVICE void load_present<8>(const void* address, bool present, unsigned (&words)[2]) {
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0;"
      " @there ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
      : "=r"(words[0]), "=r"(words[1])
      : "l"(address), "r"(static_cast<int>(present)));
}
template <>
TCONV_DEVICE void load_present<16>(const void* address, bool present, unsigned (&words)[4]) {
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %5, 0;"
      " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
      " @there ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "l"(address), "r"(static_cast<int>(present)));
}
#endif

// Stores 2, 4, 8 or 16 bytes, aligned to their number, by one PTX st.global. From C++, compilers split the store of a
// vector whose items come from distant registers.
#if !defined(TCONV_EMULATOR)
template <int Bytes>
TCONV_DEVICE void store_words(void* address, const unsigned (&words)[(Bytes + 3) / 4]);
template <>
TCONV_DEVICE void store_words<2>(void* address, const unsigned (&words)[1]) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(address), "h"(static_cast<unsigned short>(words[0])) : "memory");
}
template <>
TCONV_DEVICE void store_words<4>(void* address, const unsigned (&words)[1]) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(words[0]) : "memory");
}
template <>
TCONV_DEVICE void store_words<8>(void* address, const unsigned (&words)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1]) : "memory");
}
template <>
TCONV_DEVICE void store_words<16>(void* address, const unsigned (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
#endif
template <class T, int N>
TCONV_DEVICE void store_vector(T* address, const Vector<T, N>& vector) {
  constexpr int bytes = N * static_cast<int>(sizeof(T)), count = (bytes + 3) / 4;
  unsigned words[count];
#pragma unroll
  for (int i = 0; i < count; ++i) words[i] = word_of(vector, i);
  store_words<bytes>(address, words);
}

// Stores an element if it is `present`; else the address is not written. The store is predicated, not branched. Loads
// may be moved across it: nobody reads what a kernel stores.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE void store_present(float* address, float value, bool present) {
  asm volatile("{ .reg .pred there; setp.ne.b32 there, %2, 0; @there st.global.f32 [%0], %1; }" ::"l"(address),
               "f"(value), "r"(static_cast<int>(present)));
}
template <class Half16>
TCONV_DEVICE void store_present(Half16* address, Half16 value, bool present) {
  asm volatile("{ .reg .pred there; setp.ne.b32 there, %2, 0; @there st.global.b16 [%0], %1; }" ::"l"(address),
               "h"(value.bits), "r"(static_cast<int>(present)));
}
#endif

TCONV_CONSTANT int vector_width(int count, int item_bytes) {
  int width = 16 / item_bytes;
  while (count % width != 0) width /= 2;
  return width;
}

// Copies N values from shared memory by the widest loads, up to 16 bytes, that divide N. The address must be aligned to
// that width.
template <class T, int N>
TCONV_DEVICE void load_shared(const T* address, T (&values)[N]) {
  constexpr int width = vector_width(N, sizeof(T));
  using Wide = Vector<T, width>;
#pragma unroll
  for (int i = 0; i < N; i += width) {
    const Wide wide = *reinterpret_cast<const Wide*>(address + i);
#pragma unroll
    for (int k = 0; k < width; ++k) values[i + k] = wide.values[k];
  }
}

}  // namespace tconv
