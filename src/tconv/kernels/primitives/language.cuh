// The words that compilers say differently. The same text compiles by NVRTC, by nvcc, whose older builds want C++14,
// and by g++ for the emulator. No CUDA header is included, and what has inline PTX the emulator has in its own words.
#pragma once

#define TCONV_CONSTANT __host__ __device__ constexpr
#if !defined(TCONV_EMULATOR)
#define TCONV_DEVICE __device__ __forceinline__
#define TCONV_MAY_ALIAS
#define TCONV_SHARED(name)                                      \
  extern __shared__ __align__(1024) unsigned char tconv_shared[]; \
  unsigned char* name = tconv_shared
#endif
