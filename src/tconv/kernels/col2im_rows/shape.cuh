// col2im_rows: the constants of a kernel, from its layer and its tile.
#pragma once
#include "primitives/axis.cuh"
#include "primitives/elements.cuh"
#include "primitives/warpgroups.cuh"

namespace tconv {

// An axis by positions of the uncropped output: input i and tap k meet at f = i*stride + k*dilation, which is phase
// f % stride of position f / stride. So position q sums the inputs q - shift of `shifts` shifts. An output o is
// f = o + padding. A shift and a phase together are a tap, or none.
template <class Axis>
struct UncroppedAxis {
  static constexpr int phases = Axis::stride;
  static constexpr int shifts = ((Axis::kernel - 1) * Axis::dilation) / Axis::stride + 1;
  static constexpr int first_position = Axis::padding / Axis::stride;

  static TCONV_CONSTANT bool has_tap(int shift, int phase) {
    const int distance = shift * Axis::stride + phase;
    return distance % Axis::dilation == 0 && distance / Axis::dilation < Axis::kernel;
  }
  // Behind the last position with an output.
  static TCONV_CONSTANT int end_position(int output_size) {
    return (output_size - 1 + Axis::padding) / Axis::stride + 1;
  }
};

// Columns of a product, PTX's N: so many, or the next larger number for which there is an instruction.
TCONV_CONSTANT int product_columns(int columns) {
  return columns <= 160 ? ceil_div(columns, 16) * 16 : columns <= 192 ? 192 : columns <= 240 ? 240 : 256;
}

template <class Layer, class Tile>
struct Col2imRowsShape {
  using Element = typename Layer::Element;
  using Depth = UncroppedAxis<typename Layer::Depth>;
  using Height = UncroppedAxis<typename Layer::Height>;
  using Width = UncroppedAxis<typename Layer::Width>;
  static constexpr int item_bytes = sizeof(Element);
  static constexpr int threads = 128 * Tile::warpgroups;
  static constexpr int channel_blocks = ceil_div(Layer::group_out_channels, Tile::channels);
  static constexpr int weight_sets = Layer::groups * channel_blocks;

  // ---- rows of the product: inputs, 64 of each warpgroup. A team of warpgroups shares a line with `columns` inputs,
  // or one warpgroup has several lines. A warp has 16 inputs, a lane pairs of neighbours ----
  static constexpr int team_inputs = Tile::columns > 64 ? Tile::columns : 64;
  static constexpr int team_threads = 2 * team_inputs, teams = threads / team_threads;
  static constexpr int lines = team_inputs / Tile::columns;  // of a team
  static constexpr int line_warps = Tile::columns / 16;
  // Of a line: positions along the height, and those before whose inputs reach them.
  static constexpr int rows_before = Height::shifts - 1, input_rows = Tile::rows + rows_before;
  // The first input of the first strip; strips after it begin `strip_step` inputs apart, and share the others.
  // Both are whole pairs, and whole copies.
  static constexpr int column_step = Tile::vector > 2 ? Tile::vector : 2;
  static constexpr int first_needed = Width::first_position - (Width::shifts - 1);
  static constexpr int first_column = first_needed > 0 ? first_needed / column_step * column_step : 0;
  static constexpr int strip_step = (Tile::columns - (Width::shifts - 1)) / column_step * column_step;

  // ---- columns of the product: by shift along the height, output channel, phase of depth and height, shift along the
  // width, and phase of the width ----
  static constexpr int output_rows = Tile::channels * Depth::phases * Height::phases;  // of one position of a map
  static constexpr int shift_columns = ceil_div(output_rows * Width::shifts * Width::phases, 8) * 8;
  static constexpr int product_rows = product_columns(Height::shifts * shift_columns);  // PTX's N

  // ---- depth of the product: shifts along the depth and input channels, in steps of 32 bytes ----
  static constexpr int step_channels = 32 / item_bytes;
  static constexpr int channel_steps = ceil_div(Layer::group_in_channels, step_channels);
  static constexpr int k_steps = Depth::shifts * channel_steps;
  static constexpr int k_tiles = ceil_div(k_steps, Tile::k_tile_steps);
  static constexpr bool whole_k_tiles = k_tiles * Tile::k_tile_steps == k_steps;
  // Inputs come through stages of shared memory, or straight to registers.
  static constexpr bool staged = Tile::input_stages > 0;
  // What a lane loads for a step: of two neighbours two 32-bit channels, or four 16-bit ones. In channels_last these
  // lie together; else the neighbours do. A copy to a stage has `vector` neighbours of a channel.
  static constexpr int lane_channels = 8 / item_bytes;
  static constexpr int loaded_bytes = Tile::channels_last
                                          ? greatest_common_divisor(8, Layer::group_in_channels* item_bytes)
                                          : Tile::vector * item_bytes;
  static constexpr int step_loads = 16 / loaded_bytes;
  static constexpr int step_words = staged ? 4 : step_loads * ceil_div(loaded_bytes, 4);
  // The place of a channel along k in channels_last: a lane's channels are neighbours, which in fragments they are not.
  static TCONV_CONSTANT int last_place(int channel) {
    constexpr int together = lane_channels / 2;
    const int in_step = channel % step_channels, lane = in_step / lane_channels, own = in_step % lane_channels;
    return channel - in_step + own / together * (step_channels / 2) + lane * together + own % together;
  }

  // ---- shared memory: weights, as rows of 128 bytes along k for four steps at a time; of each warpgroup the stages
  // of its inputs, [channel][input]; and of each team two buffers of results[input][column of the product] ----
  static constexpr int weight_blocks = ceil_div(k_tiles * Tile::k_tile_steps, 4);
  static constexpr int weight_block_bytes = product_rows * 128;
  static constexpr int weight_bytes = weight_blocks * weight_block_bytes;
  static constexpr int stage_bytes = Tile::k_tile_steps * 32 * 64;
  static constexpr int warpgroup_input_bytes = Tile::input_stages * stage_bytes;
  static constexpr int input_bytes = Tile::warpgroups * warpgroup_input_bytes;
  // Neighbouring outputs, which are phases of neighbouring inputs, lie in different banks, mostly.
  static constexpr int phase_banks = Width::phases < 2 ? 2 : Width::phases > 16 ? 16 : power_of_two_from(Width::phases);
  static constexpr int pitch = (shift_columns + phase_banks - 1) / (2 * phase_banks) * (2 * phase_banks) + phase_banks;
  static constexpr int buffer = (team_inputs + 1) * pitch;  // zeros behind the last input
  static constexpr int shared_bytes = weight_bytes + input_bytes + teams * 2 * buffer * 4;

  static_assert(item_bytes <= 4, "sums are float");
  static_assert(Tile::columns % 16 == 0 && team_inputs % Tile::columns == 0, "a warp has inputs of one line");
  static_assert(team_inputs % 64 == 0 && threads % team_threads == 0, "a team has whole warpgroups");
  static_assert(strip_step > 0, "a strip has positions of its own");
  static_assert(!Tile::channels_last || (Tile::vector == 1 && !staged), "neighbours lie together, or channels do");
  static_assert(staged ? loaded_bytes >= 4 && loaded_bytes <= 16 : Tile::vector <= 2, "there is a copy of so many");
  static_assert(output_rows <= 16, "they are unrolled");
  static_assert(Height::shifts * shift_columns <= product_rows, "there is an instruction for so many columns");
};

}  // namespace tconv
