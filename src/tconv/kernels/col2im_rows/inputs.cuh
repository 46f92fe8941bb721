// col2im_rows: inputs, from memory to the fragments of the first factor.
#pragma once
#include "col2im_rows/lines.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/barriers.cuh"
#include "primitives/memory.cuh"
#include "primitives/tensor_cores.cuh"

namespace tconv {

// The fragments of a step, rounded, from a lane's words of it. Row g of a warp's fragments is input 2g of the warp, row
// g + 8 is input 2g + 1: so a lane has pairs of neighbours, of the channels that the fragment says. In channels_last it
// has neighbouring channels instead, and weights lie as that wants.
template <class Layer, class Tile>
TCONV_DEVICE void col2im_rows_fragments(const unsigned (&words)[Col2imRowsShape<Layer, Tile>::step_words],
                                        unsigned (&fragments)[4]) {
  using Shape = Col2imRowsShape<Layer, Tile>;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned& fragment = fragments[2 * half + i];
      if (Shape::item_bytes == 4)
        fragment =
            float_bits(matrix_factor<Layer>(bits_float(words[Tile::channels_last ? 2 * i + half : 2 * half + i]), 0));
      else if (Tile::channels_last)
        fragment = Shape::loaded_bytes > 2 ? words[2 * i + half]
                                           : words[(4 * i + 2 * half) % Shape::step_words] |
                                                 words[(4 * i + 2 * half + 1) % Shape::step_words] << 16;
      else if (Shape::staged || Tile::vector == 2)
        fragment = i == 0 ? (words[2 * half] & 0xffffu) | words[2 * half + 1] << 16
                          : words[2 * half] >> 16 | (words[2 * half + 1] & 0xffff0000u);
      else
        fragment = words[(4 * half + i) % Shape::step_words] | words[(4 * half + 2 + i) % Shape::step_words] << 16;
    }
}

// The k-tiles of a line in memory, one after the other: of each row of inputs all channels.
template <class Layer, class Tile>
struct Col2imRowsKTiles {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  // From a position to the next one.
  static constexpr int position_items = Tile::channels_last ? Layer::groups * Layer::group_in_channels : 1;
  long long plane;  // positions of a map
  int depths, rows, row_items;
  int depth;             // the position along the depth
  const Element* first;  // of the thread's column and its first channel, in row 0 of depth 0
  bool image_inside;
  int row, end, k_tile = 0;  // of the next one

  TCONV_DEVICE Col2imRowsKTiles(const Element* x, int group, const Col2imRowsPart<Layer, Tile>& part, int column,
                                int channel, int batch, int input_depth, int input_height, int input_width)
      : plane(static_cast<long long>(input_depth) * input_height * input_width),
        depths(input_depth),
        rows(input_height),
        row_items(input_width),
        depth(part.depth),
        image_inside(part.image < batch),
        row(part.first_row()),
        end(part.first_row() + Shape::input_rows) {
    const long long image = part.image;
    first = Tile::channels_last
                ? x + (image * plane + column) * position_items + group * Layer::group_in_channels + channel
                : x + ((image * Layer::groups + group) * Layer::group_in_channels + channel) * plane + column;
  }
  TCONV_DEVICE bool is_left() const { return row < end; }
  TCONV_DEVICE void next() {
    if (Shape::k_tiles > 1 && ++k_tile < Shape::k_tiles) return;
    k_tile = 0, ++row;
  }
  // A step of the next k-tile: its first channel, which the thread's is counted from.
  struct Step {
    const Element* from;
    int first_channel;
    bool inside;

    TCONV_DEVICE bool has(int channel) const {
      return inside && (Layer::group_in_channels % Shape::step_channels == 0 ||
                        first_channel + channel < Layer::group_in_channels);
    }
  };
  TCONV_DEVICE Step step(int of_k_tile) const {
    const int number = k_tile * Tile::k_tile_steps + of_k_tile;
    const int shift = Shape::Depth::shifts == 1 ? 0 : number / Shape::channel_steps;
    const int first_channel = (number - shift * Shape::channel_steps) * Shape::step_channels;
    const bool inside = image_inside && in_range(row, rows) && in_range(depth - shift, depths) &&
                        (Shape::whole_k_tiles || number < Shape::k_steps);
    return {first + first_channel * (Tile::channels_last ? 1 : plane) +
                (static_cast<long long>(depth - shift) * rows + row) * row_items * position_items,
            first_channel, inside};
  }
};

// The inputs of a lane, straight to registers: a k-tile is asked for when the one before is taken.
template <class Layer, class Tile>
struct Col2imRowsInputs {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using KTiles = Col2imRowsKTiles<Layer, Tile>;
  int lane_channel;
  KTiles asked;
  bool columns_inside[2];
  unsigned words[Tile::k_tile_steps][Shape::step_words];

  // Of a team, the line that a thread loads.
  static TCONV_DEVICE int line(int thread) { return thread / 32 / Shape::line_warps; }
  static TCONV_DEVICE int column_of(int thread) { return thread / 32 % Shape::line_warps * 16 + thread % 32 / 4 * 2; }
  TCONV_DEVICE Col2imRowsInputs(const Element* x, int group, const Col2imRowsPart<Layer, Tile>& part, int thread,
                                int batch, int input_depth, int input_height, int input_width, unsigned char*)
      : lane_channel(thread % 4 * (Tile::channels_last ? Shape::lane_channels : Shape::lane_channels / 2)),
        asked(x, group, part, part.column + column_of(thread), lane_channel, batch, input_depth, input_height,
              input_width) {
    const int column = part.column + column_of(thread);
    columns_inside[0] = column < input_width, columns_inside[1] = column + 1 < input_width;
    ask();
  }
  // The fragments of the next k-tile.
  TCONV_DEVICE void take(unsigned (&fragments)[Tile::k_tile_steps][4]) {
#pragma unroll
    for (int step = 0; step < Tile::k_tile_steps; ++step)
      col2im_rows_fragments<Layer, Tile>(words[step], fragments[step]);
    if (asked.is_left()) ask();
  }

 private:
  TCONV_DEVICE void ask() {
#pragma unroll
    for (int number = 0; number < Tile::k_tile_steps; ++number) {
      const auto step = asked.step(number);
      if (Tile::channels_last) {
        load_channels(step, words[number]);
        continue;
      }
#pragma unroll
      for (int k = 0; k < Shape::lane_channels; ++k) {
        // A half of the channels lies 16 bytes of the fragment further.
        const int channel =
            k % (Shape::lane_channels / 2) + k / (Shape::lane_channels / 2) * (Shape::step_channels / 2);
        const bool there = step.has(lane_channel + channel);
#pragma unroll
        for (int i = 0; i < 2 / Tile::vector; ++i) {
          constexpr int count = (Shape::loaded_bytes + 3) / 4;
          unsigned loaded[count];
          load_present<Shape::loaded_bytes>(step.from + channel * asked.plane + i, there && columns_inside[i], loaded);
#pragma unroll
          for (int word = 0; word < count; ++word)
            words[number][(k * (2 / Tile::vector) + i) * count + word] = loaded[word];
        }
      }
    }
    asked.next();
  }
  // The same of a step, in channels_last.
  TCONV_DEVICE void load_channels(const typename KTiles::Step& step, unsigned (&of_lane)[Shape::step_words]) const {
    constexpr int items = Shape::loaded_bytes / Shape::item_bytes, count = (Shape::loaded_bytes + 3) / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int channel = 0; channel < Shape::lane_channels; channel += items) {
        const bool there = columns_inside[i] && step.has(lane_channel + channel);
        unsigned loaded[count];
        load_present<Shape::loaded_bytes>(step.from + i * KTiles::position_items + channel, there, loaded);
#pragma unroll
        for (int word = 0; word < count; ++word)
          of_lane[((i * Shape::lane_channels + channel) / items) * count + word] = loaded[word];
      }
  }
};

// The inputs of a warpgroup, through its own stages of shared memory: so some k-tiles are on their way while another
// one is multiplied, and a channel's inputs are copied as one run.
template <class Layer, class Tile>
struct Col2imRowsStagedInputs {
  using Shape = Col2imRowsShape<Layer, Tile>;
  using Element = typename Layer::Element;
  // Of a channel's 64 inputs, each thread copies `vector`.
  static constexpr int channel_threads = 64 / Tile::vector, copied_channels = 128 / channel_threads;
  static constexpr int step_copies = Shape::step_channels / copied_channels;
  static constexpr int half_channels = Shape::lane_channels / 2;  // of a lane, in half a step
  static constexpr int stage_items = Shape::stage_bytes / Shape::item_bytes;
  ThreadCopies<Shape::loaded_bytes, Tile::k_tile_steps * step_copies, Tile::input_stages> copies;
  int copied_channel, copied_input;  // the thread's first ones of a step
  Col2imRowsKTiles<Layer, Tile> asked;
  bool column_inside;
  Element* stages;
  int read_place;  // what the lane reads first of a step
  int barrier;     // of the warpgroup
  int stage = 0;   // that is taken next

  // Of a team, the line that a thread copies.
  static TCONV_DEVICE int line(int thread) { return input_of(thread) / Tile::columns; }
  // Of a team's inputs, the first one that a thread copies.
  static TCONV_DEVICE int input_of(int thread) { return thread / 128 * 64 + thread % channel_threads * Tile::vector; }

  TCONV_DEVICE Col2imRowsStagedInputs(const Element* x, int group, const Col2imRowsPart<Layer, Tile>& part, int thread,
                                      int batch, int input_depth, int input_height, int input_width,
                                      unsigned char* shared)
      : copied_channel(thread % 128 / channel_threads),
        copied_input(thread % channel_threads * Tile::vector),
        asked(x, group, part, part.column + input_of(thread) % Tile::columns, copied_channel, batch, input_depth,
              input_height, input_width),
        column_inside(part.column + input_of(thread) % Tile::columns < input_width),
        read_place(place(thread % 4 * half_channels, thread % 128 / 32 * 16 + thread % 32 / 4 * 2)) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    stages = reinterpret_cast<Element*>(shared + warpgroup * Shape::warpgroup_input_bytes);
    barrier = 1 + Shape::teams + warpgroup;
#pragma unroll
    for (int i = 0; i + 1 < Tile::input_stages; ++i) ask(i);
  }
  // The fragments of the next k-tile.
  TCONV_DEVICE void take(unsigned (&fragments)[Tile::k_tile_steps][4]) {
    copies.template wait<Tile::input_stages - 2>();
    meet<128>(barrier);  // all have copied the stage, and read the one before, which is free
    ask(stage == 0 ? Tile::input_stages - 1 : stage - 1);
#pragma unroll
    for (int step = 0; step < Tile::k_tile_steps; ++step) {
      unsigned words[4];
#pragma unroll
      for (int k = 0; k < Shape::lane_channels; ++k) {
        // A half of the channels lies 16 bytes of the fragment further.
        const int channel =
            step * Shape::step_channels + k % half_channels + k / half_channels * (Shape::step_channels / 2);
        const auto pair =
            *reinterpret_cast<const Vector<Element, 2>*>(stages + stage * stage_items + channel * 64 + read_place);
        constexpr int pair_words = Shape::item_bytes / 2;
#pragma unroll
        for (int word = 0; word < pair_words; ++word) words[k * pair_words + word] = word_of(pair, word);
      }
      col2im_rows_fragments<Layer, Tile>(words, fragments[step]);
    }
    stage = stage + 1 == Tile::input_stages ? 0 : stage + 1;
  }

 private:
  // Where an input of a channel lies in a stage, [channel][input]. What four lanes read of four channels lies in
  // different banks.
  static TCONV_DEVICE int place(int channel, int input) {
    constexpr int vector_items = 16 / Shape::item_bytes;
    return channel * 64 + (input ^ channel / half_channels % 4 * 2 * vector_items);
  }
  // Asks for a k-tile. One behind the last is a group without copies, so that groups can be counted.
  TCONV_DEVICE void ask(int to_stage) {
    if (asked.is_left()) {
#pragma unroll
      for (int number = 0; number < Tile::k_tile_steps; ++number) {
        const auto step = asked.step(number);
        Element* const to = stages + to_stage * stage_items + number * Shape::step_channels * 64;
#pragma unroll
        for (int i = 0; i < step_copies; ++i) {
          const int channel = i * copied_channels;
          copies.begin(to + place(copied_channel + channel, copied_input), step.from + channel * asked.plane,
                       column_inside && step.has(copied_channel + channel));
        }
      }
      asked.next();
    }
    copies.end_group();
  }
};

}  // namespace tconv
