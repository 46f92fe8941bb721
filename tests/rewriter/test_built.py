"""Launches of what a file builds, by extensions that only note what they are given."""

from __future__ import annotations

from concurrent.futures import Executor, Future
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
    """By the names of extensions; one that is called "short" does not reach far enough, one called "broken" fails."""
    noted: list[tuple[str, tuple[int, ...]]] = []

    def load(options: Any) -> SimpleNamespace:
        def launch(*numbers: int) -> int:
            if numbers[5] == 0:
                return 700
            noted.append((options["name"], numbers))
            return {"short": -1, "broken": 209}.get(options["name"], 0)

        return SimpleNamespace(launch=launch)

    monkeypatch.setattr(built, "_load", load)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=99))
    return noted


def run(name: str, prepares_inputs: bool = False) -> tuple[int, ...]:
    """Launches it, and returns the addresses of what it reads and writes."""
    options = Built({"name": name}, {"name": f"{name}, wide"}, prepares_inputs, True)
    x, weight, bias, y = torch.ones(2, 3, 4, 6), torch.ones(3, 5, 2, 2), torch.ones(5), torch.ones(2, 5, 8, 12)
    read = torch.ones(7)
    launched(Extensions(AtOnce()), options, PROBLEM, Gpu.h200())(x, weight, bias, y, (read,))
    return tuple(each.data_ptr() for each in (x, weight, bias, y, read))


def test_a_launch_has_what_the_files_own_has(calls: list[tuple[str, tuple[int, ...]]]) -> None:
    *given, read = run("plain")
    ((name, (stream, multiprocessors, *rest)),) = calls
    assert (name, stream, multiprocessors) == ("plain", 99, 132)
    assert rest[:4] == given and rest[4] != 0, "memory for weights in their order"
    assert rest[5:] == [2, 1, 4, 6, 1, 8, 12, read]


def test_where_offsets_do_not_reach_the_wide_kernel_runs(calls: list[tuple[str, tuple[int, ...]]]) -> None:
    run("short")
    assert [name for name, _ in calls] == ["short", "short, wide"]
    assert calls[0][1][:6] == calls[1][1][:6]


def test_an_error_is_told(calls: list[tuple[str, tuple[int, ...]]]) -> None:
    with pytest.raises(RuntimeError, match=r"CUDA error 209 at the launch of 2-D 3→5 k2 s2 bias fp32"):
        run("broken")
    assert [name for name, _ in calls] == ["broken"]
