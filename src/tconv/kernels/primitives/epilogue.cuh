// What becomes of the accumulators of a layer before they are stored: its bias, and its program, the arithmetic that
// stands behind it.
#pragma once
#include "primitives/memory.cuh"

namespace tconv {

// The program of a layer that has none; others are generated (tconv/pointwise/functor.py). `to` is where outputs are
// stored, and what is not present is not read.
struct Identity {
  // What is read once for an output channel, and what for N outputs that are stored together.
  struct Channel {};
  template <int N>
  struct Values {};
  TCONV_DEVICE Channel of(int) const { return {}; }
  template <int N, class Element>
  TCONV_DEVICE Values<N> fetch(const Element*, bool) const {
    return {};
  }
  // Output i of those N from y, its accumulator with the bias.
  template <class Accumulator, int N>
  TCONV_DEVICE Accumulator apply(Accumulator y, const Channel&, const Values<N>&, int) const {
    return y;
  }
};

// Chooses a function by whether there is a program: C++14 compiles both branches of an `if`.
template <bool>
struct HasProgram {};

template <class Layer, class Program>
struct Epilogue {
  using Accumulator = typename AccumulatorOf<typename Layer::Element>::type;
  // What a channel needs, loaded.
  struct Channel : Program::Channel {
    Accumulator bias;
    TCONV_DEVICE Accumulator y(Accumulator accumulator) const {
      return Layer::has_bias ? accumulator + bias : accumulator;
    }
  };
  const typename Layer::Element* bias;  // of the block's group
  const Program& program;
  int first_channel;  // of the block's group

  // Of a channel of the group.
  TCONV_DEVICE Channel of(int channel) const {
    Channel of;  // C++14 initialises no bases by a list
    if (Layer::has_program) static_cast<typename Program::Channel&>(of) = program.of(first_channel + channel);
    of.bias = Layer::has_bias ? to_accumulator(load_constant(bias + channel)) : 0;
    return of;
  }
  // An output of its y.
  template <class Values>
  TCONV_DEVICE typename Layer::Element output(Accumulator y, const Channel& channel, const Values& values,
                                              int i = 0) const {
    return from_accumulator<typename Layer::Element>(program.apply(y, channel, values, i));
  }
};

}  // namespace tconv
