"""Whether `ModelNew` has the parameters and buffers of `Model`, with the same values from the same seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from tconv.evaluation.files.sides.file_process import Parameter
from tconv.evaluation.rules import first_difference, same_values
from tconv.evaluation.verdict import Check

#: Factor for positive values below one of such parameters, so that slopes get larger than one.
_LARGER = 6


def check_state(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[Check, ...]:
    """Compare the state_dicts of two modules that were built from the same seed: layout first, then values."""
    layout = Check("parameters and buffers", True, f"{len(got)} of them")
    problem = _names(got, expected) or _shapes(got, expected)
    if problem:
        return (Check(layout.name, False, reason=problem),)
    return layout, _values(got, expected)


def check_parameters(got: Sequence[Parameter], expected: Sequence[Parameter]) -> Check:
    """Compare parameters of modules with equal state_dicts, in the order in which optimizers number them."""
    name = "parameters are parameters"
    ours, theirs = {each.name: each for each in got}, {each.name: each for each in expected}
    problem = ""
    if lost := [each for each in theirs if each not in ours]:
        problem = f"{', '.join(lost)} is no parameter, in Model it is: register it as an nn.Parameter"
    elif added := [each for each in ours if each not in theirs]:
        problem = f"{', '.join(added)} is a parameter, in Model it is none: make it a buffer"
    elif tied := [each for each in expected if ours[each.name].first != each.first]:
        first = [f"the same as {found.first}" for found in (ours[tied[0].name], tied[0])]
        own = [words.replace(f"the same as {tied[0].name}", "one of its own") for words in first]
        problem = f"{tied[0].name} is {own[0]}, in Model it is {own[1]}: tie parameters as Model does"
    elif list(ours) != list(theirs):
        order = "optimizers number them: register them in Model's order"
        problem = f"they are in the order {', '.join(ours)}, in Model {', '.join(theirs)}; {order}"
    elif other := [each for each in expected if ours[each.name].requires_grad != each.requires_grad]:
        wanted = other[0].requires_grad
        names = ", ".join(each.name for each in other)
        problem = f"{names} has requires_grad={not wanted}, in Model it is {wanted}: set it so"
    return Check(name, not problem, reason=problem)


def randomised(state: Mapping[str, Tensor], seed: int, trained: Collection[str] = ()) -> dict[str, Tensor]:
    """A state in which all numbers differ from those as built. Positive numbers, such as variances, stay positive.

    Modules are built with ones and zeros, which hide operations that are left out. Infinities, NaN and integers stay.

    Args:
        trained: names of parameters. If they have at most one axis and are positive, like weights of norms or slopes,
            they get numbers on both sides of zero and of one.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        factor = torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.dtype) + 0.5
        noise = (torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.dtype) - 0.5) / 2
        finite = tensor[tensor.isfinite()]
        if finite.numel() and bool((finite > 0).all()):
            if name not in trained or tensor.dim() > 1:
                return tensor * factor
            sign = 1 - 2 * torch.randint(2, tensor.shape, generator=generator)
            return tensor * factor * (sign * torch.where(tensor.cpu() < 1, _LARGER, 1)).to(tensor.device, tensor.dtype)
        size = float(finite.double().square().mean().sqrt()) if finite.numel() else 0.0
        return tensor * factor + noise * (size or 1.0)

    return {name: drawn(name, tensor) for name, tensor in state.items()}


def halved_in_places(state: Mapping[str, Tensor], names: Sequence[str], seed: int) -> dict[str, Tensor]:
    """The state with half of the numbers of these tensors, drawn at random, halved. The difference is exact."""
    generator = torch.Generator().manual_seed(seed)

    def changed(tensor: Tensor) -> Tensor:
        halved = torch.rand(tensor.shape, generator=generator).to(tensor.device) < 0.5
        return torch.where(halved, tensor / 2, tensor)

    return {**state, **{name: changed(state[name]) for name in names if state[name].is_floating_point()}}


def _names(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    missing = sorted(expected.keys() - got.keys())
    added = sorted(got.keys() - expected.keys())
    parts = [f"ModelNew lacks {', '.join(missing)}"] * bool(missing) + [f"Model lacks {', '.join(added)}"] * bool(added)
    return "; ".join(parts) + ("; a state_dict of one must load into the other" if parts else "")


def _shapes(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    for name, theirs in expected.items():
        ours = got[name]
        if ours.shape != theirs.shape:
            return f"{name} has shape {tuple(ours.shape)}, in Model it has {tuple(theirs.shape)}"
        if ours.dtype != theirs.dtype:
            return f"{name} is {ours.dtype}, in Model it is {theirs.dtype}"
    return ""


def _values(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Check:
    name = "weights from the same seed"
    for key, theirs in expected.items():
        ours = got[key]
        if not same_values(ours, theirs):
            index = first_difference(ours, theirs)
            values = f"{ours[index].item():.6g} instead of {theirs[index].item():.6g}"
            reason = f"weights drawn otherwise: after the same seed {key} differs at {list(index)}: {values}"
            return Check(name, False, values, "the same", reason)
    return Check(name, True)
