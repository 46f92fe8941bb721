"""The call of one kernel: what is copied, and in which memory format results come."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace

import pytest
import torch

from tconv.evaluation.draws import draw
from tconv.evaluation.reference import Operands, conv_transpose
from tconv.jit import loader
from tconv.memory import memory_format
from tconv.planner import Gpu, Plan
from tconv.planner.choice import leading, reads_channels_last, replan
from tconv.planner.tuned import Question
from tconv.problem import Layer, Problem
from tconv.tuning import trials

PROBLEM = Problem(Layer(2, 16, 8, (1, 3, 3), (1, 2, 2), bias=True), 2, (1, 5, 6))


def _stored_at(address: int, shape: tuple[int, ...], channels_last: bool) -> torch.Tensor:
    memory = (ctypes.c_char * (math.prod(shape) * 4)).from_address(address)
    flat = torch.frombuffer(memory, dtype=torch.float32)
    return flat.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1) if channels_last else flat.view(shape)


class _Launcher:
    """PyTorch's operator on the raw memory, as the plan's kernel would use it. Prepared weights are negated."""

    def __init__(self, kernel: object, plan: Plan, device: int, preparing: object, of_inputs: object) -> None:
        assert (preparing is None) == (plan.preparation is None)
        assert (of_inputs is None) == (plan.inputs is None)
        self.problem, self.directly = plan.problem, reads_channels_last(plan)
        self.weights_last = plan.kernel.layer.weights_last

    def prepare(self, weight: int) -> torch.Tensor:
        return _stored_at(weight, self.problem.layer.weight_shape, self.weights_last).contiguous().neg()

    def enqueue(self, stream: int, x: int, weight: int, bias: int, y: int, *operands: int) -> None:
        self._run(x, weight, bias, y, operands, prepared=False)

    def enqueue_prepared(self, stream: int, x: int, weight: int, bias: int, y: int, *operands: int) -> None:
        self._run(x, weight, bias, y, operands, prepared=True)

    def _run(self, x: int, weight: int, bias: int, y: int, operands: tuple[int, ...], prepared: bool) -> None:
        layer = self.problem.layer
        weights = _stored_at(weight, layer.weight_shape, self.weights_last and not prepared)
        given = Operands(
            _stored_at(x, self.problem.input_shape, self.directly),
            weights.neg() if prepared else weights,
            _stored_at(bias, (layer.out_channels,), False),
        )
        result = conv_transpose(*given, self.problem)
        if operands:
            result += _stored_at(operands[0], self.problem.output_shape, self.directly)
            result *= _stored_at(operands[1], (1, layer.out_channels, 1, 1), False)
        _stored_at(y, self.problem.output_shape, self.directly).copy_(result)


@pytest.mark.parametrize("program", ["", "(y + output0) * channel1"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("family", ["direct", "mma"])
def test_a_kernel_is_called_as_the_library_does(
    family: str, channels_last: bool, frozen: bool, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(loader, "load", lambda cubin, name, shared_bytes, device: "kernel")
    monkeypatch.setattr(trials, "Launcher", _Launcher)
    problem = replace(PROBLEM, layer=replace(PROBLEM.layer, epilogue=program))
    question, gpu = Question(problem, "tf32"), Gpu.h200()
    question = question.in_channels_last() if channels_last else question
    kernel = next(kernel for kernel, _ in leading(question, gpu, 4) if kernel.family == family)
    plan = replan(question.problem_of(kernel.family), kernel, gpu)
    assert plan is not None and reads_channels_last(plan) == (channels_last and family == "mma")
    operands = draw(PROBLEM, torch.device("cpu"), 0)
    added, factors = torch.randn(PROBLEM.output_shape), torch.randn(1, 8, 1, 1)
    wanted = memory_format(4, channels_last)
    laid_out = Operands(*(tensor.contiguous(memory_format=wanted) for tensor in operands[:2]), operands.bias)
    got = trials.caller(plan, b"cubin", laid_out, channels_last, frozen, (added, factors) if program else ())()
    assert got.is_contiguous(memory_format=wanted)
    expected = conv_transpose(*operands, PROBLEM)
    expected = (expected + added) * factors if program else expected
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
