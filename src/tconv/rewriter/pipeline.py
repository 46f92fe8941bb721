"""From the plans of a model's layers to the text of the generated file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tconv.codegen.generate import generate
from tconv.codegen.planned import NO_EPILOGUES, Epilogues, PlannedLayer
from tconv.codegen.rewrite import rewrite
from tconv.errors import CompileError, MissingToolchain
from tconv.jit.loader import compile_kernel
from tconv.planner import Gpu, Plan
from tconv.planner.choice import runs_on
from tconv.sandbox.model_file import MODEL, Interface, read_source

_log = logging.getLogger("tconv")


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
