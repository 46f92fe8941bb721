"""Launches of what a file builds, by extensions that only note what they are given."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tconv.planner import Gpu
from tconv.problem import Layer, Problem
from tconv.rewriter import built
from tconv.rewriter.built import Extensions, launched
from tconv.sandbox.cut import Built

PROBLEM = Problem(Layer(2, 3, 5, (1, 2, 2), (1, 2, 2), bias=True), 2, (1, 4, 6))


class AtOnce(Executor):
    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **kwargs))
        return done


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """By the names of extensions; one that is called "short" takes 17 samples at once, one called "broken" fails."""
    noted: list[tuple[str, tuple[int, ...]]] = []

    def load(options: Any) -> SimpleNamespace:
        def launch(*numbers: int) -> int:
            if numbers[6] == 0:
                return min(numbers[9], 17) if options["name"] == "short" else numbers[9]
            noted.append((options["name"], numbers))
            return 209 if options["name"] == "broken" else 0

        return SimpleNamespace(launch=launch)

    monkeypatch.setattr(built, "_load", load)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=99))
    return noted


def run(name: str, batch: int = 2) -> tuple[int, ...]:
    """Launches it, and returns the addresses of what it reads and writes."""
    options = Built({"name": name}, 3, 700, False, True)
    x, weight, bias = torch.ones(batch, 3, 4, 6), torch.ones(3, 5, 2, 2), torch.ones(5)
    y, read = torch.ones(batch, 5, 8, 12), torch.ones(7)
    problem = replace(PROBLEM, batch=batch)
    launched(Extensions(AtOnce()), options, problem, Gpu.h200())(x, weight, bias, y, (read,))
    return tuple(each.data_ptr() for each in (x, weight, bias, y, read))


def test_a_launch_has_what_the_files_own_has(calls: list[tuple[str, tuple[int, ...]]]) -> None:
    *given, read = run("plain")
    ((name, (place, stream, multiprocessors, *rest)),) = calls
    assert (name, place, stream, multiprocessors) == ("plain", 3, 99, 132)
    assert rest[:4] == given and rest[4] != 0, "memory for weights in their order"
    assert rest[5:] == [5, 2, 1, 4, 6, 1, 8, 12, read]


def test_where_offsets_do_not_reach_slices_of_the_batch_are_launched(calls: list[tuple[str, tuple[int, ...]]]) -> None:
    x, weight, _, y, _ = run("short", batch=40)
    launches = [numbers for _, numbers in calls]
    assert [numbers[9] for numbers in launches] == [16, 16, 8]
    assert [numbers[3] - x for numbers in launches] == [first * 3 * 4 * 6 * 4 for first in (0, 16, 32)]
    assert [numbers[6] - y for numbers in launches] == [first * 5 * 8 * 12 * 4 for first in (0, 16, 32)]
    assert {numbers[4] for numbers in launches} == {weight}


def test_an_error_is_told(calls: list[tuple[str, tuple[int, ...]]]) -> None:
    with pytest.raises(RuntimeError, match=r"CUDA error 209 at the launch of 2-D 3→5 k2 s2 bias fp32"):
        run("broken")
    assert [name for name, _ in calls] == ["broken"]
