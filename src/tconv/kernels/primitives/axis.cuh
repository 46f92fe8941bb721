// The arithmetic of an axis: the taps that meet an output, and the inputs that they read.
#pragma once
#include "primitives/arithmetic.cuh"

namespace tconv {

// The number whose product with `value` is 1 modulo `modulus`, by Euclid's algorithm; the two must be coprime.
TCONV_CONSTANT int modular_inverse(int value, int modulus) {
  long long low = 0, high = 1, rest = modulus, left = value % modulus;
  while (left > 1) {
    const long long quotient = rest / left, next_rest = rest % left, next = low - quotient * high;
    rest = left, left = next_rest, low = high, high = next;
  }
  return modulus == 1 ? 0 : static_cast<int>((high % modulus + modulus) % modulus);
}

// One spatial axis of a layer. Tap k and input i meet at output i*stride + k*dilation - padding. Let phase be output
// modulo stride, and position q output / stride, rounded down. Each tap belongs to one phase, and tap k reads input
// q - shift_of(k). The taps of one phase lie tap_period apart and read inputs that lie shift_period apart. Example with
// kernel 4, stride 2, padding 1:
//
//          phase   taps    inputs     Another stride has another table; the formulas stay.
//            0     1, 3    q, q - 1
//            1     0, 2    q + 1, q
template <int Kernel, int Stride, int Padding, int Dilation>
struct Axis {
  static constexpr int kernel = Kernel, stride = Stride, padding = Padding, dilation = Dilation;
  static constexpr int common = greatest_common_divisor(stride, dilation);
  static constexpr int tap_period = stride / common, shift_period = dilation / common;
  static constexpr int phases_with_taps = kernel < tap_period ? kernel : tap_period;
  static constexpr int taps_per_phase = ceil_div(kernel, tap_period);

  // (tap * dilation - padding) / stride, rounded down also where it is negative.
  static TCONV_CONSTANT int shift_of(int tap) {
    constexpr int cut_off = ceil_div(padding, stride);
    const long long distance = static_cast<long long>(tap) * dilation + (cut_off * stride - padding);
    return static_cast<int>(distance / stride) - cut_off;
  }

  // The least and the greatest shift of the phases' first taps, which are taps 0 .. phases_with_taps - 1.
  static TCONV_CONSTANT int lowest_first_shift() { return shift_of(0); }
  static TCONV_CONSTANT int highest_first_shift() { return shift_of(phases_with_taps - 1); }

  // The first tap of a phase, or `kernel` if it has none.
  static TCONV_CONSTANT int first_tap(int phase) {
    constexpr int inverse = modular_inverse(shift_period % tap_period, tap_period);
    const int distance = (phase + padding % stride) % stride;
    if (distance % common != 0) return kernel;
    int tap = distance / common;
    if (inverse > 1) tap = static_cast<int>(static_cast<long long>(tap) * inverse % tap_period);
    return tap < kernel ? tap : kernel;
  }

  static TCONV_CONSTANT int taps(int phase) { return ceil_div(kernel - first_tap(phase), tap_period); }

  static TCONV_CONSTANT int positions(int output_size) { return (output_size - 1) / stride + 1; }
};

// The inputs that the taps of one axis read: position q reads q - shift, for `count` shifts from `lowest` on, `step`
// apart. Shifts have numbers from 0 on.
template <class Axis>
struct Shifts {
  static constexpr int lowest = Axis::shift_of(0), highest = Axis::shift_of(Axis::kernel - 1);
  static constexpr int step = Axis::stride == 1 ? Axis::dilation : 1;
  static constexpr int count = (highest - lowest) / step + 1;
  static constexpr int halo = highest - lowest;
  // The most taps that read at one shift.
  static constexpr int most_taps =
      Axis::kernel < ceil_div(Axis::stride, Axis::dilation) ? Axis::kernel : ceil_div(Axis::stride, Axis::dilation);

  // The tap through which a phase reads at shift number `number`; -1 if there is none.
  static TCONV_CONSTANT int tap(int phase, int number) {
    const long long distance =
        static_cast<long long>(phase) + Axis::padding + static_cast<long long>(lowest + number * step) * Axis::stride;
    return distance < 0 || distance % Axis::dilation != 0 || distance / Axis::dilation >= Axis::kernel
               ? -1
               : static_cast<int>(distance / Axis::dilation);
  }

  // The distance from a position's input at the highest shift, the first of its halo, to its input at shift `number`.
  static TCONV_CONSTANT int behind(int number) { return halo - number * step; }

  // The taps that read at shift `number`, each of another phase: the first of them, and their number.
  static TCONV_CONSTANT int first_tap(int number) {
    const long long distance = Axis::padding + static_cast<long long>(lowest + number * step) * Axis::stride;
    return distance < 0 ? 0 : static_cast<int>((distance + Axis::dilation - 1) / Axis::dilation);
  }
  static TCONV_CONSTANT int taps(int number) {
    const long long behind = Axis::padding + static_cast<long long>(lowest + number * step + 1) * Axis::stride;
    const long long next = (behind + Axis::dilation - 1) / Axis::dilation;
    return static_cast<int>(next < Axis::kernel ? next : Axis::kernel) - first_tap(number);
  }
};

}  // namespace tconv
