"""Processes that check cases, and are replaced when a kernel takes them along: a crash, a lost device, no end."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Literal

import torch
from case_runs import Failure, Report, in_emulator, on_gpu
from random_cases import Case

from tconv.emulator import Mode

Place = Literal["gpu", "emulator"]

#: A unit takes seconds, some minutes where kernels have no end in the emulator.
_LONGEST_UNIT_S = 600


class Worker:
    """One process that checks cases in one place."""

    def __init__(self, place: Place, mode: Mode = "plain") -> None:
        self._place, self._mode = place, mode
        self._start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def check(self, cases: Sequence[Case]) -> Report:
        """The report on these cases. If they end the process, each is run alone to find out which one does."""
        try:
            self._pipe.send(cases)
            if not self._pipe.poll(_LONGEST_UNIT_S):
                raise TimeoutError(f"no end within {_LONGEST_UNIT_S} s")
            report, checked = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._stop()
            self._start()
            if len(cases) == 1:
                what = str(error) if isinstance(error, TimeoutError) else "the process ended"
                return Report(failures=[Failure(cases[0], what)])
            report, checked = Report(), 0
            for case in cases:
                report.add(self.check([case]))
            return report
        if checked < len(cases):  # a device that reported an error answers nothing more in that process
            self._stop()
            self._start()
            report.add(self.check(cases[checked:]))
        return report

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._place, self._mode), daemon=True)
        self._process.start()
        theirs.close()

    def _stop(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, place: Place, mode: Mode) -> None:
    """What a worker's process does: answers each list of cases with their report and how many were checked."""
    torch.set_num_threads(1)
    while True:
        try:
            cases = pipe.recv()
        except EOFError:
            return
        pipe.send(on_gpu(cases) if place == "gpu" else (in_emulator(cases, mode), len(cases)))


def reports(units: Iterator[Sequence[Case]], place: Place, mode: Mode, workers: int) -> Iterator[Report]:
    """The report on each unit, from so many processes at once, as they are done."""
    lock, done = threading.Lock(), queue.SimpleQueue[Report | None]()

    def next_unit() -> Sequence[Case] | None:
        with lock:
            return next(units, None)

    def work() -> None:
        try:
            with Worker(place, mode) as worker:
                while (unit := next_unit()) is not None:
                    done.put(worker.check(unit))
        finally:
            done.put(None)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work) for _ in range(workers)]
        for _ in futures:
            while (report := done.get()) is not None:
                yield report
        for future in futures:
            future.result()
