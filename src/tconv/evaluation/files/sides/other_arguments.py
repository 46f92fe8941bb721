"""Other constructor arguments for a model of one layer, and inputs to go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Gives the value of one parameter from the current values of all.
_Rule = Callable[[Mapping[str, Any]], Any]
#: The longest batch and axes of an input, all of them different.
_LONGEST = (2, 9, 8, 7)


def variations(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Up to ten sets of changes to a constructor's arguments; the same sets each time.

    Args:
        values: the constructor's parameters with their current values. Only names that PyTorch's transposed
            convolutions use are changed. A tuple stays a tuple, and an integer an integer.
    """
    seen: list[dict[str, Any]] = [{}]
    for rules in _SETS:
        changes = {name: rule(values) for name, rule in rules.items() if name in values}
        changes = {name: value for name, value in changes.items() if value != values[name]}
        if changes not in seen:
            seen.append(changes)
            yield changes


def varied_shape(shape: tuple[int, ...], values: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[int, ...]:
    """A small input (N, C, *spatial) for a model with these changes to its arguments.

    Without changes, the size is varied: the batch and every axis differ from the given ones.
    """
    if len(shape) < 3:
        return shape
    channels = shape[1]
    if channels == values.get("in_channels"):
        channels = changes.get("in_channels", channels)
    lengths = (shape[0], *shape[2:])
    small = [min(length, longest) for length, longest in zip(lengths, _LONGEST, strict=False)]
    if not changes:
        small = [one + (one == length) for one, length in zip(small, lengths, strict=True)]
    batch, *spatial = small
    return (batch, channels, *spatial)


def _each_axis(name: str, *wanted: int) -> _Rule:
    """The wanted numbers, one for each axis of a tuple; the first of them for an integer."""

    def rule(values: Mapping[str, Any]) -> Any:
        present = values[name]
        if isinstance(present, (tuple, list)):
            return tuple(wanted[axis % len(wanted)] for axis in range(len(present)))
        return wanted[0]

    return rule


def _multiple(name: str, of: int) -> _Rule:
    """The present number rounded up to a multiple."""
    return lambda values: -(-values[name] // of) * of


def _is(value: Any) -> _Rule:
    return lambda values: value


def _other_bias(values: Mapping[str, Any]) -> bool:
    return not values["bias"]


_GROUPS_OF_TWO: dict[str, _Rule] = {
    "groups": _is(2),
    "in_channels": _multiple("in_channels", 2),
    "out_channels": _multiple("out_channels", 2),
}

#: Each set aims at one part of the arithmetic; the last ones at how the parts meet.
_SETS: tuple[dict[str, _Rule], ...] = (
    {"bias": _other_bias},
    {"stride": _each_axis("stride", 2, 3)},
    {"padding": _each_axis("padding", 1, 2)},
    {"dilation": _each_axis("dilation", 2, 3)},
    {"stride": _each_axis("stride", 3, 2), "output_padding": _each_axis("output_padding", 1)},
    _GROUPS_OF_TWO,
    {"in_channels": _is(6), "out_channels": _is(10), "groups": _is(1)},
    {"kernel_size": _each_axis("kernel_size", 4, 2), "stride": _each_axis("stride", 2)},
    {
        "kernel_size": _each_axis("kernel_size", 2, 3),
        "stride": _each_axis("stride", 4),
        "dilation": _each_axis("dilation", 3),
    },
    {
        **_GROUPS_OF_TWO,
        "stride": _each_axis("stride", 4, 3),
        "padding": _each_axis("padding", 1, 0),
        "dilation": _each_axis("dilation", 2, 1),
        "output_padding": _each_axis("output_padding", 1, 2),
        "bias": _is(True),
    },
)
