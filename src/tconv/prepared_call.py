"""A layer's call with everything decided beforehand: for short layers, where deciding takes longer than launching."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tconv import routes
from tconv.errors import Unsupported
from tconv.explanation import explain
from tconv.memory import VECTOR_BYTES
from tconv.metadata import alike, has_memory, never
from tconv.modules import Layer, call_arguments, parameters_of


class PreparedCall:
    """A call of one layer on inputs of one shape, dtype, device and memory format, without gradients.

        call = tconv.prepare(layer, x)
        y = call(x)
        call(x, out=y)

    It reads the layer's weights at each call; frozen ones are prepared once. Hooks of the layer are not called.
    Autocast casts nothing, and flags for TF32 count as they were when the call was prepared. Any thread may call it,
    and any stream; a CUDA graph may capture it.

    Args:
        layer: whose call it is.
        route: how it runs; `prepare` finds it.
        like: an input as the call takes them.
    """

    def __init__(self, layer: Layer, route: routes.Route, like: Tensor) -> None:
        self._layer, self._route = layer, route
        weight, bias = parameters_of(layer)
        self._kinds = tuple(map(_kind, (like, weight, bias)))
        self._strides = weight.stride()
        self._result = torch.Size(route.output_shape), like.dtype, like.device
        self._format = route.memory_format if route.directly else torch.contiguous_format
        #: Of the tensors accepted last, without `out` and with it: how many, what tells others like them, and whether
        #: one requires a gradient.
        self._accepted: list[tuple[int, Callable[..., bool], bool]] = [(0, never, False)] * 2

    def __call__(self, input: Tensor, out: Tensor | None = None) -> Tensor:
        """The layer's result.

        Args:
            input: as the one that the call was prepared for, but for its values.
            out: where the result goes, of its shape and dtype, in the memory format of a result; a new tensor if None.

        Returns:
            `out`, or the new tensor: the same values and memory format as the layer gives.

        Raises:
            RuntimeError: a gradient is asked for.
            ValueError: input, `out`, or the layer's weight or bias is of another kind than the call was prepared for.
        """
        layer = self._layer
        weight, bias = parameters_of(layer)
        tensors: tuple[Tensor, ...] = (input, weight) if bias is None else (input, weight, bias)
        if out is not None:
            tensors = (*tensors, out)
        count, are_alike, requires_grad = self._accepted[out is not None]
        if len(tensors) != count or not are_alike(*tensors):
            self._check(input, weight, bias)
            if out is not None:
                self._check_out(out)
            requires_grad = any(tensor.requires_grad for tensor in tensors)
            self._accepted[out is not None] = len(tensors), alike(*tensors), requires_grad
        if out is not None and out.data_ptr() % VECTOR_BYTES:
            place = f"{out.data_ptr():#x}; it takes multiples of {VECTOR_BYTES} bytes"
            raise ValueError(f"got out= that begins at {place}")
        if requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a prepared call takes no part in gradients: call it under torch.no_grad()")
        copy = None if layer.frozen is None else layer.frozen.copy(self._route.launcher, weight, weight)
        return self._route.launch(input, weight, bias, 0 if copy is None else copy.address, (), out)

    def _check(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if (_kind(input), _kind(weight), _kind(bias)) != self._kinds or not self._reads(input):
            raise ValueError(self._differs(input, weight, bias))
        if weight.stride() != self._strides:  # whether it is copied was decided before
            wanted = f"this call was prepared for strides {self._strides}: prepare another one"
            raise ValueError(f"got weight of {_named(weight)}; {wanted}")

    def _check_out(self, out: Tensor) -> None:
        if not (_kind(out) == self._result and out.is_contiguous(memory_format=self._format)):
            raise ValueError(f"got out= of {_named(out)}; it takes {self._result}, {self._format}")

    def _reads(self, input: Tensor) -> bool:
        lies = type(input) is Tensor and input.is_contiguous(memory_format=self._format)
        return lies and not input.is_neg() and has_memory(input)

    def _differs(self, *tensors: Tensor | None) -> str:
        for name, tensor, kind in zip(("input", "weight", "bias"), tensors, self._kinds, strict=True):
            if _kind(tensor) != kind:
                return f"got {name} of {_named(tensor)}; this call was prepared for {kind}: prepare another one"
        return f"got an input of {_named(tensors[0])} that is not plain, or does not lie in {self._format}"


def prepare(layer: Layer, input: Tensor) -> PreparedCall:
    """Plans, compiles and loads a layer's kernel for inputs like `input`, and gives a call that only launches it.

        call = tconv.prepare(layer, x)
        with torch.no_grad():
            y = call(x)

    The call checks shapes and types by comparing them with those of `input`, where the layer looks its route up.

    Args:
        layer: a layer of tconv: `tconv.ConvTranspose2d` and its like, or what `tconv.optimize` made of torch's.
        input: (N, in_channels, ...), as the call's inputs will be; its values do not matter.

    Returns:
        The call.

    Raises:
        TypeError: `layer` is no layer of tconv.
        Unsupported: no kernel of tconv runs the call, or it has no batch; the message says why.
        MissingToolchain: cuda-core, its bindings or NVRTC are absent or do not fit the driver.
        CompileError: NVRTC refused the kernel.
    """
    if not isinstance(layer, Layer):
        raise TypeError(f"got a {type(layer).__name__}; allowed is a layer of tconv (tconv.optimize makes torch's one)")
    dims, arguments = len(layer.kernel_size), call_arguments(layer, input)
    if input.dim() != dims + 2:
        raise Unsupported(f"got an input with {input.dim()} axes; a prepared call takes {dims + 2}, a batch first")
    bias = arguments.pop("bias")
    route = routes.find_route(dims, input, layer.weight, bias, tuple(arguments.values())) if input.is_cuda else None
    if route is None:
        raise Unsupported(f"no kernel of tconv runs this call: {explain(layer, input).reason}")
    call = PreparedCall(layer, route, input)
    if not call._reads(input):
        raise Unsupported(f"got an input of strides {input.stride()}: make it contiguous, in {call._format}")
    return call


def _kind(tensor: Tensor | None) -> tuple[torch.Size, torch.dtype, torch.device] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _named(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{_kind(tensor)} with strides {tensor.stride()}"
