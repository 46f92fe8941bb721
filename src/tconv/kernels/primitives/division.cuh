// Division by numbers that a kernel gets when it is launched.
#pragma once
#include "primitives/elements.cuh"

namespace tconv {

// Divides by a number that is known late, in few instructions: 0 <= number < 2^21. The quotient is that of integers: it
// is 1 / (2 * divisor) away from the next one, and an error of two units in 2^23 is less than that.
struct QuickDivisor {
  int divisor;
  float inverse_divisor;

  TCONV_DEVICE explicit QuickDivisor(int divisor)
      : divisor(divisor), inverse_divisor(inverse(static_cast<float>(divisor))) {}
  // Number becomes the quotient; gives the remainder.
  TCONV_DEVICE int divide(int& number) const {
    const int quotient = static_cast<int>((static_cast<float>(number) + 0.5f) * inverse_divisor);
    const int remainder = number - quotient * divisor;
    number = quotient;
    return remainder;
  }
};

}  // namespace tconv
