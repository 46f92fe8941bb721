// What a full warp does together on tensor cores: loading matrices from shared memory, and multiplying them.

#include <cmath>
#include <cstring>

#include "block.h"

namespace tconv_emulator {

namespace {

struct MatrixRowsLane {
  void* own;
  unsigned row;  // that it wants of each matrix
  void* rows[4];
};

void combine_matrix_rows(void* const brought[warp_size], unsigned) {
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    MatrixRowsLane& taker = *static_cast<MatrixRowsLane*>(brought[lane]);
    for (unsigned matrix = 0; matrix < 4; ++matrix)
      taker.rows[matrix] = static_cast<MatrixRowsLane*>(brought[8 * matrix + taker.row])->own;
  }
}

constexpr Collective matrix_accesses[] = {
    {"ldmatrix", true, false, combine_matrix_rows},
    {"stmatrix", true, false, combine_matrix_rows},
};

struct ProductLane {
  void* accumulators;  // of the lane itself, which waits
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

// Element `k` of a row of A or column of B, of whose eight words four neighbouring lanes hold two each: lane j the
// words j and j+4, or those of the double j.
template <MatrixProduct product>
struct Elements {
  using Value = float;
  static constexpr unsigned depth = product == MatrixProduct::m16n8k8_tf32 ? 8 : 16;
  static unsigned lane_of(unsigned word) { return word % 4; }
  static unsigned place_of(unsigned word) { return word / 4; }
  static float at(const unsigned (&words)[8], unsigned k) {
    if (product == MatrixProduct::m16n8k8_tf32) return float_of(words[k] & 0xffffe000u);
    const unsigned bits = words[k / 2] >> 16 * (k % 2) & 0xffff;
    return product == MatrixProduct::m16n8k16_f16 ? half_value(bits) : float_of(bits << 16);
  }
};
template <>
struct Elements<MatrixProduct::m16n8k4_f64> {
  using Value = double;
  static constexpr unsigned depth = 4;
  static unsigned lane_of(unsigned word) { return word / 2; }
  static unsigned place_of(unsigned word) { return word % 2; }
  static double at(const unsigned (&words)[8], unsigned k) {
    double value;
    memcpy(&value, words + 2 * k, sizeof value);
    return value;
  }
};

float fused(float a, float b, float accumulator) { return fmaf(a, b, accumulator); }
double fused(double a, double b, double accumulator) { return fma(a, b, accumulator); }

// Fragments as in PTX's figures: lanes 4i to 4i+3 have rows i and i+8 of A and column i of B, and lane 4i+j the
// accumulators of columns 2j and 2j+1 in rows i and i+8. Of A a lane has both rows' first words, then both rows' second
// ones; or the words of one row's double, then those of the other's.
template <MatrixProduct product>
void combine_product(void* const brought[warp_size], unsigned) {
  using Of = Elements<product>;
  using Value = typename Of::Value;
  constexpr bool by_rows = sizeof(Value) == 8;
  Value a[16][Of::depth], b[8][Of::depth];
  for (unsigned row = 0; row < 16; ++row) {
    unsigned words[8];
    for (unsigned word = 0; word < 8; ++word) {
      const unsigned place = Of::place_of(word), half = row / 8;
      words[word] = static_cast<ProductLane*>(brought[row % 8 * 4 + Of::lane_of(word)])
                        ->a[by_rows ? half * 2 + place : place * 2 + half];
    }
    for (unsigned k = 0; k < Of::depth; ++k) a[row][k] = Of::at(words, k);
  }
  for (unsigned column = 0; column < 8; ++column) {
    unsigned words[8];
    for (unsigned word = 0; word < 8; ++word)
      words[word] = static_cast<ProductLane*>(brought[column * 4 + Of::lane_of(word)])->b[Of::place_of(word)];
    for (unsigned k = 0; k < Of::depth; ++k) b[column][k] = Of::at(words, k);
  }
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    Value* const accumulators = static_cast<Value*>(static_cast<ProductLane*>(brought[lane])->accumulators);
    for (unsigned item = 0; item < 4; ++item) {
      const Value* const row = a[lane / 4 + item / 2 * 8];
      const Value* const column = b[lane % 4 * 2 + item % 2];
      for (unsigned k = 0; k < Of::depth; ++k) accumulators[item] = fused(row[k], column[k], accumulators[item]);
    }
  }
}

constexpr Collective products[] = {
    {"mma.sync (tf32)", true, false, combine_product<MatrixProduct::m16n8k8_tf32>},
    {"mma.sync (f16)", true, false, combine_product<MatrixProduct::m16n8k16_f16>},
    {"mma.sync (bf16)", true, false, combine_product<MatrixProduct::m16n8k16_bf16>},
    {"mma.sync (f64)", true, false, combine_product<MatrixProduct::m16n8k4_f64>},
};

struct RowsLane {
  float* accumulators;
  const unsigned* a;
  const unsigned (*b)[8];
  int rows;
};

// The fragments are those above, with more columns of B.
template <MatrixProduct product>
void combine_rows(void* const brought[warp_size], unsigned) {
  using Of = Elements<product>;
  const auto lane = [&](unsigned number) -> RowsLane& { return *static_cast<RowsLane*>(brought[number]); };
  const unsigned rows = static_cast<unsigned>(lane(0).rows);
  float a[16][Of::depth], b[256][Of::depth];
  for (unsigned row = 0; row < 16; ++row) {
    unsigned words[8];
    for (unsigned word = 0; word < 8; ++word) words[word] = lane(row % 8 * 4 + word % 4).a[word / 4 * 2 + row / 8];
    for (unsigned k = 0; k < Of::depth; ++k) a[row][k] = Of::at(words, k);
  }
  for (unsigned row = 0; row < rows; ++row) {
    unsigned words[8];
    memcpy(words, lane(row % warp_size).b[row / warp_size], sizeof words);
    for (unsigned k = 0; k < Of::depth; ++k) b[row][k] = Of::at(words, k);
  }
  for (unsigned number = 0; number < warp_size; ++number)
    for (unsigned item = 0; item < rows / 2; ++item) {
      const float* const of_a = a[number / 4 + item % 4 / 2 * 8];
      const float* const of_b = b[item / 4 * 8 + number % 4 * 2 + item % 2];
      float accumulator = lane(number).accumulators[item];
      for (unsigned k = 0; k < Of::depth; ++k) accumulator = fused(of_a[k], of_b[k], accumulator);
      lane(number).accumulators[item] = accumulator;
    }
}

constexpr Collective row_products[] = {
    {"wgmma (tf32)", true, false, combine_rows<MatrixProduct::m16n8k8_tf32>},
    {"wgmma (f16)", true, false, combine_rows<MatrixProduct::m16n8k16_f16>},
    {"wgmma (bf16)", true, false, combine_rows<MatrixProduct::m16n8k16_bf16>},
};

}  // namespace

void multiply_rows(WarpgroupProduct product, float* accumulators, const unsigned (&a)[4], const unsigned (*b)[8],
                   int rows, Place place) {
  Thread& thread = running_thread();
  RowsLane lane = {accumulators, a, b, rows};
  thread.owner->meet(thread, row_products[static_cast<int>(product)], ~0u, place, &lane);
}

void matrix_rows(MatrixAccess access, void* own, unsigned row, void* (&rows)[4], Place place) {
  Thread& thread = running_thread();
  MatrixRowsLane lane = {own, row, {}};
  thread.owner->meet(thread, matrix_accesses[static_cast<int>(access)], ~0u, place, &lane);
  for (unsigned matrix = 0; matrix < 4; ++matrix) rows[matrix] = lane.rows[matrix];
}

void multiply_matrices(MatrixProduct product, void* accumulators, const unsigned (&a)[4], const unsigned (&b)[2],
                       Place place) {
  Thread& thread = running_thread();
  ProductLane lane = {accumulators, a, b};
  thread.owner->meet(thread, products[static_cast<int>(product)], ~0u, place, &lane);
}

}  // namespace tconv_emulator
