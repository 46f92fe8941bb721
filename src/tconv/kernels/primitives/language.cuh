// Macros for words that differ between compilers. The same text is compiled by NVRTC, by nvcc (older ones in C++14) and
// by g++ for the emulator. No CUDA header is included. The emulator has its own versions of functions with inline PTX.
#pragma once

#define TCONV_CONSTANT __host__ __device__ constexpr
#if !defined(TCONV_EMULATOR)
#define TCONV_DEVICE __device__ __forceinline__
#define TCONV_MAY_ALIAS
#define TCONV_SHARED(name)                                      \
  extern __shared__ __align__(1024) unsigned char tconv_shared[]; \
  unsigned char* name = tconv_shared
#endif
