// Element types, conversions and rounding. The 16-bit types hold only bits: arithmetic is in float.
#pragma once
#include "primitives/language.cuh"

namespace tconv {

struct Half {
  unsigned short bits;
};

struct BFloat16 {
  unsigned short bits;
};

// The type in which products are summed: float, but double for double.
template <class Element>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};

TCONV_DEVICE unsigned float_bits(float value) { return __float_as_uint(value); }
TCONV_DEVICE float bits_float(unsigned bits) { return __uint_as_float(bits); }

// The two words of a double. In memory the low word comes first.
TCONV_DEVICE unsigned low_word(double value) { return static_cast<unsigned>(__double2loint(value)); }
TCONV_DEVICE unsigned high_word(double value) { return static_cast<unsigned>(__double2hiint(value)); }
TCONV_DEVICE double words_double(unsigned low, unsigned high) {
  return __hiloint2double(static_cast<int>(high), static_cast<int>(low));
}

// binary16 to binary32, exact (PTX cvt.f32.f16), and back, to nearest, ties to even (PTX cvt.rn.f16.f32).
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE float half_to_float(unsigned short bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}
TCONV_DEVICE unsigned short float_to_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

TCONV_DEVICE float bfloat16_to_float(BFloat16 value) { return bits_float(static_cast<unsigned>(value.bits) << 16); }

// binary32 to bfloat16, to nearest, ties to even. Computed with integers, as sm_75 has no instruction for it.
TCONV_DEVICE BFloat16 float_to_bfloat16(float value) {
  const unsigned bits = float_bits(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  BFloat16 result;
  result.bits = static_cast<unsigned short>(nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  return result;
}

// 1 / value within one unit of rounding; 0 for huge values: PTX rcp.approx.ftz.f32.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE float inverse(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
#endif

// How operands are rounded to TF32's 10-bit significand: not at all, or to nearest, with ties to even or away from 0.
enum class Rounding { none, ties_to_even, ties_away };

// A factor of a product, rounded to TF32 where the precision says so. The result equals PTX cvt.rn.tf32.f32 (from sm_90
// on) and cvt.rna.tf32.f32 (from sm_80 on). Integers do it on every GPU, and faster for kernels on CUDA cores.
// Infinities and NaN stay as they are.
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
TCONV_DEVICE float to_accumulator(Half value) { return half_to_float(value.bits); }
TCONV_DEVICE float to_accumulator(BFloat16 value) { return bfloat16_to_float(value); }

template <class Element>
TCONV_DEVICE Element from_accumulator(typename AccumulatorOf<Element>::type value) {
  return value;
}
template <>
TCONV_DEVICE Half from_accumulator<Half>(float value) {
  return Half{float_to_half(value)};
}
template <>
TCONV_DEVICE BFloat16 from_accumulator<BFloat16>(float value) {
  return float_to_bfloat16(value);
}

// Rounds two numbers. From sm_80 on one instruction makes two 16-bit numbers: PTX cvt.rn.f16x2.f32, cvt.rn.bf16x2.f32.
TCONV_DEVICE void from_accumulators(float first, float second, float (&two)[2]) { two[0] = first, two[1] = second; }
TCONV_DEVICE void from_accumulators(double first, double second, double (&two)[2]) { two[0] = first, two[1] = second; }
TCONV_DEVICE void from_accumulators(float first, float second, Half (&two)[2]) {
#if __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  two[0].bits = static_cast<unsigned short>(word), two[1].bits = static_cast<unsigned short>(word >> 16);
#else
  two[0] = from_accumulator<Half>(first), two[1] = from_accumulator<Half>(second);
#endif
}
TCONV_DEVICE void from_accumulators(float first, float second, BFloat16 (&two)[2]) {
#if __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  two[0].bits = static_cast<unsigned short>(word), two[1].bits = static_cast<unsigned short>(word >> 16);
#else
  two[0] = from_accumulator<BFloat16>(first), two[1] = from_accumulator<BFloat16>(second);
#endif
}

TCONV_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
TCONV_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

}  // namespace tconv
