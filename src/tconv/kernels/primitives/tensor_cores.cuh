// Tensor cores, sm_80 and newer: fragments and products.
#pragma once
#include "primitives/elements.cuh"

namespace tconv {

// Loads four 8x8 matrices of 16-bit items, or 8x4 matrices of 32-bit items, by PTX
// ldmatrix.sync.aligned.m8n8.x4.shared.b16. Lane l passes the address of row l % 8 of matrix l / 8, 16 aligned bytes of
// shared memory. It gets word l % 4 of row l / 4 of each matrix.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE void load_matrices(const void* row, unsigned (&words)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
#endif

// Loads four 8x8 matrices of 16-bit items, each transposed, by PTX ldmatrix with .trans. Lanes give addresses as above.
// Lane l gets two items of column l / 4 of each matrix, in row 2 * (l % 4) and in the next one.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE void load_transposed_matrices(const void* row, unsigned (&words)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
#endif

// As `operand`, by one instruction where the GPU has it.
template <Rounding rounding>
TCONV_DEVICE float matrix_operand(float value) {
#if __CUDA_ARCH__ >= 800
  if (rounding == Rounding::ties_away) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return bits_float(rounded);
  }
#endif
#if __CUDA_ARCH__ >= 900
  if (rounding == Rounding::ties_to_even) {
    unsigned rounded;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return bits_float(rounded);
  }
#endif
  return operand<rounding>(value);
}

// accumulators += A * B on tensor cores, for 16 rows of A, 8 columns of B, and 32 bytes of each along k. The fragments
// are as in PTX mma.sync.aligned:
//   TF32 (the low 13 bits are ignored)    m16n8k8
//   16-bit items                          m16n8k16
//   double (its low word first)           m16n8k4, before sm_90 as two m8n8k4
#if !defined(TCONV_EMULATOR)
#define TCONV_MULTIPLY(name, shape, type)                                                            \
  TCONV_DEVICE void name(float(&accumulators)[4], const unsigned(&a)[4], const unsigned(&b)[2]) {    \
    asm("mma.sync.aligned." #shape ".row.col.f32." #type "." #type                                   \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                       \
        : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                         \
  }
TCONV_MULTIPLY(multiply_tf32, m16n8k8, tf32)
TCONV_MULTIPLY(multiply_f16, m16n8k16, f16)
TCONV_MULTIPLY(multiply_bf16, m16n8k16, bf16)
#undef TCONV_MULTIPLY
TCONV_DEVICE void multiply_f64(double (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const double upper = words_double(a[0], a[1]), lower = words_double(a[2], a[3]), column = words_double(b[0], b[1]);
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(accumulators[0]), "+d"(accumulators[1]), "+d"(accumulators[2]), "+d"(accumulators[3])
      : "d"(upper), "d"(lower), "d"(column));
#else
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(accumulators[0]), "+d"(accumulators[1])
      : "d"(upper), "d"(column));
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(accumulators[2]), "+d"(accumulators[3])
      : "d"(lower), "d"(column));
#endif
}
#endif

// The product above for an element type.
template <class Element>
TCONV_DEVICE void multiply_fragments(typename AccumulatorOf<Element>::type (&accumulators)[4],
                                     const unsigned (&a)[4], const unsigned (&b)[2]);
#define TCONV_MATRIX_PRODUCT(element, accumulator, multiply)                                          \
  template <>                                                                                         \
  TCONV_DEVICE void multiply_fragments<element>(accumulator(&accumulators)[4], const unsigned(&a)[4], \
                                                const unsigned(&b)[2]) {                              \
    multiply(accumulators, a, b);                                                                     \
  }
TCONV_MATRIX_PRODUCT(float, float, multiply_tf32)
TCONV_MATRIX_PRODUCT(Half, float, multiply_f16)
TCONV_MATRIX_PRODUCT(BFloat16, float, multiply_bf16)
TCONV_MATRIX_PRODUCT(double, double, multiply_f64)
#undef TCONV_MATRIX_PRODUCT

// A factor as the tensor core sees it. With `rounding`, it is rounded to TF32 as the precision says. Without, a float
// is split into two TF32 numbers for exact products: plane 0 is the rounded number, plane 1 the rounded remainder, or 0
// where plane 0 is not finite.
template <class Layer>
TCONV_DEVICE float matrix_factor(float value, int plane) {
  if (Layer::rounding != Rounding::none) return matrix_operand<Layer::rounding>(value);
  const float high = matrix_operand<Rounding::ties_away>(value);
  if (plane == 0) return high;
  return (float_bits(high) & 0x7f800000u) == 0x7f800000u ? 0.0f : matrix_operand<Rounding::ties_away>(value - high);
}
template <class Layer>
TCONV_DEVICE double matrix_factor(double value, int) {
  return value;
}
template <class Layer>
TCONV_DEVICE Half matrix_factor(Half value, int) {
  return value;
}
template <class Layer>
TCONV_DEVICE BFloat16 matrix_factor(BFloat16 value, int) {
  return value;
}

}  // namespace tconv
