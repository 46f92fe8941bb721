"""Lazy layers, which have no weights before their first input."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tconv.evaluation.files.process.by_samples import mapped
from tconv.sandbox.model_file import LoadedModel, blamed, seed_everything


def settled(module: nn.Module, file: LoadedModel, seed: int, device: torch.device) -> nn.Module:
    """The module, on that device, with shapes and values for lazy parameters; nothing else of it changes.

    One sample of the file's own inputs gives them, after seeding. A module without lazy parameters is not run.
    """
    if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        return module
    modes = {each: each.training for each in module.modules()}
    inputs = mapped(file.make_inputs(seed), lambda tensor: tensor[:1].to(device))
    seed_everything(seed)
    with torch.no_grad(), blamed(file.path, "forward"):
        module.eval()(*inputs)
    for each, training in modes.items():
        each.training = training
    return module
