// How a kernel is launched: what its template says to the host.
#pragma once
#include "primitives/arithmetic.cuh"

namespace tconv {

// Of a problem, and how many multiprocessors the GPU has. Axes are depth, height and width.
struct Sizes {
  int multiprocessors, batch, input[3], output[3];
};

// A launch, and those before it that prepare its weights and its inputs, of no blocks where it takes them as they are.
// `counted` is what must stay below 2^31. Where `wide_index`, offsets do not, and the layer's Index must have 64 bits.
struct Launch {
  long long blocks, counted;
  int threads, shared_bytes;
  bool wide_index;
  long long weight_blocks, weight_bytes;
  int input_blocks, input_shared_bytes;
};

constexpr long long index_limit = 1ll << 31;
// Of a block that prepares.
constexpr int preparing_threads = 256;

// Of one channel.
TCONV_CONSTANT long long plane_of(const int (&sizes)[3]) {
  return static_cast<long long>(sizes[0]) * sizes[1] * sizes[2];
}
TCONV_CONSTANT long long larger(long long a, long long b) { return a < b ? b : a; }

}  // namespace tconv
