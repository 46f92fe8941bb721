"""Whether infinities and NaN in weights and inputs reach the results that depend on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from tconv.evaluation.files.levels import ALL_PLACES
from tconv.evaluation.files.process.by_samples import mapped
from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.files.sides.candidate_calls import Calls
from tconv.evaluation.files.sides.file_process import CandidateFailed, CandidateRaised, Outcome
from tconv.evaluation.files.sides.inputs import IN_EVALUATION
from tconv.evaluation.files.sides.model_and_candidate import HOST, Pair
from tconv.evaluation.verdict import Check
from tconv.sandbox.exchange import largest_bytes, tensors
from tconv.sandbox.model_file import ModelFileError

NAME = "infinities and NaN"
_INPUT = "input"

#: Inputs and a state.
_Given = tuple[list[Any], dict[str, Tensor]]


def check_infinite_values(pair: Pair) -> list[Check]:
    """Whether an infinity or NaN, in the weights or the inputs, reaches all results that it must reach.

    It must reach a result that is not finite in all of these runs of `Model`: with the infinity; with NaN in its place;
    in float64, since PyTorch's kernels may spread it; and with more of them, which may be the largest numbers there.
    A candidate may spread it to further results: nobody takes infinities and NaN for results.
    """
    seed = IN_EVALUATION
    inputs, state = pair.small
    checks = []
    for place, value in _places(inputs, state, pair.looks_at(ALL_PLACES)):
        words = f"{place} {'is infinite' if math.isinf(value) else 'is not a number'} in one place"
        given = _with(inputs, state, place, value)
        with suppress(ModelFileError):  # it may refuse such values
            plain = pair.plain(*given, seed, False)
            pair.calls.beside(plain)
            got = _given(pair.calls, given, seed, words, plain.outputs["output"])
            check = got if isinstance(got, Check) else _reached_by(got, words, [plain])
            if check.passed is False:
                others = list(_others(pair, inputs, state, place, value))
                alike = (same_outputs(each.outputs["output"], plain.outputs["output"], dtypes=False) for each in others)
                if not all(each.passed for each in alike):
                    continue  # the shape of a result depends on values
                check = got if isinstance(got, Check) else _reached_by(got, words, [plain, *others])
            checks.append(check)
    return [each for each in checks if not each.passed] or [Check(NAME, True)]


def _others(pair: Pair, inputs: list[Any], state: dict[str, Tensor], place: str, value: float) -> Iterator[Outcome]:
    """Further runs of `Model`. Each may show that a result need not be reached."""
    with_nan = _with(inputs, state, place, math.nan)
    if not math.isnan(value):
        yield pair.plain(*with_nan, IN_EVALUATION, False)
    with suppress(ModelFileError):  # it may make tensors of its own
        yield pair.plain(*with_nan, IN_EVALUATION, False, mode="float64")
    with suppress(ModelFileError):  # where it spreads, other numbers may be the largest
        yield pair.plain(*_with(inputs, state, place, math.nan, axes=2), IN_EVALUATION, False)


def _places(inputs: list[Any], state: dict[str, Tensor], all_places: bool) -> Iterator[tuple[str, float]]:
    """Places and the values that one number there gets: the first and the last weight of three axes or more, as
    convolutions have, and an input.

    Args:
        all_places: whether to give all of them; else an infinite weight and the input.
    """
    names = [name for name, each in state.items() if each.is_floating_point() and each.dim() > 2 and each.numel()]
    for name in names[:1]:
        yield name, math.inf
        if all_places:
            yield name, math.nan
    for name in names[1:][-1:] if all_places else ():
        yield name, math.nan
    for path, each in tensors(inputs, _INPUT):
        if each.is_floating_point() and each.dim() > 1 and each.numel():
            yield path, math.nan
            return


def _with(inputs: list[Any], state: dict[str, Tensor], place: str, value: float, axes: int | None = None) -> _Given:
    """Inputs and state with this value in the first number at a place; with `axes`, in all at the first indices of so
    many axes: of two, in a whole kernel of a weight, or in a whole channel of an input."""

    def changed(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[((0,) * tensor.dim())[:axes]] = value
        return tensor

    if place in state:
        return inputs, {**state, place: changed(state[place])}
    chosen = dict(tensors(inputs, _INPUT))[place]
    return mapped(inputs, lambda tensor: changed(tensor) if tensor is chosen else tensor), state


def _reached(outcomes: Sequence[Outcome]) -> dict[str, Tensor]:
    """Masks by the paths of `Model`'s floating-point outputs: True where no run of `Model` gives a finite number.

    Infinity times zero is NaN, and a comparison with NaN gives a number. So runs with NaN in its place are among them.
    """
    first, *others = (dict(tensors(outcome.outputs["output"])) for outcome in outcomes)
    found = {
        path: ~tensor.isfinite() for path, tensor in first.items() if tensor.is_floating_point() or tensor.is_complex()
    }
    for tree in others:
        found = {path: there & ~tree[path].isfinite() for path, there in found.items()}
    return found


def _given(calls: Calls, given: _Given, seed: int, words: str, expected: Any) -> Any:
    """The candidate's outputs; a check if it raises or gives another form."""
    size = largest_bytes(expected)
    try:
        got = calls.run(*given, seed=seed, on=HOST, output_bytes=size, training=False).outputs["output"]
    except CandidateRaised as error:
        return Check(NAME, None, reason=f"not taken: {words}; {error}")
    except CandidateFailed as failure:
        raise CandidateFailed(f"where {words}, {failure}") from None
    form = same_outputs(_without_numbers(got), _without_numbers(expected))
    return got if form.passed else Check(NAME, False, reason=f"where {words}: {form.reason}", about=words)


def _reached_by(got: Any, words: str, model: Sequence[Outcome]) -> Check:
    """Whether the value reached all results that it must reach by the runs of `Model`, the matching run first."""
    reached, theirs = _reached(model), dict(tensors(model[0].outputs["output"]))
    for path, tensor in tensors(got):
        if path not in reached:
            continue
        missed = (reached[path] & tensor.isfinite()).nonzero()
        if len(missed):
            index = tuple(map(int, missed[0]))
            values = f"{tensor[index].item():.6g}, Model's {theirs[path][index].item():.6g}"
            return Check(NAME, False, reason=f"where {words} the element at {list(index)} is {values}", about=words)
    return Check(NAME, True)


def _without_numbers(value: Any) -> Any:
    """The tree with zeros for Python numbers, which may be computed from results."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_numbers, value))
    if isinstance(value, dict):
        return {key: _without_numbers(each) for key, each in value.items()}
    return 0 if isinstance(value, (int, float)) else value
