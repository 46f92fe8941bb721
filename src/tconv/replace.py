"""tconv's layers in place of torch's in a model that exists, and back.

Layers stay the objects that they are, with parameters, hooks and names: what changes is their class.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import torch

from tconv.modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Layer
from tconv.weights import FrozenWeights

_log = logging.getLogger("tconv")
_OURS: dict[type[torch.nn.Module], type[Layer]] = {
    torch.nn.ConvTranspose1d: ConvTranspose1d,
    torch.nn.ConvTranspose2d: ConvTranspose2d,
    torch.nn.ConvTranspose3d: ConvTranspose3d,
}
_TORCHS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {ours: torchs for torchs, ours in _OURS.items()}
Model = TypeVar("Model", bound=torch.nn.Module)


def optimize(model: Model, *, freeze: bool = False) -> Model:
    """Makes every transposed convolution in `model` tconv's, in place; `restore` makes them torch's again.

    Calls on which PyTorch's operator was measured or is predicted to be faster go to it all the same: `explain` says
    so, and the environment variable TCONV_INSIST turns that off.

    ::

        model = tconv.optimize(model.eval(), freeze=True)
        with torch.no_grad():
            y = model(x)

    Parameters, hooks, names and ``state_dict`` stay. Subclasses of torch's layers are left alone, and with them layers
    that are parametrized already: what they compute may be something else.

    **Frozen weights.** Kernels on tensor cores take the weights in an order of their own, into which they are brought
    before each call. Where they are frozen, the first call keeps them in that order, and later calls launch one kernel
    instead of two. (Other kernels take weights as they are, frozen or not.) You promise that nobody writes the weights
    in place: an optimizer's step, ``weight.data.add_``, ``weight.copy_`` and `torch.nn.init` are not seen, and later
    results are those of the old weights, without an error. Calling ``optimize(model, freeze=True)`` again takes the
    weights as they are then; ``optimize(model)`` and `restore` end it.

    What is seen, so that results follow: ``load_state_dict``; ``to``, ``half``, ``cuda`` and the like; another
    Parameter, or another tensor as ``weight.data``. A copy or a pickle of a frozen model is frozen and prepares for
    itself. A call that asks for a gradient of the weights takes them as they are, since whoever trains writes them, and
    the next one that does not prepares them anew: so call under `torch.no_grad`. Neither ``train()`` nor ``eval()``
    changes anything.

    - What is kept takes as much memory on the GPU as the weights, twice that in exact float32, and more where a tile is
      wider than the layer. It is kept for each kernel that runs a layer: other sizes or types may bring another one.
    - The call that prepares waits for the GPU. From then on any stream and any thread may use what it prepared.
    - A CUDA graph uses what was kept before its capture: make one such call first, or it prepares in each replay. It
      reads that memory in each replay, so the layers must stay frozen, and where they are, while it is used. Weights
      that are loaded later show in its replays after the next such call outside of it.
    - Weights are prepared on each call, as without `freeze`, where a compiler traces the model, and where they are no
      parameters but computed on each call (weight norm).
    - Autocast still casts the weights on each call; ``model.half()`` or ``model.bfloat16()`` saves that, too.

    Args:
        freeze: whether the weights of all tconv's layers in `model` are frozen from now on.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    changed = 0
    for module in _modules(model):
        ours = _OURS.get(type(module))
        if ours is not None:
            module.__class__ = ours
            changed += 1
        if isinstance(module, Layer):
            _freeze(module, freeze)
    _log.info("tconv takes over %d of torch's layers", changed)
    return model


def restore(model: Model) -> Model:
    """Makes every layer of tconv's in `model` torch's, in place, also those that were tconv's from the start.

    Subclasses of tconv's layers stay, and thaw.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    for module in _modules(model):
        torchs = _TORCHS.get(type(module))
        if isinstance(module, Layer):
            _freeze(module, False)
        if torchs is not None:
            module.__class__ = torchs
    return model


def _modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"got a {type(model).__name__}; allowed is a torch.nn.Module, such as a model or a layer")
    return list(model.modules())


def _freeze(layer: Layer, freeze: bool) -> None:
    if layer.frozen is not None:
        if freeze:
            layer.frozen.forget()
        else:
            layer.frozen.release()
            del layer.frozen
    elif freeze:
        layer.frozen = FrozenWeights()
