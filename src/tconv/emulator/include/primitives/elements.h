// What `kernels/primitives/elements.cuh` does by PTX, on the CPU.
#pragma once

namespace tconv_emulator::primitives {

inline float half_to_float(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Subnormals come out right: the magnitude is read 2^112 too small and scaled back, which is exact.
  const float scaled = __uint_as_float(magnitude << 13) * 5.192296858534828e+33f;
  return __uint_as_float(sign | __float_as_uint(scaled));
}

inline unsigned short float_to_half(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  unsigned rounded;
  if (magnitude > 0x7f800000u) {
    rounded = 0x7fffu;
  } else if (magnitude >= 0x47800000u) {  // 65536 and above, infinity
    rounded = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: drop 13 bits; the carry may reach the exponent, and infinity
    rounded = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {  // subnormal: adding 0.5 puts the last bit kept at the end of the significand
    rounded = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<unsigned short>(sign | rounded);
}

inline float inverse(float value) { return 1 / value; }

}  // namespace tconv_emulator::primitives
