// How a kernel is launched: a function beside each kernel tells the host its grid and its memory.
#pragma once
#include "primitives/arithmetic.cuh"

namespace tconv {

// The sizes of a problem, and the number of multiprocessors of the GPU. Axes are depth, height and width.
struct Sizes {
  int multiprocessors, batch, input[3], output[3];
};

// The launch of a kernel, and of two kernels before it that prepare its weights and its inputs. These have 0 blocks if
// the kernel takes weights or inputs as they are. `counted`, the highest number in a kernel's count of blocks or works,
// must stay below 2^31. If `wide_index`, offsets reach 2^31, and the layer's Index must have 64 bits.
struct Launch {
  long long blocks, counted;
  int threads, shared_bytes;
  bool wide_index;
  long long weight_blocks, weight_bytes;
  int input_blocks;
};

constexpr long long index_limit = 1ll << 31;
// Threads in a block that prepares weights or inputs.
constexpr int preparing_threads = 256;

// The number of elements of one channel.
TCONV_CONSTANT long long plane_of(const int (&sizes)[3]) {
  return static_cast<long long>(sizes[0]) * sizes[1] * sizes[2];
}
TCONV_CONSTANT long long larger(long long a, long long b) { return a < b ? b : a; }

}  // namespace tconv
