"""What the planner asks of a family of kernels: one object answers all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from tconv.planner import input_order
from tconv.planner.block_tiles import PREPARING_THREADS
from tconv.planner.gpu import Gpu
from tconv.planner.numbers import INDEX_LIMIT, equals, single
from tconv.planner.plan import InputPreparation, Kernel, Plan, Preparation, Tile, Unplannable
from tconv.problem import Layer, Problem

#: The capability of GPUs whose warpgroups multiply.
_HOPPER = 90
#: Where kernels of several families are compared, those with prepared inputs count so much more: the models have seen
#: few of the layers on which they are about as fast as others.
_CAUTION = 1.07

_Cost = TypeVar("_Cost", bound="Cost")


class Cost:
    """What a model predicts of a kernel, or of many: a dataclass of the seconds of each part, and of all together.

    Those of preparing weights limit nothing: they come before.
    """

    seconds: Any

    def beside_others(self: _Cost, prepared_inputs: int) -> _Cost:
        """It, to compare with those of other families' kernels: of a kernel with prepared inputs or without."""
        own: Any = self
        compared: _Cost = replace(own, seconds=self.seconds * _CAUTION) if prepared_inputs else self
        return compared

    @property
    def limits(self) -> dict[str, float]:
        """The seconds of each part."""
        return {name: value for name, value in vars(self).items() if name not in ("preparation", "seconds")}


@dataclass(frozen=True)
class Ranked(Generic[Tile]):
    """A kernel that computes a problem, and what the model of its family predicts for sizes like these."""

    kernel: Kernel[Tile]
    cost: Any

    @property
    def seconds(self) -> float:
        return float(self.cost.seconds)


@dataclass(frozen=True)
class Candidates(Generic[Tile]):
    """Tiles for one problem, as arrays, and their costs: a sequence of which only what is asked for is built."""

    family: str
    layer: Layer
    tiles: Tile
    costs: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Ranked[Tile]:
        return Ranked(Kernel(self.family, self.layer, single(self.tiles, place)), single(self.costs, place))

    def order(self) -> np.ndarray:
        """Places, the cheapest tile first."""
        return np.argsort(np.broadcast_to(self.costs.seconds, self.count), kind="stable")

    def first(self, count: int | None = None) -> list[Ranked[Tile]]:
        """So many of the cheapest, or all."""
        return [self[place] for place in self.order()[:count]]

    def has(self, tile: Any) -> bool:
        """Whether this tile is among them."""
        return type(tile) is type(self.tiles) and bool(equals(self.tiles, tile).any())


class Family(ABC, Generic[Tile]):
    """A family of kernels.

    `tconv.planner.FAMILIES` lists them. A new one is a folder here and one in `kernels`, and a line in that list.
    """

    #: Its name: that of its folders, of its headers and of the functions in them.
    name: str
    #: The class of its tiles.
    tile: type[Tile]
    #: The constants of a kernel, by a layer and a tile. The template of them has the same name.
    shape: type[Any]
    #: The module of the rules for launches, of one family or of several: ``grid``, ``counted`` and
    #: ``needs_wide_index``, of a problem, a layer and the ``LaunchTraits`` that `launch_traits` gives.
    rules: ModuleType
    #: Whether it takes a precision that only tensor cores gain from.
    on_tensor_cores: bool
    #: Bytes at whose multiples input and weights begin.
    alignment: int
    #: Whether a kernel may run maps of other sizes than it was planned for: `runs` says of which.
    any_size: bool = True
    #: Which outputs a non-finite number reaches: those that depend on it, or others of the same phases as well.
    reach: Literal["exact", "phases"]

    @staticmethod
    @abstractmethod
    def launch_traits(layer: Layer, tile: Tile, multiprocessors: int) -> Any:
        """What launches need to know of a kernel with `tile`, or with many, on so many multiprocessors.

        With `rules` it gives the numbers of ``{name}_launch`` in `kernels/{name}/launch.cuh`. Both are needed: the
        planner ranks thousands of tiles by them, none of them compiled, and a written file has no planner.
        `tests/kernels/test_shapes.py` compares them.
        """

    @abstractmethod
    def why_not(self, problem: Problem, gpu: Gpu) -> str | None:
        """Why the family does not run `problem` on `gpu`; None if it does."""

    @abstractmethod
    def candidates(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[Tile] | None:
        """The tiles that the planner considers for sizes like those of `problem`, which the family runs.

        None where no tile fits into shared memory.
        """

    @abstractmethod
    def best(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> tuple[Ranked[Tile], int] | None:
        """The one of them that is predicted to be the fastest, and how many there are; remembered."""

    @abstractmethod
    def cost(self, problem: Problem, kernel: Kernel[Tile], gpu: Gpu) -> Cost:
        """What the model predicts of a kernel on the very sizes of `problem`; its ``seconds`` compare families."""

    @abstractmethod
    def runs(self, kernel: Kernel[Tile], problem: Problem) -> bool:
        """Whether a kernel that was planned for a layer at some sizes runs `problem`, of the same layer."""

    @abstractmethod
    def reasons(self, problem: Problem, kernel: Kernel[Tile]) -> tuple[str, ...]:
        """What a kernel does with a problem, and why its tile is what it is, a line each."""

    def too_long(self, problem: Problem, positions: int) -> str | None:
        """Why coordinates do not fit into 32 bits; None if they do.

        Args:
            positions: by how many a block may pass the end of an axis.
        """
        for axis, size in zip(problem.layer.axes, problem.output_size, strict=True):
            beyond = positions * axis.stride + axis.padding
            if max(size, axis.dilation * (axis.kernel - 1)) + beyond >= INDEX_LIMIT:
                return f"an axis of {size} outputs is longer than the {self.name} family's 2^31"
        return None

    def no_hopper(self, gpu: Gpu) -> str | None:
        """Why a family of warpgroups' products does not run on `gpu`; None if it does."""
        if gpu.capability == _HOPPER:
            return None
        return f"the {self.name} family needs sm_{_HOPPER}a; {gpu.name} is {gpu.arch}"

    def constants(self, kernel: Kernel[Tile]) -> Mapping[str, int]:
        """What Python says of the constants of the kernel's template, by their names there."""
        shape = self.shape(kernel.layer, kernel.tile)
        return {name: getattr(shape, name) for name in shape.constants()}

    def reads_channels_last(self, kernel: Kernel[Tile]) -> bool:
        """Whether its input and output are channels_last; else they are contiguous."""
        return False

    def counted(self, problem: Problem, kernel: Kernel[Tile], traits: Any) -> int:
        """What must stay below 2^31 where a kernel is launched so."""
        by_rules = int(self.rules.counted(problem, kernel.layer, traits))
        return max(by_rules, input_order.counted(problem)) if kernel.prepares_inputs else by_rules

    def input_preparation(self, problem: Problem, kernel: Kernel[Tile], gpu: Gpu) -> InputPreparation | None:
        """The launch that prepares the inputs of a kernel; None where that takes them as they are."""
        return input_order.input_preparation(problem, gpu.multiprocessors) if kernel.prepares_inputs else None

    def plan(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Plan:
        """The plan of `problem` on `gpu`, for input and output in one memory format, with the tile predicted fastest.

        Raises:
            Unplannable: the family does not run it; the message says why.
        """
        if reason := self.why_not(problem, gpu):
            raise Unplannable(reason)
        found = self.best(problem, gpu, channels_last)
        if found is None:
            raise Unplannable(f"no tile of the {self.name} family fits into shared memory")
        best, tried = found
        kernel = self._at(problem, best.kernel)
        cost = self.cost(problem, kernel, gpu)
        reasons = self.reasons(problem, kernel)
        if tried > 1:
            limits = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in cost.limits.items())
            predicted = f"{cost.seconds * 1e3:.3f} ms for this one ({limits})"
            reasons += (f"first of {tried} tiles by the model, for sizes like this one; {predicted}",)
        plan = self.plan_with(problem, kernel, gpu, reasons)
        if plan.shared_bytes > gpu.shared_bytes_per_block:
            raise Unplannable(
                f"the {self.name} family would need {plan.shared_bytes} bytes of shared memory a block; "
                f"{gpu.name} has {gpu.shared_bytes_per_block}"
            )
        return replace(plan, predicted_seconds=float(cost.seconds))

    def plan_with(self, problem: Problem, kernel: Kernel[Tile], gpu: Gpu, reasons: tuple[str, ...] = ()) -> Plan:
        """The plan that runs `kernel`, whose layer must compute `problem`, on `gpu`.

        Raises:
            Unplannable: the grid would be too large.
        """
        of_kernel = self.launch_traits(kernel.layer, kernel.tile, gpu.multiprocessors)
        counted = self.counted(problem, kernel, of_kernel)
        if counted >= INDEX_LIMIT:
            raise Unplannable(
                f"the {self.name} family would count {counted} blocks, or positions or channels of all images; "
                "they must be fewer than 2^31"
            )
        preparation = None
        if kernel.prepares_weights:
            preparation = Preparation(of_kernel.preparing_blocks, PREPARING_THREADS, of_kernel.weight_bytes)
            if preparation.grid >= INDEX_LIMIT:
                raise Unplannable(
                    f"the {self.name} family would prepare weights with {preparation.grid} blocks; a grid has fewer "
                    "than 2^31"
                )
        grid = self.rules.grid(problem, kernel.layer, of_kernel)
        inputs = self.input_preparation(problem, kernel, gpu)
        return Plan(problem, kernel, grid, of_kernel.shared_bytes, reasons, preparation, inputs)

    def replan(self, problem: Problem, kernel: Kernel[Tile], gpu: Gpu) -> Plan | None:
        """The plan that runs `problem` by a kernel that was chosen for its layer at other sizes; None if it cannot be.

        Raises:
            Unplannable: the grid would be too large.
        """
        return self.plan_with(problem, self._at(problem, kernel), gpu) if self.runs(kernel, problem) else None

    def considered(self, problem: Problem, gpu: Gpu, channels_last: bool = False) -> Candidates[Tile] | None:
        """`candidates`; None also where the family does not run `problem` at all."""
        return None if self.why_not(problem, gpu) else self.candidates(problem, gpu, channels_last)

    def _at(self, problem: Problem, kernel: Kernel[Tile]) -> Kernel[Tile]:
        of_kernel = self.launch_traits(kernel.layer, kernel.tile, 1)
        return replace(kernel, wide_index=self.rules.needs_wide_index(problem, kernel.layer, of_kernel))
