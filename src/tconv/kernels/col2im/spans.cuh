// col2im: the inputs and outputs of block tiles along an axis.
#pragma once
#include "primitives/axis.cuh"

namespace tconv {

// The inputs of an axis that a block has: `Size` of them, from a multiple of `Together` on. Blocks along the axis
// overlap, so that each output is summed by the one block that has all its inputs.
//
// Position q owns `stride` outputs, from q * stride - origin on: the phases. Tap k makes output number rest(k) of
// position q from input q - shift(k). `Aligned`: the outputs of a position begin at a multiple of the stride.
template <class Axis, int Size, int Together, bool Aligned>
struct Col2imSpan {
  static constexpr int size = Size, together = Together;
  static constexpr int moved = Aligned ? Axis::padding % Axis::stride : 0, origin = Axis::padding - moved;
  static TCONV_CONSTANT long long place(long long tap) { return tap * Axis::dilation - moved + Axis::stride; }
  static TCONV_CONSTANT int rest(int tap) { return static_cast<int>(place(tap) % Axis::stride); }
  static TCONV_CONSTANT int shift(int tap) { return static_cast<int>(place(tap) / Axis::stride) - 1; }
  static constexpr int lowest = shift(0), overlap = shift(Axis::kernel - 1) - lowest;
  // A block that is no longer than the overlap is the only one (the planner sees to that).
  static constexpr int step = size - overlap < together ? size : (size - overlap) / together * together;

  static TCONV_CONSTANT int count(int inputs) { return inputs <= size ? 1 : 1 + ceil_div(inputs - size, step); }
  // The positions of block `number` of `count` begin here; those of the one after the last, behind all.
  static TCONV_CONSTANT int first_position(int number, int count, int outputs) {
    const int all = (outputs - 1 + origin) / Axis::stride + 1, first = (number - 1) * step + size + lowest;
    return number == count || first > all                 ? all
           : number == 0 || first < origin / Axis::stride ? origin / Axis::stride
                                                          : first;
  }
  // The same of its outputs.
  static TCONV_CONSTANT int first_output(int number, int count, int outputs) {
    const int first = ((number - 1) * step + size) * Axis::stride - Axis::padding;
    return number == count || (number > 0 && first > outputs) ? outputs : number == 0 || first < 0 ? 0 : first;
  }
};

// A block may have some neighbouring phases along the width alone, where a kernel is a multiple of its stride and not
// dilated, so that all phases have as many taps. Such a block computes a layer of its own, `Shape::OwnWidth`, from a
// part of the weights.
//
//   kernel 8, stride 4      taps  0 1 2 3 4 5 6 7      two phases      taps  0 1     4 5        2 3     6 7
//                          phase  0 1 2 3 0 1 2 3                     phase  0 1     0 1   and  2 3     2 3

// The rows of a block are the taps of its output channels, in the order in which weights lie in memory.
template <class Layer, int Channels, int Taps>
struct Col2imBlockRows {
  // From the row of a channel, or of a tap, to that of the next.
  static constexpr int of_channel = Layer::weights_last ? 1 : Taps, of_tap = Layer::weights_last ? Channels : 1;
  // So many rows lie together, and begin at a multiple of their number.
  static constexpr int run = greatest_common_divisor(Layer::group_out_channels, Channels) * of_channel;
};

// Where the weight of a block's row lies behind that of its first.
template <class Layer, class Shape>
TCONV_CONSTANT int col2im_weight(int row) {
  if (Layer::weights_last) return row / Shape::Rows::of_tap * Layer::group_out_channels + row % Shape::Rows::of_tap;
  return Shape::all_phases ? row : row / Shape::OwnWidth::stride * Layer::Width::stride + row % Shape::OwnWidth::stride;
}
// How many outputs the block's own layer has along the width; some of the first and last may not exist.
template <class Layer, class Shape>
TCONV_CONSTANT int col2im_outputs(int output_width) {
  return Shape::all_phases
             ? output_width
             : ((output_width - 1 + Layer::Width::padding) / Layer::Width::stride + 1) * Shape::OwnWidth::stride;
}

// Of so many threads, those that share a row of copies: all, or so few that several rows are copied at once.
TCONV_CONSTANT int col2im_sharers(int copies, int threads) {
  return copies < threads ? power_of_two_from(copies) : threads;
}

}  // namespace tconv
