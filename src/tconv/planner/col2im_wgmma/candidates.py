"""The tiles of the `col2im_wgmma` family that are worth a prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tconv.planner.col2im.inputs import (
    LEAST_COPY,
    MOST_IN_VAIN,
    block_tiles,
    copies_fit,
    copies_of,
    has_few_outputs,
    in_vain,
)
from tconv.planner.col2im.shape import together
from tconv.planner.col2im.tile import BlockTile
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape, of_phases, sums_by_position
from tconv.planner.col2im_wgmma.tile import Col2imWgmmaTile, Warpgroups
from tconv.planner.gpu import RESERVED_SHARED_BYTES, SHARED_BYTES, Gpu
from tconv.planner.input_order import has_vectors
from tconv.planner.numbers import Array, crossed, every, joined, least, length, most, taken
from tconv.problem import Layer, Problem

#: What is tried: positions of a block, about; how its warpgroups share its tile (rows, positions, sets); output
#: channels of a block, as far as rows are this few or many; steps of a k-tile; blocks for which shared memory is
#: divided.
_POSITIONS = (16, 32, 64, 96, 128, 192, 256)
_WARPGROUPS = tuple(
    Warpgroups(high, wide, splits)
    for high, wide, all_splits in ((1, 1, (1, 2, 4)), (2, 1, (1, 2)), (1, 2, (1, 2)), (2, 2, (1,)), (4, 1, (1,)))
    for splits in all_splits
)
_CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_LEAST_ROWS, _MOST_ROWS = 32, 512
_K_TILE_STEPS = (2, 4)
_BLOCKS = (1, 2)
_MOST_STAGES = 8
#: Bytes of which the beginning of a stage is a multiple.
_STAGE_ALIGNMENT = 1024
#: Inputs of a channel, over the batch, beyond which weights that pass by again and again cost more than preparing them.
_MOST_INPUTS = 2**15
#: The same where taps do not overlap, so that nothing is summed, and weights have at most so many bytes: they pass by
#: from the L2 cache.
_MOST_INPUTS_APART, _MOST_BYTES_APART = 2**16, 2**24
#: Taps beyond which blocks may have some phases of the width alone.
_MANY_TAPS = 128
#: The same for layers of few output channels: with more, `col2im` keeps all weights of a block.
_FEW_CHANNELS, _MOST_INPUTS_OF_FEW = 8, 4096


def col2im_wgmma_tile(
    problem: Problem,
    block_tile: BlockTile,
    *,
    warpgroups: Warpgroups,
    channels: int,
    phases: int = 0,
    k_tile_steps: int,
    stages: int,
    channels_last: bool = False,
    prepared_inputs: bool = False,
) -> Col2imWgmmaTile:
    """The tile with these numbers, and the largest copies that the sizes of `problem` allow."""
    own = own_problem(problem, phases)
    # With one tap inputs are most of what is copied: not four bytes at a time, if they lie in runs.
    shortest = LEAST_COPY + (math.prod(own.layer.kernel) == 1)
    inputs_last = channels_last or prepared_inputs
    copies = copies_of(own, block_tile, _aligned(own.layer, channels_last), inputs_last, shortest)
    tile = Col2imWgmmaTile(
        warpgroups=warpgroups,
        block_tile=block_tile,
        channels=channels,
        phases=phases,
        k_tile_steps=k_tile_steps,
        stages=stages,
        **vars(copies),
        channels_last=int(channels_last),
        blocks=1,
        prepared_inputs=int(prepared_inputs),
    )
    return replace(tile, blocks=Col2imWgmmaShape(problem.layer, tile).blocks_that_fit)


def candidates(problem: Problem, gpu: Gpu, channels_last: bool = False) -> Col2imWgmmaTile | None:
    """Tiles that compute `problem`, as arrays; None where none fits."""
    of_all = [_candidates(problem, gpu, channels_last, phases) for phases in _phases(problem)]
    parts = [part for tiles in of_all for part in tiles if length(part)]
    return joined(parts, [length(part) for part in parts]) if parts else None


def _candidates(problem: Problem, gpu: Gpu, channels_last: bool, phases: int) -> Sequence[Col2imWgmmaTile]:
    """Those of blocks with so many phases along the width."""
    layer, own = problem.layer, own_problem(problem, phases)
    tried = dict.fromkeys(
        block_tiles(own, _POSITIONS, _aligned(own.layer, channels_last), long_rows=True, whole_rows=True)
    )
    copied = [
        col2im_wgmma_tile(
            problem,
            each,
            warpgroups=_WARPGROUPS[0],
            channels=1,
            phases=phases,
            k_tile_steps=_K_TILE_STEPS[0],
            stages=1,
            channels_last=channels_last,
            prepared_inputs=prepared,
        )
        for prepared in ((False, True) if may_prepare(problem) and not channels_last else (False,))
        for each in tried
    ]
    channels = _channels(own.layer)
    if not copied or not channels:
        return []
    channel, warpgroup, block_tile, step = crossed(len(channels), len(_WARPGROUPS), len(copied), len(_K_TILE_STEPS))
    tiles = replace(
        taken(joined(copied, [1] * len(copied)), block_tile),
        warpgroups=taken(joined(_WARPGROUPS, [1] * len(_WARPGROUPS)), warpgroup),
        channels=every(channels, channel),
        k_tile_steps=every(_K_TILE_STEPS, step),
    )
    shape, warpgroups = Col2imWgmmaShape(layer, tiles), tiles.warpgroups
    good: Array = shape.fits_registers & shape.fits_products & has_few_outputs(own, tiles)
    # No warpgroup has zeros alone, and no set.
    good &= (2 * shape.block_rows > 64 * warpgroups.high) & (warpgroups.splits <= shape.k_tiles)
    return list(_with_stages(layer, taken(tiles, good), gpu)) if good.any() else []


def _with_stages(layer: Layer, tiles: Col2imWgmmaTile, gpu: Gpu) -> Iterator[Col2imWgmmaTile]:
    """The tiles with as many stages as leave room for so many blocks on a multiprocessor."""
    shape, before = Col2imWgmmaShape(layer, tiles), 0
    for blocks in _BLOCKS:
        room = min(gpu.shared_bytes_per_block, SHARED_BYTES // blocks - RESERVED_SHARED_BYTES)
        of_set = room // tiles.warpgroups.splits // _STAGE_ALIGNMENT * _STAGE_ALIGNMENT - shape.moved_bytes
        stages: Array = least(of_set // shape.stage_bytes, least(_MOST_STAGES, shape.set_k_tiles))
        found = replace(tiles, stages=most(1, stages))
        found = replace(found, blocks=Col2imWgmmaShape(layer, found).blocks_that_fit)
        fits = Col2imWgmmaShape(layer, found).shared_bytes <= gpu.shared_bytes_per_block
        fits &= (stages >= least(shape.stages_read + 1, shape.set_k_tiles)) & (stages != before)
        yield taken(found, fits)
        before = stages


def why_none(problem: Problem) -> str | None:
    """Why there are no tiles; None where there may be."""
    inputs, channels = problem.batch * math.prod(problem.input_size), problem.layer.out_channels_per_group
    few = channels <= _FEW_CHANNELS and math.prod(problem.layer.kernel) <= _MANY_TAPS
    limit = _MOST_INPUTS_OF_FEW if few else _MOST_INPUTS_APART if _is_apart(problem.layer) else _MOST_INPUTS
    if inputs > limit:
        return f"{inputs} inputs of a channel are more than {limit}, with {channels} output channels"
    if in_vain(problem) > MOST_IN_VAIN:
        return f"an output of so small a map has one of {in_vain(problem):.0f} taps that are tried"
    return None


def _is_apart(layer: Layer) -> bool:
    """Whether its taps do not overlap, there are several, and its weights are few."""
    weight_bytes = math.prod(layer.weight_shape) * layer.item_bytes
    return layer.taps_per_output == 1 and math.prod(layer.kernel) > 1 and weight_bytes <= _MOST_BYTES_APART


def _channels(layer: Layer) -> list[int]:
    """Output channels of a block: some numbers, and those whose taps fill tiles of 64 rows; even ones copy more."""
    taps, all_channels = math.prod(layer.kernel), layer.out_channels_per_group
    full = [rows // taps for rows in range(64, _MOST_ROWS + 1, 64)]
    tried = sorted({*_CHANNELS, *full, *(channels // 2 * 2 for channels in full)})
    return [c for c in tried if 0 < c < 2 * all_channels and _LEAST_ROWS <= c * taps <= _MOST_ROWS]


def divides_phases(layer: Layer) -> bool:
    """Whether a block may have some phases along the width: all have as many taps, whose weights are neighbours."""
    width = layer.axes[2]
    return width.stride > 1 and width.dilation == 1 and width.kernel % width.stride == 0 and not layer.weights_last


def may_prepare(problem: Problem) -> bool:
    """Whether a kernel may bring the inputs into channels_last order, in which they are not yet."""
    return has_vectors(problem.layer) and math.prod(problem.input_size) > 1


def own_problem(problem: Problem, phases: int) -> Problem:
    """The problem that blocks with so many phases along the width compute."""
    if not phases:
        return problem
    return replace(problem, layer=of_phases(problem.layer, phases), output_padding=(*problem.output_padding[:2], 0))


def _phases(problem: Problem) -> list[int]:
    """What is tried: all of them, which is 0; and, where these are many, those that fill copies."""
    layer, stride = problem.layer, problem.layer.stride[2]
    few_outputs = problem.output_padding[2] <= layer.padding[2]  # no position is without inputs
    if math.prod(layer.kernel) <= _MANY_TAPS or not divides_phases(layer) or not few_outputs:
        return [0]
    of_copy = 16 // layer.item_bytes
    return [0, *(phases for phases in range(of_copy, stride, of_copy) if stride % phases == 0)]


def fits(problem: Problem, tile: Col2imWgmmaTile) -> bool:
    """Whether a kernel with `tile` runs `problem`."""
    own = own_problem(problem, tile.phases)
    aligned = _aligned(own.layer, bool(tile.channels_last))
    return copies_fit(own, tile, aligned, bool(tile.prepared_inputs)) and not why_none(problem)


def _aligned(layer: Layer, channels_last: bool) -> bool:
    """Whether outputs of a position begin at a multiple of the stride: where several are stored at once."""
    by_position = sums_by_position(math.prod(layer.kernel), math.prod(layer.stride))
    return bool(by_position) and not channels_last and together(layer) > 1
