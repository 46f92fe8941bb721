"""Each rule refuses a result that breaks just that rule, and no rule refuses an honest one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tconv.evaluation import equality
from tconv.evaluation.comparison import worst
from tconv.evaluation.equality import Candidate, check_layer
from tconv.evaluation.reference import conv_transpose, rounded_tf32
from tconv.evaluation.rules import within
from tconv.evaluation.verdict import Verdict
from tconv.problem import PRECISIONS, TF32, InvalidProblem, Layer, Precision, Problem

DENSE = Problem(Layer(2, 24, 8, (1, 3, 4), (1, 2, 1), (0, 1, 1), (1, 1, 2), 1, True), 2, (1, 6, 7), (0, 1, 0))

Change = Callable[[Tensor], Tensor]


def honest(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return conv_transpose(x, weight, bias, DENSE)


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if check.passed is False}


def on_operands(change: Change) -> Candidate:
    """PyTorch's operator on changed inputs and weights."""
    return lambda x, weight, bias: honest(change(x), change(weight), bias)


def truncated(tensor: Tensor) -> Tensor:
    """The 13 low bits cut off: what a tensor core makes of operands nobody rounded."""
    return (tensor.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


def test_pytorch_itself_passes_every_rule() -> None:
    verdict = check_layer(honest, DENSE, "fp32")
    assert verdict.equal, verdict.reasons
    assert [check.name for check in verdict.checks] == [
        "shape, dtype, memory format",
        "inputs unchanged",
        "same bits twice",
        "every element written",
        "every element",
        "pooled error",
        "close to PyTorch",
        "power-of-two scaling",
        "input of zeros",
        "one-hot input",
        "large input",
        "tiny input",
        "non-contiguous tensors",
        "tensors at an offset",
        "non-finite input",
    ]
    assert all(check.passed for check in verdict.checks)
    pooled = verdict.check("pooled error")
    assert isinstance(pooled.got, float) and 1e-9 < pooled.got < 2.0**-23


@pytest.mark.parametrize("seed", range(20))
def test_pytorch_itself_passes_on_any_problem(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    verdict = check_layer(lambda x, w, b: conv_transpose(x, w, b, problem), problem)
    assert verdict.equal, (problem, verdict.reasons)


def random_problem(rng: random.Random) -> Problem:
    """Small sizes; every parameter may be anything."""
    while True:
        dims, groups = rng.randint(1, 3), rng.choice([1, 1, 2, 3])

        def axes(low: int, high: int, unused: int, dims: int = dims) -> tuple[int, int, int]:
            depth, height, width = (*[unused] * (3 - dims), *(rng.randint(low, high) for _ in range(dims)))
            return depth, height, width

        try:
            layer = Layer(
                dims,
                groups * rng.randint(1, 3),
                groups * rng.randint(1, 3),
                axes(1, 4, 1),
                axes(1, 4, 1),
                axes(0, 4, 0),
                axes(1, 3, 1),
                groups,
                rng.random() < 0.5,
                rng.choice(PRECISIONS),
            )
            return Problem(layer, rng.randint(0, 2), axes(1, 5, 1), axes(0, 2, 0))
        except InvalidProblem:
            continue


def test_rounded_operands_pass_as_tf32_and_are_not_held_against_pytorchs_fp32() -> None:
    verdict = check_layer(on_operands(rounded_tf32), DENSE, "tf32")
    assert verdict.equal, verdict.reasons
    close = verdict.check("close to PyTorch")
    assert close.passed is None and "the candidate ran tf32, PyTorch fp32" in close.reason
    pooled = verdict.check("pooled error")
    assert isinstance(pooled.got, float) and 1e-4 < pooled.got < 3e-4


LARGE = Problem(Layer(2, 64, 32, (1, 3, 3)), 4, (1, 32, 32))


def rounding(x_as: Precision, weight_as: Precision) -> Candidate:
    """PyTorch's operator on operands rounded to TF32, each in its own way."""
    return lambda x, w, b: conv_transpose(rounded_tf32(x, x_as), rounded_tf32(w, weight_as), b, LARGE)


@pytest.mark.parametrize("theirs", TF32)
@pytest.mark.parametrize("x_as", TF32)
@pytest.mark.parametrize("weight_as", TF32)
def test_ties_rounded_another_way_than_pytorchs_are_not_held_against_a_candidate(
    theirs: Precision, x_as: Precision, weight_as: Precision
) -> None:
    verdict = check_layer(
        rounding(x_as, weight_as), LARGE, "tf32", baseline=rounding(theirs, theirs), draw_count=3, awkward=False
    )
    assert verdict.equal, verdict.reasons
    close = verdict.check("close to PyTorch")
    assert close.passed is (True if x_as == weight_as == theirs else None), close
    mixed = "rounded in different ways" in close.reason
    assert not mixed or x_as != weight_as


def test_rounded_operands_are_refused_as_fp32() -> None:
    names = failed(check_layer(on_operands(rounded_tf32), DENSE, "fp32"))
    assert {"every element", "pooled error"} <= names


def test_truncated_operands_are_refused_as_tf32_though_every_element_is_within_its_bound() -> None:
    verdict = check_layer(on_operands(truncated), DENSE, "tf32")
    assert failed(verdict) == {"pooled error", "close to PyTorch"}
    assert verdict.check("every element").passed
    pooled = verdict.check("pooled error")
    assert isinstance(pooled.got, float) and isinstance(pooled.allowed, float)
    assert pooled.got > 1.5 * pooled.allowed


def test_half_precision_inside_is_refused_as_tf32_by_its_exponents() -> None:
    """fp16 has TF32's 11 bits, so ordinary numbers do not tell them apart."""
    verdict = check_layer(on_operands(lambda tensor: tensor.half().float()), DENSE, "tf32")
    assert failed(verdict) == {"power-of-two scaling", "large input", "tiny input"}
    assert "2^24" in verdict.check("power-of-two scaling").reason


def test_bfloat16_inside_is_refused_as_tf32() -> None:
    names = failed(check_layer(on_operands(lambda tensor: tensor.bfloat16().float()), DENSE, "tf32"))
    assert {"every element", "pooled error"} <= names


def test_an_element_that_nobody_writes() -> None:
    def forgetful(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty(DENSE.output_shape)
        right = honest(x, weight, bias)
        y[:, :, :-1] = right[:, :, :-1]
        y[:, :, -1, 1:] = right[:, :, -1, 1:]
        return y

    verdict = check_layer(forgetful, DENSE, "fp32")
    assert verdict.check("every element written").passed is False
    last_row = DENSE.output_size[1] - 1
    assert f"[0, 0, {last_row}, 0] was not written" in verdict.check("every element written").reason


def test_the_same_in_a_large_output_which_the_allocator_maps_freshly() -> None:
    problem = Problem(Layer(1, 1, 1, (1, 1, 1)), 1, (1, 1, 2**21))

    def forgetful(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty(problem.output_shape)
        y[:, :, : 2**20] = (x * weight)[:, :, : 2**20]
        return y

    verdict = check_layer(forgetful, problem, "fp32", draw_count=1, awkward=False)
    assert f"[0, 0, {2**20}] was not written" in verdict.check("every element written").reason


def test_one_wrong_element_of_one_draw() -> None:
    draws = iter(range(100))

    def slips(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x, weight, bias)
        if next(draws) == 4:
            y[1, 2, 3, 4] += 2e-5
        return y

    verdict = check_layer(slips, DENSE, "fp32", awkward=False)
    assert failed(verdict) == {"every element"}
    assert "at [1, 2, 3, 4] got" in verdict.check("every element").reason


def test_a_changed_input() -> None:
    def scribbles(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x, weight, bias)
        weight[0, 0, 0, 0] += 1
        return y

    verdict = check_layer(scribbles, DENSE, "fp32", draw_count=1, awkward=False)
    assert failed(verdict) == {"inputs unchanged"}
    assert verdict.reasons == ("inputs unchanged: the call changed its weight",)


def test_another_result_in_the_second_run() -> None:
    runs = iter(range(100))

    def wavers(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x, weight, bias)
        if next(runs) == 1:
            y[0, 1, 2, 3] = torch.nextafter(y[0, 1, 2, 3], torch.tensor(math.inf))
        return y

    verdict = check_layer(wavers, DENSE, "fp32")
    assert failed(verdict) == {"same bits twice"}
    assert "[0, 1, 2, 3]" in verdict.reasons[0]


def test_bits_may_change_where_pytorchs_own_do() -> None:
    def wavers(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x, weight, bias)
        return y * (1 + 2.0**-23 * torch.randint(0, 2, y.shape))

    verdict = check_layer(wavers, DENSE, "fp32", baseline=wavers, awkward=False)
    assert verdict.check("same bits twice").passed is None
    assert verdict.check("same bits twice").reason.startswith("not required: PyTorch's own runs differ")
    assert "same bits twice" in failed(check_layer(wavers, DENSE, "fp32", awkward=False))


def test_a_result_that_lives_in_the_same_memory_each_time() -> None:
    memory = torch.empty(DENSE.output_shape)
    runs = iter(range(100))

    def reuses(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return memory.copy_(honest(x, weight, bias)).add_(next(runs) * 1e-6)

    assert "same bits twice" in failed(check_layer(reuses, DENSE, "fp32", awkward=False))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda y: y[:, :, :-1].contiguous(), "shape is (2, 8, 11, 11), PyTorch's is (2, 8, 12, 11)"),
        (lambda y: y.double(), "dtype is torch.float64"),
        (lambda y: y.to(memory_format=torch.channels_last), "memory format"),
        (lambda y: [y], "got list, PyTorch returns a tensor"),
    ],
)
def test_another_form(change: Change, reason: str) -> None:
    verdict = check_layer(lambda x, w, b: change(honest(x, w, b)), DENSE, "fp32", awkward=False)
    assert failed(verdict) == {"shape, dtype, memory format"}
    assert reason in verdict.reasons[0]


def test_another_shape_in_a_later_run_is_a_failed_check_and_no_crash() -> None:
    runs = iter(range(100))
    verdict = check_layer(lambda x, w, b: honest(x, w, b)[:, : 8 if next(runs) < 6 else 7], DENSE, "fp32")
    assert "shape is (2, 7, 12, 11)" in verdict.reasons[0]


def test_a_bias_that_is_added_twice_shows_with_an_input_of_zeros() -> None:
    def twice(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x, weight, bias)
        return y if x.any() or bias is None else y + bias.view(1, -1, 1, 1)

    assert failed(check_layer(twice, DENSE, "fp32")) == {"input of zeros"}


def test_a_kernel_that_skips_zeros_wrongly_shows_with_one_hot_inputs() -> None:
    def skips(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return honest(x, weight, bias) if x.count_nonzero() > 2 else honest(x * 0, weight, bias)

    assert failed(check_layer(skips, DENSE, "fp32")) == {"one-hot input"}


def test_a_kernel_that_takes_the_storage_as_it_lies() -> None:
    def careless(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
        return honest(flat.view(x.shape), weight, bias)

    def at_the_start(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return honest(torch.as_strided(x, x.shape, x.stride(), 0), weight, bias)

    assert failed(check_layer(careless, DENSE, "fp32")) == {"non-contiguous tensors"}
    assert failed(check_layer(at_the_start, DENSE, "fp32")) == {"tensors at an offset"}


def test_overflow_inside() -> None:
    """A scale of 2^100 that a sum of squares, say, would bring in: only large inputs overflow."""
    inside = 2.0**100
    verdict = check_layer(lambda x, w, b: honest(x * inside, w, None) / inside + b.view(1, -1, 1, 1), DENSE, "fp32")
    assert {"large input"} <= failed(verdict) <= {"large input", "every element", "pooled error"}


def test_a_zero_times_infinity_outside_the_outputs_that_depend_on_it() -> None:
    def spills(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return honest(x, weight, bias) + 0 * x.sum(dim=(1, 2, 3), keepdim=True)

    verdict = check_layer(spills, DENSE, "fp32")
    assert failed(verdict) == {"non-finite input"}
    assert "does not depend on it" in verdict.reasons[0]


def test_a_non_finite_input_that_is_swallowed() -> None:
    verdict = check_layer(lambda x, w, b: honest(x.nan_to_num(), w, b), DENSE, "fp32")
    assert failed(verdict) == {"non-finite input"}
    assert "finite, and depends on it" in verdict.reasons[0]


def test_stacked_phases_may_spread_infinity_over_their_position_where_that_is_allowed() -> None:
    """k 2 with stride 3: one phase has no tap. A stacked kernel gives it a tap of zero, and 0 × ∞ is NaN."""
    problem = Problem(Layer(1, 2, 2, (1, 1, 2), (1, 1, 3)), 1, (1, 1, 4), (0, 0, 1))

    def stacked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv_transpose1d(x, F.pad(weight, (0, 1)), stride=3)

    assert failed(check_layer(stacked, problem, "fp32")) == {"non-finite input"}
    assert check_layer(stacked, problem, "fp32", reach="phases").equal


def test_sums_in_float16_are_refused_where_pytorch_sums_in_float32() -> None:
    half = replace(DENSE, layer=replace(DENSE.layer, precision="fp16"))

    def in_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return honest(x.float(), weight.float(), None if bias is None else bias.float()).half()

    def in_float16(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # What PyTorch itself sums in on a CPU depends on the CPU's instructions.
        alone = torch.eye(x.shape[1], dtype=x.dtype)[:, :, None, None]
        y = sum(in_float32(x * channel, weight, None) for channel in alone)
        return y if bias is None else y + bias[:, None, None]

    good = check_layer(in_float32, half, baseline=in_float32)
    assert good.equal, good.reasons
    assert good.check("power-of-two scaling").passed is None
    bad = check_layer(in_float16, half, baseline=in_float32)
    assert "every element" in failed(bad)


def test_a_bound_that_pytorch_itself_breaks_is_not_required() -> None:
    half = replace(DENSE, layer=replace(DENSE.layer, precision="fp16"))

    def coarse(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = honest(x.float(), weight.float(), None if bias is None else bias.float()).half()
        return (y.float() * (1 + 2.0**-9)).half()

    verdict = check_layer(coarse, half, baseline=coarse)
    assert verdict.check("every element").passed is None
    assert "PyTorch's own result is outside" in verdict.check("every element").reason


@pytest.mark.parametrize("further", [0.0, 2.0**-5])
def test_closeness_to_a_result_outside_its_bound_is_not_required_of_one_inside(further: float) -> None:
    half = replace(DENSE, layer=replace(DENSE.layer, precision="fp16"))

    def scaled(x: Tensor, weight: Tensor, bias: Tensor | None, by: float) -> Tensor:
        y = honest(x.float(), weight.float(), None if bias is None else bias.float())
        return (y * (1 + by)).half()

    verdict = check_layer(partial(scaled, by=-further), half, baseline=partial(scaled, by=2.0**-5))
    close = verdict.check("close to PyTorch")
    assert close.passed is (False if further else None)
    assert verdict.equal is not bool(further)
    assert ("PyTorch's own result is outside" in close.reason) is not bool(further)


@pytest.mark.parametrize("allowed", [math.inf, math.nan])
def test_an_allowance_that_is_not_finite_decides_nothing(allowed: float) -> None:
    for got, passed in ((0.0, True), (1e-30, None), (1.0, None), (math.inf, False), (math.nan, False)):
        assert within("pooled error", got, allowed, {"of its own": allowed}).passed is passed
    for got, passed in ((0.0, True), (1.0, True), (1.1, False), (math.inf, False), (math.nan, False)):
        for others in ({"of its own": allowed, "another": 1.0}, {"another": 1.0, "of its own": allowed}):
            assert within("pooled error", got, allowed, others).passed is passed
    expected = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    bounds = torch.tensor([[1e-6, allowed]], dtype=torch.float64)
    assert worst(expected.float(), expected, bounds).ratio == 0
    assert worst(torch.tensor([[1.0, 2.5]]), expected, bounds).ratio == 0
    for wrong, index in (([1.5, 2.0], (0, 0)), ([1.0, math.nan], (0, 1)), ([1.0, math.inf], (0, 1))):
        found = worst(torch.tensor([wrong]), expected, bounds)
        assert found.ratio > 1 and found.index == index


def test_draws_after_the_first_have_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are allowed; a mistake in another sample of the first draw shows all the same."""
    problem = Problem(Layer(1, 2, 3, (1, 1, 4), (1, 1, 2)), 5, (1, 1, 6))
    monkeypatch.setattr(equality, "_FURTHER_BYTES", 2 * 4 * (2 * 6 + 3 * 14))
    assert equality.further_draws(problem).batch == 2
    monkeypatch.setattr(equality, "_FURTHER_BYTES", 1)
    assert equality.further_draws(problem).batch == 1
    batches: list[int] = []

    def candidate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        batches.append(len(x))
        y = conv_transpose(x, weight, bias, problem)
        if len(x) > 3:
            y[3, 0, 0] += 1
        return y

    assert not check_layer(candidate, problem, draw_count=3, awkward=False).equal
    assert batches == [5, 5, 1, 1]


def test_awkward_inputs_may_have_fewer_samples() -> None:
    batches = []

    def counting(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        batches.append(x.shape[0])
        return honest(x, weight, bias)

    verdict = check_layer(counting, replace(DENSE, batch=3), "fp32", draw_count=2, awkward_batch=1)
    assert verdict.equal, verdict.reasons
    assert batches == [3] * 3 + [1] * 11
    assert check_layer(honest, replace(DENSE, batch=3), "fp32", awkward_batch=5).equal


def test_an_empty_batch_has_only_a_form() -> None:
    verdict = check_layer(honest, replace(DENSE, batch=0), "fp32")
    assert verdict.equal
    assert failed(check_layer(lambda x, w, b: x, replace(DENSE, batch=0), "fp32")) == {"shape, dtype, memory format"}
