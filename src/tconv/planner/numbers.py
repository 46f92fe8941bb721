"""Arithmetic on a number, or on an array with one number for each of many tiles.

The formulas of a family's tiles are stated once. They take a tile: its fields are ints, or, for many tiles at once,
all or some of them are arrays of one length. What is written with ``+ - * // %``, comparisons, ``& |`` and the
functions below works for both; ``if``, ``and`` and ``min`` do only on what belongs to the layer and is a number always.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

#: Numbers of 32 bits are below it. The headers call it the same.
INDEX_LIMIT = 2**31

Fields = TypeVar("Fields")
#: An array of numbers, or of truth values, where a formula says int or bool.
Array: TypeAlias = Any


def least(one: Any, other: Any) -> Any:
    """The smaller one."""
    return min(one, other) if _are_numbers(one, other) else np.minimum(one, other)


def most(one: Any, other: Any) -> Any:
    """The larger one."""
    return max(one, other) if _are_numbers(one, other) else np.maximum(one, other)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`; both are evaluated."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def nowhere(condition: Any) -> bool:
    """Whether `condition` holds for none: what only those need is then not computed."""
    return not (condition.any() if isinstance(condition, np.ndarray) else condition)


def whole(value: Any) -> Any:
    """A positive number without its fraction."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


def ceil_div(number: Any, unit: Any) -> Any:
    """How many units hold so many."""
    return -(-number // unit)


def ceil(value: Any) -> Any:
    """The next whole number, as a float where `value` is an array."""
    return np.ceil(value) if isinstance(value, np.ndarray) else math.ceil(value)


def gcd(one: Any, other: Any) -> Any:
    """The greatest common divisor."""
    return math.gcd(one, other) if _are_numbers(one, other) else np.gcd(one, other)


def length(fields: Any) -> int:
    """How many tiles a dataclass of arrays stands for."""
    return next(len(value) for value in _leaves(fields) if isinstance(value, np.ndarray))


def taken(fields: Fields, places: Any) -> Fields:
    """A dataclass of arrays at the given places (indices, or one truth value each); numbers stay."""
    return _mapped(lambda value: value[places] if isinstance(value, np.ndarray) else value, fields)


def single(fields: Fields, place: int) -> Fields:
    """One of the many, in Python's own numbers."""
    return _mapped(lambda value: value[place].item() if isinstance(value, np.ndarray) else value, fields)


def joined(parts: Sequence[Fields], lengths: Sequence[int]) -> Fields:
    """Several dataclasses of arrays of these lengths, one after the other."""

    def join(*values: Any) -> Any:
        if not any(isinstance(value, np.ndarray) for value in values) and len(set(values)) == 1:
            return values[0]
        return np.concatenate([np.broadcast_to(v, n) for v, n in zip(values, lengths, strict=True)])

    return _mapped(join, *parts)


def crossed(*lengths: int) -> tuple[Array, ...]:
    """Places in sequences of these lengths, for each combination of one of each; those of the last vary first."""
    return tuple(places.ravel() for places in np.indices(lengths))


def every(values: Sequence[int], places: Array) -> Array:
    """The values at those places."""
    return np.array(values)[places]


def equals(fields: Any, one: Any) -> Any:
    """Of a dataclass of arrays: which of the many is the given one, an array of truth values."""
    same = np.ones(length(fields), bool)
    for many, wanted in zip(_leaves(fields), _leaves(one), strict=True):
        same &= many == wanted
    return same


def _mapped(function: Any, *fields: Any) -> Any:
    if not dataclasses.is_dataclass(fields[0]):
        return function(*fields)
    names = [field.name for field in dataclasses.fields(fields[0])]
    values = {name: _mapped(function, *(getattr(one, name) for one in fields)) for name in names}
    return dataclasses.replace(fields[0], **values)  # type: ignore[type-var]


def _leaves(fields: Any) -> list[Any]:
    if not dataclasses.is_dataclass(fields):
        return [fields]
    return [leaf for field in dataclasses.fields(fields) for leaf in _leaves(getattr(fields, field.name))]


def _are_numbers(one: Any, other: Any) -> bool:
    return not isinstance(one, np.ndarray) and not isinstance(other, np.ndarray)
