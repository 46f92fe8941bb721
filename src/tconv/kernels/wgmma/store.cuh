// wgmma: what becomes of a warpgroup's sums. `wgmma.cuh` has the picture.
#pragma once
#include "primitives/epilogue.cuh"
#include "primitives/warpgroups.cuh"
#include "wgmma/boxes.cuh"

namespace tconv {

// A thread's sums: of each tile of positions and each product, those of two rows of positions, g and g + 8 of its
// warp's sixteen, for two of every eight rows of weights.
template <class Layer, class Tile>
struct WgmmaSums {
  using Shape = WgmmaShape<Layer, Tile>;
  float values[Tile::position_tiles][Shape::products][Shape::product_rows / 2];

  TCONV_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Tile::position_tiles; ++i)
#pragma unroll
      for (int p = 0; p < Shape::products; ++p)
#pragma unroll
        for (int k = 0; k < Shape::product_rows / 2; ++k) begin_sum(values[i][p][k], 0);
  }
  TCONV_DEVICE void add(const WgmmaSums& others) {
#pragma unroll
    for (int i = 0; i < Tile::position_tiles; ++i)
#pragma unroll
      for (int p = 0; p < Shape::products; ++p)
#pragma unroll
        for (int k = 0; k < Shape::product_rows / 2; ++k) values[i][p][k] += others.values[i][p][k];
  }
  // Of a position of a tile, a phase of the block's, and the thread's row `own` of an octet of a phase's rows.
  TCONV_DEVICE float of(int tile, int half, int phase, int octet, int own) const {
    const int row_octet = phase % Shape::product_phases * (Tile::channels / 8) + octet;
    return values[tile][phase / Shape::product_phases][row_octet * 4 + half * 2 + own];
  }
};

// Stores a warpgroup's outputs, from `y` on, as float until they are stored: an epilogue sees them as the sums that
// they are. channels_last ones go there from registers, and so do contiguous ones where each thread has all
// neighbouring phases of a row in one vector (`Shape::by_runs`). Others, whose neighbours other threads have, go by way
// of `staged`.
template <class Layer, class Tile, class Program>
struct WgmmaStore {
  using Shape = WgmmaShape<Layer, Tile>;
  using Element = typename Layer::Element;
  using Index = typename Layer::Index;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  static constexpr int run = Shape::run, staged_octets = Shape::staged_channels / 8;
  // How many outputs of one row may be stored at once, if rows are aligned.
  static constexpr int side_by_side = run == Width::stride ? Tile::Box::columns * run : run;
  static constexpr int most_width = greatest_common_divisor(side_by_side, 16 / Shape::item_bytes);

  const WgmmaSums<Layer, Tile>& sums;
  const Epilogue<Layer, Program>& epilogue;
  Element* const y;  // of the block's first channel
  const BoxPosition box;
  const int block_phase, block_channel;  // the first ones
  float* const staged;                   // the warpgroup's
  const int warp, lane;
  const int y_channels, batch, depths, rows, columns;

  // Where a phase's output at a position lies in its plane, and its image; false if nowhere.
  TCONV_DEVICE bool find(int number, int tile, int phase, int& image, Index& offset) const {
    const BoxPosition in_box = wgmma_in_box<Layer, Tile>(number, tile);
    image = box.image + in_box.image;
    const int depth = (box.depth + in_box.depth) * Depth::stride + phase / (Height::stride * Width::stride);
    const int row = (box.row + in_box.row) * Height::stride + phase / Width::stride % Height::stride;
    const int column = (box.column + in_box.column) * Width::stride + phase % Width::stride;
    offset = (static_cast<Index>(depth) * rows + row) * columns + column;
    return wgmma_is_in_box<Layer, Tile>(number, tile) && image < batch && in_range(depth, depths) &&
           in_range(row, rows) && in_range(column, columns);
  }

  // Who stores what of a turn, `width` neighbouring outputs of a row at once: neighbouring lanes what is neighbours.
  template <int width>
  struct Items {
    static constexpr int count = 64 * run / width;  // of a channel
    static constexpr int lanes = count >= 128 ? 128 : power_of_two_from(count), channel_lanes = 128 / lanes;
    static constexpr int steps = ceil_div(Shape::staged_channels, channel_lanes);
    static constexpr int together = steps < 8 ? steps : 8;  // steps whose loads are on their way at once
  };
  struct Found {
    long long offset;  // in y
    bool inside;
  };
  template <int width>
  TCONV_DEVICE Found found(int item, int tile, int first_phase) const {
    int image;
    Index offset;
    const bool inside =
        find(warp / 4 * 64 + item * width / run, tile, block_phase + first_phase + item * width % run, image, offset);
    return {static_cast<long long>(image) * y_channels * plane() + offset, inside && item < Items<width>::count};
  }
  TCONV_DEVICE long long plane() const { return static_cast<long long>(depths) * rows * columns; }

  using Channel = typename Epilogue<Layer, Program>::Channel;
  template <int width>
  using Values = typename Program::template Values<width>;

  // Sums of a channel as outputs, two at a time.
  template <int width>
  TCONV_DEVICE Vector<Element, width> finished(const float (&sums)[width], const Channel& channel,
                                               const Values<width>& read) const {
    Vector<Element, width> together;
#pragma unroll
    for (int i = 0; i < width; i += 2) {
      const int next = (i + 1) % width;
      Element two[2];
      from_accumulators(epilogue.program.apply(channel.y(sums[i]), channel, read, i),
                        epilogue.program.apply(channel.y(sums[next]), channel, read, next), two);
      together.values[i] = two[0], together.values[next] = two[next - i];
    }
    return together;
  }
  // What is staged of an item from one place on.
  template <int width>
  TCONV_DEVICE Vector<Element, width> staged_outputs(const float* from, const Channel& channel,
                                                     const Values<width>& read) const {
    float values[width];
    load_shared(from, values);
    return finished(values, channel, read);
  }

  // An item's outputs of the staged channels, which begin with one of the block's.
  template <int width>
  TCONV_DEVICE void store_item(int item, const Found& at, int first_channel) const {
    using Own = Items<width>;
    if (!at.inside) return;
    const int first = (warp % 4 * 32 + lane) / Own::lanes;
    const auto is_stored = [&](int step) {
      const int channel = first + step * Own::channel_lanes;
      return (Shape::staged_channels % Own::channel_lanes == 0 || channel < Shape::staged_channels) &&
             (Layer::group_out_channels % Tile::channels == 0 ||
              block_channel + first_channel + channel < Layer::group_out_channels);
    };
    const long long pitch = Own::channel_lanes * plane();
    Element* to = y + (first_channel + first) * plane() + at.offset;
    const float* const from = staged + first * Shape::staged_pitch + item * width;
#pragma unroll
    for (int step = 0; step < Own::steps; step += Own::together) {
      Vector<Element, width> stored[Own::together];
#pragma unroll
      for (int i = 0; i < Own::together; ++i)
        if (is_stored(step + i))
          stored[i] = staged_outputs<width>(
              from + (step + i) * Own::channel_lanes * Shape::staged_pitch,
              epilogue.of(block_channel + first_channel + first + (step + i) * Own::channel_lanes),
              epilogue.program.template fetch<width>(to + i * pitch, true));
#pragma unroll
      for (int i = 0; i < Own::together; ++i, to += pitch)
        if (is_stored(step + i)) store_vector(to, stored[i]);
    }
  }

  // Whole rows of the box, a tile and some phases and channels at a turn. No turn is a loop's: sums are in registers,
  // which have no numbers at run time, and those of a turn are free behind it.
  template <int width>
  TCONV_DEVICE void store_rows(HasProgram<false>) const {
    const int item = (warp % 4 * 32 + lane) % Items<width>::lanes;
#pragma unroll
    for (int tile = 0; tile < Tile::position_tiles; ++tile)
#pragma unroll
      for (int phase = 0; phase < Tile::phases; phase += run) {
        const Found at = found<width>(item, tile, phase);
#pragma unroll
        for (int octet = 0; octet < Tile::channels / 8; octet += staged_octets) {
          meet<128>(1 + warp / 4);  // nobody reads what is staged any more
          stage(tile, phase, octet);
          meet<128>(1 + warp / 4);
          store_items<width>(item, at, tile, phase, octet);
        }
      }
  }
  // The same for a program, whose instructions would be there for each sum, more than an instruction cache holds: turns
  // are a loop, which looks for its sums among all.
  template <int width>
  TCONV_DEVICE void store_rows(HasProgram<true>) const {
    constexpr int octets = Tile::channels / 8 / staged_octets, phases = Tile::phases / run;
    const int item = (warp % 4 * 32 + lane) % Items<width>::lanes;
#pragma unroll 1
    for (int turn = 0; turn < Tile::position_tiles * phases * octets; ++turn) {
      const int octet = turn % octets * staged_octets, phase = turn / octets % phases * run;
      const int tile = turn / octets / phases;
      meet<128>(1 + warp / 4);
#pragma unroll
      for (int known = 0; known < Tile::position_tiles * phases * octets; ++known)
        if (known == turn)
          stage(known / octets / phases, known / octets % phases * run, known % octets * staged_octets);
      meet<128>(1 + warp / 4);
      store_items<width>(item, found<width>(item, tile, phase), tile, phase, octet);
    }
  }
  template <int width>
  TCONV_DEVICE void store_items(int item, const Found& at, int tile, int phase, int octet) const {
    using Own = Items<width>;
    store_item<width>(item, at, octet * 8);
    for (int further = item + Own::lanes; further < Own::count; further += Own::lanes)
      store_item<width>(further, found<width>(further, tile, phase), octet * 8);
  }
  TCONV_DEVICE void stage(int tile, int phase, int octet) const {
    constexpr int width = vector_width(run, 4);
#pragma unroll
    for (int o = 0; o < staged_octets; ++o)
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int r = 0; r < run; r += width) {
          Vector<float, width> together;
#pragma unroll
          for (int i = 0; i < width; ++i) together.values[i] = sums.of(tile, k / 2, phase + r + i, octet + o, k % 2);
          *reinterpret_cast<Vector<float, width>*>(staged + (o * 8 + lane % 4 * 2 + k % 2) * Shape::staged_pitch +
                                                   (warp % 4 * 16 + k / 2 * 8 + lane / 4) * run + r) = together;
        }
  }

  // The neighbouring phases of each position at once, as a thread has them.
  TCONV_DEVICE void store_runs() const {
    constexpr int width = Shape::by_runs ? run : 1;
#pragma unroll
    for (int tile = 0; tile < Tile::position_tiles; ++tile)
#pragma unroll
      for (int phase = 0; phase < Tile::phases; phase += width) {
        Element* to[2];
        bool inside[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int image;
          Index offset;
          inside[half] = find(warp * 16 + half * 8 + lane / 4, tile, block_phase + phase, image, offset);
          to[half] = y + (static_cast<long long>(image) * y_channels + lane % 4 * 2) * plane() + offset;
        }
#pragma unroll
        for (int octet = 0; octet < Tile::channels / 8; ++octet)
#pragma unroll
          for (int own = 0; own < 2; ++own) {
            const int channel = block_channel + octet * 8 + lane % 4 * 2 + own;
            const bool present = Layer::group_out_channels % Tile::channels == 0 || channel < Layer::group_out_channels;
            const auto of_channel = epilogue.of(present ? channel : 0);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float values[width];
#pragma unroll
              for (int i = 0; i < width; ++i) values[i] = sums.of(tile, half, phase + i, octet, own);
              if (inside[half] && present)
                store_vector(to[half],
                             finished(values, of_channel, epilogue.program.template fetch<width>(to[half], true)));
              to[half] += (own == 0 ? 1 : 7) * plane();
            }
          }
      }
  }

  // What a program reads for neighbouring channels: in one vector, or one by one where not all of them need be there.
  template <int width, bool whole>
  struct Read {
    Values<whole ? width : 1> parts[whole ? 1 : width];
    TCONV_DEVICE Read(const Program& program, const Element* to, int left) {
#pragma unroll
      for (int k = 0; k < (whole ? 1 : width); ++k)
        parts[k] = program.template fetch<whole ? width : 1>(to + k, k < left);
    }
    TCONV_DEVICE float output(const Program& program, const Channel& channel, float y, int k) const {
      return program.apply(y, channel, parts[whole ? 0 : k], whole ? k : 0);
    }
  };

  // Neighbouring channels of an output at once, at some of a thread's positions.
  TCONV_DEVICE void store_channels() const {
    constexpr int width = Shape::channel_width, positions = Tile::position_tiles < 2 ? 2 : 4;
    constexpr bool whole = Layer::group_out_channels % width == 0;
#pragma unroll
    for (int turn = 0; turn < Tile::phases * 2 * Tile::position_tiles / positions; ++turn) {
      const int phase = turn % Tile::phases, first = turn / Tile::phases * positions;
      Element* to[positions];
      unsigned inside = 0;  // by position: whether it is one of the output
#pragma unroll
      for (int i = 0; i < positions; ++i) {
        int image;
        Index offset;
        if (find(warp * 16 + lane / 4 + 8 * (i % 2), (first + i) / 2, block_phase + phase, image, offset))
          inside |= 1u << i;
        to[i] = y + (image * plane() + offset) * y_channels;
      }
#pragma unroll
      for (int set = 0; set < Tile::channels / (4 * width); ++set) {
        const int in_block = set * 4 * width + lane % 4 * width, channel = block_channel + in_block;
        if (Layer::group_out_channels % Tile::channels != 0 && channel >= Layer::group_out_channels) break;
        const int last = Layer::group_out_channels - 1;
        Channel of[width];
#pragma unroll
        for (int k = 0; k < width; ++k) of[k] = epilogue.of(channel + k < last ? channel + k : last);
#pragma unroll
        for (int i = 0; i < positions; ++i) {
          if ((inside >> i & 1u) == 0) continue;
          const Read<width, whole> read(epilogue.program, to[i] + in_block, Layer::group_out_channels - channel);
          Vector<Element, width> together;
#pragma unroll
          for (int k = 0; k < width; k += 2) {
            const int octet = set * width / 2 + k / 2;
            const auto output = [&](int own) {
              const float sum = sums.of((first + i) / 2, i % 2, phase, octet, own);
              return read.output(epilogue.program, of[k + own], of[k + own].y(sum), k + own);
            };
            Element two[2];
            from_accumulators(output(0), output(1), two);
            together.values[k] = two[0], together.values[k + 1] = two[1];
          }
          if (whole) {
            store_vector(to[i] + in_block, together);
          } else {
#pragma unroll
            for (int k = 0; k < width; ++k)
              if (channel + k < Layer::group_out_channels) to[i][in_block + k] = together.values[k];
          }
        }
      }
    }
  }

  TCONV_DEVICE void store() const {
    constexpr int half = most_width > 1 ? most_width / 2 : 1, quarter = half > 1 ? half / 2 : 1;
    if (Tile::channels_last) {
      store_channels();
    } else if (Shape::by_runs && columns % run == 0) {
      store_runs();
    } else if (columns % most_width == 0) {
      store_rows<most_width>(HasProgram<Layer::has_program>());
    } else if (columns % half == 0) {
      store_rows<half>(HasProgram<Layer::has_program>());
    } else if (columns % quarter == 0) {
      store_rows<quarter>(HasProgram<Layer::has_program>());
    } else {
      store_rows<1>(HasProgram<Layer::has_program>());
    }
  }
};

}  // namespace tconv
