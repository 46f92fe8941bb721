"""The `direct` family: every problem, on CUDA cores."""

from __future__ import annotations

import math
from functools import lru_cache

from tconv.planner.direct import launch as rules
from tconv.planner.direct.candidates import candidates
from tconv.planner.direct.model import DirectCost, predict
from tconv.planner.direct.shape import DirectShape
from tconv.planner.direct.tile import DirectTile
from tconv.planner.family import Candidates, Family, Ranked
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import length
from tconv.planner.plan import Kernel
from tconv.planner.sizes import representative
from tconv.problem import Problem


class _Direct(Family[DirectTile]):
    name = "direct"
    tile = DirectTile
    shape = DirectShape
    rules = rules
    launch_traits = staticmethod(rules.launch_traits)
    on_tensor_cores = False
    alignment = 1
    reach = "exact"

    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        return self.too_long(problem, 1)

    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[DirectTile]:
        alike = representative(problem)
        tiles = candidates(alike, gpu)
        return Candidates(self.name, problem.layer, tiles, predict(alike, tiles, gpu), length(tiles))

    def best(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> tuple[Ranked[DirectTile], int]:
        return _best(representative(problem), gpu)

    def cost(self, problem: Problem, kernel: Kernel[DirectTile], gpu: Gpu) -> DirectCost:
        return predict(problem, kernel.tile, gpu)

    def runs(self, kernel: Kernel[DirectTile], problem: Problem) -> bool:
        return True

    def reasons(self, problem: Problem, kernel: Kernel[DirectTile]) -> tuple[str, ...]:
        layer, tile = problem.layer, kernel.tile
        own = DirectShape(layer, tile)
        width = layer.axes[2]
        positions = math.prod(axis.positions(size) for axis, size in zip(layer.axes, problem.output_size, strict=True))
        lines = [
            f"{problem.batch * positions} positions x {math.prod(layer.stride)} phases; "
            f"a warp has {own.run_rows} x {own.run_columns} positions (rows x columns), "
            f"{tile.rows} such rows deep",
            f"{width.phases_with_taps} of {width.stride} column phases have taps: they lie "
            + ("across the lanes of a warp" if tile.phase_lanes > 1 else "in the registers of a thread")
            + (", with all row phases" if tile.stacked else ""),
            f"{own.thread_accumulators} accumulators a thread, {tile.channels} output channels",
            "weights stay in shared memory" if own.resident else "weights pass through shared memory in stages",
        ]
        if tile.warps_wide:
            columns = tile.warps_wide * own.run_columns
            lines.append(f"inputs of {own.tile_rows} x {columns} positions pass through shared memory in stages")
        if tile.splits > 1:
            lines.append(f"{tile.splits} sets of warps share the input channels")
        return (*lines, *(["64-bit positions"] if kernel.wide_index else []))


@lru_cache(maxsize=1024)
def _best(problem: Problem, gpu: Gpu) -> tuple[Ranked[DirectTile], int]:
    considered = DIRECT.candidates(problem, gpu)
    return considered.first(1)[0], len(considered)


DIRECT = _Direct()
