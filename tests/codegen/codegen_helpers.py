"""From a model's text to a file, and to the globals of the file generated from it, in this process."""

from __future__ import annotations

import atexit
import functools
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tconv.codegen.planned import PlannedLayer
from tconv.evaluation.precision import Wanted, understood
from tconv.planner import FAMILIES, Gpu
from tconv.precision import of_kind
from tconv.problem import Precision, Problem
from tconv.rewriter.fusing import with_epilogues
from tconv.rewriter.pipeline import build, leave, settle
from tconv.rewriter.planning import Basis, plan_layers
from tconv.sandbox.emulated import install
from tconv.sandbox.model_file import load
from tconv.sandbox.trace import trace
from tconv.sandbox.worker import Workshop
from tconv.tuning.compilers import threads

Namespace = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples"
#: A model whose layer takes a kernel for Hopper.
DENSE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(64, 64, 4, 2, 1, bias=False)
        def forward(self, x):
            return self.up(x)

    def get_inputs():
        return [torch.rand(8, 64, 256, 256)]
"""
#: The same, with inputs that are prepared by a kernel before.
PREPARED = DENSE.replace("64, 64, 4, 2, 1, bias=False", "768, 256, 4, 2, 1, bias=False, dtype=torch.float16").replace(
    "8, 64, 256, 256", "64, 768, 16, 12, dtype=torch.float16"
)


def function_of(file: Namespace, dims: int) -> Callable[..., Any]:
    """A file's conv_transpose, which has a name of its own where the model calls one."""
    return functools.partial(file["_conv_transpose"], dims)


def by_kind(problem: Problem, wanted: Wanted) -> Precision:
    """What `tconv.evaluation.precision.resolve` says without a GPU."""
    if problem.layer.dtype != "float32":
        return problem.layer.precision
    return of_kind(problem) if wanted == "match" else wanted


def generated_text(
    path: Path, wanted: Wanted = "match", families: Sequence[str] = tuple(FAMILIES), types: Sequence[str] = ()
) -> str:
    """The text that tconv writes for a model file; those of the examples, which do not change, are kept.

    With the kernels that are planned: where those spill registers, which NVRTC alone would say, after seconds, others
    are written (`settled_layers`).
    """
    generate = _of_example if path.parent == EXAMPLES else _generated
    return generate(path, wanted, tuple(families), tuple(types))


def planned_layers(
    path: Path, wanted: Wanted = "match", families: Sequence[str] = tuple(FAMILIES), types: Sequence[str] = ()
) -> tuple[PlannedLayer, ...]:
    """What tconv plans for a model file."""
    found = trace(load(path))
    return plan_layers(found, path, Basis(Gpu.h200(), families, types=types), understood(wanted, found.tf32), by_kind)


def settled_layers(
    path: Path, wanted: Wanted = "match", families: Sequence[str] = tuple(FAMILIES), types: Sequence[str] = ()
) -> tuple[PlannedLayer, ...]:
    """The same with the kernels that are written."""
    wanted = understood(wanted, trace(load(path)).tf32)
    with threads() as pool:
        return settle(planned_layers(path, wanted, families, types), Gpu.h200(), ("sm_90a",), pool)()


def _generated(path: Path, wanted: Wanted, families: tuple[str, ...], types: tuple[str, ...]) -> str:
    return build(path, planned_layers(path, wanted, families, types))


_of_example = functools.cache(_generated)


def fused_text(
    path: Path,
    families: Sequence[str] = tuple(FAMILIES),
    left: Collection[str] = (),
    types: Sequence[str] = (),
) -> str:
    """The text that tconv writes for a model file, with the epilogues of its layers in their kernels.

    Args:
        left: the names of layers that are left to PyTorch.
        types: further element types with kernels.
    """
    fused = with_epilogues(path, trace(load(path)), workshop())
    wanted, programs = understood("match", True), fused.programs
    layers = plan_layers(
        fused.trace, path, Basis(Gpu.h200(), families, programs=programs, types=types), wanted, by_kind
    )
    return build(path, leave(layers, left, ""), fused.text, fused.epilogues)


@functools.cache
def workshop() -> Workshop:
    shop = Workshop(traces=True)
    atexit.register(shop.close)
    return shop


def executed(text: str) -> Namespace:
    """The globals of a file's text, executed without a file."""
    namespace: Namespace = {}
    exec(compile(text, "<string>", "exec"), namespace)
    return namespace


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a model file from its (indented) text."""

    def write(text: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write


def launched(file: Namespace) -> list[Any]:
    """The launches that a file makes from now on, in the emulator; the list grows with each."""
    install(file)
    emulated, launches = file["_launch"], []

    def launch(launch: Any, *tensors: Any) -> None:
        launches.append(launch)
        emulated(launch, *tensors)

    file["_launch"] = launch
    return launches


def kernels_of(file: Namespace) -> list[Any]:
    """All kernels that a file records."""
    return [kernel for kernels in file["_RECORDED"].values() for kernel in kernels]


@contextmanager
def silent() -> Iterator[None]:
    """Inside, each warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def told() -> Iterator[list[str]]:
    """Inside, what files say of calls that PyTorch runs is kept, each as often as it is said."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [said for each in caught if (said := str(each.message)).startswith("PyTorch runs ")]
