// What the programs of epilogues are made of.
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

// N values that lie together, at a multiple of their size.
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

// What N outputs that are stored together, the first one at `place`, have of values for each sample and channel.
template <bool channels_last, int channels, class Element, class Accumulator, int N>
TCONV_DEVICE void read_samples(const Element* values_of_all, long long place, long long plane, bool present,
                               Accumulator (&values)[N]) {
  const long long at = channels_last ? place / (plane * channels) * channels + place % channels : place / plane;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = value_at(values_of_all + at + (channels_last ? i : 0), present);
}

// One of two values, which are both computed. Where C++ computes only one of them, compilers make a branch of that, in
// which an output waits for the one before.
template <class Number>
TCONV_DEVICE Number select(bool condition, Number a, Number b) {
  return condition ? a : b;
}

// The smaller or the larger one, not-a-number if one of them is: torch.minimum, torch.maximum.
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

// Functions of float within some units of rounding, in as few instructions as hardware has them: what stands behind a
// layer must not take longer than the layer. PTX ex2.approx.ftz.f32, rcp.approx.ftz.f32, div.full.f32.
#if !defined(TCONV_EMULATOR)
TCONV_DEVICE float power_of_two(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
TCONV_DEVICE float inverse(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
TCONV_DEVICE float quotient(float a, float b) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
#endif
TCONV_DEVICE double quotient(double a, double b) { return a / b; }
// Of a divisor whose inverse is a normal number.
TCONV_DEVICE float quick_quotient(float a, float b) { return a * inverse(b); }
TCONV_DEVICE double quick_quotient(double a, double b) { return a / b; }
TCONV_DEVICE float exponential(float value) { return power_of_two(value * 1.44269504f); }
TCONV_DEVICE double exponential(double value) { return exp(value); }
// 1 + erf(value) = erfc(-value), of which GELU is made, within a unit of rounding of 1: below 0 it is two to the power
// of a polynomial, fitted to the logarithm of erfc from 0 to 4.2. Its highest coefficient is positive, so that nothing
// is left from there on, down to minus infinity.
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

// What a cast to a type of 16 bits leaves of a value.
template <class Element, class Accumulator>
TCONV_DEVICE Accumulator rounded(Accumulator value) {
  return to_accumulator(from_accumulator<Element>(static_cast<float>(value)));
}

}  // namespace tconv
