// mma: items that were loaded as words of several. `mma.cuh` has the picture.
#pragma once
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// Unpacks one item of the words.
template <int N>
TCONV_DEVICE void mma_unpack(const Vector<unsigned, N>& words, int number, float& item) {
  item = bits_float(words.values[number]);
}
template <int N>
TCONV_DEVICE void mma_unpack(const Vector<unsigned, N>& words, int number, double& item) {
  item = words_double(words.values[2 * number], words.values[2 * number + 1]);
}
template <int N, class Half16>
TCONV_DEVICE void mma_unpack(const Vector<unsigned, N>& words, int number, Half16& item) {
  item.bits = static_cast<unsigned short>(words.values[number / 2] >> number % 2 * 16);
}

}  // namespace tconv
