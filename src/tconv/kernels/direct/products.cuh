// direct: products of the inputs and weights of a stage. `direct.cuh` has the picture.
#pragma once
#include "direct/inputs.cuh"
#include "direct/accumulators.cuh"

namespace tconv {

// Adds the products of one group of `unroll` input channels to the accumulators.
//
// `own_weights` points to the thread's weights of the group's first channel, in shared memory.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_add(const DirectInputs<Layer, Tile>& inputs, const Accumulator* own_weights, int first_phase,
                             int tap_k_tile, DirectAccumulators<Layer, Tile>& accumulators) {
  using Shape = DirectShape<Layer, Tile>;
#pragma unroll
  for (int k = 0; k < Tile::unroll; ++k)
#pragma unroll
    for (int row_tap = 0; row_tap < Shape::own_row_taps; ++row_tap) {
      const Accumulator* const row_weights = own_weights + row_tap * Shape::row_items + k * Shape::channel_items;
      Accumulator weights[Shape::items_at_once];
      if (Shape::channel_at_once) load_shared(row_weights, weights);
#pragma unroll
      for (int j = 0; j < Tile::k_tile_taps; ++j)
#pragma unroll
        for (int a = 0; a < Tile::phases; ++a) {
          if (!Shape::every_tap && !direct_has_tap<Layer, Tile>(first_phase, a, tap_k_tile + j)) continue;
          const int item = j * Shape::tap_items + a * Tile::phase_lanes * Tile::channels;
          if (!Shape::channel_at_once && a % Shape::phases_at_once == 0) load_shared(row_weights + item, weights);
          const int first_weight = Shape::channel_at_once ? item : a % Shape::phases_at_once * Tile::channels;
#pragma unroll
          for (int v = 0; v < Tile::rows; ++v)
#pragma unroll
            for (int p = 0; p < Tile::positions; ++p)
#pragma unroll
              for (int c = 0; c < Tile::channels; ++c) {
                Accumulator& accumulator = accumulators.values[Shape::accumulator_row(v, row_tap)][a][p][c];
                accumulator =
                    multiply_add(inputs.values[k][Shape::input_row(v, row_tap)][direct_slot<Layer, Tile>(a, j)][p],
                                 weights[first_weight + c], accumulator);
              }
        }
    }
}

// Adds the products of one stage of weights, a group of `unroll` input channels at a time.
//
// The stage has `channels` input channels. A thread takes every `splits`-th group of them, from group `split` on. With
// `ahead`, it loads the inputs of its next group while it multiplies. The other parameters are as in `direct_load`.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_multiply(const Accumulator* stage_weights, const typename Layer::Element* stage_x,
                                  int row_pitch, int stage_column,
                                  const int (&columns)[DirectShape<Layer, Tile>::input_rows],
                                  typename Layer::Index plane, int channels, int first_phase, int tap_k_tile, int split,
                                  DirectAccumulators<Layer, Tile>& accumulators) {
  using Shape = DirectShape<Layer, Tile>;
  const int first = split * Tile::unroll;
  const int column = stage_column - (Shape::all_taps ? 0 : tap_k_tile * Shape::Width::shift_period);
  const Accumulator* own_weights = stage_weights + first * Shape::channel_items;
  const typename Layer::Element* from = stage_x + first * static_cast<long long>(plane);
  if (!Shape::all_taps) from -= static_cast<long long>(tap_k_tile) * Shape::Width::shift_period;
  DirectInputs<Layer, Tile> inputs;
  if (Tile::ahead && first < channels)
    direct_load<Layer, Tile>(from, row_pitch, column, columns, plane, channels - first, first_phase, tap_k_tile,
                             inputs);
  DirectAccumulators<Layer, Tile> chain;
  if (Shape::chained) chain = {};
  int links = 0;
#pragma unroll 1
  for (int group = first; group < channels; group += Shape::stage_channels) {
    if (!Tile::ahead)
      direct_load<Layer, Tile>(from, row_pitch, column, columns, plane, channels - group, first_phase, tap_k_tile,
                               inputs);
    from += Shape::stage_channels * static_cast<long long>(plane);
    DirectInputs<Layer, Tile> next;
    const int left = channels - group - Shape::stage_channels;
    if (Tile::ahead && left > 0)
      direct_load<Layer, Tile>(from, row_pitch, column, columns, plane, left, first_phase, tap_k_tile, next);
    direct_add<Layer, Tile>(inputs, own_weights, first_phase, tap_k_tile, Shape::chained ? chain : accumulators);
    if (Shape::chained && ++links == Shape::chain_groups) {
      direct_end_chain<Layer, Tile>(chain, accumulators);
      links = 0;
    }
    if (Tile::ahead) inputs = next;
    own_weights += Shape::stage_channels * Shape::channel_items;
  }
  if (Shape::chained) direct_end_chain<Layer, Tile>(chain, accumulators);
}

// Adds the products of one stage of weights with inputs from the block's tile. Inputs come in stages of `unroll *
// splits` channels. Loads of the next stage from global memory are on their way while the block multiplies.
//
// Called by whole blocks. `slab` points to the first channel's slab in x. A thread's inputs start at `own` in each
// channel of a stage. `stage`, 0 or 1, is the stage of `stages` to write next.
template <class Layer, class Tile, class Accumulator>
TCONV_DEVICE void direct_multiply_tiles(const Accumulator* stage_weights, const typename Layer::Element* slab,
                                        typename Layer::Index plane, int channels, DirectTileInputs<Layer, Tile>& tile,
                                        Accumulator* stages, int own, int split, int& stage,
                                        DirectAccumulators<Layer, Tile>& accumulators) {
  using Shape = DirectShape<Layer, Tile>;
  const Accumulator* own_weights = stage_weights + split * Tile::unroll * Shape::channel_items;
  const typename Layer::Element* from = slab;
  DirectAccumulators<Layer, Tile> chain;
  if (Shape::chained) chain = {};
  int links = 0;
  tile.load(from, plane, channels);
#pragma unroll 1
  for (int group = 0; group < channels; group += Shape::stage_channels) {
    Accumulator* const written = stages + stage * Shape::tile_stage_items;
    tile.write(written);
    // All have written this stage, and have read the other one, which is written next.
    __syncthreads();
    stage ^= 1;
    from += Shape::stage_channels * static_cast<long long>(plane);
    if (group + Shape::stage_channels < channels) tile.load(from, plane, channels - group - Shape::stage_channels);
    if (group + split * Tile::unroll < channels) {
      DirectInputs<Layer, Tile> inputs;
      direct_read<Layer, Tile>(written + own + split * Tile::unroll * Shape::tile_items, inputs);
      direct_add<Layer, Tile>(inputs, own_weights, 0, 0, Shape::chained ? chain : accumulators);
      if (Shape::chained && ++links == Shape::chain_groups) {
        direct_end_chain<Layer, Tile>(chain, accumulators);
        links = 0;
      }
    }
    own_weights += Shape::stage_channels * Shape::channel_items;
  }
  if (Shape::chained) direct_end_chain<Layer, Tile>(chain, accumulators);
}

}  // namespace tconv
