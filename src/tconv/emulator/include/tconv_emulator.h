// CUDA C++ on the CPU: what NVRTC gives a kernel without any include, for g++.
//
// Force-included before a kernel's translation unit. It covers what this project's kernels use: one
// linear grid of linear blocks, dynamic shared memory, barriers, warp shuffles and votes, vector types,
// arithmetic, and what the kernels' own primitives do by PTX. What is missing fails to compile, so nothing runs with
// another meaning than on a GPU.
#pragma once

#include "emulator/engine.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

#define threadIdx (tconv_emulator::current->index)
#define blockIdx (tconv_emulator::current->block->index)
#define blockDim (tconv_emulator::current->block->block_size)
#define gridDim (tconv_emulator::current->block->grid_size)

constexpr int warpSize = 32;

// ---- vector types -------------------------------------------------------------------------------

#define TCONV_EMULATOR_VECTORS(scalar, name, align2, align4)           \
  struct alignas(align2) name##2 { scalar x, y; };                     \
  struct alignas(align4) name##4 { scalar x, y, z, w; };               \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; } \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

TCONV_EMULATOR_VECTORS(short, short, 4, 8)
TCONV_EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
TCONV_EMULATOR_VECTORS(int, int, 8, 16)
TCONV_EMULATOR_VECTORS(unsigned, uint, 8, 16)
TCONV_EMULATOR_VECTORS(float, float, 8, 16)
TCONV_EMULATOR_VECTORS(double, double, 16, 16)
TCONV_EMULATOR_VECTORS(long long, longlong, 16, 16)
#undef TCONV_EMULATOR_VECTORS

// ---- arithmetic ---------------------------------------------------------------------------------

// C's mathematics, declared rather than included: <math.h> would take longer to compile than a kernel.
// Each name also gets CUDA's float and double overload.
#define TCONV_EMULATOR_MATH1(name)          \
  extern "C" float name##f(float) noexcept; \
  extern "C" double name(double) noexcept;  \
  inline float name(float a) { return name##f(a); }
#define TCONV_EMULATOR_MATH2(name)                 \
  extern "C" float name##f(float, float) noexcept; \
  extern "C" double name(double, double) noexcept; \
  inline float name(float a, float b) { return name##f(a, b); }
#define TCONV_EMULATOR_MATH3(name)                         \
  extern "C" float name##f(float, float, float) noexcept;  \
  extern "C" double name(double, double, double) noexcept; \
  inline float name(float a, float b, float c) { return name##f(a, b, c); }

TCONV_EMULATOR_MATH1(ceil)
TCONV_EMULATOR_MATH1(cos)
TCONV_EMULATOR_MATH1(erf)
TCONV_EMULATOR_MATH1(exp)
TCONV_EMULATOR_MATH1(exp2)
TCONV_EMULATOR_MATH1(expm1)
TCONV_EMULATOR_MATH1(fabs)
TCONV_EMULATOR_MATH1(floor)
TCONV_EMULATOR_MATH1(log)
TCONV_EMULATOR_MATH1(log1p)
TCONV_EMULATOR_MATH1(rint)
TCONV_EMULATOR_MATH1(sin)
TCONV_EMULATOR_MATH1(sqrt)
TCONV_EMULATOR_MATH1(tanh)
TCONV_EMULATOR_MATH1(trunc)
TCONV_EMULATOR_MATH2(copysign)
TCONV_EMULATOR_MATH2(fmax)
TCONV_EMULATOR_MATH2(fmin)
TCONV_EMULATOR_MATH2(pow)
TCONV_EMULATOR_MATH3(fma)
#undef TCONV_EMULATOR_MATH1
#undef TCONV_EMULATOR_MATH2
#undef TCONV_EMULATOR_MATH3

extern "C" int abs(int) noexcept;

inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline float rsqrt(float a) { return rsqrtf(a); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
inline bool isnan(float a) { return __builtin_isnan(a); }
inline bool isnan(double a) { return __builtin_isnan(a); }
inline bool isfinite(float a) { return __builtin_isfinite(a); }
inline bool isfinite(double a) { return __builtin_isfinite(a); }

#define TCONV_EMULATOR_MIN_MAX(type)                           \
  constexpr type min(type a, type b) { return b < a ? b : a; } \
  constexpr type max(type a, type b) { return a < b ? b : a; }

TCONV_EMULATOR_MIN_MAX(int)
TCONV_EMULATOR_MIN_MAX(unsigned)
TCONV_EMULATOR_MIN_MAX(long)
TCONV_EMULATOR_MIN_MAX(unsigned long)
TCONV_EMULATOR_MIN_MAX(long long)
TCONV_EMULATOR_MIN_MAX(unsigned long long)
#undef TCONV_EMULATOR_MIN_MAX

// CUDA's floating-point min and max return the number where one argument is NaN.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

namespace tconv_emulator {

template <class To, class From>
inline To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "same_bits needs types of one size");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

}  // namespace tconv_emulator

inline unsigned __float_as_uint(float a) { return tconv_emulator::same_bits<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return tconv_emulator::same_bits<float>(a); }
inline int __float_as_int(float a) { return tconv_emulator::same_bits<int>(a); }
inline float __int_as_float(int a) { return tconv_emulator::same_bits<float>(a); }
inline long long __double_as_longlong(double a) { return tconv_emulator::same_bits<long long>(a); }
inline double __longlong_as_double(long long a) { return tconv_emulator::same_bits<double>(a); }
inline int __double2loint(double a) { return static_cast<int>(__double_as_longlong(a)); }
inline int __double2hiint(double a) { return static_cast<int>(__double_as_longlong(a) >> 32); }
inline double __hiloint2double(int high, int low) {
  const unsigned long long above = static_cast<unsigned>(high);
  return tconv_emulator::same_bits<double>(above << 32 | static_cast<unsigned>(low));
}

inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a ? __builtin_clz(static_cast<unsigned>(a)) : 32; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

// ---- memory -------------------------------------------------------------------------------------

// Cache hints change no value.
template <class T>
inline T __ldg(const T* address) {
  return *address;
}

template <class T>
inline T __ldcs(const T* address) {
  return *address;
}

template <class T>
inline void __stcs(T* address, T value) {
  *address = value;
}

// ---- meeting other threads ----------------------------------------------------------------------

inline void __syncthreads(tconv_emulator::Place place = tconv_emulator::Place::here()) {
  tconv_emulator::block_barrier(place);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, tconv_emulator::Place place = tconv_emulator::Place::here()) {
  tconv_emulator::warp_barrier(mask, place);
}

namespace tconv_emulator {

template <class T>
inline T shuffle_bits(Shuffle instruction, unsigned mask, T value, unsigned source, Place place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves values of 4 or 8 bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = shuffle(instruction, mask, bits, source, place);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace tconv_emulator

// In each shuffle a lane names the lane that it reads; the segments of `width` lanes are as in PTX's shfl.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                     tconv_emulator::Place place = tconv_emulator::Place::here()) {
  const unsigned segment = tconv_emulator::lane_index() & ~(width - 1u);
  const unsigned from = segment | (static_cast<unsigned>(source) & (width - 1u));
  return tconv_emulator::shuffle_bits(tconv_emulator::Shuffle::indexed, mask, value, from, place);
}

template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        tconv_emulator::Place place = tconv_emulator::Place::here()) {
  const unsigned lane = tconv_emulator::lane_index();
  const unsigned from = (lane & (width - 1u)) >= delta ? lane - delta : lane;
  return tconv_emulator::shuffle_bits(tconv_emulator::Shuffle::up, mask, value, from, place);
}

template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          tconv_emulator::Place place = tconv_emulator::Place::here()) {
  const unsigned lane = tconv_emulator::lane_index();
  const unsigned from = (lane & (width - 1u)) + delta < static_cast<unsigned>(width) ? lane + delta : lane;
  return tconv_emulator::shuffle_bits(tconv_emulator::Shuffle::down, mask, value, from, place);
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                         tconv_emulator::Place place = tconv_emulator::Place::here()) {
  const unsigned lane = tconv_emulator::lane_index();
  const unsigned last = lane | (width - 1u), other = lane ^ static_cast<unsigned>(lane_mask);
  const unsigned from = other <= last ? other : lane;
  return tconv_emulator::shuffle_bits(tconv_emulator::Shuffle::exclusive_or, mask, value, from, place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              tconv_emulator::Place place = tconv_emulator::Place::here()) {
  return tconv_emulator::vote(tconv_emulator::Vote::ballot, mask, predicate != 0, place).yes;
}

inline int __any_sync(unsigned mask, int predicate, tconv_emulator::Place place = tconv_emulator::Place::here()) {
  return tconv_emulator::vote(tconv_emulator::Vote::any, mask, predicate != 0, place).yes != 0;
}

inline int __all_sync(unsigned mask, int predicate, tconv_emulator::Place place = tconv_emulator::Place::here()) {
  const auto result = tconv_emulator::vote(tconv_emulator::Vote::all, mask, predicate != 0, place);
  return result.yes == result.voters;
}

// ---- what the kernels' primitives do by PTX -----------------------------------------------------

#include "primitives/asynchronous.h"
#include "primitives/barriers.h"
#include "primitives/elements.h"
#include "primitives/language.h"
#include "primitives/memory.h"
#include "primitives/programs.h"
#include "primitives/tensor_cores.h"
#include "primitives/warpgroups.h"

// A text that defines them for the emulator itself, as files of older versions do, hides these.
namespace tconv {
using namespace tconv_emulator::primitives;
}
