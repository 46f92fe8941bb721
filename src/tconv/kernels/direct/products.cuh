// direct: products of the inputs and weights of a stage, and their sums. `direct.cuh` has the picture.
#pragma once
#include "direct/inputs.cuh"
#include "direct/sums.cuh"

namespace tconv {

// What a thread has summed up of one stage, and of the chain that it is in.
template <class Layer, class Tile>
class DirectChain {
  using Shape = DirectShape<Layer, Tile>;
  DirectSums<Layer, Tile>& all_;
  DirectSums<Layer, Tile> chain_;
  int links_ = 0;

 public:
  TCONV_DEVICE explicit DirectChain(DirectSums<Layer, Tile>& all) : all_(all) {
    if (Shape::chained) chain_.clear();
  }

  // Adds the products of one group of input channels.
  TCONV_DEVICE void multiply(const DirectInputs<Layer, Tile>& inputs, const typename Shape::Accumulator* own_weights,
                             const DirectPhases<Layer, Tile>& phases, int tap_chunk) {
    using Accumulator = typename Shape::Accumulator;
    DirectSums<Layer, Tile>& sums = Shape::chained ? chain_ : all_;
#pragma unroll
    for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
      for (int row_tap = 0; row_tap < Shape::own_row_taps; ++row_tap) {
        const Accumulator* const row_weights = own_weights + row_tap * Shape::row_items + k * Shape::channel_items;
        Accumulator weights[Shape::items_at_once];
        if (Shape::channel_at_once) load_shared(row_weights, weights);
#pragma unroll
        for (int j = 0; j < Tile::chunk_taps; ++j)
#pragma unroll
          for (int a = 0; a < Tile::phases; ++a) {
            if (!phases.has_tap(a, tap_chunk + j)) continue;
            const int slot = direct_slot<Layer, Tile>(a, j, phases.first_shifts[a]);
            const int item = j * Shape::tap_items + a * Tile::phase_lanes * Tile::channels;
            if (!Shape::channel_at_once && a % Shape::phases_at_once == 0) load_shared(row_weights + item, weights);
            const int first_weight = Shape::channel_at_once ? item : a % Shape::phases_at_once * Tile::channels;
#pragma unroll
            for (int v = 0; v < Tile::rows; ++v)
#pragma unroll
              for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
                for (int c = 0; c < Tile::channels; ++c) {
                  Accumulator& sum = sums.values[Shape::sum_row(v, row_tap)][a][p][c];
                  sum = multiply_add(inputs.values[k][Shape::input_row(v, row_tap)][slot][p], weights[first_weight + c],
                                     sum);
                }
          }
      }
    if (Shape::chained && ++links_ == Shape::chain_groups) {
      all_.add(chain_);
      chain_.clear();
      links_ = 0;
    }
  }

  TCONV_DEVICE void finish() {
    if (Shape::chained) all_.add(chain_);
  }
};

// Adds the products of one stage: `channels` input channels, of which every `splits`-th group from `split` on is this
// thread's. Inputs as `DirectInputs::load` takes them.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_multiply(const Accumulator* own_weights, const typename Layer::Element* x, int row_pitch,
                                  int column, const int (&columns)[DirectShape<Layer, Tile>::input_rows],
                                  typename Layer::Index plane, int channels, const DirectPhases<Layer, Tile>& phases,
                                  int tap_chunk, int split, DirectSums<Layer, Tile>& sums) {
  using Shape = DirectShape<Layer, Tile>;
  if (!Shape::all_taps) {
    x -= static_cast<long long>(tap_chunk) * Shape::Width::shift_period;
    column -= tap_chunk * Shape::Width::shift_period;
  }
  const int first = split * Tile::unroll;
  x += first * static_cast<long long>(plane);
  own_weights += first * Shape::channel_items;
  DirectChain<Layer, Tile> chain(sums);
  DirectInputs<Layer, Tile> inputs;
  if (Tile::ahead && first < channels)
    inputs.load(x, row_pitch, column, columns, plane, channels - first, phases, tap_chunk);
#pragma unroll 1
  for (int group = first; group < channels; group += Shape::stage_channels) {
    DirectInputs<Layer, Tile> next;
    const int left = channels - group - Shape::stage_channels;
    if (!Tile::ahead) inputs.load(x, row_pitch, column, columns, plane, channels - group, phases, tap_chunk);
    x += Shape::stage_channels * static_cast<long long>(plane);
    if (Tile::ahead && left > 0) next.load(x, row_pitch, column, columns, plane, left, phases, tap_chunk);
    chain.multiply(inputs, own_weights, phases, tap_chunk);
    if (Tile::ahead) inputs = next;
    own_weights += Shape::stage_channels * Shape::channel_items;
  }
  chain.finish();
}

// The same with inputs that the whole block brings to shared memory, `stage_channels` channels at a time, while it
// multiplies those of the stage before. Called by whole blocks. `x` is the first channel's slab; a thread's inputs
// start at `own` in each channel of a stage. `stage` says which of the two stages is written next.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_multiply_tiles(const Accumulator* own_weights, const typename Layer::Element* x,
                                        typename Layer::Index plane, int channels, DirectTileInputs<Layer, Tile>& tile,
                                        Accumulator* stages, int own, int split,
                                        const DirectPhases<Layer, Tile>& phases, int& stage,
                                        DirectSums<Layer, Tile>& sums) {
  using Shape = DirectShape<Layer, Tile>;
  own_weights += split * Tile::unroll * Shape::channel_items;
  own += split * Tile::unroll * Shape::tile_items;
  DirectChain<Layer, Tile> chain(sums);
  tile.load(x, plane, channels);
#pragma unroll 1
  for (int group = 0; group < channels; group += Shape::stage_channels) {
    Accumulator* const written = stages + stage * Shape::tile_stage_items;
    tile.write(written);
    // All have written this stage, and have read the other one, which is written next.
    __syncthreads();
    stage ^= 1;
    x += Shape::stage_channels * static_cast<long long>(plane);
    if (group + Shape::stage_channels < channels) tile.load(x, plane, channels - group - Shape::stage_channels);
    if (group + split * Tile::unroll < channels) {
      DirectInputs<Layer, Tile> inputs;
      inputs.read(written + own, phases);
      chain.multiply(inputs, own_weights, phases, 0);
    }
    own_weights += Shape::stage_channels * Shape::channel_items;
  }
  chain.finish();
}

}  // namespace tconv
