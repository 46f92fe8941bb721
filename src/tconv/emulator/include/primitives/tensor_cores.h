// What `kernels/primitives/tensor_cores.cuh` does by PTX, on the CPU, by the lanes of a warp that meet.
#pragma once

namespace tconv_emulator::primitives {

inline void load_matrices(const void* row, unsigned (&words)[4]) {
  void* rows[4];
  matrix_rows(MatrixAccess::load, const_cast<void*>(row), lane_index() / 4, rows, Place::here());
  for (int m = 0; m < 4; ++m) words[m] = static_cast<const unsigned*>(rows[m])[lane_index() % 4];
}

inline void load_transposed_matrices(const void* row, unsigned (&words)[4]) {
  const unsigned lane = lane_index();
  void* rows[2][4];
  for (unsigned k = 0; k < 2; ++k)
    matrix_rows(MatrixAccess::load, const_cast<void*>(row), 2 * (lane % 4) + k, rows[k], Place::here());
  for (int m = 0; m < 4; ++m)
    words[m] = static_cast<const unsigned short*>(rows[0][m])[lane / 4] |
               static_cast<unsigned>(static_cast<const unsigned short*>(rows[1][m])[lane / 4]) << 16;
}

inline void multiply_tf32(float (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply_matrices(MatrixProduct::m16n8k8_tf32, accumulators, a, b, Place::here());
}
inline void multiply_f16(float (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply_matrices(MatrixProduct::m16n8k16_f16, accumulators, a, b, Place::here());
}
inline void multiply_bf16(float (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply_matrices(MatrixProduct::m16n8k16_bf16, accumulators, a, b, Place::here());
}
inline void multiply_f64(double (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply_matrices(MatrixProduct::m16n8k4_f64, accumulators, a, b, Place::here());
}

}  // namespace tconv_emulator::primitives
