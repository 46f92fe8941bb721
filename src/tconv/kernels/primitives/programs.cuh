// The functions that programs of epilogues call.
#pragma once
#include "primitives/epilogue.cuh"

namespace tconv {

template <class Element>
TCONV_DEVICE typename AccumulatorOf<Element>::type value_at(const Element* address, bool present = true) {
  return present ? to_accumulator(load_constant(address)) : 0;
}

TCONV_DEVICE void from_words(const unsigned* words, int i, float& value) { value = bits_float(words[i]); }
TCONV_DEVICE void from_words(const unsigned* words, int i, double& value) {
  value = words_double(words[2 * i], words[2 * i + 1]);
}
TCONV_DEVICE void from_words(const unsigned* words, int i, Half& value) {
  value.bits = static_cast<unsigned short>(words[i / 2] >> i % 2 * 16);
}
TCONV_DEVICE void from_words(const unsigned* words, int i, BFloat16& value) {
  value.bits = static_cast<unsigned short>(words[i / 2] >> i % 2 * 16);
}

// Loads an operand's values for N outputs that are stored together. They lie together, aligned to their size.
template <class Element, class Accumulator, int N>
TCONV_DEVICE void read_outputs(const Element* from, bool present, Accumulator (&values)[N]) {
  constexpr int bytes = N * static_cast<int>(sizeof(Element));
  unsigned words[(bytes + 3) / 4];
  load_present<bytes>(from, present, words);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    Element element;
    from_words(words, i, element);
    values[i] = to_accumulator(element);
  }
}

// Loads values of an operand that has one for each sample and channel, for N outputs that are stored together from
// element `place` of y on. Channels last, these are of N channels; else all are of one channel.
template <bool channels_last, int channels, class Element, class Accumulator, int N>
TCONV_DEVICE void read_samples(const Element* values_of_all, long long place, long long plane, bool present,
                               Accumulator (&values)[N]) {
  const long long at = channels_last ? place / (plane * channels) * channels + place % channels : place / plane;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = value_at(values_of_all + at + (channels_last ? i : 0), present);
}

// One of two values that are both computed. C++'s own `?:` computes only one; compilers then make branches, and each
// output waits for the one before.
template <class Number>
TCONV_DEVICE Number select(bool condition, Number a, Number b) {
  return condition ? a : b;
}

// The smaller or the larger number, or NaN if one of them is NaN, as torch.minimum and torch.maximum.
template <class Number>
TCONV_DEVICE Number minimum(Number a, Number b) {
  return a < b || a != a ? a : b;
}
template <class Number>
TCONV_DEVICE Number maximum(Number a, Number b) {
  return a > b || a != a ? a : b;
}
#if __CUDA_ARCH__ >= 800
// PTX min.NaN.f32, max.NaN.f32.
TCONV_DEVICE float minimum(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
TCONV_DEVICE float maximum(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
#endif

// Functions of float with an error of a few units of rounding, in as few instructions as hardware allows: a program
// must not take longer than its layer. PTX ex2.approx.ftz.f32, div.full.f32.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE float power_of_two(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
TCONV_DEVICE float quotient(float a, float b) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
#endif
TCONV_DEVICE double quotient(double a, double b) { return a / b; }
// A quotient, for divisors whose inverse is a normal number.
TCONV_DEVICE float quick_quotient(float a, float b) { return a * inverse(b); }
TCONV_DEVICE double quick_quotient(double a, double b) { return a / b; }
TCONV_DEVICE float exponential(float value) { return power_of_two(value * 1.44269504f); }
TCONV_DEVICE double exponential(double value) { return exp(value); }
// 1 + erf(value) = erfc(-value), for GELU; the error is within a unit of rounding of 1. Below 0 it is 2 to the power of
// minus a polynomial in `size`, fitted to the logarithm of erfc from 0 to 4.2. The highest coefficient of the
// polynomial is positive, so the result falls to 0 beyond 4.2, up to an infinite size.
TCONV_DEVICE float one_plus_erf(float value) {
  const float size = fabs(value);
  float sum = 4.53583627e-5f;
  sum = fmaf(sum, size, -4.45505897e-4f), sum = fmaf(sum, size, 1.48943663e-3f);
  sum = fmaf(sum, size, 7.74636508e-4f), sum = fmaf(sum, size, -2.82536856e-2f);
  sum = fmaf(sum, size, 1.48481616e-1f), sum = fmaf(sum, size, 9.18416393e-1f), sum = fmaf(sum, size, 1.62790859f);
  const float below = power_of_two(-sum * size);
  return value > 0 ? 2 - below : below;
}
TCONV_DEVICE double one_plus_erf(double value) { return 1 + erf(value); }
TCONV_DEVICE float sigmoid(float value) { return inverse(1 + exponential(-value)); }
TCONV_DEVICE double sigmoid(double value) { return 1 / (1 + exp(-value)); }

// A value rounded to a type of 16 bits and back, as by a cast in the program.
template <class Element, class Accumulator>
TCONV_DEVICE Accumulator rounded(Accumulator value) {
  return to_accumulator(from_accumulator<Element>(static_cast<float>(value)));
}

}  // namespace tconv
