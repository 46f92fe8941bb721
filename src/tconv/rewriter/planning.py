"""The plans of a model's transposed convolutions: precisions, kernels, and what runs other sizes and types."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from tconv.codegen.planned import LayerEpilogue, PlannedLayer
from tconv.errors import Trouble
from tconv.evaluation.precision import Resolve, Wanted, problems
from tconv.planner import FAMILIES, Gpu, Kernel, Plan, Question, Unplannable, choose
from tconv.planner.choice import replan
from tconv.planner.tuned import Answers, Tuned
from tconv.pointwise.calls import known_gradient
from tconv.pointwise.program import parse
from tconv.problem import DTYPE_OF, PRECISIONS, Layer, Problem
from tconv.sandbox.cut import SLICED
from tconv.sandbox.epilogues import KnownEpilogue, parted
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.trace import Trace, TracedLayer

#: So much longer all layers may take, that a file has fewer families.
_HARDLY_LONGER = 1.05
#: The same for any one layer, at sizes that the model file does not have.
_NOT_MUCH_LONGER = 1.25
_T = TypeVar("_T")

_SHARED = "computed by the kernel of the sizes where this layer has the most work: a file has one kernel for a layer"
_OUT_OF_REACH = "a call in a file that the model file imports: move that function into the model file"
_SCRIPTED = "compiled by TorchScript, which does not know the functions of the written file"


@dataclass(frozen=True)
class Basis:
    """What kernels are chosen by.

    Args:
        gpu: the one that they are for.
        families: those that may be taken.
        tuned: what was measured on this GPU.
        measured: all kernels that were tried for that, the fastest first.
        programs: of each epilogue, by what it calls. What was measured of a layer with its program counts first.
        types: further element types that the layers get kernels for, by torch's names.
        at_other_sizes: families for the sizes that a layer's best kernel does not run, where its own runs no others.
    """

    gpu: Gpu
    families: Collection[str] = tuple(FAMILIES)
    tuned: Answers = field(default_factory=dict)
    measured: Mapping[Question, Sequence[Tuned]] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    types: Collection[str] = ()
    at_other_sizes: Collection[str] = ()

    def of_layers(self, layers: Sequence[TracedLayer], asked: Sequence[Problem]) -> Basis:
        """The same for layers that compute those problems: with what was measured of their programs, and with the
        fewest families that are worth their lines."""
        with_programs = {
            Question(problem): Question(layer.with_program(problem, self.programs))
            for layer, problem in zip(reversed(layers), reversed(asked), strict=True)
        }
        tuned, measured = _as_of_layers(self.tuned, with_programs), _as_of_layers(self.measured, with_programs)
        counts = Counter({problem: layer.count for layer, problem in zip(layers, asked, strict=True)})
        times = {each: _seconds(Question(each), self.gpu, self.families, tuned, measured) for each in counts}
        families = _worth_their_lines(times, counts) or tuple(self.families)
        return replace(
            self,
            families=families,
            tuned=_of_these(families, tuned, measured),
            measured=measured,
            at_other_sizes=_at_other_sizes(times, families, self.gpu),
        )

    def plans(self, problem: Problem) -> list[Plan]:
        """The best one, and one for rows of any width where that takes some alone.

        Raises:
            Unplannable: no kernel computes it.
        """
        best = choose(Question(problem), self.gpu, self.families, self.tuned)
        return [_of_slices(plan, self.gpu) for plan in (best, *_any_size(best, self.gpu, self.at_other_sizes))]


def plan_layers(trace: Trace, model: Path, basis: Basis, wanted: Wanted, resolve: Resolve) -> tuple[PlannedLayer, ...]:
    """The plans of every transposed convolution, each with the precision it is to run in.

    Where a tile takes rows of some widths alone, a second one of its family takes rows of any.

    Args:
        wanted: as it is understood of this file.

    Raises:
        ModelFileError: the model has none that can be replaced.
        Trouble: one is larger than a launch can be.
    """
    asked = problems(trace.layers, wanted, resolve)
    basis = basis.of_layers(trace.layers, asked)
    own = _own_plans(trace.layers, asked, basis)
    further = [_plans_in_type(own, dtype, basis, wanted, resolve) for dtype in basis.types]
    layers = tuple(
        _planned_layer(traced, own[problem], [plans[problem] for plans in further if problem in plans], trace, basis)
        for traced, problem in zip(trace.layers, asked, strict=True)
    )
    for name, reason in trace.left.items() if not layers else ():
        raise ModelFileError(f"{model.name}: nothing can be replaced: of {name}, {reason}")
    if not layers:
        raise ModelFileError(f"{model.name}: the forward pass runs no transposed convolution: nothing to replace")
    if all(layer.left for layer in layers):
        raise ModelFileError(f"{model.name}: nothing can be replaced: {layers[0].name} is {layers[0].reason}")
    return layers


def _own_plans(layers: Sequence[TracedLayer], asked: Sequence[Problem], basis: Basis) -> dict[Problem, list[Plan]]:
    """Those of the model's own types."""
    own: dict[Problem, list[Plan]] = {}
    for traced, problem in zip(layers, asked, strict=True):
        try:
            own[problem] = basis.plans(problem)
        except Unplannable as refusal:
            raise Trouble(f"{traced.name}: {refusal}; make the inputs of get_inputs() smaller") from None
    return _shared(own, basis.gpu)


def _plans_in_type(
    own: Mapping[Problem, Sequence[Plan]], dtype: str, basis: Basis, wanted: Wanted, resolve: Resolve
) -> dict[Problem, list[Plan]]:
    """Those of the same problems in another element type; nothing of problems that are of that type.

    By the families that the file has, and by others only where these have no kernel.
    """
    there = replace(basis, families={plan.kernel.family for plans in own.values() for plan in plans})
    every = replace(basis, families=tuple(FAMILIES))
    in_type = {each: _in_type(each, dtype, wanted, resolve) for each in own if each.layer.dtype != dtype}
    planned: dict[Problem, list[Plan]] = {}
    for problem in in_type.values():
        try:
            planned[problem] = there.plans(problem)
        except Unplannable:
            planned[problem] = every.plans(problem)
    planned = _shared(planned, basis.gpu)
    return {each: planned[problem] for each, problem in in_type.items()}


def _planned_layer(
    traced: TracedLayer, own: Sequence[Plan], further: Sequence[Sequence[Plan]], trace: Trace, basis: Basis
) -> PlannedLayer:
    reason = _SCRIPTED if traced.scripted else _OUT_OF_REACH if traced.elsewhere else ""
    return PlannedLayer(
        name=traced.name,
        plan=own[0],
        count=traced.count,
        called=traced.called,
        line=traced.line,
        left=bool(reason),
        reason=reason,
        any_size=next(iter(own[1:]), None),
        types=tuple(map(tuple, further)),
        epilogues=_epilogues(traced.epilogues, basis.programs) or (LayerEpilogue(),),
        in_evaluation=_epilogues(traced.in_evaluation, basis.programs),
        backward=_backward(traced.epilogues, basis.programs, trace.known),
        compiled=traced.compiled,
    )


def _as_of_layers(found: Mapping[Question, _T], questions: Mapping[Question, Question]) -> dict[Question, _T]:
    """What was found out, by questions of layers alone: of those with programs first, as far as that is known."""
    return {**found, **{alone: found[asked] for alone, asked in questions.items() if asked in found}}


def _epilogues(noted: Sequence[str], programs: Mapping[str, str]) -> tuple[LayerEpilogue, ...]:
    """What becomes of a layer's outputs, of what its epilogues were seen to be."""

    def of(calls: str, into: int) -> LayerEpilogue:
        program = programs.get(calls)
        if program is None:
            return LayerEpilogue()
        # What is read for each output lies as the layer's own result would.
        operands = parse(program).operands if program else ()
        return LayerEpilogue(program, 0 if any(each.kind in ("output", "sample") for each in operands) else into)

    return tuple(dict.fromkeys(of(*parted(each)) for each in noted))


def _backward(
    noted: Sequence[str], programs: Mapping[str, str], known: Sequence[KnownEpilogue]
) -> tuple[LayerEpilogue, ...]:
    """The programs of gradients behind a layer, where they do not follow from what forward gave.

    A model that is built to train takes none in evaluation, as a rule: there PyTorch differentiates its epilogues.
    """
    called = {calls for calls, _ in map(parted, noted) if programs.get(calls)}
    gradients = [(known_gradient(epilogue.calls), epilogue.learns) for epilogue in known if epilogue.calls in called]
    texts = [text for each, learns in gradients if each is not None for text in each.programs(learns)]
    return tuple(LayerEpilogue(text, backward=True) for text in dict.fromkeys(texts))


def _seconds(
    question: Question,
    gpu: Gpu,
    families: Collection[str],
    tuned: Answers,
    measured: Mapping[Question, Sequence[Tuned]],
) -> dict[str, float]:
    """How long each family takes, as it was measured or, where none was, is predicted; without those that cannot."""
    if question in tuned:
        slowest_first = [*reversed(measured.get(question, ())), tuned[question]]
        return {each.family: each.milliseconds / 1e3 for each in slowest_first if each.family in families}
    found: dict[str, float] = {}
    for name in families:
        with suppress(Unplannable):
            found[name] = choose(question, gpu, [name]).predicted_seconds or math.inf
    return found


def _worth_their_lines(times: Mapping[Problem, Mapping[str, float]], counts: Mapping[Problem, int]) -> tuple[str, ...]:
    """The fewest families with which the layers take hardly longer than with all of them: each is hundreds of lines."""

    def total(chosen: Collection[str]) -> float:
        fastest = (
            min((taken for name, taken in of_it.items() if name in chosen), default=math.inf)
            for of_it in times.values()
        )
        return sum(counts[problem] * taken for problem, taken in zip(times, fastest, strict=True))

    names = list(dict.fromkeys(name for of_it in times.values() for name in of_it))
    sets = [chosen for size in range(1, len(names) + 1) for chosen in combinations(names, size)]
    allowed = total(names) * _HARDLY_LONGER
    worth = [chosen for chosen in sets if total(chosen) <= allowed]

    def written(chosen: Collection[str]) -> int:
        """Families of a file: one for any size is always among them."""
        return len(chosen) + (not any(FAMILIES[name].any_size for name in chosen))

    return min(worth, key=lambda chosen: (written(chosen), total(chosen)), default=())


def _at_other_sizes(
    times: Mapping[Problem, Mapping[str, float]], families: Collection[str], gpu: Gpu
) -> tuple[str, ...]:
    """Families for the sizes that the fastest ones do not run: as few besides `families` as are not much slower."""
    able = _of_any_size()
    seconds = []
    for problem, of_it in times.items():
        fastest = min((name for name in of_it if name in families), key=of_it.__getitem__, default=None)
        if fastest is not None and fastest not in able:
            seconds.append(_seconds(Question(_uneven(problem)), gpu, able, {}, {}))

    def suits(chosen: Collection[str]) -> bool:
        within = ({name: of_it[name] for name in of_it if name in chosen} for of_it in seconds)
        return all(
            some and min(some.values()) <= _NOT_MUCH_LONGER * min(of_it.values())
            for some, of_it in zip(within, seconds, strict=True)
            if of_it
        )

    def cost(chosen: Collection[str]) -> tuple[int, float]:
        total = sum(min((of_it[name] for name in chosen if name in of_it), default=0.0) for of_it in seconds)
        return len(set(chosen) - set(families)), total

    sets = (chosen for size in range(len(able) + 1) for chosen in combinations(able, size))
    return min(filter(suits, sets), key=cost, default=())


def _of_these(families: Collection[str], tuned: Answers, measured: Mapping[Question, Sequence[Tuned]]) -> Answers:
    """The answers of these families: the winner, or the fastest of those measured."""
    found: dict[Question, Tuned] = {}
    for question, winner in tuned.items():
        for each in (winner, *measured.get(question, ())):
            if each.family in families:
                found.setdefault(question, each)
    return found


def _shared(planned: Mapping[Problem, Sequence[Plan]], gpu: Gpu) -> dict[Problem, list[Plan]]:
    """The same, where what is compiled alike shares the kernels of the problem with the most work."""
    kernels: dict[Layer, list[Kernel[Any]]] = {}
    for problem in sorted(planned, key=lambda each: each.multiply_adds):
        kernels[problem.layer] = [plan.kernel for plan in planned[problem]]
    shared: dict[Problem, list[Plan]] = {}
    for problem, (own, *_) in planned.items():
        # Where a kernel does not run these sizes, the file takes the next one.
        run = (plan for kernel in kernels[problem.layer] if (plan := replan(problem, kernel, gpu)))
        best, *others = [_of_slices(plan, gpu) for plan in run] or [own]
        taken = own if own.kernel == best.kernel else replace(best, reasons=(*own.reasons, _SHARED))
        shared[problem] = [taken, *others]
    return shared


def _in_type(problem: Problem, dtype: str, wanted: Wanted, resolve: Resolve) -> Problem:
    """The same in another element type."""
    precision = next(each for each in PRECISIONS if DTYPE_OF[each] == dtype)
    other = replace(problem, layer=replace(problem.layer, precision=precision))
    return replace(other, layer=replace(other.layer, precision=resolve(other, wanted)))


def _of_any_size() -> list[str]:
    return [name for name, family in FAMILIES.items() if family.any_size]


def _uneven(problem: Problem) -> Problem:
    """The problem at other sizes: some kernels are for axes of one input alone, some for rows that are even."""
    unused = 3 - problem.layer.spatial_dims
    depth, height, width = (size if axis < unused else max(size, 2) for axis, size in enumerate(problem.input_size))
    return replace(problem, input_size=(depth, height, width + 1 - width % 2))


def _any_size(best: Plan, gpu: Gpu, others: Collection[str]) -> list[Plan]:
    """The plan of a kernel that runs rows of any width and maps of any size, of the same family if that has some.

    Else of one of the `others`, if these have any. None where `best` does.
    """
    problem = best.problem
    uneven, own = _uneven(problem), FAMILIES[best.kernel.family].any_size
    if own and replan(uneven, best.kernel, gpu):
        return []
    for families in ([best.kernel.family] * own, others, _of_any_size()):
        with suppress(Unplannable):
            found = replan(problem, choose(Question(uneven), gpu, families).kernel, gpu)
            return [] if found is None else [found]
    return []


def _of_slices(plan: Plan, gpu: Gpu) -> Plan:
    """`plan` by a kernel whose offsets reach as far as in a slice of the batch, as written files launch it."""
    problem = plan.problem
    small = replan(replace(problem, batch=min(problem.batch, SLICED)), plan.kernel, gpu)
    return plan if small is None else replace(plan, kernel=small.kernel)
