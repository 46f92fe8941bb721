"""One-line mistakes in the kernels, by family, and the instances that catch them."""

from __future__ import annotations

from dataclasses import replace

from kernel_runs import INSTANCES, PROGRAMMED

from tconv.kernels.instances import PROGRAMS, Instance, with_program

# What is changed, into what, which instance shows it, and how the emulator is run.
MUTATIONS = {
    "phase counted from the wrong end": (
        "const int item = j * Shape::tap_items + a * Tile::phase_lanes * Tile::channels;",
        "const int item = (Tile::k_tile_taps - 1 - j) * Shape::tap_items + a * Tile::phase_lanes * Tile::channels;",
        "1d-k4-s2-fp32-narrow",
        "plain",
    ),
    "shift ignores the dilation": (
        "if (Shape::shift_pitch == Width::shift_period) return",
        "if (true) return",
        "1d-k5-s1-d3-bf16-narrow",
        "plain",
    ),
    "first tap without the modular inverse": (
        "if (inverse > 1) tap =",
        "if (false) tap =",
        "1d-k90-s40-d3-tf32_rna-narrow",
        "plain",
    ),
    "padding forgotten in the column": (
        "(cut_off * stride - padding);",
        "(cut_off * stride);",
        "1d-k4-s2-fp32-narrow",
        "plain",
    ),
    "left border unchecked": (
        "static_cast<unsigned>(index) < static_cast<unsigned>(count)",
        "index < count",
        "1d-k4-s2-fp32-narrow",
        "address",
    ),
    "right border off by one": (
        "in_range(column - shift + p * Tile::columns, columns[r])",
        "in_range(column - shift + p * Tile::columns, columns[r] + 1)",
        "2d-k3-s1-fp32-narrow",
        "plain",
    ),
    "origin left out of the column": (
        "column = width * Width::stride - Tile::origin;",
        "column = width * Width::stride;",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "rows of a warp mixed up": (
        "? row - row_of_run * Shape::run_outputs : 0;",
        "? row : 0;",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "vectors stored in unaligned rows": (
        "output_width % Shape::vector == 0;",
        "true;",
        "2d-k3-s2-odd-fp32-narrow",
        "address",
    ),
    "channels read beyond the last": (
        "(Layer::group_in_channels % Tile::unroll == 0 || k < left)",
        "(true)",
        "2d-k3-s2-op1-fp32-narrow",
        "address",
    ),
    "group left out of the weight offset": (
        "static_cast<long long>(group * Layer::group_in_channels + in_channel)",
        "static_cast<long long>(in_channel)",
        "2d-asymmetric-grouped-fp16-narrow",
        "plain",
    ),
    "group left out of the bias": (
        "exists ? to_accumulator(load_constant(bias + channel))",
        "exists ? to_accumulator(load_constant(bias + own_channel + c))",
        "2d-k4-s2-multiplier-fp16-narrow",
        "plain",
    ),
    "partial channel tile written": (
        "const int c = n / Shape::accumulator_rows;\n      if (!Shape::whole_channels && c >= left) break;",
        "const int c = n / Shape::accumulator_rows;",
        "2d-k3-s5-d2-fp32-wide",
        "plain",
    ),
    "columns without taps left out": (
        "if (Shape::exchange && !in_vectors && split == 0) direct_clear_buffer<Layer, Tile>(buffer);",
        "",
        "2d-k3-s5-d2-fp32-narrow",
        "plain",
    ),
    "depth phases left out": (
        "const int depth_phase = row_phase / height_phases, height_phase = row_phase % height_phases;",
        "const int depth_phase = 0, height_phase = row_phase % height_phases;",
        "3d-k2-s2-bf16-narrow",
        "plain",
    ),
    "operands not rounded": (
        "if (rounding == Rounding::none || (bits & 0x7f800000u) == 0x7f800000u) return value;",
        "return value;",
        "2d-k3-s1-tf32-narrow",
        "plain",
    ),
    "operands truncated": (
        "bits_float((bits + half_unit) & 0xffffe000u)",
        "bits_float(bits & 0xffffe000u)",
        "2d-k3-s1-tf32-narrow",
        "plain",
    ),
    "ties rounded away instead of to even": (
        "rounding == Rounding::ties_away ? 0x1000u",
        "true ? 0x1000u",
        "2d-k3-s1-tf32-narrow",
        "plain",
    ),
    "ties rounded to even instead of away": (
        "rounding == Rounding::ties_away ? 0x1000u",
        "false ? 0x1000u",
        "2d-k3-s1-tf32_rna-narrow",
        "plain",
    ),
    "staged weights used before the barrier": (
        "direct_clear_buffer<Layer, Tile>(buffer);\n    __syncthreads();",
        "direct_clear_buffer<Layer, Tile>(buffer);",
        "2d-k3-s1-fp32-wide",
        "thread",
    ),
    "stage overwritten while in use": (
        "if (!Shape::resident) {\n                __syncthreads();",
        "if (!Shape::resident) {",
        "2d-many-in-fp64-narrow",
        "thread",
    ),
    "exchange read before it is written": (
        "      __syncwarp();  // all lanes have written theirs",
        "",
        "1d-k2-s7-fp32-narrow",
        "thread",
    ),
    "one item more than shared memory holds": (
        "i < Shape::weight_items;",
        "i <= Shape::weight_items + Shape::other_items;",
        "2d-k3-s1-fp32-narrow",
        "address",
    ),
    "rows of positions swapped": (
        "return input_rows == 1 ? 0 : row + top_shift - Height::shift_of(tap);",
        "return input_rows == 1 ? 0 : Tile::rows - 1 - row + top_shift - Height::shift_of(tap);",
        "2d-k4-s2-depthwise-fp32-tiled",
        "plain",
    ),
    "origin of rows left out": (
        "height * Height::stride - Tile::row_origin + height_phase;",
        "height * Height::stride + height_phase;",
        "2d-k4-s2-depthwise-fp32-stacked",
        "plain",
    ),
    "tile placed one row too low": (
        "height - tile_row - Shape::top_shift,",
        "height - tile_row - Shape::top_shift + 1,",
        "2d-k3-s5-d2-fp32-tiled",
        "plain",
    ),
    "stage of inputs read before all have written it": (
        "    // All have written this stage, and have read the other one, which is written next.\n    __syncthreads();",
        "",
        "2d-k3-s5-d2-fp32-tiled",
        "thread",
    ),
    "one stage of inputs instead of two": (
        "stage ^= 1;",
        "",
        "2d-asymmetric-grouped-fp32-tiled",
        "thread",
    ),
    "a split multiplies another's weights": (
        "stage_weights + split * Tile::unroll * Shape::channel_items;",
        "stage_weights;",
        "2d-asymmetric-grouped-fp32-split",
        "plain",
    ),
    "the last split left out": (
        "other < Tile::splits - 1; ++other",
        "other < Tile::splits - 2; ++other",
        "2d-asymmetric-grouped-fp32-split",
        "plain",
    ),
    "accumulators joined before they are there": (
        "  __syncthreads();\n  if (split == 0) {",
        "  if (split == 0) {",
        "2d-asymmetric-grouped-fp32-split",
        "thread",
    ),
    "inputs asked for ahead of the wrong channel": (
        "(from, row_pitch, column, columns, plane, left,",
        "(from - plane, row_pitch, column, columns, plane, left,",
        "2d-asymmetric-grouped-fp32-stacked",
        "plain",
    ),
    "a line stored from another line's place": (
        "line[step * Shape::exchange_pitch + lane - ahead]",
        "line[step * Shape::exchange_pitch + lane]",
        "2d-k3-s5-d2-fp32-wide",
        "plain",
    ),
}

MUTATIONS_OF_MMA = {
    "phase and shift mixed up": (
        "(phase) + Axis::padding + static_cast<long long>(lowest + number * step) * Axis::stride;",
        "(phase) + Axis::padding + static_cast<long long>(lowest + number * step);",
        "mma-1d-k4-s2-fp32-flat",
        "plain",
    ),
    "a shift too far": (
        "WidthShifts::halo - column * WidthShifts::step",
        "column * WidthShifts::step",
        "mma-2d-k3-s1-tf32-flat",
        "plain",
    ),
    "a shift too far where shifts are a loop": (
        "    moved -= column_bytes;",
        "    moved -= column_bytes - 16;",
        "mma-1d-k5-s1-d3-fp32-wide",
        "plain",
    ),
    "a tile of rows left out at a shift": (
        "HeightShifts::tap(phase_tile / Width::stride % Height::stride,",
        "HeightShifts::tap(phase_tile % Height::stride,",
        "mma-2d-k3-s2-many-out-fp32-high",
        "plain",
    ),
    "weights of the wrong group": (
        "(static_cast<long long>(group) * Layer::group_in_channels + in_channel)",
        "(static_cast<long long>(in_channel))",
        "mma-2d-k4-s2-multiplier-tf32-flat",
        "plain",
    ),
    "fragments with rows and channels swapped": (
        "const int row = lane / 4 + u % 2 * 8;",
        "const int row = lane / 4 + u / 2 * 8;",
        "mma-1d-k4-s2-fp16-flat",
        "plain",
    ),
    "channels beyond the last read": (
        "(here >> i & 1u) != 0 && (Shape::whole_k_tiles || channel + k < Layer::group_in_channels)",
        "(here >> i & 1u) != 0",
        "mma-2d-k3-s1-tf32-flat",
        "address",
    ),
    "images beyond the last read": (
        "halo.image + image < batch && ",
        "",
        "mma-2d-staged-fp32-wide",
        "address",
    ),
    "halo moved by one": (
        "block_tile.column - Shape::WidthShifts::highest}",
        "block_tile.column - Shape::WidthShifts::highest + 1}",
        "mma-2d-k3-s1-fp32-flat",
        "plain",
    ),
    "operands not rounded": (
        "if (Layer::rounding != Rounding::none) return matrix_operand<Layer::rounding>(value);",
        "if (Layer::rounding != Rounding::none) return value;",
        "mma-1d-k4-s2-tf32_rna-flat",
        "plain",
    ),
    "the rest of exact factors forgotten": (
        "? 0.0f : matrix_operand<Rounding::ties_away>(value - high);",
        "? 0.0f : 0.0f;",
        "mma-1d-k4-s2-fp32-flat",
        "plain",
    ),
    "a product of exact factors forgotten": (
        "column_plane = Shape::planes - 1 - row_plane; column_plane >= 0;",
        "column_plane = Shape::planes - 1 - row_plane; column_plane >= 1 - row_plane;",
        "mma-1d-k4-s2-fp32-flat",
        "plain",
    ),
    "halves of channels swapped": (
        "lane / 8 % 2 * 16;",
        "(1 - lane / 8 % 2) * 16;",
        "mma-1d-k4-s2-fp16-flat",
        "plain",
    ),
    "weights used before they are there": (
        "        if (!Tile::Pipeline::resident) weights.copy.wait();",
        "",
        "mma-1d-k4-s2-tf32-wide",
        "plain",
    ),
    "no barrier between steps": (
        "        if (shift_group == 0) inputs.wait();\n        __syncthreads();",
        "        if (shift_group == 0) inputs.wait();",
        "mma-1d-k4-s2-tf32-wide",
        "thread",
    ),
    "weights loaded into the stage in use": (
        "    stage = Shape::next_weight_stage(stage);\n    --left;",
        "    --left;",
        "mma-1d-k4-s2-tf32-wide",
        "plain",
    ),
    "inputs written into the stage in use": (
        "const int stage_ahead = Shape::input_stage_before(input_stage);",
        "const int stage_ahead = input_stage;",
        "mma-2d-staged-fp32-wide",
        "plain",
    ),
    "the block_tile before the next one's inputs": (
        "if (is_there()) inputs.begin(block_tiles.block_tile(number_ahead));",
        "",
        "mma-2d-k3-s1-fp16-resident",
        "plain",
    ),
    "outputs stored where the next block tile is": (
        "block_tiles.block_tile(number),\n                           first_row_tile,",
        "block_tiles.block_tile(number_ahead),\n                           first_row_tile,",
        "mma-2d-k3-s1-fp16-resident",
        "plain",
    ),
    "copied inputs used before they are there": (
        "copies.template wait<Shape::stages_ahead - 1>();",
        "copies.template wait<Shape::stages_ahead>();",
        "mma-2d-k2-s2-aligned-tf32-copied-wide",
        "plain",
    ),
    "copied inputs of channels beyond the last": (
        "(inside >> i & 1u) != 0 && present);",
        "(inside >> i & 1u) != 0);",
        "mma-2d-k2-s2-aligned-fp16-copied-patched",
        "address",
    ),
    "a copied patch at another one's place": (
        "own + i * lanes * patch_bytes",
        "own",
        "mma-2d-dense-fp64-copied-flat",
        "plain",
    ),
    "copied rows read from where their first patch begins": (
        "(Shape::by_channel ? Shape::patch_lead : 0) + in_block_tile.column",
        "in_block_tile.column",
        "mma-2d-dense-tf32-copied-patched",
        "plain",
    ),
    "halves of copied channels swapped": (
        "offset = lane % 16 * Shape::channel_bytes;",
        "offset = (lane + 8) % 16 * Shape::channel_bytes;",
        "mma-2d-k2-s2-aligned-bf16-copied-flat",
        "plain",
    ),
    "copied operands not rounded": (
        "const Number factor = matrix_factor<Layer>(value, 0);",
        "const Number factor = value;",
        "mma-2d-k2-s2-aligned-tf32-copied-flat",
        "plain",
    ),
    "outputs put over resident weights": (
        "Tile::Pipeline::resident ? stages_bytes : joined_bytes",
        "joined_bytes",
        "mma-2d-k3-s1-fp16-resident",
        "plain",
    ),
    "origin left out of the column": (
        "Width::stride - Tile::BlockTile::origin + phase % Width::stride",
        "Width::stride + phase % Width::stride",
        "mma-1d-k4-s2-fp32-high",
        "plain",
    ),
    "outputs stored as if aligned": (
        "if (columns % row_width == 0)\n",
        "if (true)\n",
        "mma-2d-k3-s1-tf32-flat",
        "address",
    ),
    "columns beyond the last stored": (
        "in_range(depth, depths) &&\n           in_range(row, rows) && in_range(column, columns);",
        "in_range(depth, depths) && in_range(row, rows);",
        "mma-1d-k4-s2-fp32-high",
        "address",
    ),
    "outputs of the block_tile's border stored twice": (
        "return number < Shape::block_tile_positions && sample < batch",
        "return sample < batch",
        "mma-2d-k3-s1-fp16-high",
        "thread",
    ),
    "a set of warps multiplies another's channels": (
        "warp / Shape::warps * Tile::Pipeline::k_tile_steps;",
        "0;",
        "mma-1d-k4-s2-fp32-split",
        "plain",
    ),
    "the last set of warps left out": (
        "other < Tile::Warps::splits - 1; ++other)",
        "other < Tile::Warps::splits - 2; ++other)",
        "mma-1d-k40-s20-staged-tf32-split",
        "plain",
    ),
    "accumulators joined before they are there": (
        "  __syncthreads();\n  if (split > 0) return false;",
        "  if (split > 0) return false;",
        "mma-1d-k4-s2-fp32-split",
        "thread",
    ),
    "accumulators put over a stage that is still read": (
        "    if (!Tile::Pipeline::resident)\n      __syncthreads();  // Nobody",
        "    // Nobody",
        "mma-1d-k64-s32-fp32-split",
        "thread",
    ),
    "channels of a vector from channels_last read apart": (
        "const long long channel_pitch = Tile::channels_last ? 1 : map.plane;",
        "const long long channel_pitch = map.plane;",
        "mma-2d-k3-s1-fp32-last",
        "address",
    ),
    "columns of channels_last stored side by side": (
        "* plane + offset) * y_channels +",
        "* plane + offset) +",
        "mma-2d-k3-s1-fp32-last",
        "plain",
    ),
    "columns of a patch mixed up": (
        "vectors ? k : c, column[k]);",
        "vectors ? k : 0, column[k]);",
        "mma-2d-k3-s2-aligned-fp16-patched",
        "plain",
    ),
    "outputs stored before they are staged": (
        "    }\n    __syncwarp();\n    MmaSubtile",
        "    }\n    MmaSubtile",
        "mma-2d-k3-s1-tf32-flat",
        "thread",
    ),
    "tiles of rows with taps left out": (
        "(first_row_tile + piece % Shape::block_row_tiles)",
        "(first_row_tile + 1 + piece % Shape::block_row_tiles)",
        "mma-2d-k3-s2-many-out-fp32-high",
        "plain",
    ),
    "taps of a filter mixed up": (
        "loaded[u][i][t / of_load]",
        "loaded[u][i][0]",
        "mma-1d-k20-s10-full-tf32_rna-last",
        "plain",
    ),
    "exact accumulators of one shift only": (
        "of_group < first + Shape::shifts_together",
        "of_group < first + 1",
        "mma-2d-staged-fp32-wide",
        "plain",
    ),
    "a part of the inputs never asked for": (
        "if (part < Shape::input_parts)",
        "if (part < Shape::input_parts - 1)",
        "mma-2d-many-in-bf16-high",
        "plain",
    ),
    "outputs beside an origin stored as if aligned": (
        "greatest_common_divisor(greatest_common_divisor(side_by_side, Tile::BlockTile::origin), most)",
        "greatest_common_divisor(side_by_side, most)",
        "mma-1d-k4-s2-fp32-high",
        "address",
    ),
    "words of doubles side by side": (
        "low[2] = {",
        "low[1] = {",
        "mma-2d-k3-s1-fp64-flat",
        "plain",
    ),
    "half of a tile's accumulators joined twice": (
        "own[n % vectors * items + k] += theirs",
        "own[k] += theirs",
        "mma-1d-k4-s2-fp64-split",
        "plain",
    ),
    "bias of the wrong group": (
        "Layer::has_bias ? bias + first_channel : bias",
        "bias",
        "mma-2d-k4-s2-multiplier-tf32-flat",
        "plain",
    ),
}

MUTATIONS_OF_WGMMA = {
    "a block without taps multiplies": (
        "      if (has_taps)\n",
        "      if (true)\n",
        "wgmma-3d-k3-s2-d2-tf32_rna-alone",
        "plain",
    ),
    "every block has taps": (
        "    if (!Shape::some_without_taps) return true;",
        "    return true;",
        "wgmma-3d-k3-s2-d2-tf32_rna-alone-last",
        "plain",
    ),
    "inputs of a block without taps are copied ahead": (
        "while (ahead.k_tile == 0 && ahead.work.is_left() && !ahead.work.has_taps()) ahead.work.next();",
        ";",
        "wgmma-2d-many-row-phases-fp16-alone",
        "plain",
    ),
    "a block without taps stores what the one before it has": (
        "consumer.clear(consumer.accumulators);",
        ";",
        "wgmma-2d-k4-s4-d2-bf16-last",
        "plain",
    ),
    "a phase without taps counts as one with a tap": (
        "    return phase.depth.count * phase.row.count * (",
        "    return phase.depth.count + phase.row.count * (",
        "wgmma-3d-k3-s2-d2-tf32_rna-last",
        "plain",
    ),
    "a phase without taps has the accumulators of the next one": (
        "    if (!Shape::has_accumulators(product)) return 0;",
        "",
        "wgmma-2d-k3-s5-d2-tf32-all",
        "plain",
    ),
    "a phase has the accumulators of the one before": (
        "bit_count(accumulated & ((1u << product) - 1))",
        "bit_count(accumulated & ((1u << product) - 1)) * (product % 2)",
        "wgmma-2d-k3-s5-d2-tf32-all",
        "plain",
    ),
    "rows without taps are not stored": (
        "if (nothing_staged || (Shape::some_rows_without_taps && !Tile::channels_last)) store",
        "if (nothing_staged) store",
        "wgmma-2d-k3-s5-d2-tf32-all",
        "plain",
    ),
    "the ends of rows without taps are not stored": (
        "    store_empty<1>(to + count - after + lane, lane < after, channel);",
        "",
        "wgmma-3d-k3-s2-d2-tf32_rna-alone",
        "plain",
    ),
    "rows without taps are stored by vectors from anywhere": (
        "before = to_border < count ? to_border : count;",
        "before = 0;",
        "wgmma-3d-k3-s2-d2-tf32_rna-alone",
        "plain",
    ),
    "slabs without taps go on behind their last row": (
        "(rows - first < count ? rows - first : count) * columns",
        "count * columns",
        "wgmma-3d-k3-s2-d2-tf32_rna-all",
        "plain",
    ),
    "rows with taps are taken for rows without": (
        "Height::taps(of_slab % row_phases) == 0",
        "Height::taps(of_slab % row_phases) != 0",
        "wgmma-2d-k3-s5-d2-tf32-all",
        "plain",
    ),
    "inputs given back before they are loaded, and once more": (
        "inputs.wait_full();",
        "inputs.wait_full();\n    arrive(inputs.empty());",
        "wgmma-2d-k3-s2-aligned-tf32-all",
        "plain",
    ),
    "inputs loaded into a stage that is still read": (
        "      stages.wait_empty();\n      wgmma_copy_patches",
        "      wgmma_copy_patches",
        "wgmma-2d-k3-s2-aligned-tf32-all",
        "plain",
    ),
    "empty stages of the wrong phase waited for": (
        "wait(empty(), parity() ^ 1);",
        "wait(empty(), parity());",
        "wgmma-1d-k4-s2-tf32-all",
        "plain",
    ),
    "the phase of stages never transposed": (
        "turn + 1 < 2 * Count ? turn + 1 : 0",
        "turn + 1 < Count ? turn + 1 : 0",
        "wgmma-2d-dense-tf32_rna-last",
        "plain",
    ),
    "weights given back before their last products are done": (
        "products.template wait<1>();  // the visits before are done",
        "products.template wait<2>();",
        "wgmma-2d-dense-tf32_rna-last",
        "thread",
    ),
    "fragments loaded over those on their way": (
        "} else if (batch > 0) {\n        products.template wait<1>();",
        "} else if (batch > 0) {\n        products.template wait<2>();",
        "wgmma-2d-dense-tf32_rna-last",
        "plain",
    ),
    "accumulators stored before their products are done": (
        "    products.template wait<0>();\n    __syncwarp();",
        "    __syncwarp();",
        "wgmma-2d-staged-tf32-all",
        "plain",
    ),
    "operands not rounded": (
        "fragments[f][plane][word] = float_bits(matrix_factor<Layer>(value, plane));",
        "fragments[f][plane][word] = float_bits(value);",
        "wgmma-1d-k4-s2-tf32-all",
        "plain",
    ),
    "pieces of a stage a row apart too much": (
        "piece * Shape::piece_bytes + row_plane",
        "piece * (Shape::piece_bytes + Shape::k_tile_bytes) + row_plane",
        "wgmma-2d-k3-s2-aligned-tf32-all",
        "plain",
    ),
    "weights not swizzled": (
        " + swizzled(row * Shape::k_tile_bytes + vector * 16, Shape::k_tile_bytes)",
        " + row * Shape::k_tile_bytes + vector * 16",
        "wgmma-1d-k4-s2-fp16-last",
        "plain",
    ),
    "fewer bytes of weights expected than come": (
        "arrive_and_expect(stages.full(), bytes);",
        "arrive_and_expect(stages.full(), bytes - 16);",
        "wgmma-1d-k4-s2-tf32-all",
        "plain",
    ),
    "bytes behind an unaligned input read": (
        "end - at < 16 ? static_cast<int>(end - at) : 16",
        "16",
        "wgmma-2d-k3-s1-fp16-all",
        "address",
    ),
    "bytes before an unaligned input read": (
        "at >= begin && at < end",
        "at < end",
        "wgmma-2d-k3-s1-fp16-all",
        "address",
    ),
    "unaligned rows of all channels taken for the first one's": (
        "(of_row + k * plane & 7u)",
        "(of_row & 7u)",
        "wgmma-2d-k3-s1-fp16-all",
        "plain",
    ),
    "columns beside unaligned rows kept": (
        "if (place.inside) together.values[k",
        "if (place.row_inside) together.values[k",
        "wgmma-2d-k3-s1-fp16-all",
        "plain",
    ),
    "an exact product left out": (
        "int plane = Shape::planes - 1 - row_plane;",
        "int plane = 0;",
        "wgmma-2d-k3-s1-fp32-all",
        "plain",
    ),
    "exact accumulators of a batch kept for the next one": (
        "if (Shape::exact) clear(batch_accumulators);",
        "if (Shape::exact && weights.turn == 0) clear(batch_accumulators);",
        "wgmma-2d-k3-s1-fp32-all",
        "plain",
    ),
    "exact accumulators added before their products are done": (
        "        products.template wait<0>();\n#pragma unroll\n",
        "#pragma unroll\n",
        "wgmma-2d-k3-s1-fp32-one",
        "plain",
    ),
    "a plane of weights in the other one's place": (
        "row_plane * Shape::product_bytes +",
        "(1 - row_plane) * (Shape::planes - 1) * Shape::product_bytes +",
        "wgmma-2d-k3-s1-fp32-one",
        "plain",
    ),
    "channels transposed in the place of positions": (
        "lane / 8 % 2 * 8",
        "lane / 16 * 8",
        "wgmma-2d-k2-s2-aligned-straight1",
        "plain",
    ),
    "places that are transposed stored one further": (
        "stage + lane % 8 * Shape::place_bytes",
        "stage + (lane + 1) % 8 * Shape::place_bytes",
        "wgmma-2d-dense-fp16-transposed1",
        "plain",
    ),
    "weights prepared beside each other that lie two vectors apart": (
        "const int vector = pair * 2 + first_vector;",
        "const int vector = pair + first_vector;",
        "wgmma-2d-k3-s1-tf32-stacked-last",
        "plain",
    ),
    "a stacked tile multiplied at another shift": (
        "tile + HeightShifts::count - 1 - row_visit",
        "tile + row_visit",
        "wgmma-2d-k3-s1-tf32-stacked-last",
        "plain",
    ),
    "raw inputs copied over those that are transposed": (
        "      meet<Shape::loaders>(3);  // nobody reads what was transposed any more\n",
        "",
        "wgmma-2d-k3-s2-aligned-fp16-one",
        "thread",
    ),
    "outputs staged over those that are stored": (
        "      meet<128>(1 + warp / 4);  // nobody reads what is staged any more\n",
        "",
        "wgmma-2d-k3-s1-tf32-stacked",
        "thread",
    ),
    "outputs stored before they are staged": (
        "      meet<128>(1 + warp / 4);  // all of it is staged\n",
        "",
        "wgmma-2d-k3-s1-tf32-stacked",
        "thread",
    ),
    "runs stored in rows that they do not divide": (
        "by_runs && columns % run == 0",
        "by_runs",
        "wgmma-2d-columns-only-fp16-all",
        "address",
    ),
    "runs stored a channel too far": (
        "(own == 0 ? 1 : 7) * plane()",
        "(own == 0 ? 1 : 8) * plane()",
        "wgmma-2d-staged-tf32-all",
        "address",
    ),
    "weights that stay taken from another block_tile's stages": (
        "    if (Tile::resident) weights.turn = 0;  // they are there since the first block tile\n",
        "",
        "wgmma-2d-k3-s2-op1-one-resident",
        "plain",
    ),
    "weights that stay taken as if visits had as many": (
        "Shape::packs_weights ? packed : stage",
        "stage",
        "wgmma-2d-k3-s2-op1-all-resident",
        "plain",
    ),
    "weights that stay of a phase with fewer taps put where those of another would lie": (
        "Shape::packs_weights ? static_cast<int>(from - set)",
        "Tile::resident ? static_cast<int>(from - set)",
        "wgmma-2d-k3x2-s2x2-aligned-one-resident",
        "plain",
    ),
    "inputs prepared over a tile that others still read": (
        "    __syncthreads();  // nobody reads the tile before any more\n",
        "",
        "wgmma-2d-many-in-one-prepared",
        "thread",
    ),
    "prepared channels beyond the last one": (
        "position < positions_left && channel < channels_left",
        "position < positions_left",
        "wgmma-2d-dense-one-prepared",
        "address",
    ),
    "inputs loaded wider than rows allow": (
        "  else if (plane % quarter == 0)\n",
        "  else if (plane > 0)\n",
        "wgmma-2d-k2-s2-one-prepared",
        "address",
    ),
    "a phase's inputs loaded from its lowest shift on": (
        "Axis::shift_of(first) + behind(0)",
        "Axis::shift_of(first)",
        "wgmma-2d-k3-s2-op1-one-resident",
        "plain",
    ),
    "all taps of a row's phases multiplied with the same row of inputs": (
        "phase.row.behind(r), WidthShifts",
        "phase.row.behind(0), WidthShifts",
        "wgmma-2d-k4-s2-full-tf32-alone",
        "plain",
    ),
    "weights of a row's phases ordered as if each phase were alone": (
        "Width::kernel + column.tap",
        "Width::kernel + c",
        "wgmma-2d-k3-s2-op1-tf32-alone",
        "plain",
    ),
    "bias of the wrong group": (
        "Layer::has_bias ? bias + first : bias",
        "bias",
        "wgmma-2d-k4-s2-multiplier-fp16-one",
        "plain",
    ),
}


MUTATIONS_OF_COL2IM_WGMMA = {
    "inputs moved before all have landed": (
        "      meet<Shape::set_threads>(1 + set);\n    }\n    copies.begin(",
        "    }\n    copies.begin(",
        "col2im_wgmma-2d-k3-s1-tf32-part",
        "thread",
    ),
    "a stage that is read before it has landed": (
        "template wait<Shape::stages_ahead - 1>();",
        "template wait<Shape::stages_ahead>();",
        "col2im_wgmma-1d-k4-s2-deep-fp16-high",
        "plain",
    ),
    "a stage that products still read is written": (
        "Tile::stages - (factors_in_stages ? 2 : 1)",
        "Tile::stages - 1",
        "col2im_wgmma-1d-k4-s2-deep-fp16-high",
        "plain",
    ),
    "products of moved inputs that others have not moved yet": (
        "if (Shape::moves_inputs) meet<Shape::set_threads>(1 + set);",
        "",
        "col2im_wgmma-2d-k3-s1-tf32-high",
        "thread",
    ),
    "fragments loaded while products read them": (
        "products.template wait<0>();\n      weights.load",
        "weights.load",
        "col2im_wgmma-1d-k4-s2-deep-tf32-high",
        "plain",
    ),
    "inputs of the next k-tile moved over those that products read": (
        "moved + k_tile % 2 * Shape::factor_bytes",
        "moved",
        "col2im_wgmma-1d-k4-s2-deep-tf32-high",
        "plain",
    ),
    "sums put before products are done": (
        "of_k_tile.products.template wait<0>();",
        "",
        "col2im_wgmma-2d-k3-s1-fp16-part",
        "plain",
    ),
    "sums put over a stage that others read": (
        "__syncthreads();  // nobody reads a stage any more",
        "",
        "col2im_wgmma-2d-k3-s1-tf32-wide",
        "thread",
    ),
    "sums read before all are put": (
        "thread % 32);\n  __syncthreads();",
        "thread % 32);",
        "col2im_wgmma-2d-k3-s1-tf32-high",
        "thread",
    ),
    "sums of the first set alone": (
        "sums + set * Shape::sums",
        "sums",
        "col2im_wgmma-2d-k3-s1-tf32-whole",
        "plain",
    ),
    "rows of a lane's fragments in the wrong tile": (
        "fragments[step][row / 2][2 * half + row % 2]",
        "fragments[step][row % Shape::row_tiles][2 * half + row / Shape::row_tiles]",
        "col2im_wgmma-2d-k3-s1-tf32-high",
        "plain",
    ),
    "factors that are not rounded": (
        "float_bits(matrix_factor<Layer>(values[row], 0))",
        "float_bits(values[row])",
        "col2im_wgmma-2d-k3-s1-tf32-part",
        "plain",
    ),
    "the second tile of rows is the first": (
        "of_rows = tile * Shape::block_bytes + step",
        "of_rows = step",
        "col2im_wgmma-1d-k4-s2-deep-fp16-high",
        "plain",
    ),
    "the second warpgroup has the rows of the first": (
        "Shape::high_warp(thread) / 4 * Shape::row_tiles",
        "0 * Shape::row_tiles",
        "col2im_wgmma-1d-k4-s2-deep-fp16-last",
        "plain",
    ),
    "columns of the second factor step as rows do": (
        "Columns(second), step * 16 * 128",
        "Columns(second), step * 32",
        "col2im_wgmma-1d-k4-s2-deep-fp16-whole",
        "plain",
    ),
    "blocks of the second factor too near": (
        "byte / 128 * block_bytes",
        "byte / 128 * 1024",
        "col2im_wgmma-1d-k4-s2-deep-fp16-whole",
        "plain",
    ),
    "positions of the second warpgroup are those of the first": (
        "return rows_of_positions ? position * k_tile_bytes",
        "return rows_of_positions ? 0 * position",
        "col2im_wgmma-2d-k3-s1-tf32-wide",
        "plain",
    ),
    "a position's channels beyond the last": (
        "|| first + channel < Layer::group_in_channels",
        "|| true",
        "col2im_wgmma-2d-k3-s1-tf32-last",
        "address",
    ),
    "a run that begins where its neighbour does": (
        "image * channels + channel % items",
        "image * channels + channel % items / 2 * 2",
        "col2im_wgmma-1d-k2-s2-deep-fp16-whole",
        "plain",
    ),
    "the first item of a run twice": (
        "position, channel + 1)) << 16",
        "position, channel)) << 16",
        "col2im_wgmma-1d-k2-s2-deep-fp16-whole",
        "plain",
    ),
}


MUTATIONS_OF_PROGRAMS = {
    "operands of the first group's channels": (
        "program.of(channel)",
        "program.of(own_channel + c)",
        "2d-k4-s2-multiplier-fp16-stacked-affine",
        "plain",
    ),
    "a vector's operands from the thread's first position": (
        "row + p * step, inside",
        "row, inside",
        "1d-k4-s2-fp32-stacked-gated",
        "plain",
    ),
    "a vector's operands beyond the last row": (
        "row + p * step, inside",
        "row + p * step, true",
        "1d-k4-s2-fp64-tiled-residual",
        "address",
    ),
    "a line's operands from its first step": (
        "fetch<1>(y + (place + offset + step * 32), true)",
        "fetch<1>(y + (place + offset), true)",
        "1d-k2-s7-fp32-split-residual",
        "plain",
    ),
    "channels_last outputs with the first one's operands": (
        "channel + (Tile::channels_last ? i : 0)",
        "channel",
        "mma-2d-staged-fp32-last-affine",
        "plain",
    ),
    "a row's operands from its first step": (
        "to + i * pitch, present)",
        "to, present)",
        "wgmma-1d-k3-s3-op1-all-residual",
        "plain",
    ),
    "a row's operands, read ahead, from its first step": (
        "to + step * channel_lanes * plane(), inside",
        "to, inside",
        "wgmma-2d-k3-s1-tf32_rna-one-residual",
        "plain",
    ),
    "operands read ahead beyond the last channel": (
        "plane(), inside && present);",
        "plane(), inside);",
        "wgmma-2d-k3-s1-tf32_rna-one-residual",
        "address",
    ),
    "operands read ahead for another subtile": (
        "read_ahead(subtile_of(number), ahead)",
        "read_ahead(subtile_of(0), ahead)",
        "wgmma-2d-many-in-all-prepared-residual",
        "plain",
    ),
    "both halves of a warp's positions with the first one's operands": (
        "fetch<width>(to[half], inside",
        "fetch<width>(to[0], inside",
        "wgmma-2d-k3-s2-aligned-tf32-all-residual",
        "plain",
    ),
    "operands of channels beyond the last": (
        "own + k, present && channel < Layer::group_out_channels - k)",
        "own + k, present)",
        "wgmma-2d-k3-s2-aligned-bf16-last-residual",
        "address",
    ),
    "operands of positions beyond the block_tile": (
        "to[half], inside[half] && present)",
        "to[half], present)",
        "wgmma-2d-k3-s2-aligned-tf32-all-residual",
        "address",
    ),
    "operands of pixels beyond the last": (
        "to[i] + in_block, (inside >> i & 1u) != 0);",
        "to[i] + in_block, true);",
        "wgmma-2d-k3-s2-op1-tf32-last-residual",
        "address",
    ),
    "every channel with the first one's value of a sample": (
        "* channels + place % channels",
        "* channels",
        "wgmma-2d-k2-s2-aligned-bf16-last-all-gated",
        "plain",
    ),
    "neighbouring channels with one value of a sample": (
        "(channels_last ? i : 0), present",
        "0, present",
        "wgmma-2d-k3-s2-op1-fp32-last-gated",
        "plain",
    ),
    "values of a sample by planes of another size": (
        "const long long at = channels_last ? place / (plane * channels)",
        "plane += 1;\n  const long long at = channels_last ? place / (plane * channels)",
        "2d-k3x2-s2x2-aligned-fp16-narrow-gated",
        "plain",
    ),
}


MUTATIONS_OF_COL2IM: dict[str, tuple[str, str, str, str]] = {
    "block tiles without what they have in common": (
        "step = size - overlap < together ? size : (size - overlap) / together * together;",
        "step = size < together ? size : size / together * together;",
        "col2im-1d-k4-s2-tf32-part",
        "plain",
    ),
    "outputs of a block too early": (
        "((number - 1) * step + size) * Axis::stride - Axis::padding;",
        "((number - 1) * step + size) * Axis::stride;",
        "col2im-2d-k3-s1-fp16-part",
        "plain",
    ),
    "a step that is not waited for": (
        "if (k_tile >= 0) {\n        copies.waiting.template wait<Shape::stages_ahead - 1>();",
        "if (k_tile >= 0) {\n        copies.waiting.template wait<Shape::stages_ahead>();",
        "col2im-2d-k2-s2-aligned-tf32-whole",
        "plain",
    ),
    "a set that does not meet": (
        "col2im_meet<Layer, Tile>(set);  // all see the k-tile, and none reads the one before any more\n      }",
        "}",
        "col2im-2d-k2-s2-aligned-tf32-shared",
        "thread",
    ),
    "sums over stages that are still read": (
        "__syncthreads();  // nobody reads a stage any more",
        "",
        "col2im-2d-k2-s2-aligned-tf32-shared",
        "thread",
    ),
    "sums that are read before all are there": (
        "__syncthreads();\n    const BlockTilePosition first = block_tiles.first_input(numbers);",
        "const BlockTilePosition first = block_tiles.first_input(numbers);",
        "col2im-2d-k2-s2-aligned-tf32-shared",
        "thread",
    ),
    "channels beyond the last": (
        "return Shape::whole_k_tiles || first + channel < Layer::group_in_channels;",
        "return true;",
        "col2im-2d-k3-s1-tf32-part",
        "address",
    ),
    "inputs outside the map": (
        "&& at[i % places] >= 0;",
        ";",
        "col2im-2d-k3-s1-tf32-part",
        "address",
    ),
    "rows of channels beyond the last": (
        "exists(channel) && number * weight_items < rows",
        "exists(channel)",
        "col2im-2d-k3-s1-tf32-whole",
        "address",
    ),
    "a run from where it does not begin": (
        "* Shape::run_items - shift, left = run - before;",
        "* Shape::run_items, left = run - before;",
        "col2im-1d-k4-s2-fp16-whole",
        "plain",
    ),
    "the whole of a run's last copy": (
        "present && items > 0 ? items * Shape::item_bytes : 0",
        "present && items > 0 ? 16 : 0",
        "col2im-1d-k4-s2-fp16-whole",
        "address",
    ),
    "images beyond the batch": (
        "if (first_input.image + image >= batch) continue;",
        "",
        "col2im-1d-k64-s32-tf32-shared",
        "address",
    ),
    "taps beyond the kernel": (
        "return tap(number) < Axis::kernel && in_range(input(number), inputs);",
        "return in_range(input(number), inputs);",
        "col2im-2d-k3-s2-op1-tf32-whole",
        "plain",
    ),
    "the sums of one set of warps": (
        "split < Shape::splits; ++split)\n#pragma unroll\n          for (int k",
        "split < 1; ++split)\n#pragma unroll\n          for (int k",
        "col2im-2d-k2-s2-aligned-tf32-whole",
        "plain",
    ),
    "a quotient that is rounded": (
        "(static_cast<float>(number) + 0.5f) * inverse_divisor",
        "(static_cast<float>(number) + 1.0f) * inverse_divisor",
        "col2im-2d-k3-s1-fp16-whole",
        "plain",
    ),
    "a k-tile that is not waited for, where weights are resident": (
        "copies.waiting.template wait<Shape::stages_ahead - 1>();\n      col2im_meet",
        "copies.waiting.template wait<Shape::stages_ahead>();\n      col2im_meet",
        "col2im-1d-k4-s2-tf32-resident",
        "plain",
    ),
    "resident weights that are not waited for": (
        "copies.waiting.template wait<Shape::stages_ahead>();\n    col2im_meet",
        "col2im_meet",
        "col2im-2d-k3-s1-tf32-resident-shared",
        "plain",
    ),
    "weights that are put in order before all are there": (
        "col2im_meet<Layer, Tile>(set);  // all see the weights",
        "// all see the weights",
        "col2im-2d-k3-s1-tf32-resident-shared",
        "thread",
    ),
    "weights that are put where others still read": (
        "col2im_meet<Layer, Tile>(set);\n#pragma unroll\n    for (int i = 0; i < turns; ++i)",
        "#pragma unroll\n    for (int i = 0; i < turns; ++i)",
        "col2im-2d-k3-s1-tf32-resident-shared",
        "thread",
    ),
    "a set that does not meet, where weights are resident": (
        "col2im_meet<Layer, Tile>(set);  // all see the k-tile, and none reads the one before any more\n      ask();",
        "ask();",
        "col2im-2d-k3-s1-tf32-resident-shared",
        "thread",
    ),
    "sums in place of those that are still read": (
        "if (Tile::Warps::splits > 1) __syncthreads();",
        "",
        "col2im-2d-k3-s1-tf32-resident",
        "thread",
    ),
    "sums of a position that are read before all are there": (
        "__syncthreads();\n    const BlockTilePosition first = block_tiles.first_position(",
        "const BlockTilePosition first = block_tiles.first_position(",
        "col2im-2d-k3-s1-tf32-resident-shared",
        "thread",
    ),
    "the same block tile's inputs again": (
        "numbers_ahead = block_tiles.sum(numbers_ahead, step);",
        "numbers_ahead = numbers_ahead;",
        "col2im-2d-k3-s1-tf32-resident",
        "plain",
    ),
    "numbers of block tiles without a carry": (
        "if (sum.column >= columns) sum.column -= columns, ++sum.row;",
        "if (sum.column >= columns) sum.column -= columns;",
        "col2im-2d-k3-s1-tf32-resident",
        "plain",
    ),
    "positions too early, where outputs are aligned": (
        "first = (number - 1) * step + size + lowest;",
        "first = (number - 1) * step + size;",
        "col2im-1d-k4-s2-fp16-resident",
        "plain",
    ),
    "phases of outputs that are not aligned": (
        "return tap * Axis::dilation - moved + Axis::stride;",
        "return tap * Axis::dilation + Axis::stride;",
        "col2im-1d-k4-s2-fp16-resident",
        "plain",
    ),
    "inputs beyond the map's end that count as there": (
        "first + count - 1 - Span::lowest < inputs;",
        "first + count - 2 - Span::lowest < inputs;",
        "col2im-2d-k3-s2-aligned-tf32-resident",
        "plain",
    ),
    "taps outside the map": (
        "const bool there = all_there || (",
        "const bool there = true || (",
        "col2im-2d-k3-s2-aligned-tf32-resident",
        "plain",
    ),
    "vectors of outputs in rows that are not aligned": (
        "Shape::vector > 1 && output_width % Shape::vector == 0",
        "Shape::vector > 1",
        "col2im-2d-k4-s4-d2-tf32-resident",
        "address",
    ),
    "images beyond the batch, where weights are resident": (
        "if (first.image + image >= batch) continue;",
        "",
        "col2im-1d-k64-s32-tf32-resident-shared",
        "address",
    ),
    "output channels beyond the last": (
        "|| channel < Layer::group_out_channels;",
        "|| true;",
        "col2im-2d-k3-s1-tf32-resident",
        "address",
    ),
    "a run of 32-bit items from where it does not begin": (
        "begin + of_image * plane &",
        "of_image * plane &",
        "col2im-1d-k4-s2-tf32-resident",
        "plain",
    ),
    "a position's sums of one set of warps": (
        "split < Shape::splits; ++split)\n#pragma unroll\n            for (int k",
        "split < 1; ++split)\n#pragma unroll\n            for (int k",
        "col2im-2d-k2-s2-aligned-tf32-resident",
        "plain",
    ),
}


BY_FAMILY = {
    "direct": MUTATIONS,
    "mma": MUTATIONS_OF_MMA,
    "wgmma": MUTATIONS_OF_WGMMA,
    "col2im": MUTATIONS_OF_COL2IM,
    "col2im_wgmma": MUTATIONS_OF_COL2IM_WGMMA,
    "programs": MUTATIONS_OF_PROGRAMS,
}


def instance_of(name: str) -> Instance:
    """The named instance, or of those without a program the one of another precision: which one a case has is no
    matter here."""
    bare, _, program = name.rpartition("-")
    if program in PROGRAMS:
        return PROGRAMMED.get(name) or replace(with_program(INSTANCES[bare], PROGRAMS[program]), name=name)
    case, _, width = name.rsplit("-", 2)
    others = (i for n, i in INSTANCES.items() if n.startswith(case + "-") and n.endswith(width))
    return INSTANCES.get(name) or next(others)


#: The names of all instances that catch a mistake.
NAMED = {instance_of(name).name for mutations in BY_FAMILY.values() for _, _, name, _ in mutations.values()}
