// The epilogue: accumulators become outputs. It adds the layer's bias, applies its program (the arithmetic that follows
// the layer), and rounds to the element type, once.
#pragma once
#include "primitives/memory.cuh"

namespace tconv {

// The program of a layer without arithmetic after it. Other programs are generated (tconv/pointwise/functor.py), with
// the same members.
struct Identity {
  // A program's values of an output channel, which `of` loads once, and of N outputs that are stored together, which
  // `fetch` loads. `fetch` gets the address to which the outputs go; it reads nothing if they are not present.
  struct Channel {};
  template <int N>
  struct Values {};
  TCONV_DEVICE Channel of(int) const { return {}; }
  template <int N, class Element>
  TCONV_DEVICE Values<N> fetch(const Element*, bool) const {
    return {};
  }
  // Output i of the N, from its accumulator with the bias, y.
  template <class Accumulator, int N>
  TCONV_DEVICE Accumulator apply(Accumulator y, const Channel&, const Values<N>&, int) const {
    return y;
  }
};

// Chooses an overload by whether there is a program: in C++14 an `if` on a constant compiles both branches.
template <bool>
struct HasProgram {};

template <class Layer, class Program>
struct Epilogue {
  using Accumulator = typename AccumulatorOf<typename Layer::Element>::type;
  // The loaded values of a channel: the program's and the bias. `y` adds the bias to an accumulator.
  struct Channel : Program::Channel {
    Accumulator bias;
    TCONV_DEVICE Accumulator y(Accumulator accumulator) const {
      return Layer::has_bias ? accumulator + bias : accumulator;
    }
  };
  const typename Layer::Element* bias;  // of the first channel of the block's group
  const Program& program;
  int first_channel;  // the number of that channel in the layer

  // Loads the values of a channel, counted from the group's first.
  TCONV_DEVICE Channel of(int channel) const {
    Channel of;  // C++14 initialises no bases by a list
    if (Layer::has_program) static_cast<typename Program::Channel&>(of) = program.of(first_channel + channel);
    of.bias = Layer::has_bias ? to_accumulator(load_constant(bias + channel)) : 0;
    return of;
  }
  // Output i of `values` from its y. Rounds here.
  template <class Values>
  TCONV_DEVICE typename Layer::Element output(Accumulator y, const Channel& channel, const Values& values,
                                              int i = 0) const {
    return from_accumulator<typename Layer::Element>(program.apply(y, channel, values, i));
  }
};

}  // namespace tconv
