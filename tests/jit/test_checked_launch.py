"""What the check of a written file hands to the driver for its kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tconv.planner import Gpu
from tconv.problem import Layer, Problem
from tconv.rewriter import check
from tconv.sandbox.cut import Cut


@pytest.mark.parametrize("epilogue", ["", "y * channel0 + output1"])
def test_addresses_sizes_and_operands(driver: Any, epilogue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(Layer(1, 4, 6, (1, 1, 3), (1, 1, 2), bias=True, epilogue=epilogue), 2, (1, 1, 9))
    operands = [torch.rand(6), torch.rand(problem.output_shape)] if epilogue else []
    function = driver.kernel("kernel", "PPPPiiiiiiii" + "P" * len(operands))
    how = SimpleNamespace(too_far=False, threads=128, grid=3, shared_bytes=0, preparation=None, inputs=None)
    compiled: Any = SimpleNamespace(cubin=b"")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(check, "launch_of", lambda *_: how)
    monkeypatch.setattr(check, "load_all", lambda *_: (function, None, None))
    candidate = check.launch_on_gpu(Cut("", "kernel", False), problem, lambda *_: compiled, Gpu.h200())
    tensors = torch.rand(problem.input_shape), torch.rand(4, 6, 3), torch.rand(6)
    y = candidate(*tensors, *operands)
    (launched,) = driver.launches
    assert launched[:5] == ("kernel", driver.current_stream, 3, 128, 0)
    addresses = [tensor.data_ptr() for tensor in (*tensors, y)]
    assert launched.values == [*addresses, 6, 2, 1, 1, 9, 1, 1, 19, *(operand.data_ptr() for operand in operands)]
