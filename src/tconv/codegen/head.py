"""The head of a generated file: what it is made of, and for what."""

from __future__ import annotations

from collections.abc import Sequence

from tconv.codegen.planned import PlannedLayer, types_of
from tconv.planner import Plan
from tconv.sandbox.source_scan import GENERATED_MARK
from tconv.version import __version__

#: Where the kernels of a family run.
_GPUS = {
    "direct": "CUDA cores from compute capability 7.5 on",
    "mma": "tensor cores from 8.0 on",
    "wgmma": "tensor cores of Hopper, 9.0",
    "col2im": "tensor cores from 8.0 on",
    "col2im_wgmma": "tensor cores of Hopper, 9.0",
    "col2im_rows": "tensor cores of Hopper, 9.0",
}


def header(layers: Sequence[PlannedLayer], model: str, lines: Sequence[str]) -> str:
    """The head of the file of that model.

    Args:
        lines: what stands for the lines at which the model and the kernels begin.
    """
    rows: list[tuple[str, str, str]] = []
    for layer in layers:
        rows.append((layer.name, layer.plan.problem.layer.describe(), plan_words(layer.plan, layer.left)))
        if not layer.left:
            rows += [("", "", f"{use}: {plan_words(plan)}") for use, plan in layer.variants.items() if use]
            rows += [("", "", each.describe()) for each in layer.kernel_epilogues if not each.backward]
            rows += [("", "", "backward: gradients by the same kernel")] * bool(layer.backward)
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    model_line, kernels_line = lines
    lines = [
        f"{GENERATED_MARK} {__version__}",
        "#",
        f"# ModelNew is the model file's {model}, with its transposed convolutions on the CUDA kernels in this file.",
        "# torch.utils.cpp_extension.load_inline builds them when a ModelNew is constructed on a machine with a GPU.",
        f"# The model file begins at line {model_line}, the kernels at line {kernels_line}.",
        "#",
    ]
    lines += [f"#   {name:{widths[0]}}  {problem:{widths[1]}}  {plan}" for name, problem, plan in rows]
    lines += ["#", *_made_for(layers)]
    return "\n".join(lines) + "\n"


def _made_for(layers: Sequence[PlannedLayer]) -> list[str]:
    """What the file is for, and what becomes of all else, as comments."""
    families = {plan.kernel.family for layer in layers if not layer.left for plan in layer.variants.values()}
    gpus = dict.fromkeys(_GPUS[family] for family in sorted(families))
    return [
        f"# Made for {' and '.join(types_of(layers)) or 'no type'} only (others: --types), at any batch and map size.",
        f"# Runs on {'; '.join(gpus)}.",
        "# All else PyTorch runs, with a warning that says why; ELSEWHERE below makes it an error.",
    ]


def plan_words(plan: Plan, left: bool = False) -> str:
    """A plan in few words."""
    if left:
        return "left to PyTorch"
    kernel = plan.kernel
    return f"{kernel.family}: {plan.grid} blocks of {kernel.threads}, {plan.shared_bytes} bytes of shared memory"
