"""What the tests of the evaluation share: single-threaded arithmetic, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from strict import judge

from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop


@pytest.fixture(autouse=True)
def single_threaded() -> Iterator[None]:
    """The tensors are tiny: several threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Writes a file of that name and text into a folder of the test's own and returns its path."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def timed_files(workshop: Workshop, write, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:  # type: ignore[no-untyped-def]
    """Judges and times two files of these texts, on the CPU, under a clock that counts operators."""
    monkeypatch.setattr("tconv.evaluation.files.judge._check_runs_here", lambda source, device, bench: False)
    monkeypatch.setattr("tconv.evaluation.files.timing.timing_process.Stopwatch", FakeStopwatch)

    def run(model: str, candidate: str, **options: Any) -> Report:
        files = write("model.py", model), write("candidate.py", candidate)
        return judge(*files, device="cpu", bench=True, workshop=workshop, **options)

    return run
