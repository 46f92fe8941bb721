"""From what a model file was seen to run to the text of the generated file: choose precisions, plan, write."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, wait
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tconv.codegen.generate import generate
from tconv.codegen.planned import NO_EPILOGUES, Epilogues, LayerEpilogue, PlannedLayer
from tconv.codegen.rewrite import rewrite
from tconv.errors import CompileError, MissingToolchain, Trouble
from tconv.evaluation.precision import Resolve, Wanted, problems
from tconv.jit.loader import compile_kernel
from tconv.planner import FAMILIES, Gpu, Kernel, Plan, Question, Unplannable, choose
from tconv.planner.choice import replan, runs_on
from tconv.planner.tuned import Answers, Tuned
from tconv.pointwise.calls import known_gradient
from tconv.pointwise.program import parse
from tconv.problem import DTYPE_OF, PRECISIONS, Layer, Problem
from tconv.sandbox.cut import SLICED
from tconv.sandbox.epilogues import KnownEpilogue, parted
from tconv.sandbox.model_file import MODEL, Interface, ModelFileError, read_source
from tconv.sandbox.trace import Trace

#: So much longer all layers may take, that a file has fewer families.
_HARDLY_LONGER = 1.05
_log = logging.getLogger("tconv")
_T = TypeVar("_T")

_NOT_TUNED: Answers = MappingProxyType({})
_SHARED = "computed by the kernel of the sizes where this layer has the most work: a file has one kernel for a layer"
_OUT_OF_REACH = "a call in a file that the model file imports: move that function into the model file"
_SCRIPTED = "compiled by TorchScript, which does not know the functions of the written file"


def plan_layers(
    trace: Trace,
    model: Path,
    gpu: Gpu,
    wanted: Wanted,
    resolve: Resolve,
    families: Collection[str] = tuple(FAMILIES),
    tuned: Answers = _NOT_TUNED,
    measured: Mapping[Question, Sequence[Tuned]] = MappingProxyType({}),
    programs: Mapping[str, str] = MappingProxyType({}),
    types: Collection[str] = (),
) -> tuple[PlannedLayer, ...]:
    """The plans of every transposed convolution, each with the precision it is to run in.

    Where a tile takes rows of some widths alone, a second one of its family takes rows of any.

    Args:
        wanted: as it is understood of this file.
        tuned: what was measured on this GPU.
        measured: and all kernels that were tried for that, the fastest first.
        programs: by what is called behind layers. What was measured of a layer with its program counts first.
        types: element types that the layers get kernels for, too, by torch's names.

    Raises:
        ModelFileError: the model has none that can be replaced.
        Trouble: one is larger than a launch can be.
    """

    asked = problems(trace.layers, wanted, resolve)
    with_programs = {
        Question(problem): Question(layer.with_program(problem, programs))
        for layer, problem in zip(reversed(trace.layers), reversed(asked), strict=True)
    }
    tuned, measured = _as_of_layers(tuned, with_programs), _as_of_layers(measured, with_programs)
    counts = Counter({problem: layer.count for layer, problem in zip(trace.layers, asked, strict=True)})
    times = {each: _seconds(Question(each), gpu, families, tuned, measured) for each in counts}
    families = _worth_their_lines(times, counts) or tuple(families)
    tuned = _of_these(families, tuned, measured)

    def plans(problem: Problem, families: Collection[str]) -> list[Plan]:
        best = choose(Question(problem), gpu, families, tuned)
        return [_of_slices(plan, gpu) for plan in (best, *_any_size(best, gpu))]

    own: dict[Problem, list[Plan]] = {}
    for traced, problem in zip(trace.layers, asked, strict=True):
        try:
            own[problem] = plans(problem, families)
        except Unplannable as refusal:
            raise Trouble(f"{traced.name}: {refusal}; make the inputs of get_inputs() smaller") from None
    own = _shared(own, gpu)
    there = {plan.kernel.family for of_problem in own.values() for plan in of_problem}

    def of_type(problem: Problem) -> list[Plan]:
        try:
            return plans(problem, there)
        except Unplannable:
            return plans(problem, tuple(FAMILIES))

    further: list[dict[Problem, list[Plan]]] = []
    for dtype in types:
        in_type = {each: _in_type(each, dtype, wanted, resolve) for each in own if each.layer.dtype != dtype}
        planned = _shared({problem: of_type(problem) for problem in in_type.values()}, gpu)
        further.append({each: planned[problem] for each, problem in in_type.items()})
    left = [_SCRIPTED if each.scripted else _OUT_OF_REACH if each.elsewhere else "" for each in trace.layers]
    layers = tuple(
        PlannedLayer(
            traced.name,
            own[problem][0],
            traced.count,
            traced.called,
            traced.line,
            bool(reason),
            reason,
            next(iter(own[problem][1:]), None),
            tuple(tuple(planned[problem]) for planned in further if problem in planned),
            _epilogues(traced.epilogues, programs) or (LayerEpilogue(),),
            _epilogues(traced.in_evaluation, programs),
            _backward(traced.epilogues, programs, trace.known),
            traced.compiled,
        )
        for traced, problem, reason in zip(trace.layers, asked, left, strict=True)
    )
    for name, reason in trace.left.items() if not layers else ():
        raise ModelFileError(f"{model.name}: nothing can be replaced: of {name}, {reason}")
    if not layers:
        raise ModelFileError(f"{model.name}: the forward pass runs no transposed convolution: nothing to replace")
    if all(layer.left for layer in layers):
        raise ModelFileError(f"{model.name}: nothing can be replaced: {layers[0].name} is {layers[0].reason}")
    return layers


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


def build(
    model: Path,
    layers: Sequence[PlannedLayer],
    text: str | None = None,
    epilogues: Epilogues = NO_EPILOGUES,
    interface: Interface = MODEL,
    left: Collection[str] = (),
    elsewhere: str = "pytorch",
) -> str:
    """The text of the generated file for these plans; what they leave to PyTorch stays there.

    Args:
        text: the model file's with its epilogues handed over; its own if None.
        epilogues: what is known of those.
        interface: by what the model file is used.
        left: further modules that PyTorch runs, as `Trace.left` has them.
        elsewhere: what the file does with calls that none of its kernels runs: "pytorch" or "error".
    """
    source = interface.completed(read_source(model), model.name) if text is None else text
    keep = [line for layer in layers if layer.left for line in (layer.line, *layer.compiled) if line is not None]
    rewritten = rewrite(source, model.name, keep, interface.model)
    left = sorted({*left} - {layer.name for layer in layers})
    return generate(rewritten, layers, epilogues, left, elsewhere)


def settle(
    layers: Sequence[PlannedLayer], gpu: Gpu, archs: Sequence[str], pool: Executor
) -> Callable[[], tuple[PlannedLayer, ...]]:
    """Begins to compile the layers' kernels, and returns what waits for that and gives the layers with the kernels
    that registers suffice for, which are the same ones where they do.

    Args:
        archs: registers are to suffice there.
        pool: compiles.
    """
    plans = dict.fromkeys(plan for layer in layers if not layer.left for plan in layer.variants.values())
    # Each is kept: who settles a plan finds its kernel compiled, for every arch at once.
    asked = [(plan.kernel, arch) for plan in plans for arch in _of_these_archs(plan, gpu, archs)]
    compiled = [pool.submit(compile_kernel, *each) for each in asked]

    def settled() -> tuple[PlannedLayer, ...]:
        wait(compiled)
        found = {plan: _without_spills(plan, gpu, tuple(archs)) for plan in plans}
        return tuple(_with(layer, found) for layer in layers)

    return settled


def leave(layers: Collection[PlannedLayer], names: Collection[str], reason: str) -> tuple[PlannedLayer, ...]:
    """The same layers, those of the given names left to PyTorch."""
    return tuple(replace(layer, left=True, reason=reason) if layer.name in names else layer for layer in layers)


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
    return min(worth, key=lambda chosen: (len(chosen), total(chosen)), default=())


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


def _any_size(best: Plan, gpu: Gpu) -> list[Plan]:
    """The plan of a kernel that runs rows of any width and maps of any size, of the same family if that has one.

    None where `best` does.
    """
    problem = best.problem
    unused = 3 - problem.layer.spatial_dims
    # Some kernels are for axes of one input alone, some for rows that are even.
    depth, height, width = (size if axis < unused else max(size, 2) for axis, size in enumerate(problem.input_size))
    uneven = replace(problem, input_size=(depth, height, width + 1 - width % 2))
    if replan(uneven, best.kernel, gpu):
        return []
    for families in ([best.kernel.family], list(FAMILIES)):
        with suppress(Unplannable):
            found = replan(problem, choose(Question(uneven), gpu, families).kernel, gpu)
            return [] if found is None else [found]
    return []


def _of_slices(plan: Plan, gpu: Gpu) -> Plan:
    """`plan` by a kernel whose offsets reach as far as in a slice of the batch, as written files launch it."""
    problem = plan.problem
    small = replan(replace(problem, batch=min(problem.batch, SLICED)), plan.kernel, gpu)
    return plan if small is None else replace(plan, kernel=small.kernel)


def _with(layer: PlannedLayer, settled: Mapping[Plan, Plan]) -> PlannedLayer:
    """`layer` with the kernels that are written."""
    if layer.left:
        return layer
    any_size = None if layer.any_size is None else settled[layer.any_size]
    types = tuple(tuple(settled[plan] for plan in plans) for plans in layer.types)
    return replace(layer, plan=settled[layer.plan], any_size=any_size, types=types)


@lru_cache(maxsize=256)
def _without_spills(plan: Plan, gpu: Gpu, archs: tuple[str, ...]) -> Plan:
    """`plan` for so few blocks a multiprocessor that registers suffice there, as far as an NVRTC can tell."""
    kernel = plan.kernel
    try:
        for arch in _of_these_archs(plan, gpu, archs):
            kernel, _ = compile_kernel(kernel, arch)
    except (MissingToolchain, CompileError) as error:
        _log.info("registers stay estimated: %s", error)
    return replace(plan, kernel=kernel)


def _of_these_archs(plan: Plan, gpu: Gpu, archs: Sequence[str]) -> list[str]:
    """Those that run the plan's kernel."""
    return [arch for arch in dict.fromkeys(archs) if runs_on(plan.kernel.family, plan.problem, gpu, arch)]
