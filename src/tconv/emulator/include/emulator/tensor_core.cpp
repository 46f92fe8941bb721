// What a full warp does together on tensor cores: loading matrices from shared memory, and multiplying them.

#include <cmath>
#include <cstring>

#include "block.h"

namespace tconv_emulator {

namespace {

struct MatrixRowsLane {
  const void* own;
  const void* rows[4];
};

void combine_matrix_rows(void* const brought[warp_size], unsigned) {
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    MatrixRowsLane& taker = *static_cast<MatrixRowsLane*>(brought[lane]);
    for (unsigned matrix = 0; matrix < 4; ++matrix)
      taker.rows[matrix] = static_cast<MatrixRowsLane*>(brought[8 * matrix + lane / 4])->own;
  }
}

constexpr Collective matrix_load = {"ldmatrix", true, false, combine_matrix_rows};

struct ProductLane {
  float* sums;  // of the lane itself, which waits
  const unsigned *a, *b;
};

float half_value(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 0x3ff);
  const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                          : exponent == 0 ? ldexpf(static_cast<float>(fraction), -24)
                                          : ldexpf(static_cast<float>(fraction + 1024), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

float float_of(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Element `k` of the four words that four neighbouring lanes hold of one row of A or column of B.
template <MatrixProduct product>
float element(const unsigned (&words)[8], unsigned k) {
  if (product == MatrixProduct::m16n8k8_tf32) return float_of(words[k] & 0xffffe000u);
  const unsigned bits = words[k / 2] >> 16 * (k % 2) & 0xffff;
  return product == MatrixProduct::m16n8k16_f16 ? half_value(bits) : float_of(bits << 16);
}

// Fragments as in PTX's figures: lane 4i+j has the words j and j+4 of rows i and i+8 of A and of column i of B, and the
// sums of columns 2j and 2j+1 in rows i and i+8.
template <MatrixProduct product>
void combine_product(void* const brought[warp_size], unsigned) {
  constexpr unsigned depth = product == MatrixProduct::m16n8k8_tf32 ? 8 : 16;
  float a[16][depth], b[8][depth];
  for (unsigned row = 0; row < 16; ++row) {
    unsigned words[8];
    for (unsigned word = 0; word < 8; ++word)
      words[word] = static_cast<ProductLane*>(brought[row % 8 * 4 + word % 4])->a[word / 4 * 2 + row / 8];
    for (unsigned k = 0; k < depth; ++k) a[row][k] = element<product>(words, k);
  }
  for (unsigned column = 0; column < 8; ++column) {
    unsigned words[8];
    for (unsigned word = 0; word < 8; ++word)
      words[word] = static_cast<ProductLane*>(brought[column * 4 + word % 4])->b[word / 4];
    for (unsigned k = 0; k < depth; ++k) b[column][k] = element<product>(words, k);
  }
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    float* const sums = static_cast<ProductLane*>(brought[lane])->sums;
    for (unsigned item = 0; item < 4; ++item) {
      const float* const row = a[lane / 4 + item / 2 * 8];
      const float* const column = b[lane % 4 * 2 + item % 2];
      for (unsigned k = 0; k < depth; ++k) sums[item] = fmaf(row[k], column[k], sums[item]);
    }
  }
}

constexpr Collective products[] = {
    {"mma.sync (tf32)", true, false, combine_product<MatrixProduct::m16n8k8_tf32>},
    {"mma.sync (f16)", true, false, combine_product<MatrixProduct::m16n8k16_f16>},
    {"mma.sync (bf16)", true, false, combine_product<MatrixProduct::m16n8k16_bf16>},
};

}  // namespace

void matrix_rows(const void* own, const void* (&rows)[4], Place place) {
  Thread& thread = running_thread();
  MatrixRowsLane lane = {own, {}};
  thread.owner->meet(thread, matrix_load, ~0u, place, &lane);
  for (unsigned matrix = 0; matrix < 4; ++matrix) rows[matrix] = lane.rows[matrix];
}

void multiply_matrices(MatrixProduct product, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                       Place place) {
  Thread& thread = running_thread();
  ProductLane lane = {sums, a, b};
  thread.owner->meet(thread, products[static_cast<int>(product)], ~0u, place, &lane);
}

}  // namespace tconv_emulator
