"""The library's path to a launch without a GPU, and tensors as odd as callers have them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch

from tconv import dispatch, ops, routes
from tconv.jit import loader
from tconv.memory import VECTOR_BYTES
from tconv.planner import Gpu, Plan
from tconv.planner.choice import reads_channels_last
from tconv.pointwise.evaluate import evaluate, shape_of
from tconv.pointwise.program import parse


class Launched(list[Plan]):
    """The plans that were launched, and apart from them those whose weights were prepared."""

    def __init__(self) -> None:
        self.prepared: list[Plan] = []


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Takes CPU tensors for a GPU's, whose kernels are torch's operator on the raw memory; lists what was launched.

    Weights are prepared by turning the order of their bytes round.
    """
    launched = Launched()
    decide = dispatch.decide

    class Launcher:
        def __init__(self, kernel: object, plan: Plan, device: int, preparing: object, of_inputs: object) -> None:
            self.plan, self.preparing, self.weights_last = plan, preparing, plan.kernel.layer.weights_last

        def enqueue(self, stream: int, x: int, weight: int, bias: int, y: int, *operands: int) -> None:
            own = self.prepare(weight) if self.preparing else None  # held until it was read
            self._run(x, weight if own is None else own.data_ptr(), bias, y, operands)

        def enqueue_prepared(self, stream: int, x: int, prepared: int, bias: int, y: int, *operands: int) -> None:
            assert self.preparing, "this kernel takes weights as they are"
            self._run(x, prepared, bias, y, operands)

        def _run(self, x: int, weight: int, bias: int, y: int, operands: tuple[int, ...]) -> None:
            plan, layer, problem = self.plan, self.plan.problem.layer, self.plan.problem
            launched.append(plan)
            assert plan.kernel.family == "direct" or x % VECTOR_BYTES == 0, "it loads so many bytes at once"
            dtype, used = getattr(torch, layer.dtype), slice(3 - layer.spatial_dims, 3)
            if self.preparing:
                weights = _turned_round(_at(weight, layer.weight_shape, dtype))
            else:
                weights = _weights_at(weight, plan)
            result = ops._NATIVE[layer.spatial_dims](
                _stored_at(x, problem.input_shape, dtype, plan),
                weights,
                _at(bias, (layer.out_channels,), dtype) if layer.bias else None,
                layer.stride[used],
                layer.padding[used],
                problem.output_padding[used],
                layer.groups,
                layer.dilation[used],
            )
            if layer.epilogue:
                result = evaluate(parse(layer.epilogue), result, _read_at(operands, plan))
            _stored_at(y, problem.output_shape, dtype, plan).copy_(result)

        def prepare(self, weight: int, memory: torch.Tensor | None = None) -> torch.Tensor:
            launched.prepared.append(self.plan)
            prepared = _turned_round(_weights_at(weight, self.plan).contiguous())
            return prepared if memory is None else memory.copy_(prepared)

    monkeypatch.setattr(routes, "decide", lambda *a, **k: decide(*a, gpu=Gpu.h200(), **k))
    monkeypatch.setattr(routes, "_routes", {})
    monkeypatch.setattr(routes, "empty", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(loader, "check_driver", lambda: None)
    monkeypatch.setattr(loader, "gpu_of", lambda device: Gpu.h200())
    monkeypatch.setattr(loader, "build", lambda kernel, arch: loader.Built(kernel, b"cubin"))
    monkeypatch.setattr(loader, "load", lambda *_: object())
    monkeypatch.setattr(loader, "Launcher", Launcher)
    return launched


@pytest.fixture
def as_cuda(as_gpu: Launched, monkeypatch: pytest.MonkeyPatch) -> Launched:
    """As `as_gpu`, for calls of the public functions and layers."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return as_gpu


def _turned_round(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8).flip(0).view(tensor.dtype).view(tensor.shape)


def _at(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The contiguous tensor at `address`."""
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _stored_at(address: int, shape: tuple[int, ...], dtype: torch.dtype, plan: Plan) -> torch.Tensor:
    """The input or output of a plan's kernel at `address`."""
    if not reads_channels_last(plan):
        return _at(address, shape, dtype)
    return _at(address, (shape[0], *shape[2:], shape[1]), dtype).movedim(-1, 1)


def _weights_at(address: int, plan: Plan) -> torch.Tensor:
    """The weights at `address`, as the plan's kernel reads them."""
    layer = plan.kernel.layer
    shape, dtype = layer.weight_shape, getattr(torch, layer.dtype)
    if not layer.weights_last:
        return _at(address, shape, dtype)
    return _at(address, (shape[0], *shape[2:], shape[1]), dtype).movedim(-1, 1)


def _read_at(operands: tuple[int, ...], plan: Plan) -> list[torch.Tensor]:
    """What the program of a plan's layer reads: of all outputs as they lie, of others one after the other."""
    problem = plan.problem
    dtype, found = getattr(torch, problem.layer.dtype), []
    for operand, address in zip(parse(problem.layer.epilogue).operands, operands, strict=True):
        shape = shape_of(operand.kind, problem.output_shape)
        found.append(
            _stored_at(address, shape, dtype, plan) if operand.kind == "output" else _at(address, shape, dtype)
        )
    return found


def _every_other(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, -tensor], -1)[..., 0]


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _at_an_offset(tensor: torch.Tensor) -> torch.Tensor:
    """Aligned to one element, and to no more."""
    return torch.cat([tensor.new_full((1,), 1e4), tensor.flatten()])[1:].view(tensor.shape)


def _cut_out(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (1, 2), value=1e4)[..., 1:-2]


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """One slice of the first axis, many times."""
    return tensor[:1].expand(tensor.shape)


def _all_of_one_element(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()[1].expand(tensor.shape)


def _overlapping(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().as_strided(tensor.shape, (1,) * tensor.dim())


@pytest.fixture(
    params=[_every_other, _transposed, _at_an_offset, _cut_out, _expanded, _all_of_one_element, _overlapping],
    ids=lambda change: change.__name__.strip("_"),
)
def odd(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gives a tensor an odd layout in memory; some change the values with it."""
    return request.param
