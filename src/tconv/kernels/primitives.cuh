// What every kernel family builds on: element types, conversions, rounding, memory access, warp exchange.
//
// All inline PTX of the project stands in this file. Each primitive that needs it has a device body and a CPU body
// (TCONV_EMULATOR), so that the kernels themselves are plain C++ and run under NVRTC, nvcc and g++ alike.
// No CUDA header is included: 16-bit floats are their bits. The language is C++14, as older builds of PyTorch ask of
// nvcc.
#pragma once

#if defined(TCONV_EMULATOR)
#define TCONV_DEVICE inline
#define TCONV_CONSTANT constexpr
#define TCONV_MAY_ALIAS [[gnu::may_alias]]
#define TCONV_SHARED(name) unsigned char* name = tconv_emulator::shared_memory()
#else
#define TCONV_DEVICE __device__ __forceinline__
#define TCONV_CONSTANT __host__ __device__ constexpr
#define TCONV_MAY_ALIAS
#define TCONV_SHARED(name)                                      \
  extern __shared__ __align__(16) unsigned char tconv_shared[]; \
  unsigned char* name = tconv_shared
#endif

namespace tconv {

// ---- element types -------------------------------------------------------------------------------------------------

struct Half {
  unsigned short bits;
};

struct BFloat16 {
  unsigned short bits;
};

// The type products are summed in.
template <class Element>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};

TCONV_DEVICE unsigned float_bits(float value) {
#if defined(TCONV_EMULATOR)
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
#else
  return __float_as_uint(value);
#endif
}

TCONV_DEVICE float bits_float(unsigned bits) {
#if defined(TCONV_EMULATOR)
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
#else
  return __uint_as_float(bits);
#endif
}

// The words of a double: its low one first, where it is written to memory.
TCONV_DEVICE unsigned low_word(double value) {
#if defined(TCONV_EMULATOR)
  unsigned long long bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<unsigned>(bits);
#else
  return static_cast<unsigned>(__double2loint(value));
#endif
}

TCONV_DEVICE unsigned high_word(double value) {
#if defined(TCONV_EMULATOR)
  unsigned long long bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<unsigned>(bits >> 32);
#else
  return static_cast<unsigned>(__double2hiint(value));
#endif
}

TCONV_DEVICE double words_double(unsigned low, unsigned high) {
#if defined(TCONV_EMULATOR)
  const unsigned long long bits = static_cast<unsigned long long>(high) << 32 | low;
  double value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
#else
  return __hiloint2double(static_cast<int>(high), static_cast<int>(low));
#endif
}

// binary16 to binary32, exact. Equals PTX cvt.f32.f16.
TCONV_DEVICE float half_to_float(Half value) {
#if defined(TCONV_EMULATOR)
  const unsigned sign = (value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Subnormals come out right: the magnitude is read 2^112 too small and scaled back, which is exact.
  const float scaled = bits_float(magnitude << 13) * 5.192296858534828e+33f;
  return bits_float(sign | float_bits(scaled));
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#endif
}

// binary32 to binary16, to nearest, ties to even. Equals PTX cvt.rn.f16.f32.
TCONV_DEVICE Half float_to_half(float value) {
  Half result;
#if defined(TCONV_EMULATOR)
  const unsigned bits = float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  unsigned rounded;
  if (magnitude > 0x7f800000u) {
    rounded = 0x7fffu;
  } else if (magnitude >= 0x47800000u) {  // 65536 and above, infinity
    rounded = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: drop 13 bits; the carry may reach the exponent, and infinity
    rounded = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {  // subnormal: adding 0.5 puts the last bit kept at the end of the significand
    rounded = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  }
  result.bits = static_cast<unsigned short>(sign | rounded);
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#endif
  return result;
}

TCONV_DEVICE float bfloat16_to_float(BFloat16 value) { return bits_float(static_cast<unsigned>(value.bits) << 16); }

// binary32 to bfloat16, to nearest, ties to even. In integers, as sm_75 has no instruction for it.
TCONV_DEVICE BFloat16 float_to_bfloat16(float value) {
  const unsigned bits = float_bits(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  BFloat16 result;
  result.bits = static_cast<unsigned short>(nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  return result;
}

// How operands are rounded to TF32's 10-bit significand, if at all: to nearest, and where two are as near, to the even
// one or to the one further from zero.
enum class Rounding { none, ties_to_even, ties_away };

// A factor of a product, rounded to TF32 where the precision says so. Equals PTX cvt.rn.tf32.f32 (sm_90 on) and
// cvt.rna.tf32.f32 (sm_80 on), in integers for every GPU: on CUDA cores that is the faster way. Infinities and NaN stay
// as they are.
template <Rounding rounding>
TCONV_DEVICE float operand(float value) {
  const unsigned bits = float_bits(value);
  if (rounding == Rounding::none || (bits & 0x7f800000u) == 0x7f800000u) return value;
  const unsigned half_unit = rounding == Rounding::ties_away ? 0x1000u : 0xfffu + (bits >> 13 & 1u);
  return bits_float((bits + half_unit) & 0xffffe000u);
}
template <Rounding rounding>
TCONV_DEVICE double operand(double value) {
  static_assert(rounding == Rounding::none, "TF32 operands are float");
  return value;
}

TCONV_DEVICE float to_accumulator(float value) { return value; }
TCONV_DEVICE double to_accumulator(double value) { return value; }
TCONV_DEVICE float to_accumulator(Half value) { return half_to_float(value); }
TCONV_DEVICE float to_accumulator(BFloat16 value) { return bfloat16_to_float(value); }

template <class Element>
TCONV_DEVICE Element from_accumulator(typename AccumulatorOf<Element>::type value) {
  return value;
}
template <>
TCONV_DEVICE Half from_accumulator<Half>(float value) {
  return float_to_half(value);
}
template <>
TCONV_DEVICE BFloat16 from_accumulator<BFloat16>(float value) {
  return float_to_bfloat16(value);
}

// Two numbers at once: from sm_80 on one instruction for two of 16 bits, PTX cvt.rn.f16x2.f32 and cvt.rn.bf16x2.f32.
template <class Element>
TCONV_DEVICE void from_accumulators(typename AccumulatorOf<Element>::type first,
                                    typename AccumulatorOf<Element>::type second, Element (&two)[2]) {
  two[0] = from_accumulator<Element>(first), two[1] = from_accumulator<Element>(second);
}
#if !defined(TCONV_EMULATOR) && __CUDA_ARCH__ >= 800
#define TCONV_FROM_ACCUMULATORS(element, type)                                                              \
  TCONV_DEVICE void from_accumulators(float first, float second, element(&two)[2]) {                        \
    unsigned word;                                                                                          \
    asm("cvt.rn." #type "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));                       \
    two[0].bits = static_cast<unsigned short>(word), two[1].bits = static_cast<unsigned short>(word >> 16); \
  }
TCONV_FROM_ACCUMULATORS(Half, f16)
TCONV_FROM_ACCUMULATORS(BFloat16, bf16)
#undef TCONV_FROM_ACCUMULATORS
#endif

TCONV_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
TCONV_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// ---- memory --------------------------------------------------------------------------------------------------------

// Loads of what no thread of the grid writes.
TCONV_DEVICE float load_constant(const float* address) { return __ldg(address); }
TCONV_DEVICE double load_constant(const double* address) { return __ldg(address); }
TCONV_DEVICE Half load_constant(const Half* address) {
  return Half{__ldg(reinterpret_cast<const unsigned short*>(address))};
}
TCONV_DEVICE BFloat16 load_constant(const BFloat16* address) {
  return BFloat16{__ldg(reinterpret_cast<const unsigned short*>(address))};
}

// The same value, of which the compiler knows nothing. It then keeps a common part of several addresses in a register
// instead of computing each address anew.
TCONV_DEVICE long long kept(long long value) {
#if !defined(TCONV_EMULATOR)
  asm("" : "+l"(value));
#endif
  return value;
}
template <class T>
TCONV_DEVICE const T* kept(const T* value) {
#if !defined(TCONV_EMULATOR)
  asm("" : "+l"(value));
#endif
  return value;
}

// N elements at once; the address must be a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) TCONV_MAY_ALIAS Vector {
  T values[N];
};

// 2, 4, 8 or 16 bytes of what no thread of the grid writes, at a multiple of their number, two in the low half of a
// word; zeros if they are not present. Predicated, not branched, and mostly left by the compiler where it stands in the
// code: between products, so that loads do not keep their operands waiting. PTX ld.global.nc. (Words are no early
// clobbers, which CUDA 11 does not know: the only register that one may take is that of `present`, which is read
// first.)
#if defined(TCONV_EMULATOR)
template <int Bytes>
TCONV_DEVICE Vector<unsigned, (Bytes + 3) / 4> load_present(const void* address, bool present) {
  struct alignas(Bytes) Aligned {
    unsigned char bytes[Bytes];
  };
  Vector<unsigned, (Bytes + 3) / 4> words{};
  if (!present) return words;
  const Aligned bytes = *static_cast<const Aligned*>(address);
  __builtin_memcpy(&words, &bytes, Bytes);
  return words;
}
#else
template <int Bytes>
TCONV_DEVICE Vector<unsigned, (Bytes + 3) / 4> load_present(const void* address, bool present);
template <>
TCONV_DEVICE Vector<unsigned, 1> load_present<2>(const void* address, bool present) {
  Vector<unsigned, 1> word;
  asm volatile(
      "{ .reg .pred there; .reg .b16 half; setp.ne.b32 there, %2, 0; mov.b16 half, 0;"
      " @there ld.global.nc.b16 half, [%1]; cvt.u32.u16 %0, half; }"
      : "=r"(word.values[0])
      : "l"(address), "r"(static_cast<int>(present)));
  return word;
}
template <>
TCONV_DEVICE Vector<unsigned, 1> load_present<4>(const void* address, bool present) {
  Vector<unsigned, 1> word;
  asm volatile("{ .reg .pred there; setp.ne.b32 there, %2, 0; mov.b32 %0, 0; @there ld.global.nc.b32 %0, [%1]; }"
               : "=r"(word.values[0])
               : "l"(address), "r"(static_cast<int>(present)));
  return word;
}
template <>
TCONV_DEVICE Vector<unsigned, 2> load_present<8>(const void* address, bool present) {
  Vector<unsigned, 2> words;
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0;"
      " @there ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
      : "=r"(words.values[0]), "=r"(words.values[1])
      : "l"(address), "r"(static_cast<int>(present)));
  return words;
}
template <>
TCONV_DEVICE Vector<unsigned, 4> load_present<16>(const void* address, bool present) {
  Vector<unsigned, 4> words;
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %5, 0;"
      " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
      " @there ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(words.values[0]), "=r"(words.values[1]), "=r"(words.values[2]), "=r"(words.values[3])
      : "l"(address), "r"(static_cast<int>(present)));
  return words;
}
#endif

TCONV_CONSTANT int vector_width(int count, int item_bytes) {
  int width = 16 / item_bytes;
  while (count % width != 0) width /= 2;
  return width;
}

// Copies N values from shared memory by the widest loads that divide N. The address must be a multiple of the width.
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

// ---- tensor cores, sm_80 and newer ---------------------------------------------------------------------------------
//
// Four 8x8 matrices of 16-bit items, or 8x4 of 32 bits: lane l names row l % 8 of matrix l / 8, 16 aligned bytes of
// shared memory, and gets word l % 4 of row l / 4 of each. Equals PTX ldmatrix.sync.aligned.m8n8.x4.shared.b16.
TCONV_DEVICE void load_matrices(const void* row, unsigned (&words)[4]) {
#if defined(TCONV_EMULATOR)
  const void* rows[4];
  tconv_emulator::matrix_rows(row, tconv_emulator::lane_index() / 4, rows, tconv_emulator::Place::here());
  for (int m = 0; m < 4; ++m) words[m] = static_cast<const unsigned*>(rows[m])[tconv_emulator::lane_index() % 4];
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
#endif
}

// The same of four 8x8 matrices of 16-bit items, each turned: lane l gets the items of column l / 4 in rows 2 * (l % 4)
// and the next one. PTX ldmatrix with .trans.
TCONV_DEVICE void load_turned_matrices(const void* row, unsigned (&words)[4]) {
#if defined(TCONV_EMULATOR)
  const unsigned lane = tconv_emulator::lane_index();
  const void* rows[2][4];
  for (unsigned k = 0; k < 2; ++k)
    tconv_emulator::matrix_rows(row, 2 * (lane % 4) + k, rows[k], tconv_emulator::Place::here());
  for (int m = 0; m < 4; ++m)
    words[m] = static_cast<const unsigned short*>(rows[0][m])[lane / 4] |
               static_cast<unsigned>(static_cast<const unsigned short*>(rows[1][m])[lane / 4]) << 16;
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
#endif
}

// `operand`, by one instruction where there is one.
template <Rounding rounding>
TCONV_DEVICE float matrix_operand(float value) {
#if !defined(TCONV_EMULATOR) && __CUDA_ARCH__ >= 800
  unsigned rounded;
  if (rounding == Rounding::ties_away) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return bits_float(rounded);
  }
#if __CUDA_ARCH__ >= 900
  if (rounding == Rounding::ties_to_even) {
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return bits_float(rounded);
  }
#endif
#endif
  return operand<rounding>(value);
}

// sums += A * B on tensor cores, for 16 rows of A, 8 columns of B and 32 bytes of each along the products' axis; the
// fragments are those of PTX mma.sync.aligned.m16n8k8 (float: TF32, the low 13 bits are ignored), m16n8k16, and m16n8k4
// (double, its low word first), before sm_90 twice m8n8k4.
template <class Element>
struct MatrixProduct;
#if defined(TCONV_EMULATOR)
#define TCONV_MATRIX_PRODUCT(element, shape, types)                                                  \
  template <>                                                                                        \
  struct MatrixProduct<element> {                                                                    \
    TCONV_DEVICE static void add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
      tconv_emulator::multiply_matrices(tconv_emulator::MatrixProduct::shape##_##types, sums, a, b,  \
                                        tconv_emulator::Place::here());                              \
    }                                                                                                \
  };
#else
#define TCONV_MATRIX_PRODUCT(element, shape, types)                                                  \
  template <>                                                                                        \
  struct MatrixProduct<element> {                                                                    \
    TCONV_DEVICE static void add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
      asm("mma.sync.aligned." #shape ".row.col.f32." #types "." #types                               \
          ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                     \
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                               \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                       \
    }                                                                                                \
  };
#endif
TCONV_MATRIX_PRODUCT(float, m16n8k8, tf32)
TCONV_MATRIX_PRODUCT(Half, m16n8k16, f16)
TCONV_MATRIX_PRODUCT(BFloat16, m16n8k16, bf16)
#undef TCONV_MATRIX_PRODUCT
template <>
struct MatrixProduct<double> {
  TCONV_DEVICE static void add(double (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(TCONV_EMULATOR)
    tconv_emulator::multiply_matrices(tconv_emulator::MatrixProduct::m16n8k4_f64, sums, a, b,
                                      tconv_emulator::Place::here());
#else
    const double upper = words_double(a[0], a[1]), lower = words_double(a[2], a[3]), column = words_double(b[0], b[1]);
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
        : "d"(upper), "d"(lower), "d"(column));
#else
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sums[0]), "+d"(sums[1])
        : "d"(upper), "d"(column));
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sums[2]), "+d"(sums[3])
        : "d"(lower), "d"(column));
#endif
#endif
  }
};

// A block's copy of pieces of some bytes, a multiple of 16, from global to shared memory, in which they lie as in
// global memory, while its threads go on; one copy at a time. All threads call everything alike. They must have passed
// a barrier since they used the place; what landed is visible to a thread after its `wait` and a barrier behind it.
// Pieces that are not `wanted(number)` are left out. From sm_90 on a lane asks for all of a piece, by PTX
// cp.async.bulk, and an mbarrier in `memory`, 8 bytes of shared memory, says when it is there. Before, each thread
// copies 16 bytes at a time, by cp.async.cg.
template <int Threads, class Wanted>
struct BlockCopy {
#if defined(TCONV_EMULATOR)
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
    if (!tconv_emulator::copies_are_late()) wait();
  }
  void wait() {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += Threads)
      if (wanted(i / of_piece)) to[i] = from[i];
    count = 0;
  }
#elif __CUDA_ARCH__ >= 900
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

// A thread's own copies of `Bytes` bytes (4, 8 or 16, at multiples of their number) from global to shared memory, in
// groups of `OfGroup` at most, of which so many are on their way at once; zeros instead of what is not `present`, whose
// address is not read. `wait<N>` returns when all groups but the last N have landed: they are visible to the thread
// itself, and to others after a barrier behind it. PTX cp.async, cp.async.commit_group and cp.async.wait_group.
template <int Bytes, int OfGroup, int Groups>
struct ThreadCopies {
#if defined(TCONV_EMULATOR)
  struct alignas(Bytes) Item {
    unsigned char bytes[Bytes];
  };
  struct Group {
    Item* to[OfGroup];
    const Item* from[OfGroup];
    int count = 0;
  };
  Group groups[Groups];
  int newest = 0;  // among all that ever were

  Group& group(int number) { return groups[number % Groups]; }
  void begin(void* shared, const void* global, bool present) {
    Group& last = group(newest);
    last.to[last.count] = static_cast<Item*>(shared);
    last.from[last.count++] = present ? static_cast<const Item*>(global) : nullptr;
    if (!tconv_emulator::copies_are_late()) land(last);
  }
  void end_group() { ++newest; }
  template <int N>
  void wait() {
    for (int number = newest < Groups ? 0 : newest - Groups; number < newest - N; ++number) land(group(number));
  }
  static void land(Group& landing) {
    for (int i = 0; i < landing.count; ++i) *landing.to[i] = landing.from[i] == nullptr ? Item{} : *landing.from[i];
    landing.count = 0;
  }
#else
  TCONV_DEVICE void begin(void* shared, const void* global, bool present) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if (Bytes == 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(present ? 16 : 0)
                   : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(Bytes == 16 ? 8 : Bytes),
                   "r"(present ? Bytes : 0)
                   : "memory");
  }
  TCONV_DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int N>
  TCONV_DEVICE void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }
#endif
};

// ---- kernels behind one another, sm_90 and newer -------------------------------------------------------------------
//
// A kernel that was launched to overlap with the one before it may not touch what that one writes before this returns:
// then all of it has ended. PTX griddepcontrol.wait and griddepcontrol.launch_dependents; older GPUs never overlap.
TCONV_DEVICE void wait_for_kernel_before() {
#if !defined(TCONV_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From here on in all its blocks, the kernel behind this one may begin, if it was launched to overlap.
TCONV_DEVICE void let_kernel_behind_begin() {
#if !defined(TCONV_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- compile-time arithmetic ---------------------------------------------------------------------------------------

TCONV_CONSTANT int greatest_common_divisor(int a, int b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }
TCONV_CONSTANT int ceil_div(int a, int b) { return (a + b - 1) / b; }
TCONV_CONSTANT bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }
TCONV_CONSTANT int power_of_two_from(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// 0 <= index < count, in one comparison.
TCONV_DEVICE bool in_range(int index, int count) { return static_cast<unsigned>(index) < static_cast<unsigned>(count); }

// The largest divisor of `value` that is no larger than `limit`.
TCONV_CONSTANT int largest_divisor(int value, int limit) {
  while (value % limit != 0) --limit;
  return limit;
}

// The smallest pitch from `least` on with which lanes that lie `rows` rows apart find their `columns` in different
// banks; `least` if there is none.
TCONV_CONSTANT int conflict_free_pitch(int least, int rows, int columns) {
  for (int pitch = least; pitch < least + 32; ++pitch)
    if (rows * pitch % 32 == columns) return pitch;
  return least;
}

// The number whose product with `value` is 1 modulo `modulus`, by Euclid's algorithm; the two must be coprime.
TCONV_CONSTANT int modular_inverse(int value, int modulus) {
  long long low = 0, high = 1, rest = modulus, left = value % modulus;
  while (left > 1) {
    const long long quotient = rest / left, next_rest = rest % left, next = low - quotient * high;
    rest = left, left = next_rest, low = high, high = next;
  }
  return modulus == 1 ? 0 : static_cast<int>((high % modulus + modulus) % modulus);
}

// One spatial axis of a layer. Tap k and input i meet at output i*stride + k*dilation - padding. With phase = output
// mod stride and position q = output div stride, tap k reads input q - shift_of(k). The taps of one phase lie
// tap_period apart and read inputs that lie shift_period apart.
template <int Kernel, int Stride, int Padding, int Dilation>
struct Axis {
  static constexpr int kernel = Kernel, stride = Stride, padding = Padding, dilation = Dilation;
  static constexpr int common = greatest_common_divisor(Stride, Dilation);
  static constexpr int tap_period = Stride / common, shift_period = Dilation / common;
  static constexpr int phases_with_taps = Kernel < tap_period ? Kernel : tap_period;
  static constexpr int taps_per_phase = ceil_div(Kernel, tap_period);

  // Rounded down, also where padding makes it negative.
  static TCONV_CONSTANT int shift_of(int tap) {
    constexpr int cut_off = ceil_div(Padding, Stride);
    const long long distance =
        static_cast<long long>(tap) * Dilation + (static_cast<long long>(cut_off) * Stride - Padding);
    return static_cast<int>(distance / Stride) - cut_off;
  }

  // Over the first taps of all phases: 0 .. phases_with_taps - 1.
  static TCONV_CONSTANT int lowest_first_shift() { return shift_of(0); }
  static TCONV_CONSTANT int highest_first_shift() { return shift_of(phases_with_taps - 1); }

  // The first tap of a phase, or `kernel` if it has none.
  static TCONV_CONSTANT int first_tap(int phase) {
    constexpr int inverse = modular_inverse(shift_period % tap_period, tap_period);
    const int distance = (phase + Padding % Stride) % Stride;
    if (distance % common != 0) return Kernel;
    int tap = distance / common;
    if (inverse > 1) tap = static_cast<int>(static_cast<long long>(tap) * inverse % tap_period);
    return tap < Kernel ? tap : Kernel;
  }

  static TCONV_DEVICE int positions(int output_size) { return (output_size - 1) / Stride + 1; }
};

}  // namespace tconv
