// What `kernels/primitives/programs.cuh` does by PTX, on the CPU.
#pragma once

namespace tconv_emulator::primitives {

inline float power_of_two(float value) { return exp2f(value); }
inline float quotient(float a, float b) { return a / b; }

}  // namespace tconv_emulator::primitives
