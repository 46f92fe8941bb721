"""`tconv explain`: for every transposed convolution of a model file, the plan and its reasons."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tconv.cli.console import progress, results
from tconv.cli.options import InitOption, InputsOption, ModelFile, ModelName, interface_of

if TYPE_CHECKING:
    from tconv.codegen.planned import PlannedLayer
    from tconv.planner import Gpu


def explain(
    model: ModelFile,
    model_name: ModelName = "Model",
    inputs: InputsOption = None,
    init: InitOption = None,
) -> None:
    """Say how each transposed convolution of a model would run, and why."""
    interface = interface_of(model_name, inputs, init)
    with progress("starting") as say:
        import torch

        from tconv.errors import Trouble
        from tconv.evaluation.precision import resolve, understood
        from tconv.jit.tuned import answers
        from tconv.planner import Gpu
        from tconv.rewriter.planning import Basis, plan_layers
        from tconv.sandbox.trace import trace
        from tconv.sandbox.worker import WorkerFailed

        has_gpu = torch.cuda.is_available()
        if has_gpu:
            from tconv.jit.loader import gpu_of

            gpu = gpu_of(torch.cuda.current_device())
        else:
            gpu = Gpu.h200()
        device = torch.device("cuda" if has_gpu else "cpu")
        say(f"tracing {model.name}")
        try:
            found = trace(model, interface)
        except WorkerFailed as failure:
            raise Trouble(f"{model.name}: the process that runs it {failure}") from None
        say("planning")
        resolved = functools.partial(resolve, device=device)
        wanted = understood("match", found.tf32)
        basis = Basis(gpu, tuned=answers(gpu.name) if has_gpu else {})
        layers = plan_layers(found, model, basis, wanted, resolved)
    console = results()
    for layer in layers:
        console.print(f"[bold]{layer.name}[/]: {layer.plan.problem.layer.describe()}", soft_wrap=True)
        for line in _lines(layer, gpu):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    remark = "" if has_gpu else "; there is no GPU here"
    console.print(f"Planned for one {gpu.name} ({gpu.arch}){remark}.", soft_wrap=True)


def _lines(layer: PlannedLayer, gpu: Gpu) -> Iterator[str]:
    from tconv.planner import floor_seconds

    plan = layer.plan
    times = f", {layer.count} times" if layer.count > 1 else ""
    yield f"{_by(plan.problem.input_shape)} → {_by(plan.problem.output_shape)}{times}"
    floor = floor_seconds(plan.problem, gpu)
    if floor is not None:
        yield f"floor {floor * 1e3:.4g} ms"
    if layer.left:
        yield f"stays PyTorch's: {layer.reason}"
        return
    block = f"{plan.kernel.threads} threads and {plan.shared_bytes / 1024:.1f} KiB of shared memory"
    yield f"{plan.kernel.family}: {plan.grid} blocks of {block}"
    for reason in plan.reasons:
        yield f"- {reason}"


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
