"""What is kept of g++: found again wherever the headers lie, whole or not at all, and never in the way of a run."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tconv.emulator import Launch, build, cache, program, run

SOURCE = """
extern "C" __global__ void add(float* y, int count, float* unused) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += 1;
}
"""


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of g++ since."""
    commands: list[list[str]] = []
    start = subprocess.run

    def counting(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return start(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(program.subprocess, "run", counting)
    return commands


def adds_one() -> bool:
    y = torch.zeros(40)
    run(SOURCE, [Launch("add", 2, 32, 0, (y, 40, None))])
    return bool((y == 1).all())


def test_a_program_is_built_once_and_again_when_anything_changes(
    own_cache: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(SOURCE)
    assert first.parent == own_cache and os.access(first, os.X_OK) and len(compilations) == 1
    assert build(SOURCE) == first and len(compilations) == 1
    assert build(SOURCE.replace("+= 1", "+= 2")) != first and len(compilations) == 2
    monkeypatch.setitem(program._KERNEL_FLAGS, "plain", ("-O1",))
    assert build(SOURCE) != first and len(compilations) == 3
    assert sorted(path.name.split("-")[2] for path in own_cache.iterdir()) == ["engine.o", *["program"] * 3]


def test_other_headers_compile_and_the_same_ones_elsewhere_do_not(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(command: list[str], cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
        made.append(command[-1])
        (cwd / command[-1]).write_text(f"number {len(made)}")
        return subprocess.CompletedProcess(command, 0, "", "")

    program._compiler_version()
    monkeypatch.setattr(program.subprocess, "run", make)
    source = '#include "direct/direct.cuh"\n' + SOURCE
    first = build(source)
    for name in ("_INCLUDE", "_KERNELS"):
        shutil.copytree(getattr(program, name), tmp_path / name)
        monkeypatch.setattr(program, name, tmp_path / name)
    assert build(source) == first and made == ["program"]
    changes = {"_KERNELS/direct/direct.cuh": ["program"], "_INCLUDE/primitives/memory.h": ["engine.o", "program"]}
    for header, anew in changes.items():
        made.clear()
        with (tmp_path / header).open("a") as text:
            text.write("// another line\n")
        assert build(source) != first and made == anew


@pytest.mark.parametrize("damage", ["empty", "cut off", "another byte"])
def test_a_damaged_entry_is_built_anew(own_cache: Path, damage: str) -> None:
    entry = build(SOURCE)
    whole = entry.read_bytes()
    entry.write_bytes({"empty": b"", "cut off": whole[:-1], "another byte": whole[:-1] + b"!"}[damage])
    assert adds_one()
    assert entry.read_bytes() == whole


def test_a_damaged_engine_is_built_anew(own_cache: Path) -> None:
    (engine,) = own_cache.iterdir()
    engine.write_bytes(engine.read_bytes()[:1000])
    assert adds_one()


def test_a_directory_in_place_of_an_entry_is_no_obstacle(own_cache: Path) -> None:
    entry = build(SOURCE)
    entry.unlink()
    entry.mkdir()
    assert adds_one()


def test_an_unwritable_cache_directory_is_no_obstacle(own_cache: Path) -> None:
    shutil.rmtree(own_cache.parent)
    own_cache.parent.write_text("a file where the directory should be")
    assert adds_one()


def test_a_disk_that_is_full_for_the_result(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.parent == own_cache:
            raise OSError(errno.ENOSPC, "full")
        replace(source, target)

    monkeypatch.setattr(cache.os, "replace", full)
    assert adds_one()
    assert [path.name.split("-")[2] for path in own_cache.iterdir()] == ["engine.o"]


def test_a_disk_that_is_full_for_the_compiler(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.run

    def full(command: list[str], cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
        if own_cache in cwd.parents:
            said = f"fatal error: error writing to {command[-1]}: {os.strerror(errno.ENOSPC)}"
            return subprocess.CompletedProcess(command, 1, "", said)
        return start(command, cwd=cwd, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(program.subprocess, "run", full)
    assert adds_one()


def test_above_a_size_those_go_that_were_not_used_for_longest(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [build(SOURCE.replace("+= 1", f"+= {number}")) for number in range(3)]
    left = own_cache / "building-of-a-killed-process"
    left.mkdir()
    hours_ago = time.time() - 5 * 3600
    for path in (*own_cache.iterdir(), left):
        os.utime(path, (hours_ago, hours_ago))
    build(SOURCE.replace("+= 1", "+= 1"))  # used again
    used = programs[1]
    monkeypatch.setattr(cache, "_MOST_BYTES", 1)
    newest = build(SOURCE.replace("+= 1", "+= 7"))
    assert {path for path in own_cache.iterdir() if not path.name.endswith(".o")} == {used, newest}


def test_processes_beside_each_other(own_cache: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as processes:
        built = set(processes.map(build, [SOURCE] * 8, chunksize=1))
    assert built == set(own_cache.glob("*-program")) and len(built) == 1
    assert len(list(own_cache.iterdir())) == 2
