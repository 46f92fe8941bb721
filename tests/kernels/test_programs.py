"""Kernels with a program behind the layer: against float64 in three thread orders, exact on integers, and sanitized."""

from __future__ import annotations

import pytest
import torch
from kernel_runs import PROGRAMMED, emulate, integer_tensors, random_tensors, worst
from mutations import NAMED
from test_compile import ARCHS, WITHOUT

from tconv.evaluation.reference import conv_transpose
from tconv.jit.loader import compile_kernel
from tconv.pointwise.evaluate import evaluate
from tconv.pointwise.program import parse

#: Those whose every step is exact on integers.
EXACT = [name for name in PROGRAMMED if not name.endswith("mish")]


@pytest.mark.rotates(216, by="name", always=NAMED)
@pytest.mark.parametrize("name", PROGRAMMED)
def test_equals_float64_in_every_order(name):
    instance = PROGRAMMED[name]
    tensors = random_tensors(instance.problem)
    results = [emulate(instance, tensors, order=order) for order in ("ascending", "descending", "random")]
    assert worst(instance.problem, tensors, results[0]) <= 1
    assert all(torch.equal(results[0], other) for other in results[1:]), "the order of threads shows in the result"


@pytest.mark.rotates(216, by="name")
@pytest.mark.parametrize("name", EXACT)
def test_is_exact_on_integers(name):
    """And so shows that sums are rounded once, behind the program: integers in between may need more bits."""
    instance = PROGRAMMED[name]
    tensors = integer_tensors(instance.problem)
    sums = conv_transpose(*(None if t is None else t.double() for t in tensors[:3]), instance.problem)
    exact = evaluate(parse(instance.problem.layer.epilogue), sums, tensors.operands)
    assert torch.equal(emulate(instance, tensors), exact.to(tensors.x.dtype))


@pytest.mark.rotates(216, by="name")
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("name", PROGRAMMED)
def test_is_clean_under_sanitizers(name, mode):
    instance = PROGRAMMED[name]
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode=mode)) <= 1


@pytest.mark.rotates(216)
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        (name, arch)
        for name, instance in PROGRAMMED.items()
        for arch in ARCHS
        if arch not in WITHOUT.get(instance.kernel.family, ())
    ],
)
def test_compiles_without_spilling(name, arch):
    _, compiled = compile_kernel(PROGRAMMED[name].kernel, arch, name)
    assert compiled.spill_bytes == 0
