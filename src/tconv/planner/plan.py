"""What the planner decides: which kernel is compiled, and how one call launches it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar, get_type_hints

from tconv.problem import Layer, Problem


class AnyTile(Protocol):
    """How a block shares the work: a dataclass of ints, some of them in dataclasses of their own."""

    @property
    def blocks(self) -> int:
        """Blocks for each multiprocessor that the compiler leaves registers for."""

    @property
    def threads(self) -> int:
        """Threads of a block."""


Tile = TypeVar("Tile", bound=AnyTile)


@dataclass(frozen=True)
class Kernel(Generic[Tile]):
    """Everything that is compiled in: the key of the cache, together with the arch.

    `family` is the name of one of `tconv.planner.FAMILIES`, whose tile this is.
    """

    family: str
    layer: Layer
    tile: Tile
    wide_index: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @property
    def blocks(self) -> int:
        """Blocks for each multiprocessor that the compiler leaves registers for."""
        return self.tile.blocks

    @property
    def prepares_weights(self) -> bool:
        """Whether a kernel before puts the weights into another order."""
        return bool(getattr(self.tile, "prepares_weights", False))

    @property
    def prepares_inputs(self) -> bool:
        """Whether a kernel before puts the inputs into another order."""
        return bool(getattr(self.tile, "prepared_inputs", 0))


@dataclass(frozen=True)
class Preparation:
    """The launch that puts the weights into the order in which the kernel loads them, before each call.

    Args:
        grid, threads: of the launch.
        bytes: of the prepared weights.
    """

    grid: int
    threads: int
    bytes: int


@dataclass(frozen=True)
class InputPreparation:
    """The launch that puts contiguous inputs into channels_last order, before each call.

    Args:
        grid, threads: of the launch.
    """

    grid: int
    threads: int


@dataclass(frozen=True)
class Plan:
    """One launch: the kernel, its grid, its dynamic shared memory in bytes, and why it was chosen.

    `preparation` is the launch before it, of the same unit's function ``NAME_weights``; None where the kernel takes the
    weights as they are. `inputs` is the one before that, of ``NAME_inputs``; None where the kernel takes the inputs as
    they are. `predicted_seconds` says how long the family's model takes all of it for; None where the tile was
    measured instead.
    """

    problem: Problem
    kernel: Kernel[Any]
    grid: int
    shared_bytes: int
    reasons: tuple[str, ...] = field(default=(), compare=False)
    preparation: Preparation | None = None
    inputs: InputPreparation | None = None
    predicted_seconds: float | None = field(default=None, compare=False)


class Unplannable(ValueError):
    """No kernel of the family runs this problem; the message says which limit is passed."""


def tile_fields(tile: Any) -> Iterator[tuple[str, int]]:
    """The numbers of a tile by name, those of its parts with a dot: ``("block_tile.rows", 8)``."""
    for part in fields(tile):
        value = getattr(tile, part.name)
        if is_dataclass(value):
            yield from ((f"{part.name}.{name}", number) for name, number in tile_fields(value))
        else:
            yield part.name, value


def tile_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """The tile of this class with these numbers by name: the inverse of `tile_fields`.

    Raises:
        AttributeError, TypeError: these are not the names of its numbers.
    """
    own = dict(values)
    for name, part in get_type_hints(kind).items():
        if is_dataclass(part):
            of_part = [key for key in own if key.startswith(f"{name}.")]
            own[name] = tile_of(part, {key.removeprefix(f"{name}."): own.pop(key) for key in of_part})
    return kind(**own)
