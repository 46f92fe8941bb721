"""tconv's layers in place of torch's in a model that exists, and back.

Layers stay the objects that they are, with parameters, hooks and names: what changes is their class.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from tconv.modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Layer
from tconv.warming import warmup
from tconv.weights import FrozenWeights

_log = logging.getLogger("tconv")
_OURS: dict[type[torch.nn.Module], type[Layer]] = {
    torch.nn.ConvTranspose1d: ConvTranspose1d,
    torch.nn.ConvTranspose2d: ConvTranspose2d,
    torch.nn.ConvTranspose3d: ConvTranspose3d,
}
_TRANSPOSED = torch.nn.modules.conv._ConvTransposeNd
_TORCHS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {ours: torchs for torchs, ours in _OURS.items()}
Model = TypeVar("Model", bound=torch.nn.Module)


def optimize(model: Model, *, freeze: bool = False, example_inputs: Sequence[Any] | None = None) -> Model:
    """Makes every transposed convolution in `model` a layer of tconv, in place. `restore` undoes that.

        model = tconv.optimize(model.eval(), freeze=True)
        with torch.no_grad():
            y = model(x)

    A layer stays the object that it is, with its parameters, hooks, name and ``state_dict``; its class changes.
    PyTorch's operator still runs the calls on which it was measured or is predicted to be faster: `explain` says so,
    and the environment variable TCONV_INSIST turns that off.

    - tconv takes layers of torch's three classes, and of subclasses that keep torch's ``forward``.
    - It takes parametrized layers (`torch.nn.utils.parametrizations`), which stay tconv's when the parametrizations are
      removed.
    - It leaves all others. The log lists at level INFO what it takes, and what it leaves and why; so does
      ``tconv.explain(model, *inputs)``.

    **Frozen weights.** Kernels on tensor cores read the weights in an order of their own, and a small kernel
    reorders them before each call. With `freeze` the first call keeps the reordered weights, and later calls launch one
    kernel instead of two. Other kernels read weights as they are, frozen or not.

    You promise that nobody writes the weights in place. tconv does not see an optimizer's step, ``weight.data.add_``,
    ``weight.copy_`` or `torch.nn.init`: later results are those of the old weights, without an error. Call
    ``optimize(model, freeze=True)`` again to take the weights as they are then. ``optimize(model)`` and `restore` end
    the freeze.

    Results follow these changes: ``load_state_dict``; ``to``, ``half``, ``cuda`` and the like; another Parameter;
    another tensor as ``weight.data``. A copy or a pickle of a frozen model is frozen, and prepares its own weights.
    ``train()`` and ``eval()`` change nothing. A call that asks for a gradient of the weights reads them as they are,
    since training writes them; the next call without one prepares them anew. So call the model under `torch.no_grad`.

    - **Memory.** The kept weights take as many bytes on the GPU as the weights, twice as many in exact float32, and
      more where a tile is wider than the layer. Each kernel that runs a layer keeps its own: another size or type may
      take another kernel.
    - **Streams.** The call that prepares waits for the GPU. After it any stream and any thread may use the weights.
    - **CUDA graphs.** Make one call before the capture, or each replay prepares the weights. Replays read the kept
      weights, so the layers must stay frozen and on their device. Weights that are loaded later show in replays after
      the next call outside the graph.
    - **Not kept.** Weights are prepared in each call where a compiler traces the model, and where they are computed in
      each call, as by weight norm. Such a layer is frozen as soon as its parametrizations are removed.
    - **Autocast** still casts the weights in each call. ``model.half()`` or ``model.bfloat16()`` saves that.

    Args:
        model: the model, or a single layer.
        freeze: whether the weights of all tconv's layers in `model` are frozen from now on.
        example_inputs: what the model is called with. With them it is warmed up: ``tconv.warmup(model,
            *example_inputs)``. Without, the first call of each shape compiles kernels.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
        MissingToolchain, CompileError: as `warmup`.
    """
    taken, left = [], []
    for name, module in _modules(model):
        if not isinstance(module, _TRANSPOSED):
            continue
        if why := why_left(module):
            left.append(f"{name or 'the model'} ({why})")
            continue
        if not isinstance(module, Layer):
            _become(module, _ours)
            taken.append(name or "the model")
        _freeze(cast(Layer, module), freeze)
    _log.info("taken over from PyTorch: %s", ", ".join(taken) or "nothing")
    if left:
        _log.info("left to PyTorch: %s", "; ".join(left))
    if example_inputs is not None:
        warmup(model, *example_inputs)
    return model


def why_left(module: torch.nn.modules.conv._ConvTransposeNd) -> str | None:
    """Why `optimize` leaves a transposed convolution to PyTorch; None if it takes it, or has."""
    if isinstance(module, Layer):
        return None
    if isinstance(module, LazyModuleMixin):
        return "it has no weights before its first input: call the model once, then optimize it"
    if "forward" in vars(module):
        return "its forward was replaced"
    torchs = next((base for base in type(module).__mro__ if base in _OURS), None)
    if torchs is None:
        return f"{type(module).__name__} is none of ConvTranspose1d, 2d and 3d"
    if type(module).forward is not torchs.forward:
        return f"its class {type(module).__name__} has a forward of its own"
    if hasattr(module, "frozen"):
        return f"its class {type(module).__name__} has an attribute `frozen` of its own"
    return None


def restore(model: Model) -> Model:
    """Makes every layer of tconv in `model` a layer of torch, in place, and ends the freeze of its weights.

    Layers that were built as tconv's become torch's as well. A subclass of tconv's layers that somebody else wrote
    keeps its class.

    Args:
        model: the model, or a single layer.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    for _, module in _modules(model):
        if isinstance(module, Layer):
            _freeze(module, False)
            _become(module, _torchs)
    return model


def _modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"got a {type(model).__name__}; allowed is a torch.nn.Module, such as a model or a layer")
    return list(model.named_modules())


def _become(module: torch.nn.Module, other: Callable[[Any], Any]) -> None:
    """Gives `module` the class that `other` says of the one that it has."""
    kind: Any = type(module)
    if not is_parametrized(module):
        module.__class__ = other(kind)
        return
    # torch.nn.utils.parametrize made this class for the module alone, right above its own, and goes back to that.
    base = other(kind.__base__)
    if base is not kind.__base__:
        module.__class__ = type(kind.__name__, (base,), dict(vars(kind)))


@cache
def _ours(kind: Any) -> Any:
    """tconv's class in the place of one of torch's, or of a subclass that has torch's forward."""
    if kind in _OURS:
        return _OURS[kind]
    ours = next(_OURS[base] for base in kind.__mro__ if base in _OURS)
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (_OfSubclass, ours, kind), {**names, "replaced": kind})


def _torchs(kind: Any) -> Any:
    """The reverse; a class that somebody else made of tconv's is its own."""
    return _TORCHS.get(kind) or vars(kind).get("replaced", kind)


class _OfSubclass:
    """What copies and pickles need of a class that no module has by its name."""

    replaced: Any

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (self.replaced,), self.__dict__


def _new(kind: Any) -> Any:
    ours = _ours(kind)
    return ours.__new__(ours)


def _freeze(layer: Layer, freeze: bool) -> None:
    if layer.frozen is not None:
        if freeze:
            layer.frozen.forget()
        else:
            layer.frozen.release()
            del layer.frozen
    elif freeze:
        layer.frozen = FrozenWeights()
