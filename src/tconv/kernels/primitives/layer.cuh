// What families know alike of a layer: where its weights lie, by numbers that are taken apart.
#pragma once
#include "primitives/arithmetic.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// Takes a number below `Count` apart, the fastest digit first: nearly always in 32 bits, which are divided much faster
// than 64.
template <long long Count>
struct Digits {
  using Number = typename Choice<(Count <= 0x7fffffff), int, long long>::type;
  Number rest;

  TCONV_DEVICE explicit Digits(long long number) : rest(static_cast<Number>(number)) {}

  TCONV_DEVICE int next(int base) {
    const int digit = static_cast<int>(rest % base);
    rest /= base;
    return digit;
  }
};

// Where an element of the weights lies: tap `tap` of the filter from an input channel of its group to an output
// channel.
template <class Layer>
TCONV_DEVICE const typename Layer::Element* weight_at(const typename Layer::Element* weight, int group, int in_channel,
                                                      int out_channel, int tap) {
  const long long filter =
      (static_cast<long long>(group) * Layer::group_in_channels + in_channel) * Layer::group_out_channels + out_channel;
  return weight + filter * (Layer::Depth::kernel * Layer::Height::kernel * Layer::Width::kernel) + tap;
}

}  // namespace tconv
