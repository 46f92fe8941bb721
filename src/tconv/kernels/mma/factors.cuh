// mma: factors of products, weights and inputs alike, by words. `mma.cuh` has the picture.
#pragma once
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// Puts a unit into a vector: the word of two 16-bit items or of one of 32 bits, or both words of a double.
TCONV_DEVICE void mma_pack(const float (&items)[1], int unit, Vector<unsigned, 4>& vector) {
  vector.values[unit] = float_bits(items[0]);
}
TCONV_DEVICE void mma_pack(const double (&items)[1], int unit, Vector<unsigned, 4>& vector) {
  vector.values[2 * unit] = low_word(items[0]), vector.values[2 * unit + 1] = high_word(items[0]);
}
template <class Half16>
TCONV_DEVICE void mma_pack(const Half16 (&items)[2], int unit, Vector<unsigned, 4>& vector) {
  vector.values[unit] = items[0].bits | static_cast<unsigned>(items[1].bits) << 16;
}

// Puts a factor into a lane's two words of a column: the word of one of two, or both of a double.
TCONV_DEVICE void mma_words(float factor, int half, unsigned (&words)[2]) { words[half] = float_bits(factor); }
TCONV_DEVICE void mma_words(double factor, int, unsigned (&words)[2]) {
  words[0] = low_word(factor), words[1] = high_word(factor);
}

// Gets an item out of the words in which some lie one after the other.
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
