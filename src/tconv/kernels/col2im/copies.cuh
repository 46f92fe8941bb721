// col2im: from global memory to the stages of a warp.
#pragma once
#include "col2im/spans.cuh"
#include "primitives/asynchronous.cuh"
#include "primitives/block_tiles.cuh"
#include "primitives/memory.cuh"

namespace tconv {

// Where the runs of a block tile begin in a stage: somewhere in the first 16 bytes of what is copied of each.
template <class Layer, class Tile, class Shape>
struct Col2imRuns {
  unsigned begin;  // of the first image and channel, in x; its low bits count
  unsigned plane;

  // The run of a channel, counted from a multiple of `run_items` on, where its inputs lie at `inputs`. That many
  // channels further runs begin at the same place.
  template <class Item>
  TCONV_DEVICE const Item* at(const unsigned char* inputs, unsigned channel, int image) const {
    constexpr unsigned channels = Layer::groups * Layer::group_in_channels, items = Shape::run_items;
    const unsigned of_image = image * channels + channel % items, shift = begin + of_image * plane & (items - 1);
    return reinterpret_cast<const Item*>(inputs + channel * Shape::input_pitch + image * Shape::run_copies * 16) +
           shift;
  }
};

// A weight that a thread loads: where it comes from, and where it goes in a stage.
template <class Element>
struct Col2imWeight {
  const Element* from;
  int place;
  bool wanted, present;
};

// The copies of a thread for its set of warps. What a k-tile needs is a table of copies: weights are rows of channels,
// inputs are rows of channels or, of `inputs_last`, of positions. Threads share a row; so a thread looks its places up
// once, and goes on from there by what is constant or the same for all.
template <class Layer, class Tile, class Shape>
struct Col2imCopies {
  using Element = typename Layer::Element;
  // Threads that share a row, how often, and rows at once.
  static constexpr int weight_sharers = col2im_sharers(Shape::channel_copies, Shape::set_threads);
  static constexpr int weight_turns = ceil_div(Shape::channel_copies, weight_sharers),
                       weight_rows = Shape::set_threads / weight_sharers;
  static constexpr int weight_copies = weight_turns * ceil_div(Shape::k_tile_channels, weight_rows);
  static constexpr int input_sharers = col2im_sharers(Shape::row_copies, Shape::set_threads);
  static constexpr int input_turns = ceil_div(Shape::row_copies, input_sharers),
                       input_rows = Shape::set_threads / input_sharers;
  static constexpr int input_copies = input_turns * ceil_div(Shape::input_rows, input_rows);
  // Places that a thread looks up: of positions in each of its rows, or of channels in the first.
  static constexpr int places = Tile::inputs_last ? input_copies : input_turns;
  static constexpr int weight_items = Shape::weight_copy / Shape::item_bytes;
  static constexpr int input_items = Shape::input_copy / Shape::item_bytes;
  // Weights of a channel; those of a block's row lie at `col2im_weight` behind its first.
  static constexpr int kernel = Layer::Depth::kernel * Layer::Height::kernel * Layer::Width::kernel;
  static constexpr long long filter = static_cast<long long>(Layer::group_out_channels) * kernel;
  static_assert(Shape::all_phases || weight_turns == 1, "a thread looks one place of its rows up");
  static constexpr long long channels = static_cast<long long>(Layer::groups) * Layer::group_in_channels;

  // A group of copies is a k-tile; resident weights are a group of their own, the first.
  static constexpr int all_weight_copies = Shape::resident ? Shape::set_k_tiles * weight_copies : weight_copies;
  static constexpr int group_copies = !Shape::resident                   ? weight_copies + input_copies
                                      : all_weight_copies < input_copies ? input_copies
                                                                         : all_weight_copies;

  ThreadCopies<16, group_copies, Shape::stages_ahead + (Shape::resident ? 1 : 0)> waiting;
  const Element* weight;  // the thread's first of the next k-tile
  const Element* x;
  long long at[places];      // the thread's inputs in x, in channel 0 of the group; below 0 for what does not exist
  long long plane, of_step;  // from a channel of x to the next; where the next k-tile's channels begin
  // The next k-tile's first channel; existing rows of the block, of `weights_last` those of a tap; positions of a run.
  int first, rows, run, thread;

  TCONV_DEVICE Col2imCopies(const Element* weight, const Element* x, int group, int first_channel, int first_k_tile,
                            const BlockTilePosition& block_tile, int batch, int depths, int height, int width,
                            int thread)
      : x(x),
        plane(static_cast<long long>(depths) * height * width),
        first(first_k_tile * Shape::k_tile_channels),
        thread(thread) {
    const int left = Layer::group_out_channels - first_channel;
    rows = (left < Tile::channels ? left : Tile::channels) * Shape::Rows::of_channel;
    this->weight =
        weight + (static_cast<long long>(group) * Layer::group_in_channels + first + thread / weight_sharers) * filter +
        static_cast<long long>(first_channel) * (Layer::weights_last ? 1 : kernel) +
        (Layer::weights_last ? 0 : col2im_weight<Layer, Shape>(thread % weight_sharers * weight_items));
    if (!Shape::resident) begin_block_tile(group, first_k_tile, block_tile, batch, depths, height, width);
  }

  // Later copies of inputs are of this block tile, from the set's first k-tile on.
  TCONV_DEVICE void begin_block_tile(int group, int first_k_tile, const BlockTilePosition& block_tile, int batch,
                                     int depths, int height, int width) {
    first = first_k_tile * Shape::k_tile_channels;
    of_step = first * (Tile::inputs_last ? 1 : plane);
    const long long positions_left =
        plane - (static_cast<long long>(block_tile.depth) * height + block_tile.row) * width - block_tile.column;
    run = static_cast<int>(positions_left < Shape::run_positions ? positions_left : Shape::run_positions);
#pragma unroll
    for (int i = 0; i < places; ++i) {
      const int fast = thread % input_sharers + (Tile::inputs_last ? i % input_turns : i) * input_sharers;
      const int slow = thread / input_sharers + (Tile::inputs_last ? i / input_turns * input_rows : 0);
      const int patch = Tile::inputs_last ? slow : Tile::runs ? fast / Shape::run_copies : fast;
      at[i] = place(patch, group, block_tile, batch, depths, height, width);
      const bool used = fast < Shape::row_copies && slow < Shape::input_rows;
      if (!used) at[i] = -1;
      if (used && at[i] >= 0) at[i] += Tile::inputs_last ? fast * input_items : slow * plane;
    }
  }

  // Where the inputs of a patch, of a position or of an image's run begin in x; -1 for what does not exist.
  static TCONV_DEVICE long long place(int patch, int group, const BlockTilePosition& first, int batch, int depths,
                                      int height, int width) {
    const BlockTilePosition of = position_in_block_tile<typename Tile::BlockTile>(
        patch * (Tile::runs ? Shape::run_positions : Tile::patch_positions), Tile::BlockTile::rows);
    const int image = first.image + of.image, depth = first.depth + of.depth;
    const int row = first.row + of.row, column = first.column + of.column;
    if (image >= batch || depth >= depths || row >= height || column >= width) return -1;
    const long long position = (static_cast<long long>(depth) * height + row) * width + column;
    const long long plane = static_cast<long long>(depths) * height * width;
    const long long first_channel = static_cast<long long>(group) * Layer::group_in_channels;
    return Tile::inputs_last ? (image * plane + position) * channels + first_channel
                             : (image * channels + first_channel) * plane + position;
  }

  // Copies `Bytes` bytes, or writes zeros where they do not exist. Two bytes are too few for an asynchronous copy.
  template <int Bytes>
  TCONV_DEVICE void copy(unsigned char* to, const Element* from, bool present) {
    if (Bytes >= 4) {
      waiting.template begin<(Bytes < 4 ? 4 : Bytes)>(to, from, present);
    } else {
      Element item = {};
      if (present) item = load_constant(from);
      *reinterpret_cast<Element*>(to) = item;
    }
  }

  // Begins the copies of the next k-tile to a stage, as one group. Channels that do not exist are zeros. Without
  // `with_weights`, those are on their way since `begin_first_weights`.
  TCONV_DEVICE void begin(bool wanted, unsigned char* stage, bool with_weights = true) {
    if (wanted) {
      if (with_weights) begin_weights(stage);
      begin_inputs(stage + Shape::stage_weight_bytes);
    }
    waiting.end_group();
    next_weights();
    next_inputs();
  }

  // Begins the copies of the first k-tile's weights, of the group that the next `begin` ends.
  TCONV_DEVICE void begin_first_weights(unsigned char* stage) { begin_weights(stage); }

  // Begins the copies of all the set's weights, k-tile after k-tile, as one group.
  TCONV_DEVICE void begin_resident(unsigned char* weights) {
#pragma unroll 1
    for (int k_tile = 0; k_tile < Shape::set_k_tiles; ++k_tile) {
      begin_weights(weights + k_tile * Shape::stage_weight_bytes);
      next_weights();
      first += Shape::splits * Shape::k_tile_channels;
    }
    waiting.end_group();
  }

  // Begins the copies of the next k-tile's inputs, where weights are resident.
  TCONV_DEVICE void begin_next(bool wanted, unsigned char* stage) {
    if (wanted) begin_inputs(stage);
    waiting.end_group();
    next_inputs();
  }

 private:
  TCONV_DEVICE void begin_weights(unsigned char* to) {
    if (Shape::weight_copy < 4) {
      load_weights(to);
      return;
    }
    unsigned char* const weights =
        to + thread / weight_sharers * Shape::weight_pitch + thread % weight_sharers * Shape::weight_copy;
#pragma unroll
    for (int i = 0; i < weight_copies; ++i) {
      const int row = i / weight_turns * weight_rows, turn = i % weight_turns * weight_sharers;
      const int channel = thread / weight_sharers + row, number = thread % weight_sharers + turn;
      if (number < Shape::channel_copies && channel < Shape::k_tile_channels)
        copy<Shape::weight_copy>(
            Shape::factors_in_stages ? to + Shape::factor_place(channel, number * Shape::weight_copy)
                                     : weights + row * Shape::weight_pitch + turn * Shape::weight_copy,
            weight + row * filter +
                (Layer::weights_last ? col2im_weight<Layer, Shape>(number * weight_items) : turn * weight_items),
            exists(channel) &&
                (Layer::weights_last ? number * weight_items % Tile::channels : number * weight_items) < rows);
    }
  }
  // Copies of two bytes are not asynchronous. A thread loads some before it writes the first, and waits once for these.
  TCONV_DEVICE void load_weights(unsigned char* to) {
    constexpr int most = Shape::loaded_at_once, at_once = weight_copies < most ? weight_copies : most;
#pragma unroll
    for (int before = 0; before < weight_copies; before += at_once) {
      Element items[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const Col2imWeight<Element> item = weight_item(before + i);
        items[i] = item.present ? load_constant(item.from) : Element{};
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const Col2imWeight<Element> item = weight_item(before + i);
        if (item.wanted) *reinterpret_cast<Element*>(to + item.place) = items[i];
      }
    }
  }
  // The thread's weight `i` of a k-tile; not wanted if it has fewer.
  TCONV_DEVICE Col2imWeight<Element> weight_item(int i) const {
    const int row = i / weight_turns * weight_rows, turn = i % weight_turns * weight_sharers;
    const int channel = thread / weight_sharers + row, number = thread % weight_sharers + turn;
    const bool wanted = i < weight_copies && number < Shape::channel_copies && channel < Shape::k_tile_channels;
    return {weight + row * filter + (Layer::weights_last ? col2im_weight<Layer, Shape>(number) : turn),
            Shape::factors_in_stages ? Shape::factor_place(channel, number * Shape::item_bytes)
                                     : channel * Shape::weight_pitch + number * Shape::item_bytes,
            wanted, wanted && exists(channel) && (Layer::weights_last ? number % Tile::channels : number) < rows};
  }
  TCONV_DEVICE void next_weights() { weight += Shape::splits * Shape::k_tile_channels * filter; }

  TCONV_DEVICE void begin_inputs(unsigned char* stage) {
    unsigned char* const inputs =
        stage + thread / input_sharers * Shape::input_pitch + thread % input_sharers * Shape::input_copy;
#pragma unroll
    for (int i = 0; i < input_copies; ++i) {
      const int row = i / input_turns * input_rows, turn = i % input_turns * input_sharers;
      const int slow = thread / input_sharers + row, fast = thread % input_sharers + turn;
      if (fast >= Shape::row_copies || slow >= Shape::input_rows) continue;
      const bool present = exists(Tile::inputs_last ? fast * input_items : slow) && at[i % places] >= 0;
      unsigned char* const to = Shape::inputs_in_stages ? stage + Shape::input_place(slow, fast * Shape::input_copy)
                                                        : inputs + row * Shape::input_pitch + turn * Shape::input_copy;
      const long long from = at[i % places] + of_step + (Tile::inputs_last ? 0 : row * plane);
      if (Tile::runs) {
        const int shift = static_cast<int>(from) & (Shape::run_items - 1);
        const int before = fast % Shape::run_copies * Shape::run_items - shift, left = run - before;
        const int items = left < Shape::run_items ? left : Shape::run_items;
        waiting.begin_part(to, x + from + before, present && items > 0 ? items * Shape::item_bytes : 0);
      } else {
        copy<Shape::input_copy>(to, x + from, present);
      }
    }
  }
  TCONV_DEVICE void next_inputs() {
    first += Shape::splits * Shape::k_tile_channels;
    of_step += Shape::splits * Shape::k_tile_channels * (Tile::inputs_last ? 1 : plane);
  }

  TCONV_DEVICE bool exists(int channel) const {
    return Shape::whole_k_tiles || first + channel < Layer::group_in_channels;
  }
};

}  // namespace tconv
