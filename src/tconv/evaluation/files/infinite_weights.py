"""Weights that are infinite or no number: what depends on them is no number either, unless `Model` makes one of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tconv.evaluation.files.calls import Calls
from tconv.evaluation.files.case import HOST, Case, plain_of
from tconv.evaluation.files.other_inputs import small_inputs
from tconv.evaluation.files.side import CandidateFailed, CandidateRaised, Side
from tconv.evaluation.files.weights import randomised
from tconv.evaluation.files.whole_model import same_outputs
from tconv.evaluation.precision import Wanted
from tconv.evaluation.verdict import Check
from tconv.sandbox.exchange import tensors
from tconv.sandbox.model_file import ModelFileError

NAME = "infinite weights"


def check_infinite_weights(
    case: Case, model: Side, calls: Calls, wanted: Wanted, seed: int, *, emulated: bool
) -> list[Check]:
    """Whether an infinite weight and one that is not a number reach all results of a candidate that they must reach.

    They must where `Model` gives no finite number, whichever of the two the weight is, in float64 as well: PyTorch may
    spread it. A candidate may spread it, too, to any result: nobody takes that for one.

    Args:
        seed: of the inputs and the state.
    """
    inputs = small_inputs(case, model, seed, emulated)
    state = randomised(model.construct(seed, case.arguments), seed)
    checks = []
    for name, value in _chosen(state):
        try:
            reached = _reached(model, inputs, state, name, value, seed, wanted)
        except ModelFileError:
            continue
        words = f"{name} {'is infinite' if math.isinf(value) else 'is not a number'} in one place"
        checks.append(_one(calls, inputs, _with(state, name, value), seed, words, *reached))
    return [each for each in checks if not each.passed] or [Check(NAME, True)]


def _chosen(state: dict[str, Tensor]) -> Iterator[tuple[str, float]]:
    """The first and the last weight of three axes or more, as convolutions have, and what one number of it becomes."""
    names = [name for name, each in state.items() if each.is_floating_point() and each.dim() > 2 and each.numel()]
    if names:
        yield names[0], math.inf
        yield names[-1], math.nan


def _with(state: dict[str, Tensor], name: str, value: float) -> dict[str, Tensor]:
    changed = state[name].clone()
    changed[(0,) * changed.dim()] = value
    return {**state, name: changed}


def _reached(
    model: Side, inputs: list[Any], state: dict[str, Tensor], name: str, value: float, seed: int, wanted: Wanted
) -> tuple[Any, dict[str, Tensor]]:
    """What `Model` gives, and by the paths of its floating-point outputs where the weight must reach them."""
    plain = plain_of(model, inputs, _with(state, name, value), seed, wanted, False).outputs["output"]
    found = [plain]
    # Infinity times zero is not a number, and a comparison makes a number of that: of either the result must be none.
    spoiled = _with(state, name, math.nan)
    if not math.isnan(value):
        found.append(plain_of(model, inputs, spoiled, seed, wanted, False).outputs["output"])
    try:
        options = {"mode": "float64", "training": False}
        found.append(model.forward(inputs, spoiled, seed=seed, on=HOST, **options).outputs["output"])
    except ModelFileError:  # it makes tensors of its own
        pass
    trees = [dict(tensors(each)) for each in found]
    paths = [path for path, tensor in trees[0].items() if tensor.is_floating_point() or tensor.is_complex()]
    return plain, {path: torch.stack([~tree[path].isfinite() for tree in trees]).all(0) for path in paths}


def _one(
    calls: Calls,
    inputs: list[Any],
    state: dict[str, Tensor],
    seed: int,
    words: str,
    expected: Any,
    reached: dict[str, Tensor],
) -> Check:
    size = max(tensor.numel() * tensor.element_size() for _, tensor in tensors(expected))
    try:
        got = calls.run(inputs, state, seed=seed, on=HOST, output_bytes=size, training=False).outputs["output"]
    except CandidateRaised as error:
        return Check(NAME, None, reason=f"not taken: {words}; {error}")
    except CandidateFailed as failure:
        raise CandidateFailed(f"where {words}, {failure}") from None
    form = same_outputs(got, expected)
    if not form.passed:
        return Check(NAME, False, reason=f"where {words}: {form.reason}")
    theirs = dict(tensors(expected))
    for path, tensor in tensors(got):
        if path not in reached:
            continue
        missed = (reached[path] & tensor.isfinite()).nonzero()
        if len(missed):
            index = tuple(map(int, missed[0]))
            values = f"{tensor[index].item():.6g}, Model's {theirs[path][index].item():.6g}"
            return Check(NAME, False, reason=f"where {words} the element at {list(index)} is {values}")
    return Check(NAME, True)
