"""Layers that nobody chose: drawn at random, with sizes as people give them. Beside named layers they tell whether the
planner's models hold elsewhere; few of their constants were fitted to these.

    PYTHONPATH=src python3 benchmarks/tiles.py --drawn 130 --first 3 --others 1
    PYTHONPATH=src python3 benchmarks/drawn.py

The first measures tiles of each family on a GPU (tiles-drawn.json). The second needs none: of these it prints how much
longer the tile takes that the models prefer than the best one, and the layers on which that is most.
"""

from __future__ import annotations

import math
import random
import sys
from typing import NamedTuple

import numpy as np
from layers import layer, problem_of
from measured import FITTED_OF, measured
from results import Results, geometric_mean, load

from tconv.planner import Gpu
from tconv.problem import InvalidProblem

_CHANNELS = (3, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 320, 384, 512, 768, 1024)
_OUT_CHANNELS = (1, 3, 8, 16, 21, 32, 48, 64, 96, 128, 256, 512)
_KERNELS = (1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7, 8, 16)
_LONGEST_KERNEL = (16, 8, 5)
_LENGTHS = (20, 63, 100, 250, 400, 800, 1500, 5000, 20000)
_SIDES = (1, 3, 4, 7, 8, 13, 14, 16, 24, 28, 32, 33, 37, 56, 64, 100, 128)
_EDGES = (2, 3, 4, 5, 8, 12, 16, 20)
_BATCHES = (1, 1, 1, 2, 4, 8, 16, 64)
#: Larger ones take long to measure, and are the less different.
_MOST_OPERATIONS, _MOST_BYTES = 6e10, 4e8
_SHOWN = 1.1


def drawn(count: int, seed: int = 0) -> dict[str, Results]:
    """So many layers by name, as lines of cases.json; the same ones for the same seed."""
    dice, found = random.Random(seed), {}
    while len(found) < count:
        case = _case(dice)
        if _is_fit(case):
            found[_name(case)] = case
    return found


def _case(dice: random.Random) -> Results:
    dims = dice.choice((1, 1, 2, 2, 2, 3))
    inputs = dice.choice((*_CHANNELS, dice.randint(4, 600)))
    half = max(1, inputs // 2)
    outputs = dice.choice((*_OUT_CHANNELS, dice.randint(2, 400), half, half))
    kernel = min(dice.choice(_KERNELS), _LONGEST_KERNEL[dims - 1])
    stride = dice.choice((1, 2, 2, 2, 2, 3, 4, kernel))
    groups = dice.choice((1,) * 9 + (4,))
    return layer(
        (inputs, outputs),
        [kernel] * dims,
        stride if dims == 1 else min(stride, 4),
        dice.choice(_BATCHES),
        _size(dims, dice),
        padding=dice.randint(0, kernel // 2),
        dilation=dice.choice((1,) * 8 + (2,)),
        groups=groups if inputs % groups == 0 and outputs % groups == 0 else 1,
        dtype=dice.choice(("float16", "bfloat16", "float32")),
    )


def _size(dims: int, dice: random.Random) -> list[int]:
    if dims == 1:
        return [dice.choice((*_LENGTHS, dice.randint(10, 3000)))]
    if dims == 2:
        height = dice.choice((*_SIDES, dice.randint(2, 120)))
        return [height, dice.choice((height, height, max(1, height * 2 // 3), height * 2))]
    edge = dice.choice(_EDGES)
    return [edge, edge, dice.choice((edge, 2 * edge))]


def _is_fit(case: Results) -> bool:
    try:
        problem = problem_of(case)
    except InvalidProblem:  # no outputs
        return False
    return 2 * problem.multiply_adds <= _MOST_OPERATIONS and problem.bytes_moved <= _MOST_BYTES


def _name(case: Results) -> str:
    """Without spaces: results have a family behind it."""
    kernel, stride, padding, dilation = (case[key][0] for key in ("kernel", "stride", "padding", "dilation"))
    of_layer = (
        f"{case['in_channels']}-{case['out_channels']}-k{kernel}-s{stride}-p{padding}-d{dilation}-g{case['groups']}"
    )
    size = "x".join(map(str, (case["batch"], *case["input_size"])))
    return f"{len(case['kernel'])}d-{of_layer}-{size}-{case['dtype']}"


class Tile(NamedTuple):
    """A tile that was measured: seconds as its model expects them, and as they were."""

    expected: float
    seconds: float
    family: str

    def __str__(self) -> str:
        return f"{self.family} {self.seconds * 1e6:.1f} us, expected {self.expected * 1e6:.1f}"


def tiles_of(stored: Results, gpu: Gpu) -> dict[str, list[Tile]]:
    """Of each layer, as the models are now."""
    found: dict[str, list[Tile]] = {}
    for family, constants in FITTED_OF.items():
        for one in measured(family, stored):
            expected = np.broadcast_to(one.predicted(family, constants, gpu), one.seconds.shape)
            pairs = zip(expected.tolist(), one.seconds.tolist(), strict=True)
            found.setdefault(one.name, []).extend(Tile(*pair, family) for pair in pairs)
    return found


def taken(tiles: list[Tile]) -> Tile:
    """The one that the models prefer."""
    return min(tiles)


def best(tiles: list[Tile]) -> Tile:
    """The fastest one."""
    return min(tiles, key=lambda tile: tile.seconds)


def main() -> int:
    stored = load("tiles-drawn")
    if stored is None:
        print("no tiles were measured: run benchmarks/tiles.py --drawn 130 on a GPU", file=sys.stderr)
        return 2
    gpu = Gpu.measured(stored["environment"]["gpu"])
    assert gpu is not None, "tiles are of a GPU whose rates are known"
    tiles = tiles_of(stored, gpu)
    pytorch_ms = {key.rpartition(" ")[0]: row["pytorch_ms"] for key, row in stored["layers"].items()}
    ratios, speedups = [], []
    for name, found in tiles.items():
        ratios.append(taken(found).seconds / best(found).seconds)
        speedups.append(pytorch_ms[name] / 1e3 / taken(found).seconds)
        if ratios[-1] > _SHOWN:
            of = f"{taken(found)} | best {best(found)} | PyTorch {pytorch_ms[name] * 1e3:.1f}"
            print(f"{ratios[-1]:.2f} {name}: {of}")
    print(f"{len(ratios)} layers: {geometric_mean(ratios):.3f} times as long as the best tile", end=", ")
    print(f"{geometric_mean(speedups):.2f} times as fast as PyTorch")
    for family in dict.fromkeys(tile.family for found in tiles.values() for tile in found):
        logs = [math.log(t.seconds / t.expected) for found in tiles.values() for t in found if t.family == family]
        print(f"  {family:13} {len(logs)} tiles, {math.exp(np.mean(logs)):.2f} times what is expected", end=", ")
        print(f"give or take {np.std(logs):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
