"""What follows from a layer and a tile of the `direct` family."""

from __future__ import annotations

import functools

from tconv.planner.direct.tile import DirectTile
from tconv.planner.gpu import REGISTERS
from tconv.planner.numbers import ceil_div, least, most, nowhere, where, whole
from tconv.problem import Axis, Layer

_WARP = 32
#: A block with resident weights walks over the row phases; over so many at most, or most of the GPU would be idle.
_MOST_WALKED_ROW_PHASES = 64
#: Longer sums than this are taken in chains.
_CHAIN = 64
#: Lines of an exchange are taken together until they have so many steps.
_EXCHANGE_STEPS = 16
#: The most that a thread stores at once.
_VECTOR_BYTES = 16
#: What a thread may have of a multiprocessor's registers where a block has 128 threads or fewer.
_REGISTER_LIMITS = (48, 64, 80, 96, 128, 168, 255)


_CONSTANTS = (
    *("threads", "position_threads", "block_runs", "run_columns", "run_rows"),
    *("accumulator_rows", "own_row_taps", "input_rows", "thread_accumulators"),
    *("row_phases", "resident", "parts", "chained", "window", "tile_rows", "tile_items"),
    *("accumulator_bytes", "channel_items", "weight_items", "exchange_items", "split_items", "shared_bytes"),
)


class DirectShape:
    """The constants of a kernel: `DirectShape` of `kernels/direct/shape.cuh` has those of the same names.

    The tile may stand for many (`tconv.planner.numbers`); all of a layer have the same `phase_lanes` and origins.
    """

    def __init__(self, layer: Layer, tile: DirectTile) -> None:
        self.layer = layer
        self.tile = tile

    def constants(self) -> list[str]:
        """The names of those that the template must agree on."""
        if nowhere(self.tile.warps_wide > 0):
            return [name for name in _CONSTANTS if not name.startswith("tile_")]
        return list(_CONSTANTS)

    # ---- who owns what ----

    @functools.cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @functools.cached_property
    def position_threads(self) -> int:
        """Those of one set."""
        return self.tile.position_lanes * self.tile.phase_lanes

    @functools.cached_property
    def block_runs(self) -> int:
        """Runs that a block owns at once."""
        return self.position_threads // _WARP

    @functools.cached_property
    def run_columns(self) -> int:
        """Positions of a run in a row."""
        return self.tile.columns * self.tile.positions

    @functools.cached_property
    def run_rows(self) -> int:
        """Groups of rows that a warp owns a run of at once."""
        return 1 if self.tile.phase_lanes > 1 else _WARP // self.tile.columns

    @functools.cached_property
    def accumulator_rows(self) -> int:
        """Rows of outputs that a thread sums up."""
        return where(self.tile.stacked > 0, self.tile.rows * self.layer.axes[1].phases_with_taps, 1)

    @functools.cached_property
    def own_row_taps(self) -> int:
        """Taps of height that a thread multiplies with."""
        return where(self.tile.stacked > 0, self.layer.kernel[1], 1)

    @functools.cached_property
    def input_rows(self) -> int:
        """Rows from the topmost to the lowest input of a thread."""
        axis = self.layer.axes[1]
        height = Axis(axis.kernel, axis.stride, axis.padding - self.tile.row_origin, axis.dilation)
        rows = self.tile.rows + height.shift_of(height.kernel - 1) - height.shift_of(0)
        return where(self.tile.stacked > 0, rows, 1)

    @functools.cached_property
    def thread_accumulators(self) -> int:
        """Accumulators that a thread keeps."""
        return self.accumulator_rows * self.tile.phases * self.tile.positions * self.tile.channels

    # ---- the grid ----

    @functools.cached_property
    def row_phases(self) -> int:
        """Row phases that blocks take one at a time: those of depth alone if all of height are in registers."""
        return self.layer.stride[0] * where(self.tile.stacked > 0, 1, self.layer.stride[1])

    @functools.cached_property
    def resident(self) -> bool:
        """Whether a block keeps all its weights, and walks over positions and row phases with them."""
        return (
            (self.tile.k_tile_rows == self.layer.kernel[0] * self.layer.kernel[1])
            & (self.tile.k_tile_channels >= self.layer.in_channels_per_group)
            & (self.tile.k_tile_taps >= self.layer.axes[2].taps_per_phase)
            & (self.row_phases <= _MOST_WALKED_ROW_PHASES)
        )

    @functools.cached_property
    def parts(self) -> int:
        """Blocks that share one run of positions: runs of column phases and of channels, groups, row phases."""
        column_blocks = 1
        if self.tile.phase_lanes > 1:
            column_blocks = ceil_div(self.layer.stride[2], self.tile.phase_lanes * self.tile.phases)
        channel_blocks = ceil_div(self.layer.out_channels_per_group, self.tile.channels)
        return where(self.resident, 1, self.row_phases) * column_blocks * channel_blocks * self.layer.groups

    # ---- long sums ----

    @functools.cached_property
    def chained(self) -> bool:
        """Whether accumulators are taken in chains, to keep rounding errors small where nothing else hides them."""
        long = self.layer.products_per_output > _CHAIN * self.tile.splits
        return (self.layer.precision in ("fp32", "fp64")) & long

    # ---- inputs: those of a thread, or of a block's tile ----

    @functools.cached_property
    def window(self) -> int:
        """Inputs of one row and channel that a thread needs for each of its positions and one stage of taps."""
        first, further = window_steps(self.layer.axes[2], self.tile.origin, self.tile.phase_lanes, self.tile.phases)
        return first + (self.tile.k_tile_taps - 1) * further

    @functools.cached_property
    def tile_rows(self) -> int:
        """Rows of positions in a block's tile, if it has one."""
        return self.block_runs // most(1, self.tile.warps_wide) * self.run_rows * self.tile.rows

    @functools.cached_property
    def tile_items(self) -> int:
        """Places in shared memory for a tile's inputs of one channel. Lanes of different rows read different banks."""
        width = moved(self.layer.axes[2], self.tile.origin)
        columns = self.tile.warps_wide * self.run_columns + width.shift_of(width.kernel - 1) - width.shift_of(0)
        # The next pitch with ``rows * pitch % 32 == tile.columns``, if there is one. All three are powers of two.
        apart, wanted = _WARP // self.tile.rows, self.tile.columns // self.tile.rows
        can_be = (self.run_rows > 1) & (self.tile.columns % self.tile.rows == 0)
        pitch = where(can_be, columns + (wanted - columns) % apart, columns)
        return (self.tile_rows + self.input_rows - self.tile.rows) * pitch

    # ---- shared memory, in accumulators ----

    @functools.cached_property
    def accumulator_bytes(self) -> int:
        """Bytes of an accumulator, and of a weight in shared memory."""
        return 4 * accumulator_words(self.layer)

    @functools.cached_property
    def channel_items(self) -> int:
        """Places for the weights of one row tap and input channel: whole vectors of 16 bytes."""
        items = self.tile.k_tile_taps * self.tile.phase_lanes * self.tile.phases * self.tile.channels
        padding_to = 1 if self.tile.phase_lanes > 1 else 16 // self.accumulator_bytes
        return ceil_div(items, padding_to) * padding_to

    @functools.cached_property
    def weight_items(self) -> int:
        """Places for the weights of a stage."""
        return self.tile.k_tile_rows * self.tile.k_tile_channels * self.channel_items

    @functools.cached_property
    def exchange_items(self) -> int:
        """Places through which warps load interleaved column phases into rows."""
        stride, lines = self.layer.stride[2], self.tile.channels * self.accumulator_rows
        if self.tile.phase_lanes > 1 or stride == 1:
            return 0
        steps = self.tile.positions * stride
        at_once = 1
        for count in range(2, _EXCHANGE_STEPS + 1):
            fits = (lines % count == 0) & (count <= ceil_div(_EXCHANGE_STEPS, steps))
            at_once = where(fits, count, at_once)
        return self.block_runs * at_once * steps * (_WARP + (stride % 2 == 0))

    @functools.cached_property
    def split_items(self) -> int:
        """Places for what the other sets of warps give to the first."""
        return (self.tile.splits - 1) * self.thread_accumulators * self.position_threads

    @functools.cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: staged weights and, after or beside them, what warps exchange."""
        others = self.exchange_items + self.split_items
        after = where(self.resident, self.weight_items + others, most(self.weight_items, others))
        stage = where(self.tile.warps_wide > 0, self.tile.unroll * self.tile.splits * self.tile_items, 0)
        return (2 * ceil_div(stage, 4) * 4 + after) * self.accumulator_bytes

    # ---- what a compiler is expected to make of it; the kernel knows nothing of this ----

    @functools.cached_property
    def input_loads(self) -> int:
        """Loads of inputs that a thread does for one channel and one stage of taps."""
        # Rows of positions read as many rows of inputs at each shift; where shifts lie close together they share some.
        gaps = _gaps(self.layer.axes[1], row_origin(self.layer.axes[1]))
        rows = self.tile.rows + sum(count * least(self.tile.rows, gap) for gap, count in gaps)
        return where(self.tile.stacked > 0, rows, 1) * self.window * self.tile.positions

    @functools.cached_property
    def staged_loads(self) -> int:
        """Loads of inputs that a thread does for one channel of its block's tile."""
        return ceil_div(self.tile_items, self.tile.position_lanes * self.tile.splits)

    @functools.cached_property
    def registers(self) -> int:
        """Registers that a thread wants, by what NVRTC 13 took for sm_90; others take some fewer or more."""
        words = accumulator_words(self.layer)
        count = 33 + 1.27 * self.thread_accumulators * words * where(self.chained, 2, 1)
        loads = self.input_loads * words
        count = count + where(
            self.tile.warps_wide > 0,
            0.4 * loads + 2.1 * self.tile.unroll * self.tile.splits * self.staged_loads,
            loads * self.tile.unroll * where(self.tile.ahead > 0, 1.65, 1.1),
        )
        if self.tile.phase_lanes > 1:
            count = count + 5 * self.tile.phases
        elif self.layer.stride[2] > 1 and not is_vector(self.layer):
            count = count + where(self.run_rows == 1, 4, 22)
        count = count + where(self.resident, 0, 36) + (17 if self.layer.spatial_dims == 3 else 0)
        return whole(count + where(self.tile.splits > 1, 4, 0))

    def blocks_that_fit(self, optimism: float = 1.0) -> int:
        """Blocks for each multiprocessor that registers allow, if the estimate is `optimism` times too high."""
        wanted = self.registers / optimism
        allowed = _REGISTER_LIMITS[-1]
        for limit in _REGISTER_LIMITS[-2::-1]:
            allowed = where(wanted <= limit, limit, allowed)
        return most(1, least(16, REGISTERS // (allowed * self.threads)))


@functools.lru_cache(maxsize=1024)
def moved(axis: Axis, origin: int) -> Axis:
    """The axis of positions that own the outputs from ``q * stride - origin`` on."""
    return Axis(axis.kernel, axis.stride, axis.padding - origin, axis.dilation)


def window_steps(axis: Axis, origin: int, phase_lanes: int, phases: int) -> tuple[int, int]:
    """Of `DirectShape.window` the inputs of the phases' first taps, and how many more each further tap takes."""
    if phase_lanes > 1:
        return phases, phases
    axis = moved(axis, origin)
    span = axis.shift_of(axis.phases_with_taps - 1) - axis.shift_of(0) + 1
    return span, min(span, axis.shift_period)


def accumulator_words(layer: Layer) -> int:
    """Registers of an accumulator."""
    return 2 if layer.precision == "fp64" else 1


def is_vector(layer: Layer) -> bool:
    """Whether the columns of a position make one vector, where rows allow it."""
    stride = layer.stride[2]
    return stride & (stride - 1) == 0 and stride * layer.item_bytes <= _VECTOR_BYTES


@functools.lru_cache(maxsize=256)
def row_origin(axis: Axis) -> int:
    """Where rows of positions start: so that taps share most inputs."""
    spans = {}
    for origin in range(min(axis.padding + 1, axis.stride)):
        height = moved(axis, origin)
        spans[origin] = height.shift_of(axis.kernel - 1) - height.shift_of(0)
    return min(spans, key=lambda origin: spans[origin])


@functools.lru_cache(maxsize=256)
def _gaps(axis: Axis, origin: int) -> list[tuple[int, int]]:
    """How far apart neighbouring shifts of the taps lie, and how often so far."""
    shifts = sorted({moved(axis, origin).shift_of(tap) for tap in range(axis.kernel)})
    gaps = [shifts[number + 1] - shifts[number] for number in range(len(shifts) - 1)]
    return [(gap, gaps.count(gap)) for gap in sorted(set(gaps))]
