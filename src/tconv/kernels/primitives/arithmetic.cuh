// Arithmetic for the constants of a kernel.
#pragma once
#include "primitives/language.cuh"

namespace tconv {

TCONV_CONSTANT int greatest_common_divisor(int a, int b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }
template <class Number>
TCONV_CONSTANT Number ceil_div(Number a, Number b) {
  return (a + b - 1) / b;
}
TCONV_CONSTANT bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }
TCONV_CONSTANT int power_of_two_from(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// The bits that are set: of each two, each four, each byte, each half, of all. Compilers fold this, where a loop stays.
TCONV_CONSTANT int bit_count(unsigned bits) {
  const unsigned twos = bits - (bits >> 1 & 0x55555555u);
  const unsigned fours = (twos & 0x33333333u) + (twos >> 2 & 0x33333333u);
  const unsigned bytes = fours + (fours >> 4) & 0x0f0f0f0fu, halves = bytes + (bytes >> 8);
  return static_cast<int>(halves + (halves >> 16) & 0x3fu);
}

// 0 <= index < count, in one comparison.
TCONV_DEVICE bool in_range(int index, int count) { return static_cast<unsigned>(index) < static_cast<unsigned>(count); }

// One of two types, chosen by a constant. It is std::conditional, whose header NVRTC does not load.
template <bool first, class First, class Second>
struct Choice {
  using type = First;
};
template <class First, class Second>
struct Choice<false, First, Second> {
  using type = Second;
};

// The largest divisor of `value` that is no larger than `limit`.
TCONV_CONSTANT int largest_divisor(int value, int limit) {
  while (value % limit != 0) --limit;
  return limit;
}

// The smallest pitch from `least` on with which lanes in different rows use different banks. Lanes that follow `rows`
// rows below others then use the next `columns` of the 32 banks. `least` if there is no such pitch.
TCONV_CONSTANT int conflict_free_pitch(int least, int rows, int columns) {
  for (int pitch = least; pitch < least + 32; ++pitch)
    if (rows * pitch % 32 == columns) return pitch;
  return least;
}

}  // namespace tconv
