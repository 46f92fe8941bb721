// wgmma: the epilogue, from a warpgroup's accumulators to outputs in global memory. `wgmma.cuh` has the picture.
#pragma once
#include "primitives/epilogue.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/block_tiles.cuh"

namespace tconv {

// A thread's accumulators, of each tile of positions and each product: two positions, g and g + 8 of its warp's sixteen
// (`half` says which), by two of every eight rows of weights.
template <class Layer, class Tile>
struct WgmmaAccumulators {
  using Shape = WgmmaShape<Layer, Tile>;
  float values[Tile::position_tiles][Shape::accumulated_products][Shape::product_rows / 2];
};

// How the lanes of a team store outputs without taps. A span is some that follow each other in memory; spans begin a
// pitch apart. The lanes take the vectors of 16 aligned bytes that spans have parts of in turn, span after span.
struct WgmmaTurns {
  int vectors;                     // that a span has parts of, at most
  int span, vector;                // the lane's first one
  int spans_ahead, vectors_ahead;  // from one to the next
};

// Stores the outputs of a warpgroup for one block tile. Values stay float until they are stored, so bias and program
// work on unrounded accumulators.
template <class Layer, class Tile, class Program>
struct WgmmaStore {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  using Channel = typename Epilogue<Layer, Program>::Channel;
  template <int width>
  using Values = typename Program::template Values<width>;
  static constexpr int run = Shape::run, staged_octets = Shape::staged_channels / 8;
  static constexpr bool has_epilogue = Layer::has_bias || Layer::has_program;

  const WgmmaAccumulators<Layer, Tile>& accumulators;
  const Epilogue<Layer, Program>& epilogue;
  Element* const y;  // of the block's first channel
  const BlockTilePosition block_tile;
  const int block_phase, block_channel;  // the first ones
  float* const staged;                   // the warpgroup's
  const int warp, lane;
  const int y_channels, batch, depths, rows, columns;

  TCONV_DEVICE long long plane() const { return static_cast<long long>(depths) * rows * columns; }

  // The thread's accumulator of one of the block's phases, in row `own` of its two rows of an octet of channels.
  TCONV_DEVICE float accumulator(int tile, int half, int phase, int octet, int own) const {
    const int row_octet = phase % Shape::product_phases * (Tile::channels / 8) + octet;
    const int product = phase / Shape::product_phases;
    if (!Shape::has_accumulators(product)) return 0;  // the phase has no taps
    return accumulators.values[tile][Shape::accumulators_before(product)][row_octet * 4 + half * 2 + own];
  }

  // Where an output lies in the block's first channel, by its position and phase. False if there is no such output.
  TCONV_DEVICE bool find(int number, int tile, int phase, Element*& to) const {
    const BlockTilePosition in_block_tile = wgmma_in_block_tile<Layer, Tile>(number, tile);
    const int image = block_tile.image + in_block_tile.image;
    const int depth =
        (block_tile.depth + in_block_tile.depth) * Depth::stride + phase / (Height::stride * Width::stride);
    const int row = (block_tile.row + in_block_tile.row) * Height::stride + phase / Width::stride % Height::stride;
    const int column = (block_tile.column + in_block_tile.column) * Width::stride + phase % Width::stride;
    const Index offset = (static_cast<Index>(depth) * rows + row) * columns + column;
    to = y + (Tile::channels_last ? (image * plane() + offset) * y_channels
                                  : static_cast<long long>(image) * y_channels * plane() + offset);
    return wgmma_is_in_block_tile<Layer, Tile>(number, tile) && image < batch && in_range(depth, depths) &&
           in_range(row, rows) && in_range(column, columns);
  }

  // What the program reads for outputs that are stored from `to` on. Reads nothing if they are not `present`.
  template <int width>
  TCONV_DEVICE Values<width> fetch(const Element* to, bool present) const {
    return epilogue.program.template fetch<width>(to, present);
  }

  // Makes outputs from accumulators of one channel: adds the bias, then applies the program to what it has `read`.
  // Outputs that are not present are computed, too, and not stored: in a branch, an output's loads and arithmetic would
  // wait until the output before is stored.
  template <int width>
  TCONV_DEVICE void finish(float (&values)[width], const Channel& channel, const Values<width>& read) const {
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] = epilogue.program.apply(channel.y(values[i]), channel, read, i);
  }

  // Rounds outputs once, to nearest even.
  template <int width>
  static TCONV_DEVICE Vector<Element, width> rounded(const float (&values)[width]) {
    Vector<Element, width> outputs;
    if (Shape::item_bytes == 4) {
#pragma unroll
      for (int i = 0; i < width; ++i) outputs.values[i] = from_accumulator<Element>(values[i]);
    } else {
      // Two at a time, by one instruction.
#pragma unroll
      for (int i = 0; i < width; i += 2) {
        const int next = (i + 1) % width;
        Element two[2];
        from_accumulators(values[i], values[next], two);
        outputs.values[i] = two[0], outputs.values[next] = two[next - i];
      }
    }
    return outputs;
  }

  // Contiguous outputs whose neighbours are in other threads go through shared memory. A warpgroup stages them as
  // `staged[channel][position][phase]`, in subtiles: some channels of a tile at neighbouring phases.
  struct Subtile {
    int tile, phase, octet;
  };
  static constexpr int subtile_octets = Tile::channels / 8 / staged_octets, subtile_phases = Tile::phases / run;
  static constexpr int subtiles = Tile::position_tiles * subtile_phases * subtile_octets;
  // Rows of the same channels follow each other. A sector of memory may have the end of a row and the beginning of the
  // next one: if both are stored soon after each other, memory is written once, and not read for it.
  static TCONV_DEVICE Subtile subtile_of(int number) {
    return {number / subtile_phases % Tile::position_tiles, number % subtile_phases * run,
            number / subtile_phases / Tile::position_tiles * staged_octets};
  }

  TCONV_DEVICE void stage(const Subtile& subtile) const {
    constexpr int width = vector_width(run, 4);
#pragma unroll
    for (int o = 0; o < staged_octets; ++o)
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int r = 0; r < run; r += width) {
          Vector<float, width> together;
#pragma unroll
          for (int i = 0; i < width; ++i)
            together.values[i] = accumulator(subtile.tile, k / 2, subtile.phase + r + i, subtile.octet + o, k % 2);
          *reinterpret_cast<Vector<float, width>*>(staged + (o * 8 + lane % 4 * 2 + k % 2) * Shape::staged_pitch +
                                                   (warp % 4 * 16 + k / 2 * 8 + lane / 4) * run + r) = together;
        }
  }

  // A subtile is stored in items of `width` neighbouring outputs of a row. Neighbouring threads take neighbouring items
  // of a channel. If a channel has fewer items than there are threads, the other threads take other channels.
  template <int width>
  struct Items {
    static constexpr int count = 64 * run / width, lanes = count >= 128 ? 128 : power_of_two_from(count);
    static constexpr int channel_lanes = 128 / lanes, steps = ceil_div(Shape::staged_channels, channel_lanes);
    static constexpr bool whole = Shape::whole_channels && Shape::staged_channels % channel_lanes == 0;
  };

  // What the program reads for a subtile, loaded before the subtile is staged, so that these loads do not wait for a
  // barrier. All steps are read ahead, or none: if a thread has several items, or too many outputs for registers.
  template <int width>
  struct Ahead {
    static constexpr int steps =
        Items<width>::count <= 128 && Items<width>::steps * width <= 32 ? Items<width>::steps : 0;
    Values<width> read[steps + 1];  // one more, because no array is empty
  };

  // The number of output channels from the subtile's first one on, at most those of a subtile.
  TCONV_DEVICE int staged_channels(const Subtile& subtile) const {
    const int left = Layer::group_out_channels - block_channel - subtile.octet * 8;
    return left < Shape::staged_channels ? left : Shape::staged_channels;
  }

  // Where an item lies in the thread's first channel. False if there is no such output.
  template <int width>
  TCONV_DEVICE bool find_item(const Subtile& subtile, int item, Element*& to) const {
    const int number = warp / 4 * 64 + item * width / run, phase = subtile.phase + item * width % run;
    const int first = (warp % 4 * 32 + lane) / Items<width>::lanes;
    const bool has_channel = Items<width>::whole || first < staged_channels(subtile);
    const bool present = has_channel && find(number, subtile.tile, block_phase + phase, to);
    to += (subtile.octet * 8 + first) * plane();
    return present;
  }

  template <int width>
  TCONV_DEVICE void read_ahead(const Subtile& subtile, Ahead<width>& ahead) const {
    constexpr int lanes = Items<width>::lanes, channel_lanes = Items<width>::channel_lanes;
    const int thread = warp % 4 * 32 + lane, channels = staged_channels(subtile);
    Element* to = y;  // what is absent has an address as well, which nobody reads
    const bool inside = find_item<width>(subtile, thread % lanes, to);
#pragma unroll
    for (int step = 0; step < Ahead<width>::steps; ++step) {
      const bool present = Items<width>::whole || thread / lanes + step * channel_lanes < channels;
      ahead.read[step] = fetch<width>(to + step * channel_lanes * plane(), inside && present);
    }
  }

  template <int width>
  TCONV_DEVICE void store_staged(const Subtile& subtile, const Ahead<width>& ahead) const {
    constexpr int steps = Items<width>::steps, lanes = Items<width>::lanes;
    constexpr int channel_lanes = Items<width>::channel_lanes;
    constexpr int together = steps < 8 ? steps : 8;  // steps whose loads are in flight at once
    constexpr bool whole = Items<width>::whole;
    const int thread = warp % 4 * 32 + lane, first = thread / lanes, first_channel = subtile.octet * 8 + first;
    const int channels = staged_channels(subtile);
    const long long pitch = channel_lanes * plane();
    for (int item = thread % lanes; item < Items<width>::count; item += lanes) {
      Element* to;
      if (!find_item<width>(subtile, item, to)) continue;
      const float* const from = staged + first * Shape::staged_pitch + item * width;
#pragma unroll
      for (int step = 0; step < steps; step += together) {
        Vector<Element, width> outputs[together];
#pragma unroll
        for (int i = 0; i < together; ++i) {
          const int channel = (step + i) * channel_lanes;
          const bool present = whole || first + channel < channels;
          float values[width];
          load_shared(from + channel * Shape::staged_pitch, values);
          if (has_epilogue)
            finish(values, epilogue.of(present ? block_channel + first_channel + channel : 0),
                   Layer::has_program && Ahead<width>::steps > 0 ? ahead.read[(step + i) % (Ahead<width>::steps + 1)]
                                                             : fetch<width>(to + i * pitch, present));
          outputs[i] = rounded(values);
        }
#pragma unroll
        for (int i = 0; i < together; ++i, to += pitch)
          if (whole || first + (step + i) * channel_lanes < channels) store_vector(to, outputs[i]);
      }
    }
  }

  template <int width>
  TCONV_DEVICE void store_rows() const {
    // A loop over subtiles is unrolled, because registers cannot be indexed at run time; a subtile's accumulators are
    // free after it. With a program, unrolling would repeat the program for each accumulator and overflow the
    // instruction cache. So then the loop stays, and `stage` is there once for each subtile.
#pragma unroll(Layer::has_program ? 1 : subtiles)
    for (int number = 0; number < subtiles; ++number) {
      if (Shape::some_rows_without_taps && number % (subtiles / subtile_octets) == 0)
        store_without_taps(true, subtile_of(number).octet * 8, Shape::staged_channels);
      if (!Shape::row_has_taps(subtile_of(number).phase)) continue;
      Ahead<width> ahead;
      if (Layer::has_program && Ahead<width>::steps) read_ahead(subtile_of(number), ahead);
      meet<128>(1 + warp / 4);  // nobody reads what is staged any more
      if (Layer::has_program) {
#pragma unroll
        for (int known = 0; known < subtiles; ++known)
          if (known == number && Shape::row_has_taps(subtile_of(known).phase)) stage(subtile_of(known));
      } else {
        stage(subtile_of(number));
      }
      meet<128>(1 + warp / 4);  // all of it is staged
      store_staged<width>(subtile_of(number), ahead);
    }
  }

  // Contiguous outputs where a thread has all phases of a row's position: it stores them as one vector. Here, too, rows
  // of the same channels follow each other.
  TCONV_DEVICE void store_runs() const {
    constexpr int width = Shape::by_runs ? run : 1, together = Shape::rows_together;
    if (Shape::some_rows_without_taps) store_without_taps(true, 0, Tile::channels);
#pragma unroll
    for (int tile = 0; tile < Tile::position_tiles; ++tile)
#pragma unroll
      for (int first = 0; first < Tile::phases; first += together * width) {
        Element* to[together][2];
        bool inside[together][2];
#pragma unroll
        for (int row = 0; row < together; ++row)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int phase = first + row * width;
            inside[row][half] = find(warp * 16 + half * 8 + lane / 4, tile, block_phase + phase, to[row][half]);
            to[row][half] += lane % 4 * 2 * plane();
          }
#pragma unroll
        for (int octet = 0; octet < Tile::channels / 8; ++octet)
#pragma unroll
          for (int own = 0; own < 2; ++own) {
            const int channel = block_channel + octet * 8 + lane % 4 * 2 + own;
            const bool present = Shape::whole_channels || channel < Layer::group_out_channels;
            Channel of_channel;
            if (has_epilogue) of_channel = epilogue.of(present ? channel : 0);
#pragma unroll
            for (int row = 0; row < together; ++row) {
              const int phase = first + row * width;
              if (!Shape::row_has_taps(phase)) continue;
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                Element*& own_to = to[row][half];
                const bool there = inside[row][half] && present;
                float values[width];
#pragma unroll
                for (int i = 0; i < width; ++i) values[i] = accumulator(tile, half, phase + i, octet, own);
                if (has_epilogue) finish(values, of_channel, fetch<width>(own_to, there));
                if (there) store_vector(own_to, rounded(values));
                own_to += (own == 0 ? 1 : 7) * plane();
              }
            }
          }
      }
  }

  // Outputs without taps, of some channels: what the epilogue makes of 0. Contiguous ones are not staged. The teams of
  // both warpgroups share the channels. Of a slab, a team stores the rows of each phase without taps, or where none of
  // its rows has taps, all of them as one.
  TCONV_DEVICE void store_without_taps(bool has_taps, int first_channel, int channels) const {
    using BlockTile = typename Tile::BlockTile;
    constexpr bool all_phases = Shape::some_rows_without_taps;  // else the block has one along depth and height
    constexpr bool whole = Tile::phases % Width::stride == 0;  // the block has all phases along the width
    constexpr bool all_rows = all_phases || Height::stride == 1;
    constexpr int depth_phases = all_phases ? Depth::stride : 1, row_phases = all_phases ? Height::stride : 1;
    const int depth_phase = block_phase / (Height::stride * Width::stride);
    const int row_phase = block_phase / Width::stride % Height::stride;
    const int first_column = block_tile.column * Width::stride + (whole ? 0 : block_phase % Width::stride);
    const int end = first_column + BlockTile::columns * Width::stride;
    const int row_columns = (end < columns ? end : columns) - first_column;
    const bool whole_rows = whole && first_column == 0 && row_columns == columns;
    if (row_columns <= 0) return;
    const WgmmaTurns of_rows = turns_of_many(row_columns);
#pragma unroll 1
    for (int of_team = warp * (32 / Shape::row_lanes) + lane / Shape::row_lanes; of_team < channels;
         of_team += 4 * Shape::consumers * (32 / Shape::row_lanes)) {
      const int channel = first_channel + of_team;
      if (!Shape::whole_channels && block_channel + channel >= Layer::group_out_channels) break;
      const Channel of_channel = epilogue.of(block_channel + channel);
#pragma unroll 1
      for (int number = 0; number < BlockTile::images * BlockTile::depths * depth_phases; ++number) {
        const int phase = number % depth_phases;
        const int image = block_tile.image + number / (depth_phases * BlockTile::depths);
        const int depth = (block_tile.depth + number / depth_phases % BlockTile::depths) * Depth::stride +
                          depth_phase + phase;
        if (image >= batch || !in_range(depth, depths)) continue;
        Element* const slab = y + (static_cast<long long>(image) * y_channels + channel) * plane() +
                              static_cast<Index>(depth) * rows * columns;
        const bool empty_slab = !has_taps || (all_phases && Depth::taps(phase) == 0);
        if (all_rows && empty_slab && whole_rows) {
          const int first = block_tile.row * Height::stride, count = BlockTile::rows * Height::stride;
          if (first >= rows) continue;
          const int all = (rows - first < count ? rows - first : count) * columns;
          store_spans(slab + static_cast<Index>(first) * columns, 1, 0, all, turns_of_one(all), of_channel);
          continue;
        }
#pragma unroll 1
        for (int of_row = 0; of_row < row_phases; ++of_row) {
          const int row = block_tile.row * Height::stride + row_phase + of_row;
          if (row >= rows || !(empty_slab || Height::taps(of_row) == 0)) continue;
          const int left = ceil_div(rows - row, Height::stride);
          const int spans = left < BlockTile::rows ? left : BlockTile::rows;
          Element* const to = slab + static_cast<Index>(row) * columns + first_column;
          if (whole)
            store_spans(to, spans, Height::stride * columns, row_columns, of_rows, of_channel);
          else
            store_apart(to, spans, Height::stride * columns, row_columns, of_channel);
        }
      }
    }
  }

  static TCONV_DEVICE int touched(int count) { return ceil_div(count + Shape::vector_items - 1, Shape::vector_items); }
  TCONV_DEVICE WgmmaTurns turns_of_one(int count) const {
    return {touched(count), 0, lane % Shape::row_lanes, 0, Shape::row_lanes};
  }
  TCONV_DEVICE WgmmaTurns turns_of_many(int count) const {
    const int vectors = touched(count), first = lane % Shape::row_lanes;
    return {vectors, first / vectors, first % vectors, Shape::row_lanes / vectors, Shape::row_lanes % vectors};
  }
  // Stores spans without taps, by a team. What a span has of a vector in part is stored one by one.
  TCONV_DEVICE void store_spans(Element* to, int spans, int pitch, int count, WgmmaTurns turns,
                                const Channel& channel) const {
    constexpr int width = Shape::vector_items;
    const unsigned first = static_cast<unsigned>(reinterpret_cast<unsigned long long>(to) / Shape::item_bytes % width);
#pragma unroll 1
    while (turns.span < spans) {
      const int behind = static_cast<int>((first + static_cast<unsigned>(turns.span * pitch)) % width);
      const int begin = turns.vector * width - behind;
      Element* const own = to + (turns.span * pitch + begin);
      const bool whole = begin >= 0 && begin + width <= count;
      store_empty<width>(own, whole, channel);
      if (!whole) {
#pragma unroll(Layer::has_program ? 1 : width)
        for (int i = 0; i < width; ++i)
          store_empty<1>(own + i, static_cast<unsigned>(begin + i) < static_cast<unsigned>(count), channel);
      }
      turns.span += turns.spans_ahead, turns.vector += turns.vectors_ahead;
      if (turns.vector >= turns.vectors) turns.vector -= turns.vectors, ++turns.span;
    }
  }
  // The same of outputs a stride apart.
  TCONV_DEVICE void store_apart(Element* to, int spans, int pitch, int count, const Channel& channel) const {
#pragma unroll 1
    for (int span = 0; span < spans; ++span, to += pitch)
#pragma unroll 1
      for (int column = lane % Shape::row_lanes * Width::stride; column < count;
           column += Shape::row_lanes * Width::stride)
        store_empty<1>(to + column, true, channel);
  }
  template <int width>
  TCONV_DEVICE void store_empty(Element* to, bool present, const Channel& channel) const {
    float values[width] = {};
    if (has_epilogue) finish(values, channel, fetch<width>(to, present));
    if (present) store_vector(to, rounded(values));
  }

  // channels_last outputs: a thread stores neighbouring channels of an output as one vector.
  TCONV_DEVICE void store_channels() const {
    constexpr int width = Shape::channel_width;
    constexpr int positions = Tile::position_tiles < 2 ? 2 : 4;  // of a thread at once
    constexpr bool whole = Layer::group_out_channels % width == 0;
#pragma unroll
    for (int subtile = 0; subtile < Tile::phases * 2 * Tile::position_tiles / positions; ++subtile) {
      const int phase = subtile % Tile::phases, first = subtile / Tile::phases * positions;
      Element* to[positions];
      unsigned inside = 0;  // a bit for each position that has an output
#pragma unroll
      for (int i = 0; i < positions; ++i)
        if (find(warp * 16 + lane / 4 + 8 * (i % 2), (first + i) / 2, block_phase + phase, to[i])) inside |= 1u << i;
#pragma unroll
      for (int set = 0; set < Tile::channels / (4 * width); ++set) {
        const int in_block = set * 4 * width + lane % 4 * width, channel = block_channel + in_block;
        if (!Shape::whole_channels && channel >= Layer::group_out_channels) break;
        Channel of[width];
        if (has_epilogue) {
          const int last = Layer::group_out_channels - 1;
#pragma unroll
          for (int k = 0; k < width; ++k) of[k] = epilogue.of(channel + k < last ? channel + k : last);
        }
        Values<width> read[positions];
        if (has_epilogue && whole) {
#pragma unroll
          for (int i = 0; i < positions; ++i)
            read[i] = fetch<width>(to[i] + in_block, (inside >> i & 1u) != 0);
        }
#pragma unroll
        for (int i = 0; i < positions; ++i) {
          const bool present = (inside >> i & 1u) != 0;
          Element* const own = to[i] + in_block;
          float values[width];
#pragma unroll
          for (int k = 0; k < width; ++k)
            values[k] = accumulator((first + i) / 2, i % 2, phase, set * width / 2 + k / 2, k % 2);
          if (whole) {
            if (has_epilogue) {
#pragma unroll
              for (int k = 0; k < width; ++k)
                values[k] = epilogue.program.apply(of[k].y(values[k]), of[k], read[i], k);
            }
            if (present) store_vector(own, rounded(values));
          } else {
            // Some of these channels may be beyond the last: they are stored one by one.
            if (has_epilogue) {
#pragma unroll
              for (int k = 0; k < width; ++k) {
                float value[1] = {values[k]};
                finish(value, of[k], fetch<1>(own + k, present && channel < Layer::group_out_channels - k));
                values[k] = value[0];
              }
            }
            const Vector<Element, width> outputs = rounded(values);
#pragma unroll
            for (int k = 0; k < width; ++k)
              if (present && channel < Layer::group_out_channels - k) own[k] = outputs.values[k];
          }
        }
      }
    }
  }

  TCONV_DEVICE void store(bool has_taps) const {
    if (Shape::some_without_taps && !has_taps && !Tile::channels_last)
      return store_without_taps(false, 0, Tile::channels);
    constexpr int most = Shape::most_width, half = most > 1 ? most / 2 : 1, quarter = half > 1 ? half / 2 : 1;
    if (Tile::channels_last)
      store_channels();
    else if (Shape::by_runs && columns % run == 0)
      store_runs();
    else if (columns % most == 0)
      store_rows<most>();
    else if (most > 2 && columns % half == 0)
      store_rows<half>();
    else if (most > 4 && columns % quarter == 0)
      store_rows<quarter>();
    else
      store_rows<1>();
  }
};

}  // namespace tconv
