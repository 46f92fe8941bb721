// Tensor cores of Hopper: products of a warpgroup, which is four warps from a multiple of four on. PTX wgmma, only on
// sm_90a.
#pragma once
#include "primitives/elements.cuh"

namespace tconv {

// The swizzled offset of a byte of a product's second factor in shared memory. Rows have 64 or 128 bytes; the first
// begins at a multiple of 8 * row_bytes. The order of 16-byte vectors in a row changes every 128 bytes (PTX's 64- or
// 128-byte swizzle), so that the same vector of eight rows lies in different banks.
TCONV_CONSTANT int swizzled(int offset, int row_bytes) { return offset ^ (offset >> 7 & (row_bytes / 16 - 1)) << 4; }

#if !defined(TCONV_EMULATOR)
// PTX's matrix descriptor for 32 bytes along k of such rows, from address `shared` on. `at` gives the descriptor that
// begins `bytes`, a multiple of 16, further: at the next 32 bytes along k, or at other rows.
template <int RowBytes>
struct FactorRows {
  unsigned long long descriptor;

  explicit TCONV_DEVICE FactorRows(const void* shared)
      : descriptor((static_cast<unsigned>(__cvta_generic_to_shared(shared)) >> 4 & 0x3fffu) | 1ull << 16 |
                   static_cast<unsigned long long>(RowBytes / 2) << 32 | (RowBytes == 128 ? 1ull : 2ull) << 62) {}
  TCONV_DEVICE unsigned long long at(int bytes) const { return descriptor + bytes / 16; }
};

// PTX's matrix descriptor for 16 rows along k of a factor of 16-bit items that lies row by row along k: blocks of 64
// columns, `Depth` rows of 128 bytes, swizzled as above. `at` gives the one that begins `bytes` further: at the next 16
// rows, or at another block.
template <int Depth>
struct FactorColumns {
  unsigned long long descriptor;

  explicit TCONV_DEVICE FactorColumns(const void* shared)
      : descriptor((static_cast<unsigned>(__cvta_generic_to_shared(shared)) >> 4 & 0x3fffu) | Depth * 8ull << 16 |
                   64ull << 32 | 1ull << 62) {}
  TCONV_DEVICE unsigned long long at(int bytes) const { return descriptor + bytes / 16; }
};

// Sets the registers of each thread of a warpgroup to `Count`, out of the block's registers. All its warps call this.
// `take_registers` waits until other warpgroups have given enough. PTX setmaxnreg.
template <int Count>
TCONV_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
TCONV_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

// Stores four 8x8 matrices of 16-bit items, by PTX stmatrix. Lane l passes the address of row l % 8 of matrix l / 8, 16
// aligned bytes of shared memory, and word l % 4 of row l / 4 of each matrix.
TCONV_DEVICE void store_matrices(void* row, const unsigned (&words)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Registers of accumulators, eight at a time: their numbers in the text of an instruction, and their constraints.
#define TCONV_NUMBERS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TCONV_NUMBERS_2 TCONV_NUMBERS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TCONV_NUMBERS_3 TCONV_NUMBERS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TCONV_NUMBERS_4 TCONV_NUMBERS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TCONV_NUMBERS_5 TCONV_NUMBERS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TCONV_NUMBERS_6 TCONV_NUMBERS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TCONV_NUMBERS_7 TCONV_NUMBERS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TCONV_NUMBERS_8 TCONV_NUMBERS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TCONV_NUMBERS_9 TCONV_NUMBERS_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TCONV_NUMBERS_10 TCONV_NUMBERS_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TCONV_NUMBERS_12                     \
  TCONV_NUMBERS_10                           \
  ", %80, %81, %82, %83, %84, %85, %86, %87" \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TCONV_NUMBERS_15                             \
  TCONV_NUMBERS_12                                   \
  ", %96, %97, %98, %99, %100, %101, %102, %103"     \
  ", %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TCONV_NUMBERS_16 TCONV_NUMBERS_15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define TCONV_OCTET(n)                                                                                    \
  "+f"(accumulators[n]), "+f"(accumulators[n + 1]), "+f"(accumulators[n + 2]), "+f"(accumulators[n + 3]), \
      "+f"(accumulators[n + 4]), "+f"(accumulators[n + 5]), "+f"(accumulators[n + 6]), "+f"(accumulators[n + 7])
#define TCONV_ACCUMULATORS_1 TCONV_OCTET(0)
#define TCONV_ACCUMULATORS_2 TCONV_ACCUMULATORS_1, TCONV_OCTET(8)
#define TCONV_ACCUMULATORS_3 TCONV_ACCUMULATORS_2, TCONV_OCTET(16)
#define TCONV_ACCUMULATORS_4 TCONV_ACCUMULATORS_3, TCONV_OCTET(24)
#define TCONV_ACCUMULATORS_5 TCONV_ACCUMULATORS_4, TCONV_OCTET(32)
#define TCONV_ACCUMULATORS_6 TCONV_ACCUMULATORS_5, TCONV_OCTET(40)
#define TCONV_ACCUMULATORS_7 TCONV_ACCUMULATORS_6, TCONV_OCTET(48)
#define TCONV_ACCUMULATORS_8 TCONV_ACCUMULATORS_7, TCONV_OCTET(56)
#define TCONV_ACCUMULATORS_9 TCONV_ACCUMULATORS_8, TCONV_OCTET(64)
#define TCONV_ACCUMULATORS_10 TCONV_ACCUMULATORS_9, TCONV_OCTET(72)
#define TCONV_ACCUMULATORS_12 TCONV_ACCUMULATORS_10, TCONV_OCTET(80), TCONV_OCTET(88)
#define TCONV_ACCUMULATORS_15 TCONV_ACCUMULATORS_12, TCONV_OCTET(96), TCONV_OCTET(104), TCONV_OCTET(112)
#define TCONV_ACCUMULATORS_16 TCONV_ACCUMULATORS_15, TCONV_OCTET(120)

// The instruction for `Rows` rows of the second factor, PTX's N.
template <class Factor, int Rows>
struct WarpgroupProduct;
#define TCONV_WARPGROUP_PRODUCT(element, shape, type, transposed, octets, a0, a1, a2, a3, b)                     \
  template <>                                                                                                    \
  struct WarpgroupProduct<element, 16 * octets> {                                                                \
    static TCONV_DEVICE void add(float (&accumulators)[8 * octets], const unsigned (&a)[4],                      \
                                 unsigned long long factor) {                                                    \
      asm volatile("{ .reg .pred adds; setp.eq.b32 adds, 0, 0; wgmma.mma_async.sync.aligned." shape ".f32." type \
                   "." type " {" TCONV_NUMBERS_##octets "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b      \
                                                        ", adds, 1, 1" transposed "; }"                          \
                   : TCONV_ACCUMULATORS_##octets                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(factor));                                   \
    }                                                                                                            \
  };
#define TCONV_WARPGROUP_PRODUCTS(rows, octets, a0, a1, a2, a3, b)                            \
  TCONV_WARPGROUP_PRODUCT(float, "m64n" #rows "k8", "tf32", "", octets, a0, a1, a2, a3, b)   \
  TCONV_WARPGROUP_PRODUCT(Half, "m64n" #rows "k16", "f16", ", 0", octets, a0, a1, a2, a3, b) \
  TCONV_WARPGROUP_PRODUCT(BFloat16, "m64n" #rows "k16", "bf16", ", 0", octets, a0, a1, a2, a3, b)
TCONV_WARPGROUP_PRODUCTS(16, 1, 8, 9, 10, 11, 12)
TCONV_WARPGROUP_PRODUCTS(32, 2, 16, 17, 18, 19, 20)
TCONV_WARPGROUP_PRODUCTS(48, 3, 24, 25, 26, 27, 28)
TCONV_WARPGROUP_PRODUCTS(64, 4, 32, 33, 34, 35, 36)
TCONV_WARPGROUP_PRODUCTS(80, 5, 40, 41, 42, 43, 44)
TCONV_WARPGROUP_PRODUCTS(96, 6, 48, 49, 50, 51, 52)
TCONV_WARPGROUP_PRODUCTS(112, 7, 56, 57, 58, 59, 60)
TCONV_WARPGROUP_PRODUCTS(128, 8, 64, 65, 66, 67, 68)
TCONV_WARPGROUP_PRODUCTS(144, 9, 72, 73, 74, 75, 76)
TCONV_WARPGROUP_PRODUCTS(160, 10, 80, 81, 82, 83, 84)
TCONV_WARPGROUP_PRODUCTS(192, 12, 96, 97, 98, 99, 100)
TCONV_WARPGROUP_PRODUCTS(240, 15, 120, 121, 122, 123, 124)
TCONV_WARPGROUP_PRODUCTS(256, 16, 128, 129, 130, 131, 132)
#undef TCONV_WARPGROUP_PRODUCTS
#undef TCONV_WARPGROUP_PRODUCT

// The same where the first factor lies in shared memory, too, row by row along k: of 16-bit items alone. The second one
// lies so if `Columns`.
template <class Factor, int Rows>
struct SharedProduct {
  template <int Columns>
  static TCONV_DEVICE void add(float (&)[Rows / 2], unsigned long long, unsigned long long) {}  // never called
};
#define TCONV_SHARED_PRODUCT(element, shape, type, octets, a, b, columns)                                        \
  template <>                                                                                                    \
  struct SharedProduct<element, 16 * octets> {                                                                   \
    template <int Columns>                                                                                       \
    static TCONV_DEVICE void add(float (&accumulators)[8 * octets], unsigned long long first,                    \
                                 unsigned long long second) {                                                    \
      asm volatile("{ .reg .pred adds; setp.eq.b32 adds, 0, 0; wgmma.mma_async.sync.aligned." shape ".f32." type \
                   "." type " {" TCONV_NUMBERS_##octets "}, %" #a ", %" #b ", adds, 1, 1, 1, %" #columns "; }"   \
                   : TCONV_ACCUMULATORS_##octets                                                                 \
                   : "l"(first), "l"(second), "n"(Columns));                                                     \
    }                                                                                                            \
  };
#define TCONV_SHARED_PRODUCTS(rows, octets, a, b, columns)                     \
  TCONV_SHARED_PRODUCT(Half, "m64n" #rows "k16", "f16", octets, a, b, columns) \
  TCONV_SHARED_PRODUCT(BFloat16, "m64n" #rows "k16", "bf16", octets, a, b, columns)
TCONV_SHARED_PRODUCTS(16, 1, 8, 9, 10)
TCONV_SHARED_PRODUCTS(32, 2, 16, 17, 18)
TCONV_SHARED_PRODUCTS(48, 3, 24, 25, 26)
TCONV_SHARED_PRODUCTS(64, 4, 32, 33, 34)
TCONV_SHARED_PRODUCTS(96, 6, 48, 49, 50)
TCONV_SHARED_PRODUCTS(128, 8, 64, 65, 66)
TCONV_SHARED_PRODUCTS(144, 9, 72, 73, 74)
TCONV_SHARED_PRODUCTS(160, 10, 80, 81, 82)
TCONV_SHARED_PRODUCTS(192, 12, 96, 97, 98)
TCONV_SHARED_PRODUCTS(240, 15, 120, 121, 122)
TCONV_SHARED_PRODUCTS(256, 16, 128, 129, 130)
#undef TCONV_SHARED_PRODUCTS
#undef TCONV_SHARED_PRODUCT

// Begins an accumulator with a value here: the compiler cannot move this between products that are on their way.
TCONV_DEVICE void begin_accumulator(float& accumulator, float value) {
  accumulator = value;
  asm volatile("" : "+f"(accumulator));
}

// The same for values that were accumulators themselves, all of which move on: one instruction each.
TCONV_DEVICE void move_accumulator(float& accumulator, float value) {
  asm volatile("mov.b32 %0, %1;" : "=f"(accumulator) : "f"(value));
}

// A word of a factor in registers, of products that are done by now: it had to stay until then. Compilers think that a
// product that was asked for has read it.
TCONV_DEVICE void end_factor(unsigned& word) { asm volatile("" : "+r"(word)); }

// Shows what this thread has written to shared memory to products that are asked for later, once a barrier has passed:
// they read it past the thread's own order of memory. PTX fence.proxy.async.
TCONV_DEVICE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Asynchronous products of a warpgroup, in groups: accumulators += A * B for 64 rows of A, 16 in each warp, and `Rows`
// rows of B, over 32 bytes of each along k. A lies in registers, B in shared memory. A lane's fragments of A, and of
// the accumulators for every 8 rows of B, are as in PTX mma.sync's m16n8k8 (TF32, the low 13 bits are ignored) or
// m16n8k16. `wait<N>` returns when all groups but the last N are done. Before that, no thread may touch their
// accumulators or `a`, or write their rows of B.
struct WarpgroupProducts {
  TCONV_DEVICE void begin_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  template <class Factor, int Rows, int RowBytes>
  TCONV_DEVICE void add(float (&accumulators)[Rows / 2], const unsigned (&a)[4], const FactorRows<RowBytes>& b,
                        int bytes) {
    WarpgroupProduct<Factor, Rows>::add(accumulators, a, b.at(bytes));
  }
  TCONV_DEVICE void end_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  template <int N>
  TCONV_DEVICE void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
  }
};

// The same where the first factor lies in shared memory, too: its 64 columns that begin at `a_bytes`.
template <class Factor, int Rows, int Depth, int RowBytes>
TCONV_DEVICE void add_shared(WarpgroupProducts&, float (&accumulators)[Rows / 2], const FactorColumns<Depth>& a,
                             int a_bytes, const FactorRows<RowBytes>& b, int bytes) {
  SharedProduct<Factor, Rows>::template add<0>(accumulators, a.at(a_bytes), b.at(bytes));
}
template <class Factor, int Rows, int Depth>
TCONV_DEVICE void add_shared(WarpgroupProducts&, float (&accumulators)[Rows / 2], const FactorColumns<Depth>& a,
                             int a_bytes, const FactorColumns<Depth>& b, int bytes) {
  SharedProduct<Factor, Rows>::template add<1>(accumulators, a.at(a_bytes), b.at(bytes));
}
#endif

}  // namespace tconv
