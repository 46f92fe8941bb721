// plain: transposed convolution on CUDA cores, in few lines and for every layer. Written files carry it for layers and
// sizes that they were not made for.
//
// Computes  y[n, co, o] = bias[co] + sum over ci and taps k of  x[n, ci, i] * weight[ci, co, k]  for all i, k with
// o = i*stride + k*dilation - padding on each axis, inside each group. x, weight and y are contiguous. Factors are not
// rounded: TF32 is a permission, of which it makes no use.
//
// A position is one (n, qd, qh, qw). It owns stride_d * stride_h * stride_w neighbouring outputs, its phases.
// A block has some output channels of one group, at a *run* of neighbouring positions of one phase, anywhere in the
// batch. Lanes have neighbouring positions, so that they read neighbouring inputs, and one weight for all. Each tap of
// the phase is one place of the input for a thread's position: what is outside is known before the loop over channels,
// which has nothing but loads and products. `splits` sets of lanes share the input channels; the first adds the others'
// sums to its own, in order.
//
// Not-a-number: an input outside the map counts as 0, so an infinite or NaN *weight* also reaches the outputs at the
// border whose tap would read there. Non-finite inputs reach exactly the outputs that depend on them.
//
// Sizes: batch times positions and one plane of a channel must stay below 2^31 unless wide_index; every axis below
// 2^31 - stride - padding.
#pragma once
#include "primitives/epilogue.cuh"
#include "primitives/layer.cuh"
#include "primitives/places.cuh"

namespace tconv {

// How the blocks of a layer share its work.
template <class Layer>
struct PlainTile {
  using Accumulator = typename AccumulatorOf<typename Layer::Element>::type;
  static constexpr int channels = Layer::group_out_channels < 3 ? Layer::group_out_channels : 8, positions = 4;
  static constexpr int splits = Layer::group_in_channels >= 512 ? 8 : Layer::group_in_channels >= 64 ? 2 : 1;
  static constexpr int lanes = splits > 4 ? 32 : 128 / splits, threads = lanes * splits, blocks = 256 / threads;
  // Where stores of one phase would be far apart, lanes have all phases of the width side by side.
  static constexpr bool phases_in_lanes = Layer::Width::stride > 4 && Layer::Width::stride <= lanes;
  static constexpr int phases_together = phases_in_lanes ? Layer::Width::stride : 1;
  static constexpr int lane_positions = lanes / phases_together, run = lane_positions * positions;
  static constexpr int shared_bytes = splits > 1 ? threads * channels * static_cast<int>(sizeof(Accumulator)) : 0;
  static constexpr int channel_blocks = ceil_div(Layer::group_out_channels, channels) * Layer::groups;
  static constexpr long long phases =
      static_cast<long long>(Layer::Depth::stride) * Layer::Height::stride * (Layer::Width::stride / phases_together);
  static constexpr long long parts = channel_blocks * phases;
};

template <class Layer, class Tile>
TCONV_CONSTANT Launch plain_launch(const Sizes& sizes) {
  return places_launch<Layer, Tile, 0>(sizes);
}

template <class Layer, class Tile, class Program = Identity>
TCONV_DEVICE void plain(const typename Layer::Element* x, const typename Layer::Element* weight,
                        const typename Layer::Element* bias, typename Layer::Element* y, int batch, int input_depth,
                        int input_height, int input_width, int output_depth, int output_height, int output_width,
                        const Program& program = {}) {
  using Element = typename Layer::Element;
  using Accumulator = typename Tile::Accumulator;
  using Index = typename Layer::Index;
  using Depth = typename Layer::Depth;
  using Height = typename Layer::Height;
  using Width = typename Layer::Width;
  constexpr int CI = Layer::group_in_channels, CO = Layer::group_out_channels;  // of one group
  constexpr int taps = Depth::kernel * Height::kernel * Width::kernel;

  // The unused axes of 1-D and 2-D layers disappear here.
  if (Layer::spatial_dims < 3) input_depth = output_depth = 1;
  if (Layer::spatial_dims < 2) input_height = output_height = 1;
  const Index plane = static_cast<Index>(input_depth) * input_height * input_width;

  const int phase = static_cast<int>(blockIdx.x % Tile::phases);
  const int part = static_cast<int>(blockIdx.x / Tile::phases % Tile::channel_blocks);
  const Index first_place = static_cast<Index>(blockIdx.x / Tile::phases / Tile::channel_blocks) * Tile::run;
  constexpr int width_phases = Width::stride / Tile::phases_together;  // of different blocks
  const int height_phase = phase / width_phases % Height::stride, depth_phase = phase / width_phases / Height::stride;
  const int group = part % Layer::groups, first_channel = part / Layer::groups * Tile::channels;
  const int lane = static_cast<int>(threadIdx.x) % Tile::lanes, split = static_cast<int>(threadIdx.x) / Tile::lanes;
  const int lane_position = lane / Tile::phases_together;
  const int width_phase = width_phases > 1 ? phase % width_phases : lane % Tile::phases_together;

  // The thread's positions, and where the inputs of their sample and group would begin with the first of their own.
  int samples[Tile::positions], depths[Tile::positions], heights[Tile::positions], widths[Tile::positions];
  const Element* inputs[Tile::positions];
#pragma unroll
  for (int p = 0; p < Tile::positions; ++p) {
    const Place place = place_of<Layer, 0>(first_place + p * Tile::lane_positions + lane_position, batch, output_depth,
                                           output_height, output_width);
    samples[p] = lane_position < Tile::lane_positions ? place.sample : -1;
    depths[p] = place.depth, heights[p] = place.height, widths[p] = place.width;
    inputs[p] = x + (static_cast<long long>(samples[p]) * Layer::groups + group) * CI * plane +
                (static_cast<Index>(depths[p]) * input_height + heights[p]) * input_width + widths[p];
  }

  Accumulator sums[Tile::positions][Tile::channels] = {};
  for (int d = Depth::first_tap(depth_phase); d < Depth::kernel; d += Depth::tap_period)
    for (int h = Height::first_tap(height_phase); h < Height::kernel; h += Height::tap_period)
      for (int w = Width::first_tap(width_phase); w < Width::kernel; w += Width::tap_period) {
        const int depth_shift = Depth::shift_of(d), row_shift = Height::shift_of(h), shift = Width::shift_of(w);
        const Index behind = (static_cast<Index>(depth_shift) * input_height + row_shift) * input_width + shift;
        bool inside[Tile::positions];
#pragma unroll
        for (int p = 0; p < Tile::positions; ++p)
          inside[p] = samples[p] >= 0 && in_range(depths[p] - depth_shift, input_depth) &&
                      in_range(heights[p] - row_shift, input_height) && in_range(widths[p] - shift, input_width);
        const Element* const filters =
            weight_at<Layer>(weight, group, 0, first_channel, (d * Height::kernel + h) * Width::kernel + w);
#pragma unroll 4
        for (int c = split; c < CI; c += Tile::splits) {
          Accumulator values[Tile::positions];
#pragma unroll
          for (int p = 0; p < Tile::positions; ++p)
            values[p] = inside[p]
                            ? to_accumulator(load_constant(inputs[p] + (static_cast<long long>(c) * plane - behind)))
                            : Accumulator(0);
#pragma unroll
          for (int o = 0; o < Tile::channels; ++o) {
            // Of channels that do not exist the first one's weights are taken, and nothing is stored.
            const int channel = CO % Tile::channels == 0 || first_channel + o < CO ? o : 0;
            const Accumulator factor =
                to_accumulator(load_constant(filters + (static_cast<long long>(c) * CO + channel) * taps));
#pragma unroll
            for (int p = 0; p < Tile::positions; ++p) sums[p][o] = multiply_add(values[p], factor, sums[p][o]);
          }
        }
      }

  if (Tile::splits > 1) {
    TCONV_SHARED(shared);
    Accumulator* const own = reinterpret_cast<Accumulator*>(shared) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < Tile::positions; ++p) {
      __syncthreads();  // what lay there has been read
#pragma unroll
      for (int o = 0; o < Tile::channels; ++o) own[o * Tile::threads] = sums[p][o];
      __syncthreads();
#pragma unroll
      for (int o = 0; o < Tile::channels; ++o)
        for (int other = 1; other < Tile::splits && split == 0; ++other)
          sums[p][o] += own[o * Tile::threads + other * Tile::lanes];
    }
    if (split > 0) return;
  }

  const int first_of_all = group * CO + first_channel;
  const Epilogue<Layer, Program> epilogue = {bias + (Layer::has_bias ? first_of_all : 0), program, first_of_all};
#pragma unroll
  for (int p = 0; p < Tile::positions; ++p) {
    const int depth = depths[p] * Depth::stride + depth_phase, row = heights[p] * Height::stride + height_phase;
    const int column = widths[p] * Width::stride + width_phase;
    if (samples[p] < 0 || depth >= output_depth || row >= output_height || column >= output_width) continue;
    const long long first = first_output_channel<Layer>(samples[p], group) + first_channel;
#pragma unroll
    for (int o = 0; o < Tile::channels; ++o) {
      if (first_channel + o >= CO) break;
      Element* const to = y + (((first + o) * output_depth + depth) * output_height + row) * output_width + column;
      const auto of_channel = epilogue.of(o);
      *to = epilogue.output(of_channel.y(sums[p][o]), of_channel, program.template fetch<1>(to, true));
    }
  }
}

}  // namespace tconv
