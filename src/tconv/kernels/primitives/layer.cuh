// A layer's weights, for all families of kernels: where they lie, and how a number is split into their indices.
#pragma once
#include "primitives/arithmetic.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// Splits a number below `Count` into digits of mixed bases, the fastest digit first. Divides in 32 bits where `Count`
// allows it, as 64 bits take much longer.
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

// The address of a weight: tap `tap` of the filter from an input channel to an output channel, both counted inside the
// group. Weights lie as [group][input channel][output channel][tap].
template <class Layer>
TCONV_DEVICE const typename Layer::Element* weight_at(const typename Layer::Element* weight, int group, int in_channel,
                                                      int out_channel, int tap) {
  constexpr int taps = Layer::Depth::kernel * Layer::Height::kernel * Layer::Width::kernel;
  const long long channel = static_cast<long long>(group) * Layer::group_in_channels + in_channel;
  // In channels_last the output channels of a tap are neighbours.
  if (Layer::weights_last) return weight + (channel * taps + tap) * Layer::group_out_channels + out_channel;
  return weight + (channel * Layer::group_out_channels + out_channel) * taps + tap;
}

// From a weight to that of the next tap.
template <class Layer>
TCONV_CONSTANT int tap_distance() {
  return Layer::weights_last ? Layer::group_out_channels : 1;
}

}  // namespace tconv
