"""Gives layers the classes of a generated file where the file's own text did not construct them."""
# mypy: ignore-errors

import functools
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from tconv.codegen.runtime.equal import _Equal
    from tconv.codegen.runtime.modules import _CudaForward, _on_cuda
    from tconv.codegen.runtime.records import _LEFT

# ---- copied from here on

_THEIRS = tuple(getattr(nn, f"{lazy}ConvTranspose{dims}d") for lazy in ("Lazy", "") for dims in (1, 2, 3))


@functools.lru_cache(maxsize=None)
def _cuda_class(kind, parametrized):
    """The class that replaces `kind`, which is torch's or a subclass that was defined elsewhere."""
    if kind in _THEIRS:
        return _on_cuda(kind)
    if parametrized:  # torch.nn.utils.parametrize made `kind`, for one module, as a subclass of the module's class
        return type(kind.__name__, (_cuda_class(kind.__base__, False),), dict(vars(kind)))
    theirs = next(base for base in kind.__mro__ if base in _THEIRS)
    forward = type(theirs.__name__, (_CudaForward, theirs), {})
    equal = _Equal if type(kind) is type else type("_Equal", (_Equal, type(kind)), {})
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return equal(kind.__name__, (kind, forward), {**names, "_stands_for": kind, "__reduce_ex__": _reduced})


def _reduced(module, protocol):
    """Pickles and copies a module by the class that it had before: pickle finds that class where it was defined."""
    kind = type(module).__bases__[0]
    make, values, *state = kind.__reduce_ex__(module, protocol)
    return (_made_again, (make, *(kind if value is type(module) else value for value in values)), *state)


def _made_again(make, *values):
    module = make(*values)
    if isinstance(module, _THEIRS) and not isinstance(module, _CudaForward):
        module.__class__ = _cuda_class(type(module), False)
    return module


def _swap(model):
    """Gives transposed convolutions that were built elsewhere the classes above. Their parameters stay."""
    for name, module in model.named_modules():
        if isinstance(module, _THEIRS) and not isinstance(module, _CudaForward):
            module.__class__ = _cuda_class(type(module), hasattr(module, "parametrizations"))
        if name in _LEFT and isinstance(module, _CudaForward):
            module._left = True
