"""Runs a layer and its epilogue in one kernel."""
# mypy: ignore-errors

import functools
import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from tconv.codegen.runtime.conv_transpose import (
        _OPERATOR,
        _allows_tf32,
        _conv_transpose,
        _fill,
        _last,
        _run,
        _wanted,
        _wants_gradients,
    )
    from tconv.codegen.runtime.dispatch import _Launch, _launch_for
    from tconv.codegen.runtime.gradients import _apply_fused
    from tconv.codegen.runtime.known_epilogues import _EPILOGUES, _POINTWISE, _PROGRAMS, _Known
    from tconv.codegen.runtime.modules import _CudaForward

# ---- copied from here on

# ---- epilogues -----------------------------------------------------------------------------------------------


# ---- where programs are computed
_CPU = torch.device("cpu")


@functools.lru_cache(maxsize=4096)
def _kind(shape, of):
    """What a tensor of that shape has one value for, next to a result of shape `of`; None if it does not broadcast."""
    if len(shape) == 1 and shape[0] == of[1] != 1:  # like parameters of modules
        return "vector"
    shape = (1,) * (len(of) - len(shape)) + shape
    if shape == of:
        return "output"
    if len(shape) > len(of):
        return None
    if set(shape) <= {1}:
        return "scalar"
    if shape[1] != of[1] or not set(shape[2:]) <= {1} or shape[0] not in (1, of[0]):
        return None
    return "channel" if shape[0] == 1 else "sample"


def _is_plain(module):
    """Whether a call of a module computes what this file records for its class, and does nothing else."""
    if type(module) not in _POINTWISE:  # by now the attribute may hold no module
        return False
    hooked = _is_hooked(module) or module._forward_pre_hooks or "forward" in vars(module)
    return not (hooked or (module.training and hasattr(module, "num_batches_tracked")))


# ---- where programs are computed
# Hooks on the calls of all modules, or on their gradients. PyTorch changes these dictionaries in place.
_GLOBAL_HOOKS = [
    hooks
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
    for hooks in [getattr(nn.modules.module, f"_global_{kind}_hooks", None)]
]


def _is_hooked(module):
    """Whether hooks see a module's result, gradients or keyword arguments. Hooks on its inputs alone do not count."""
    own = vars(module)
    return (
        own["_forward_hooks"]
        or own["_backward_hooks"]
        or own.get("_backward_pre_hooks")
        or own.get("_forward_pre_hooks_with_kwargs")
        or own.get("_compiled_call_impl")
    )


class _Epilogue:
    """A layer's epilogue: a function of the layer's result, and tensors that are concatenated with what it returns."""

    def __init__(self, function, modules, before, after, reads=(), site=None):
        self.function, self.modules, self.before, self.after = function, modules, before, after
        self.reads, self.site = reads, site

    def __call__(self, y):
        if self.function is not None:
            return self.function(y)
        for module in self.modules:
            y = module(y)
        return y

    def joined(self, y):
        return torch.cat([*self.before, y, *self.after], 1) if self.before or self.after else y

    def fits(self, shape, x):
        """Whether tensors before and after a result of that shape, in the type of `x`, can be concatenated with it."""
        return all(
            part.dim() == len(shape)
            and (part.shape[0], tuple(part.shape[2:])) == (shape[0], shape[2:])
            and (part.dtype, part.device) == (x.dtype, x.device)
            for part in (*self.before, *self.after)
        )

    # ---- where programs are computed
    def read(self, shape, like):
        """Words that decide what the epilogue computes on a result of that shape, with type and device of `like`, and
        the tensors that it reads. The words are None where it reads something that they cannot name."""
        said, tensors, values, types = [self.site], [], [], [like.dtype]
        # ---- where programs are computed
        # ---- where results are promoted
        types += [torch.float32] * (like.element_size() == 2)
        # ---- where results are promoted
        # ---- where programs are computed
        for module in self.modules:
            numbers, names = _POINTWISE[type(module)]
            said.append(f"{type(module).__name__}({', '.join(repr(getattr(module, name)) for name in numbers)})")
            values += [getattr(module, name) for name in names]
        for value in (*values, *self.reads):
            if isinstance(value, torch.Tensor):
                kind = _kind(tuple(value.shape), shape)
                if kind is None or value.dtype not in types or value.device != like.device:
                    return None, ()
                places = [place for place, tensor in enumerate(tensors) if tensor is value]
                if not places:
                    places = [len(tensors)]
                    tensors.append(value)
                said.append(f"{kind}{places[0]}")  # a tensor that is read twice has one number
            elif value is None or type(value) in (bool, int, float, str, torch.dtype):
                said.append(repr(value))  # equal values may compute other results: 0.0 and -0.0, 1 and True
            elif type(value) is torch.device and torch.empty(0, device=value).device in (like.device, _CPU):
                said.append("device")
            else:
                return None, ()
        if torch.get_default_dtype() != torch.float32:  # the type of what bools and numbers alone give
            said.append(repr(torch.get_default_dtype()))
        return tuple(said), tensors


# ---- where programs are computed
def cuda_fused(layer, *inputs, epilogue=None, modules=(), before=(), after=(), reads=(), site=None, **options):
    """Equal to ``torch.cat([*before, epilogue(layer(*inputs)), *after], 1)``, in one kernel where this file has one.

    `modules` are the modules that `epilogue` calls. Without `epilogue` they are called in a row. `reads` is all else
    that the epilogue reads, and `site` its place in the model. Without a kernel, the epilogue runs after the layer.
    """
    epilogue = _Epilogue(epilogue, modules, before, after, reads, site)
    if _OPERATOR is not None and torch.compiler.is_compiling():  # compilers fuse PyTorch's operators
        return epilogue.joined(epilogue(layer(*inputs, **options)))
    if isinstance(layer, _CudaForward):
        kind, own = type(layer), vars(layer)
        ours = kind.forward is _CudaForward.forward and kind.__call__ is nn.Module.__call__
        ours = ours and not ("forward" in own or own.get("_left") or _is_hooked(layer))
        call = layer if own["_forward_pre_hooks"] else layer.forward  # a call of the module would look for hooks again
    else:
        ours, call = isinstance(layer, functools.partial) and layer.func is _conv_transpose, layer
    ours = ours and not any(_GLOBAL_HOOKS)
    # ---- where programs are computed
    ours = ours and all(map(_is_plain, modules))
    # ---- where programs are computed
    if ours:
        return call(*inputs, epilogue=epilogue, **options)
    return epilogue.joined(epilogue(layer(*inputs, **options)))


def _launch_with(layer, program, tensors, options, into=0):
    """The launch of a layer with a program, or the reason why there is none. `into` counts the channels of the tensor
    that the result is a slice of; 0 for a tensor of its own."""
    found = layer.others.get((program, into))
    if found is None:
        x, weight, bias = tensors
        asked = (x.device, x.dtype, x.shape, weight.shape, None if bias is None else bias.shape, options)
        found = layer.others[program, into] = _launch_for(*asked, program, into)
    return found


def _fused(tensors, options, epilogue, autocast):
    """The result of a layer and its epilogue by one kernel; None where no kernel computes that."""
    around = [*epilogue.before, *epilogue.after]
    layer = _wanted(tensors, options)
    if layer is None:
        return None
    program = None if epilogue.function or epilogue.modules else ""
    operands, beside, x, weight = (), bool(around), *tensors[:2]
    # ---- where programs are computed
    known, operands = _known_epilogue(epilogue, layer, x)
    if autocast is not None and known and known.wide:
        return None
    # ---- where programs are computed
    # ---- where results are promoted
    if known and any(operand.dtype != x.dtype for operand in operands):
        # The result is float32 if one of these is, and has axes. The kernel for float32 computes it: TF32 holds 16-bit
        # operands, so products are exact.
        promoting = [operands[place] for place in known.promotes]
        if not any(t.dtype == torch.float32 and t.dim() for t in promoting) or not _allows_tf32():
            return None
        known = known._replace(from_type=x.dtype)
        x, weight, bias = tensors = tuple(t if t is None else t.float() for t in tensors)
        operands = [t.float() for t in operands]
        layer = _launch_for(x.device, x.dtype, x.shape, weight.shape, None if bias is None else bias.shape, options)
        if type(layer) is not _Launch:
            return None
    # ---- where results are promoted
    # ---- where programs are computed
    program = known and known.program
    # ---- where programs are computed
    gradients = _wants_gradients(*tensors, *around, *operands)
    if program is None or (gradients and not program):  # with gradients, PyTorch concatenates
        return None
    # ---- where programs are computed
    if gradients:
        launch = _launch_with(layer, program, tensors, options)
        if type(launch) is not _Launch:
            return None
        return epilogue.joined(_apply_fused(launch, layer, options, known, *tensors, *operands))
    # A program reads operands "output" and "sample" at the offsets of a whole result. A slice has other offsets.
    beside = beside and not (program and any(name[:2] in ("ou", "sa") for name in _PROGRAMS[program]))
    # ---- where programs are computed
    if beside and epilogue.fits(layer.shape, x) and _last(x, weight) is None:
        parts = [*epilogue.before, None, *epilogue.after]
        widths = [layer.shape[1] if part is None else part.shape[1] for part in parts]
        launch = _launch_with(layer, program, tensors, options, sum(widths))
        if type(launch) is _Launch:
            whole = x.new_empty((layer.batch, sum(widths)) + layer.shape[2:])
            for part, own in zip(parts, whole.split(widths, 1)):
                if part is None:
                    _fill(own, launch, *tensors, *operands)
                else:
                    own.copy_(part)
            return whole
    launch = _launch_with(layer, program, tensors, options)
    return epilogue.joined(_run(launch, *tensors, *operands)) if type(launch) is _Launch else None


# ---- where programs are computed
def _known_epilogue(epilogue, layer, x):
    """The record of an epilogue and the operands of its program; no record where no kernel computes the epilogue."""
    if epilogue.function is None and not epilogue.modules:
        return _Known(""), ()
    said, tensors = epilogue.read(layer.shape, x)
    known = _EPILOGUES.get(said)
    if known is None and said and layer.batch == 1:  # "channel" and "sample" are then the same
        each = [f"channel{n}" for n, tensor in enumerate(tensors) if tensor.dim() == x.dim()]
        known = _EPILOGUES.get(tuple(part.replace("channel", "sample") if part in each else part for part in said))
    if known is None or (known.types and x.dtype not in known.types):
        what = "something else than numbers and tensors of its type and device" if said is None else said[1:]
        words = f"no kernel in this file computes the epilogue of {layer.kernel.name} that reads {what}: PyTorch does"
        warnings.warn(f"{words}; tconv optimize makes one for it", stacklevel=2)
        return None, ()
    return known, [tensors[place] for place in known.operands]


# ---- where programs are computed
