"""Planner and templates agree about every tile that the planner considers, not only about those that it takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pytest
from kernel_runs import INSTANCES
from random_cases import large_problem, random_unit
from shapes import differences, evaluate, numbers

from tconv.kernels.instances import AXES
from tconv.planner import FAMILIES, Col2imRowsTile, Col2imTile, Col2imWgmmaTile, Gpu, Kernel, MmaTile, WgmmaTile
from tconv.problem import Layer, Problem

#: How many candidates are checked: `TCONV_CANDIDATES=20000` is the full run.
CANDIDATES = int(os.environ.get("TCONV_CANDIDATES", "500"))
#: Of one unit, which is of one family and one program of g++; and of one problem on one GPU, by chance.
OF_UNIT, OF_PROBLEM = 250, 20
GPUS = (Gpu.h200(), replace(Gpu.h200(), name="a small GPU", arch="sm_86", shared_bytes_per_block=99 * 1024))

#: Problems whose candidates once were wrong: `CANDIDATES` of each.
KEPT: dict[str, tuple[str, Problem, bool]] = {
    "copied inputs in more patches than a thread has bits for": (
        "mma",
        Problem(Layer(3, 48, 24, (3, 3, 3), precision="tf32"), 8, (96, 96, 96)),
        False,
    ),
    "the same with a stride": (
        "mma",
        Problem(Layer(3, 48, 24, (3, 3, 3), (3, 3, 3), precision="tf32"), 8, (96, 96, 96)),
        False,
    ),
    "the same in one dimension": (
        "mma",
        Problem(Layer(1, 64, 3, (1, 1, 5), padding=(0, 0, 2), precision="tf32_rna"), 16, (1, 1, 1021)),
        False,
    ),
}


def candidates(family: str, problem: Problem, gpu: Gpu, channels_last: bool, dice: Random | None) -> list[Kernel[Any]]:
    """Some of a problem, by chance, or all."""
    found = FAMILIES[family].considered(problem, gpu, channels_last)
    if found is None:
        return []
    places = range(len(found)) if dice is None else dice.sample(range(len(found)), min(OF_PROBLEM, len(found)))
    return [found[place].kernel for place in places]


def random_problems(dice: Random) -> Iterator[Problem]:
    """Small ones, in which borders lie everywhere, and large ones in turn."""
    while True:
        small = random_unit(dice.randrange(10**9), 0, layers=1, sizes=1)[0].problem
        yield replace(small, batch=max(1, small.batch))  # a batch of none is not planned
        yield large_problem(dice)


def random_candidates(family: str, number: int) -> Iterator[Kernel[Any]]:
    """The same of each number."""
    dice = Random(number)
    for problem in random_problems(dice):
        for gpu in GPUS:
            yield from candidates(family, problem, gpu, dice.random() < 0.3, dice)


@pytest.mark.parametrize("number", range(-(-CANDIDATES // (OF_UNIT * len(AXES)))))
@pytest.mark.parametrize("family", AXES)
def test_of_random_candidates_planner_and_templates_have_the_same_numbers(family, number):
    found = differences(list(islice(random_candidates(family, number), OF_UNIT)))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_of_kept_problems_planner_and_templates_have_the_same_numbers(name):
    family, problem, channels_last = KEPT[name]
    every = [k for gpu in GPUS for k in candidates(family, problem, gpu, channels_last, None)]
    found = differences(Random(0).sample(every, min(CANDIDATES, len(every))))
    assert not found, "\n".join(found)


def test_of_all_instances_planner_and_templates_have_the_same_numbers():
    found = differences([instance.kernel for instance in INSTANCES.values()])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("family", AXES)
def test_what_is_wrong_is_told_of_the_kernel_that_it_is_of(family, monkeypatch):
    """Of three kernels, the second violates an assertion; the planner has the last one's shared memory wrong."""
    good, other, last = [i.kernel for i in INSTANCES.values() if i.kernel.family == family][:3]
    if isinstance(other.tile, MmaTile):
        tile = replace(other.tile, warps=replace(other.tile.warps, position_tiles=3))
        text = "matrices of two tiles of positions are loaded at once"
    elif isinstance(other.tile, WgmmaTile):
        tile, text = replace(other.tile, k_tile_steps=3), "rows of weights have 64 or 128 bytes"
    elif isinstance(other.tile, Col2imTile):
        tile, text = replace(other.tile, stages=100), "a stage holds a k-tile"
    elif isinstance(other.tile, Col2imWgmmaTile):
        tile, text = replace(other.tile, k_tile_steps=3), "rows of the second factor have 64 or 128 bytes"
    elif isinstance(other.tile, Col2imRowsTile):
        tile, text = replace(other.tile, columns=24), "a warp has inputs of one line"
    else:
        tile = replace(other.tile, k_tile_channels=5, unroll=2)
        text = "a stage is whole groups of input channels"
    bad = replace(other, tile=tile)
    of_good, of_bad, of_last = evaluate([good, bad, last])
    assert text in of_bad.violated and not of_bad.numbers
    assert not of_good.violated and not of_last.violated
    assert of_last.numbers["shared_bytes"] == numbers(last)["shared_bytes"]

    def numbers_with_a_mistake(kernel):
        return {**numbers(kernel), **({"shared_bytes": 4711} if kernel == last else {})}

    monkeypatch.setattr("shapes.numbers", numbers_with_a_mistake)
    of_bad_line, of_last_line = differences([good, bad, last])
    assert text in of_bad_line and repr(bad) in of_bad_line
    assert f"shared_bytes is 4711 to the planner, {of_last.numbers['shared_bytes']} to the template" in of_last_line
    assert repr(last) in of_last_line
