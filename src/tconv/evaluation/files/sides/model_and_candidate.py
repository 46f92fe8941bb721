"""`Model` on one case, and the candidate that is compared with it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tconv.errors import OutOfMemory
from tconv.evaluation.files.levels import Look
from tconv.evaluation.files.process.by_samples import at_samples
from tconv.evaluation.files.results.all_outputs import Comparisons, shapes
from tconv.evaluation.files.results.near_ties import SCALE, NearTies
from tconv.evaluation.files.results.output_rules import distance
from tconv.evaluation.files.results.state import randomised
from tconv.evaluation.files.sides.candidate_calls import Calls
from tconv.evaluation.files.sides.file_process import Outcome, Shapes, Side
from tconv.evaluation.files.sides.inputs import IN_EVALUATION, Case
from tconv.evaluation.files.sides.smaller_inputs import cut, cut_down
from tconv.evaluation.precision import Wanted
from tconv.evaluation.tolerance import TF32_OPERANDS
from tconv.evaluation.verdict import Level
from tconv.precision import of_kind
from tconv.problem import TF32
from tconv.sandbox.exchange import tensors
from tconv.sandbox.gpu_memory import place_for
from tconv.sandbox.model_file import ModelFileError

#: Most outputs stay in the host's memory, except pieces under comparison, as both models need the GPU's memory.
HOST = torch.device("cpu")
#: Relative distances up to this one may be rounding in any type. A different result is further away.
ROUNDING = 0.1
#: Operands are moved by this many units in the last place of float32, which is more than a layer's sums round.
_MOVED_UNITS = 16
#: Multiply-adds of one forward pass on small inputs, in PyTorch's operators and in the emulator.
_SMALL_WORK, _EMULATED_WORK = 10**7, 10**6
#: A random state is used if more than this share of its results are finite numbers.
_NUMBERS = 0.5


@dataclass(frozen=True)
class Reference:
    """`Model`'s results on one case, for comparison with a candidate's.

    Args:
        model: the process of `Model`, in any state before and after.
        device: the device of comparisons.
        level: the level of the checks.
        further: looks beyond this level.
    """

    case: Case
    model: Side
    wanted: Wanted
    device: torch.device
    level: Level
    further: tuple[Look, ...] = ()

    def looks_at(self, look: Look) -> bool:
        """Whether this judgement has the look."""
        return look.within(self.level) or look in self.further

    def built(self, seed: int) -> dict[str, Tensor]:
        """`Model`'s state as it is built after seeding."""
        return self.model.construct(seed, self.case.arguments)

    def drawn_state(self, seed: int, inputs: list[Any], training: bool) -> dict[str, Tensor]:
        """A random state. Its parameters have both signs if `Model` gives finite numbers for such in this mode."""
        built = self.built(seed)
        state = randomised(built, seed)
        other = randomised(built, seed, [each.name for each in self.model.parameters()])
        if any(not torch.equal(other[name], state[name]) for name in state if state[name].isfinite().all()):
            with contextlib.suppress(ModelFileError):
                outputs = self.plain(inputs, other, seed, training).outputs["output"]
                if all(float(tensor.isfinite().double().mean()) > _NUMBERS for _, tensor in tensors(outputs)):
                    return other
        return state

    def plain(
        self,
        inputs: list[Any],
        state: dict[str, Tensor],
        seed: int,
        training: bool | None = None,
        **options: Any,
    ) -> Outcome:
        """The outcome of `Model` in its own arithmetic; `options` are those of `Side.forward`."""
        mode = "fp32" if self.wanted == "fp32" else "plain"
        options = {"mode": mode, "training": training, "on": HOST, **options}
        return self.model.forward(inputs, state, seed=seed, **options)

    @cached_property
    def place(self) -> torch.device:
        """The device that keeps results of calls on the case's own inputs."""
        return place_for(4 * self.case.traced.largest, self.device)

    def finer(
        self, plain: Outcome, inputs: list[Any], state: dict[str, Tensor], seed: int, training: bool | None = None
    ) -> tuple[Any, Any]:
        """`Model`'s outputs on the inputs of its last call, `plain`: in float64, and on operands rounded to TF32.

        Returns:
            Both outputs. One is None if the model cannot run like that, as it makes tensors of its own, or if nothing
            is rounded.
        """
        # The process has the inputs, perhaps gigabytes, already, unless the model changes its inputs.
        there = inputs if any(name.startswith("input") for name in plain.changed) else None
        how = {"by_samples": True, "training": training}
        exact = self._in_float64(there, state, seed, **how)
        if exact is not None and exact.by_samples:
            # Small inputs are run at once, and say nothing of that.
            how["by_samples"] = near(plain.outputs, exact.outputs, ROUNDING)
            if training is None:  # in the mode in which the model is timed, too
                self.model.samples_apart = bool(how["by_samples"])
            if not how["by_samples"]:
                exact = self._in_float64(there, state, seed, **how)
        rounded = self._rounded(there, state, seed, **how)
        return None if exact is None else exact.outputs, rounded

    def finer_of(
        self, samples: Sequence[int], plain: Outcome, state: dict[str, Tensor], seed: int
    ) -> tuple[Any, Any] | None:
        """The same for some samples of the last inputs; None if samples depend on each other."""
        how = {"by_samples": True, "samples": samples}
        exact = self._in_float64(None, state, seed, **how)
        if exact is None or not near(at_samples(plain.outputs, samples), exact.outputs, ROUNDING):
            return None
        self.model.samples_apart = True
        return exact.outputs, self._rounded(None, state, seed, **how)

    def _in_float64(self, inputs: list[Any] | None, state: dict[str, Tensor], seed: int, **how: Any) -> Outcome | None:
        """The outcome in float64; None if the model cannot run in float64. `how` are options of `Subject.forward`."""
        try:
            return self.model.forward(inputs, state, seed=seed, on=HOST, mode="float64", **how)
        except ModelFileError:
            return None

    def _rounded(self, inputs: list[Any] | None, state: dict[str, Tensor], seed: int, **how: Any) -> Any:
        """The outputs with operands rounded to TF32 in transposed convolutions that may use it; None if none may."""
        if self.wanted == "fp32":
            return None
        problems = enumerate(self.case.full.problems) if self.wanted == "match" else ()
        exempt = [number for number, problem in problems if problem is not None and of_kind(problem) not in TF32]
        options = {"mode": "rounded", "exempt": exempt, **how}
        return self.model.forward(inputs, state, seed=seed, on=HOST, **options).outputs

    def ties(
        self, inputs: list[Any], state: dict[str, Tensor], seed: int, training: bool | None = None, **options: Any
    ) -> NearTies:
        """The results of a call that depend on rounding; `options` are those of `Subject.forward`.

        With `training` given, the results are buffers and the "output".
        """
        move = SCALE * self.rounding([inputs, state])

        def moved(number: int) -> Any:
            for mode in ("float64", "plain"):
                given = {"mode": mode, "by_samples": mode == "float64", "move": move, "move_seed": number, **options}
                with contextlib.suppress(ModelFileError, OutOfMemory):
                    return self.plain(inputs, state, seed, training, **given).outputs
            return None

        return NearTies(moved)

    def rounding(self, values: Any) -> float:
        """The relative error of rounding operands: to their types, and to TF32 where it is allowed."""
        float32 = torch.finfo(torch.float32).eps
        types = (each.dtype for _, each in tensors(values) if each.is_floating_point())
        narrowest = max((torch.finfo(each).eps for each in types), default=float32)
        if narrowest > float32:
            return narrowest
        problems = [problem for problem in self.case.full.problems if problem is not None]
        rounded = self.wanted == "tf32" or (self.wanted == "match" and any(of_kind(each) in TF32 for each in problems))
        in_float64 = narrowest <= torch.finfo(torch.float64).eps
        return TF32_OPERANDS / 2 if rounded and not in_float64 else _MOVED_UNITS * narrowest

    def comparisons(self) -> Comparisons:
        """New comparisons for the outputs of one draw or several."""
        return Comparisons(self.case, self.device)


@dataclass(frozen=True)
class Pair(Reference):
    """`Model` and a candidate on one case.

    Args:
        calls: the candidate's calls.
        types: types that the candidate is cast to, except its own.
        emulated: whether its kernels run in the emulator.
    """

    calls: Calls = field(kw_only=True)
    types: Sequence[torch.dtype] = ()
    emulated: bool = False
    _small: dict[tuple[Any, ...], Shapes] = field(default_factory=dict)

    @classmethod
    def of(cls, reference: Reference, candidate: Side, **options: Any) -> Pair:
        """A pair of `reference` and a candidate; `options` are the other arguments."""
        same = {each.name: getattr(reference, each.name) for each in fields(Reference)}
        return cls(**same, calls=Calls(candidate), **options)

    @cached_property
    def small(self) -> tuple[list[Any], dict[str, Tensor]]:
        """Small inputs and a random state, for calls in evaluation."""
        inputs = self.small_inputs(IN_EVALUATION)
        return inputs, self.drawn_state(IN_EVALUATION, inputs, False)

    @property
    def in_evaluation(self) -> tuple[list[Any], dict[str, Tensor]]:
        """The case's inputs and a random state, for calls in evaluation. Their sizes may have kernels of their own."""
        inputs = self.case.inputs(IN_EVALUATION)
        return inputs, self.drawn_state(IN_EVALUATION, inputs, False)

    def small_inputs(self, seed: int) -> list[Any]:
        """The case's inputs, cut down as far as `Model` accepts, and further for the emulator."""
        inputs = self.case.inputs(seed)
        shapes = tuple(tuple(value.shape) if isinstance(value, Tensor) else None for value in inputs)
        if shapes not in self._small:
            self._small[shapes] = cut_down(shapes, self._work, _EMULATED_WORK if self.emulated else _SMALL_WORK)
        return [cut(value, shape) for value, shape in zip(inputs, self._small[shapes], strict=True)]

    def _work(self, shapes: Shapes) -> int | None:
        try:
            return self.model.trace(shapes=shapes).multiply_adds
        except ModelFileError:
            return None


def near(one: Any, other: Any, relative: float) -> bool:
    """Whether two results have tensors of the same shapes, each within this pooled relative distance of the other's."""
    ours, theirs = dict(tensors(one)), dict(tensors(other))
    alike = shapes(one) == shapes(other)
    return alike and all(distance(tensor, theirs[path]) <= relative for path, tensor in ours.items())


def near_each(one: Any, other: Any, relative: float) -> bool:
    """Whether results of the same shapes are `near` in each row of the first axis, such as each sample."""
    ours, theirs = dict(tensors(one)), dict(tensors(other))
    return shapes(one) == shapes(other) and all(
        distance(row, expected) <= relative
        for path, tensor in ours.items()
        for row, expected in zip(_as_rows(tensor), _as_rows(theirs[path]), strict=True)
    )


def _as_rows(tensor: Tensor) -> Sequence[Tensor]:
    return list(tensor) if tensor.dim() > 1 else [tensor]
