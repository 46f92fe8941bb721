"""How long planning takes: the first choice of a layer that was never planned, and a ranking of 16 candidates.

    PYTHONPATH=src python3 benchmarks/planning.py --problems 300

Times are those of the processor, of this thread alone, for random layers of every kind; no GPU is needed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tconv.planner import Gpu, Question, Unplannable, choose
from tconv.planner.choice import leading
from tconv.problem import InvalidProblem, Layer, Problem, Triple

#: A tensor of more elements is no example of anything.
_MOST_ELEMENTS = 2**31
_FIRST = 16


def problems(count: int, seed: int) -> Iterator[tuple[Problem, bool]]:
    """Random problems, and whether they are channels_last: as many dense layers as others."""
    dice = random.Random(seed)

    def triple(dims: int, choices: list[int], unused: int) -> Triple:
        same = [dice.choice(choices)] * dims if dice.random() < 0.7 else [dice.choice(choices) for _ in range(dims)]
        depth, height, width = [unused] * (3 - dims) + same
        return depth, height, width

    while count:
        dims, groups = dice.choice([1, 2, 2, 3]), dice.choice([1, 1, 1, 1, 4, 32])
        channels = [groups * dice.choice([1, 3, 16, 24, 32, 48, 64, 128, 256, 512]) for _ in range(2)]
        sizes = [1, 4, 7, 8, 16, 33, 64, 96, 128, *([256, 512, 1000] if dims < 3 else [])]
        try:
            layer = Layer(
                dims,
                *channels,
                kernel=triple(dims, [1, 2, 3, 3, 4, 4, 5, 7, 8, 16], 1),
                stride=triple(dims, [1, 1, 2, 2, 2, 3, 4, 8], 1),
                padding=triple(dims, [0, 0, 1, 1, 2, 3], 0),
                dilation=triple(dims, [1, 1, 1, 2, 3], 1),
                groups=groups,
                bias=dice.random() < 0.5,
                precision=dice.choice(["fp32", "tf32", "fp16", "bf16"]),
            )
            problem = Problem(layer, dice.choice([1, 2, 8, 16, 64]), triple(dims, sizes, 1))
        except InvalidProblem:
            continue
        if max(math.prod(problem.input_shape), math.prod(problem.output_shape)) < _MOST_ELEMENTS:
            count -= 1
            yield problem, dice.random() < 0.25


def seconds(plan: Callable[[], Any]) -> float | None:
    """Of the processor; None where nothing runs the problem."""
    started = time.process_time()
    try:
        plan()
    except Unplannable:
        return None
    return time.process_time() - started


def line(words: str, times: list[float]) -> str:
    times = sorted(times)
    shares = {"median": 0.5, "nine in ten": 0.9, "all but one in a hundred": 0.99}
    told = [f"{name} {times[int(share * (len(times) - 1))] * 1e3:.1f}" for name, share in shares.items()]
    return f"{words}, ms, {len(times)} layers: {', '.join(told)}, at worst {times[-1] * 1e3:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    gpu, choices, rankings = Gpu.h200(), [], []
    for problem, channels_last in problems(options.problems, options.seed):
        question = Question(problem, None, channels_last)
        choices.append(seconds(lambda asked=question: choose(asked, gpu)))
        rankings.append(seconds(lambda asked=question: leading(asked, gpu, _FIRST)))
    print(line("first choice", [time_ for time_ in choices if time_ is not None]))
    print(line(f"ranking of {_FIRST}", [time_ for time_ in rankings if time_ is not None]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
