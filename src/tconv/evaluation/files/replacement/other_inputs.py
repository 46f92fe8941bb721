"""Inputs that a model file does not give: in other layouts and sizes, with far larger and far smaller values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tconv.evaluation.bits import same_bytes
from tconv.evaluation.draws import BEYOND_FLOAT16, reversed_storage, shifted_storage
from tconv.evaluation.files.levels import EACH_KIND
from tconv.evaluation.files.process.by_samples import mapped, samples_of, some_samples
from tconv.evaluation.files.results.near_ties import hangs_on_rounding
from tconv.evaluation.files.results.output_rules import same_outputs
from tconv.evaluation.files.sides.file_process import CandidateFailed, CandidateRaised
from tconv.evaluation.files.sides.inputs import IN_EVALUATION
from tconv.evaluation.files.sides.model_and_candidate import HOST, Pair, near_each
from tconv.evaluation.files.sides.smaller_inputs import cut
from tconv.evaluation.tolerance import TF32_OPERANDS
from tconv.evaluation.verdict import Check, Verdict
from tconv.memory import CHANNELS_LAST_FORMATS
from tconv.sandbox.exchange import largest_bytes
from tconv.sandbox.model_file import ModelFileError

NAME = "other inputs"
#: Inputs times two to the power of plus or minus this stay within float16.
_EXPONENT = 10
#: A result within this distance of `Model`'s, sample by sample, is right.
_NEAR = TF32_OPERANDS
#: Kinds of inputs.
_SIZE, _ONE, _OTHER = "inputs of another size", "a batch of one", "other numbers"
_LAST, _EXPANDED = "channels_last inputs", "expanded inputs"
_REVERSED = "inputs whose axes lie in memory in reverse order"
_ZEROS = "a sample of zeros"
_TIMES = "inputs times 2^{}"


class _Kind(NamedTuple):
    """A kind of inputs.

    Args:
        words: its name in reports.
        tried: inputs to try in turn, until `Model` takes some.
        options: options of `Subject.forward` for both sides.
        loads: whether the state is loaded before the call. Else a candidate that has this state keeps it.
        parts: the kinds that this one combines. They are tried one by one if it fails, or if `Model` rejects it.
    """

    words: str
    tried: list[list[Any]]
    options: Mapping[str, bool] = MappingProxyType({})
    loads: bool = True
    parts: Sequence[_Kind] = ()


def check_other_inputs(pair: Pair) -> list[Check]:
    """Whether a candidate gives `Model`'s results for such inputs in evaluation, if `Model` gives any.

    An error that the candidate raises is reported, but is no fault: nobody takes it for a result.
    """
    small, state = pair.small
    kinds = _kinds(small, pair.emulated) if pair.looks_at(EACH_KIND) else _together(small)
    checks = [check for kind in kinds for check in _tried(pair, kind, state)]
    return [each for each in checks if not each.passed] or [Check(NAME, True)]


def _tried(pair: Pair, kind: _Kind, state: dict[str, Tensor]) -> list[Check]:
    """The checks of one kind of inputs. If it combines parts and fails, the checks of the parts."""
    found: list[Check] = []
    for inputs in kind.tried:
        try:
            found = _one(pair, kind, inputs, state)
        except ModelFileError:
            continue
        if all(check.passed for check in found):
            return []
        break
    apart = [check for part in kind.parts for check in _tried(pair, part, state)]
    return apart or found


def _one(pair: Pair, kind: _Kind, inputs: list[Any], state: dict[str, Tensor]) -> list[Check]:
    words, seed = kind.words, IN_EVALUATION
    plain = pair.plain(inputs, state, seed, False, **kind.options)
    pair.calls.beside(plain)
    expected = _plainly_laid_out(plain.outputs["output"])
    size = largest_bytes(expected)
    stays = all(same_bytes(buffer, state[name].to(HOST)) for name, buffer in plain.outputs["buffers"].items())
    given = None if not kind.loads and stays and pair.calls.has(state) else state
    try:
        options = {"seed": seed, "output_bytes": size, "training": False, **kind.options}
        outcome = pair.calls.run(inputs, given, on=HOST, **options)
    except CandidateRaised as error:
        return [Check(NAME, None, reason=f"not taken: {words}; {error}")]
    except CandidateFailed as failure:
        raise CandidateFailed(f"given {words}, {failure}") from None
    got = _plainly_laid_out(outcome.outputs["output"])
    ties = pair.ties(inputs, state, seed, False, **kind.options).of("output")
    form = ties.form(same_outputs(got, expected), expected)
    if hangs_on_rounding(form):
        return []
    if not form.passed:
        return [Check(NAME, False, reason=f"given {words}: {form.reason}", about=words)]
    if not pair.looks_at(EACH_KIND) and near_each(got, expected, _NEAR):
        return []
    others = pair.finer(plain, inputs, state, seed, False)
    comparisons = pair.comparisons()
    exact, rounded = (None if each is None else _plainly_laid_out(each["output"]) for each in others)
    comparisons.add(got, expected, exact, rounded, ties)
    reasons = Verdict(tuple(comparisons.checks())).reasons
    return [Check(NAME, False, reason=f"given {words}: {reasons[0]}", about=words)] if reasons else []


def _together(inputs: list[Any]) -> Iterator[_Kind]:
    """A few kinds, each of which combines several of `_kinds` in one call."""
    apart = {kind.words: kind for kind in _kinds(inputs, emulated=False)}
    size, one, reverse = (apart.get(words) for words in (_SIZE, _ONE, _REVERSED))
    at_offset = _Kind("inputs at an offset in their memory", [_each(inputs, shifted_storage)])
    tried = [
        [_other(value)[0] for value in _each(each, lambda tensor: shifted_storage(reversed_storage(tensor)))]
        for each in (size.tried if size else [inputs])
    ]
    parts = [*filter(None, (size, reverse, apart.get(_OTHER))), at_offset]
    yield _Kind("inputs of another size, with axes in reverse order, at an offset", tried, parts=parts)
    last = apart.get(_LAST)
    if one is not None and last is not None:
        in_format = [_in_format(_in_format(value, 4), 5) for value in one.tried[0]]
        yield _Kind("a batch of one, in channels_last", [in_format], parts=[one, last])
    else:
        yield from filter(None, (one, last))
    if (expanded := apart.get(_EXPANDED)) is not None:
        yield expanded
    yield _scaled_samples(inputs)


def _scaled_samples(inputs: list[Any]) -> _Kind:
    """The first sample times several powers of two, and zero."""
    first = samples_of(inputs, slice(1))
    exponents = (BEYOND_FLOAT16, -BEYOND_FLOAT16, _EXPONENT, -_EXPONENT)
    factors = {_TIMES.format(exponent): 2.0**exponent for exponent in exponents} | {_ZEROS: 0.0}

    def times(*chosen: float) -> list[Any]:
        return [
            value if one is value else torch.cat([_times(one, factor) for factor in chosen])
            for value, one in zip(inputs, first, strict=True)
        ]

    parts = [_Kind(name, [times(factor)]) for name, factor in factors.items()]
    return _Kind("samples of far apart sizes", [times(1.0, *factors.values())], parts=parts)


def _times(value: Tensor, factor: float) -> Tensor:
    """The tensor times a factor, within its type's range: float16 has neither of the outer factors."""
    if not value.is_floating_point():
        return value
    return value * factor if value.dtype != torch.float16 or abs(math.log2(factor or 1)) <= _EXPONENT else value


def _kinds(inputs: list[Any], emulated: bool) -> Iterator[_Kind]:
    """Each kind by itself."""
    sizes = [_each(inputs, change, 3) for change in (_shorter, _half_as_wide, _half)]
    one = some_samples(inputs, slice(-1, None))
    if any(isinstance(value, Tensor) and value.dim() > 2 for value in inputs):
        yield _Kind(_SIZE, sizes)
    if one is not None:
        yield _Kind(_ONE, [one])
    yield _Kind(_REVERSED, [_each(inputs, reversed_storage, 2)])
    twice = None if emulated else first_sample_twice(inputs)
    if twice is not None:
        yield _Kind("a sample twice", [twice])
    others = list(map(_other, inputs))
    if any(is_other for _, is_other in others):
        yield _Kind(_OTHER, [[value for value, _ in others]])
    if emulated:
        return
    if one is not None:
        yield _Kind(_ZEROS, [_each(inputs, _first_zero, 2)])
    for dims in CHANNELS_LAST_FORMATS:
        if any(isinstance(value, Tensor) and value.dim() == dims for value in inputs):
            yield _Kind(_LAST, [[_in_format(value, dims) for value in inputs]])
    if one is not None:
        first = _each(inputs, lambda tensor: tensor[:1].expand_as(tensor).contiguous(), 1)
        yield _Kind(_EXPANDED, [first], {"expanded": True})
    # The smaller inputs lie at the addresses of the larger ones, with no load between: this finds caches by address.
    larger = _each(inputs, lambda tensor: tensor * 2.0**_EXPONENT)
    yield _Kind(_TIMES.format(_EXPONENT), [larger], {"replaced": True})
    smaller = _each(inputs, lambda tensor: tensor * 2.0**-_EXPONENT)
    yield _Kind(_TIMES.format(-_EXPONENT), [smaller], {"replaced": True}, loads=False)


def first_sample_twice(inputs: list[Any]) -> list[Any] | None:
    """The inputs with a second copy of the first sample, so that indices occur twice, with equal values; or None.

    Sums by index must add both. For writes by index, order and place make no difference.
    """
    first = some_samples(inputs, slice(1))
    if first is None:
        return None
    return [value if one is value else torch.cat([value, one]) for value, one in zip(inputs, first, strict=True)]


def _each(inputs: list[Any], change: Callable[[Tensor], Tensor], dims: int = 0) -> list[Any]:
    """The inputs with all floating-point tensors of at least `dims` axes changed."""
    return [
        change(value) if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= dims else value
        for value in inputs
    ]


def _shorter(tensor: Tensor) -> Tensor:
    lengths = (max(1, length - by) for by, length in enumerate(tensor.shape[2:], 1))
    return cut(tensor, (*tensor.shape[:2], *lengths))


def _half_as_wide(tensor: Tensor) -> Tensor:
    return cut(tensor, (*tensor.shape[:-1], max(1, tensor.shape[-1] // 2)))


def _other(value: Any) -> tuple[Any, bool]:
    """Integers and masks at other places, or one of them changed if all are equal; half of a number. Also whether the
    value changed."""
    if isinstance(value, float):
        return value / 2, value != 0
    if not isinstance(value, Tensor) or not value.numel() or value.is_complex():
        return value, False
    if value.is_floating_point():
        constant = value.dim() == 0 or (value.numel() > 1 and bool((value == value.flatten()[0]).all()))
        return (value / 2, bool(value.any())) if constant else (value, False)
    order = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(value.numel()))
    flat = value.flatten()[order.to(value.device)]
    if bool((flat == flat[0]).all()):
        flat[-1] = ~flat[-1] if value.dtype == torch.bool else flat[-1] - 1 if flat[-1] > 0 else flat[-1] + 1
    return flat.reshape(value.shape), True


def _first_zero(tensor: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(tensor[:1]), tensor[1:]])


def _half(tensor: Tensor) -> Tensor:
    return cut(tensor, (*tensor.shape[:2], *(max(1, length // 2) for length in tensor.shape[2:])))


def _in_format(value: Any, dims: int) -> Any:
    fits = isinstance(value, Tensor) and value.dim() == dims
    return value.contiguous(memory_format=CHANNELS_LAST_FORMATS[dims]) if fits else value


def _plainly_laid_out(value: Any) -> Any:
    """The tree with contiguous tensors: only the model file's own inputs decide about memory formats of results."""
    return mapped(value, Tensor.contiguous)
