"""From what a model file was seen to run to the text of the generated file: choose precisions, plan, write."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tconv.codegen.generate import PlannedLayer, generate
from tconv.codegen.rewrite import rewrite
from tconv.errors import CompileError, MissingToolchain, Trouble
from tconv.evaluation.precision import Resolve, Wanted, problems
from tconv.jit.loader import compile_kernel
from tconv.planner import FAMILIES, Gpu, Kernel, Plan, Question, Unplannable, choose
from tconv.planner.choice import replan, runs_on
from tconv.planner.tuned import Answers
from tconv.problem import Layer, Precision, Problem
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.trace import Trace

#: What is compiled for where there is no GPU to say it.
COMMON_ARCHS = ("sm_80", "sm_90a")
#: Where a written file's portable kernels run: from this one on, and where a block has so much shared memory.
_PORTABLE_ARCH = "sm_80"
_PORTABLE_BYTES = 99 * 1024
_log = logging.getLogger("tconv")

_NOT_TUNED: Answers = MappingProxyType({})
_SHARED = "computed by the kernel of the sizes where this layer has the most work: a file has one kernel for a layer"
_OUT_OF_REACH = "a call in a file that the model file imports: move that function into the model file"


def plan_layers(
    trace: Trace,
    model: Path,
    gpu: Gpu,
    wanted: Wanted,
    resolve: Resolve,
    families: Collection[str] = tuple(FAMILIES),
    tuned: Answers = _NOT_TUNED,
) -> tuple[PlannedLayer, ...]:
    """The plans of every transposed convolution, each with the precision it is to run in, and those for casts of it.

    What is cast takes the families that the file has without it: each costs as many lines as all other text.

    Args:
        wanted: as it is understood of this file.
        tuned: what was measured on this GPU.

    Raises:
        ModelFileError: the model has none that can be replaced.
        Trouble: one is larger than a launch can be.
    """

    def plans(problem: Problem, families: Collection[str]) -> list[Plan]:
        best = choose(Question(problem), gpu, families, tuned)
        return [best, *_portable(best, families, gpu)]

    own: dict[Problem, list[Plan]] = {}
    asked = problems(trace.layers, wanted, resolve)
    for traced, problem in zip(trace.layers, asked, strict=True):
        if problem.batch == 0:
            raise ModelFileError(f"{model.name}: {traced.name} runs on an empty batch: let get_inputs() give samples")
        try:
            own[problem] = plans(problem, families)
        except Unplannable as refusal:
            raise Trouble(f"{traced.name}: {refusal}; make the inputs of get_inputs() smaller") from None
    own = _shared(own, gpu)
    there = {plan.kernel.family for of_problem in own.values() for plan in of_problem}
    casts = {problem: _cast(problem, wanted, resolve) for problem in own}
    cast: dict[Problem, list[Plan]] = {}
    for other in filter(None, casts.values()):
        with suppress(Unplannable):
            cast[other] = plans(other, there)
    cast = _shared(cast, gpu)
    layers = tuple(
        PlannedLayer(
            traced.name,
            own[problem][0],
            traced.count,
            traced.called,
            traced.line,
            traced.elsewhere,
            _OUT_OF_REACH if traced.elsewhere else "",
            next(iter(own[problem][1:]), None),
            tuple(cast.get(casts[problem] or problem, ())),
        )
        for traced, problem in zip(trace.layers, asked, strict=True)
    )
    if not layers:
        raise ModelFileError(f"{model.name}: the forward pass runs no transposed convolution: nothing to replace")
    if all(layer.left for layer in layers):
        raise ModelFileError(f"{model.name}: nothing can be replaced: {layers[0].name} is {layers[0].reason}")
    return layers


def build(model: Path, layers: Collection[PlannedLayer], gpu: Gpu, wanted: Wanted) -> str:
    """The text of the generated file for these plans; what they leave to PyTorch stays there.

    Args:
        wanted: as it is understood of this file.
    """
    source = read_source(model)
    keep = [layer.line for layer in layers if layer.left and layer.line is not None]
    rewritten = rewrite(source, model.name, keep)
    plans = dict.fromkeys(plan for layer in layers if not layer.left for plan in (*layer.plans, *layer.cast))
    pool = ThreadPoolExecutor()  # NVRTC works in several threads at once
    try:
        settled = dict(zip(plans, pool.map(partial(_without_spills, gpu=gpu), plans), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
    return generate(rewritten, [_with(layer, settled) for layer in layers], gpu, wanted)


def leave(layers: Collection[PlannedLayer], names: Collection[str], reason: str) -> tuple[PlannedLayer, ...]:
    """The same layers, those of the given names left to PyTorch."""
    return tuple(replace(layer, left=True, reason=reason) if layer.name in names else layer for layer in layers)


def read_source(model: Path) -> str:
    """The text of a model file with its line ends as they are.

    Raises:
        ModelFileError: it cannot be read.
    """
    try:
        return model.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ModelFileError(f"cannot read {model}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelFileError(f"{model} is not UTF-8: save it as UTF-8") from None


def _shared(planned: Mapping[Problem, Sequence[Plan]], gpu: Gpu) -> dict[Problem, list[Plan]]:
    """The same, where what is compiled alike shares the kernels of the problem with the most work."""
    kernels: dict[Layer, list[Kernel[Any]]] = {}
    for problem in sorted(planned, key=lambda each: each.multiply_adds):
        kernels[problem.layer] = [plan.kernel for plan in planned[problem]]
    shared: dict[Problem, list[Plan]] = {}
    for problem, (own, *_) in planned.items():
        # Where a kernel does not run these sizes, the file takes the next one.
        best, *others = [plan for kernel in kernels[problem.layer] if (plan := replan(problem, kernel, gpu))] or [own]
        taken = own if own.kernel == best.kernel else replace(best, reasons=(*own.reasons, _SHARED))
        shared[problem] = [taken, *others]
    return shared


def _cast(problem: Problem, wanted: Wanted, resolve: Resolve) -> Problem | None:
    """The same in the other width that models are cast to: 16 bits, whose two types share tiles, or float32."""

    def with_precision(precision: Precision) -> Problem:
        return replace(problem, layer=replace(problem.layer, precision=precision))

    if problem.layer.dtype == "float64":
        return None
    if problem.layer.dtype == "float32":
        return with_precision("fp16")
    return with_precision(resolve(with_precision("fp32"), wanted))


def _portable(best: Plan, families: Collection[str], gpu: Gpu) -> list[Plan]:
    """The plan of a kernel that runs the layer at rows of any width and on GPUs with less; none where `best` does."""
    problem, less = best.problem, replace(gpu, arch=_PORTABLE_ARCH, shared_bytes_per_block=_PORTABLE_BYTES)
    unused = 3 - problem.layer.spatial_dims
    # Some kernels are for axes of one input alone, some for rows that are even.
    depth, height, width = (size if axis < unused else max(size, 2) for axis, size in enumerate(problem.input_size))
    uneven = replace(problem, input_size=(depth, height, width + 1 - width % 2))
    portable = [name for name in families if runs_on(name, problem, gpu, _PORTABLE_ARCH)]
    if best.kernel.family in portable and best.shared_bytes <= _PORTABLE_BYTES and replan(uneven, best.kernel, gpu):
        return []
    found = replan(problem, choose(Question(uneven), less, portable).kernel, gpu) if portable else None
    return [] if found is None else [found]


def _with(layer: PlannedLayer, settled: Mapping[Plan, Plan]) -> PlannedLayer:
    """`layer` with the kernels that are written."""
    if layer.left:
        return layer
    portable = None if layer.portable is None else settled[layer.portable]
    cast = tuple(settled[plan] for plan in layer.cast)
    return replace(layer, plan=settled[layer.plan], portable=portable, cast=cast)


@lru_cache(maxsize=256)
def _without_spills(plan: Plan, gpu: Gpu) -> Plan:
    """`plan` for so few blocks a multiprocessor that registers suffice on common GPUs, as far as an NVRTC can tell."""
    kernel = plan.kernel
    try:
        for arch in dict.fromkeys((*COMMON_ARCHS, gpu.arch)):
            if runs_on(kernel.family, plan.problem, gpu, arch):
                kernel, _ = compile_kernel(kernel, arch)
    except (MissingToolchain, CompileError) as error:
        _log.info("registers stay estimated: %s", error)
    return replace(plan, kernel=kernel)
