"""Gives lazy layers, which have no weights before their first input, their weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tconv.evaluation.files.process.by_samples import mapped
from tconv.sandbox.model_file import LoadedModel, blamed, seed_everything


def settled(module: nn.Module, file: LoadedModel, seed: int, device: torch.device) -> nn.Module:
    """The module on the device, with shapes and values for lazy parameters. Nothing else of it changes.

    A run on one sample of the file's own inputs, after seeding, gives them. Without lazy parameters, nothing runs.
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
