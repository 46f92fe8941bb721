"""Every instance, run in the emulator: against float64, in three thread orders, and under the sanitizers."""

from __future__ import annotations

import pytest
import torch
from kernel_runs import INSTANCES, Tensors, emulate, integer_tensors, random_tensors, worst
from mutations import NAMED

from tconv.evaluation.equality import check_layer
from tconv.evaluation.reference import conv_transpose
from tconv.kernels.instances import Instance
from tconv.memory import aligned
from tconv.planner import FAMILIES, Gpu
from tconv.planner.plan import tile_fields
from tconv.planner.wgmma.shape import WgmmaShape
from tconv.problem import TF32, Layer, Problem

#: Those that mutations name show mistakes best: of them one in five. The sanitizers see them with their mutations.
rotates = pytest.mark.rotates(270, by="name", always=frozenset(sorted(NAMED)[::5]))


@rotates
@pytest.mark.parametrize("name", INSTANCES)
def test_equals_float64_in_every_order(name):
    instance = INSTANCES[name]
    tensors = random_tensors(instance.problem)
    results = [emulate(instance, tensors, order=order) for order in ("ascending", "descending", "random")]
    assert worst(instance.problem, tensors, results[0]) <= 1
    assert all(torch.equal(results[0], other) for other in results[1:]), "the order of threads shows in the result"


@rotates
@pytest.mark.parametrize("name", INSTANCES)
def test_is_exact_on_integers(name):
    instance = INSTANCES[name]
    tensors = integer_tensors(instance.problem)
    exact = conv_transpose(*(None if t is None else t.double() for t in tensors[:3]), instance.problem)
    assert torch.equal(emulate(instance, tensors).double(), exact)


COPIED = [name for name, i in INSTANCES.items() if dict(tile_fields(i.kernel.tile)).get("pipeline.copied")]


@rotates
@pytest.mark.parametrize("name", COPIED[::3])
def test_copies_that_land_at_once_change_nothing(name):
    """All other tests let them land as late as they may."""
    instance = INSTANCES[name]
    tensors = integer_tensors(instance.problem)
    assert torch.equal(emulate(instance, tensors, copies="eager"), emulate(instance, tensors))


@pytest.mark.rotates(270, by="name")
@pytest.mark.parametrize("mode", ["address", "thread"])
@pytest.mark.parametrize("name", INSTANCES)
def test_is_clean_under_sanitizers(name, mode):
    instance = INSTANCES[name]
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode=mode)) <= 1


def test_more_rows_of_a_position_than_a_thread_keeps_places_of():
    layer = Layer(3, 32, 8, (4, 4, 2), (4, 4, 2), bias=True, precision="fp16")
    problem, gpu = Problem(layer, 1, (2, 3, 24)), Gpu.h200()
    considered = FAMILIES["wgmma"].considered(problem, gpu)
    kernels = (considered[int(place)].kernel for place in considered.order())
    kernel = next(k for k in kernels if k.tile.phases == 32 and WgmmaShape(layer, k.tile).by_runs)
    instance = Instance("16 rows of two outputs", problem, kernel)
    tensors = random_tensors(problem)
    assert worst(problem, tensors, emulate(instance, tensors)) <= 1


def test_a_missing_bias_pointer_is_never_read():
    instance = INSTANCES["2d-k3-s1-fp32-narrow"]
    assert not instance.problem.layer.bias
    tensors = random_tensors(instance.problem)
    assert tensors.bias is None
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode="address")) <= 1


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["2d-k3-s5-d2-fp32-narrow", "1d-k7-s6-d4-fp64-narrow", "1d-k50-s72-d4-tf32-narrow"])
def test_a_non_finite_input_reaches_the_outputs_that_depend_on_it_and_no_other(name, value):
    instance = INSTANCES[name]
    problem = instance.problem
    x, weight, bias, _ = random_tensors(problem)
    x = x.clone()
    x.view(-1)[x.numel() // 2] = value
    one_hot = (~x.isfinite()).double()
    touched = conv_transpose(one_hot, torch.ones_like(weight).double(), None, problem) != 0
    y = emulate(instance, type(random_tensors(problem))(x, weight, bias))
    assert torch.equal(~y.isfinite(), touched)


@pytest.mark.parametrize(
    "name",
    [
        *("wgmma-2d-k3-s2-op1-tf32_rna-all", "wgmma-2d-k3-s1-fp16-stacked", "wgmma-1d-k4-s2-bf16-one"),
        *("mma-2d-k3-s2-op1-tf32_rna-flat", "mma-1d-k4-s2-fp32-high", "mma-2d-k3-s1-fp16-wide"),
        *("mma-2d-one-pixel-fp16-flat", "mma-2d-k4-s2-multiplier-tf32-flat"),
    ],
)
def test_tensor_cores_keep_all_rules_of_equality(name):
    instance = INSTANCES[name]
    problem = instance.problem

    def candidate(x, weight, bias):
        operands = (None if t is None else aligned(t.contiguous()) for t in (x, weight, bias))
        return emulate(instance, Tensors(*operands))

    wanted = "tf32" if problem.layer.precision in TF32 else "fp32"
    verdict = check_layer(
        candidate, problem, wanted, device="cpu", draw_count=2, reach=FAMILIES[instance.kernel.family].reach
    )
    assert verdict.equal, verdict.reasons
