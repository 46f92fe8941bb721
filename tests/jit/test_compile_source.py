"""NVRTC: what it reports, what it refuses, what it may include. No GPU."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tconv.errors import CompileError, MissingToolchain
from tconv.jit import compile as compiling
from tconv.jit import toolchain
from tconv.jit.compile import Compiled, compile_source

_SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* y, const float* x) {
  float sums[96];
  for (int i = 0; i < 96; ++i) sums[i] = x[i];
  for (int round = 0; round < 100; ++round)
#pragma unroll
    for (int i = 0; i < 96; ++i) sums[i] = sums[i] * x[round] + sums[(i * 7 + 1) % 96];
  for (int i = 0; i < 96; ++i) y[i] = sums[i];
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_a_kernel_compiles_without_a_gpu(scale_source: str, arch: str) -> None:
    compiled = compile_source(scale_source, arch, name="scale")
    assert compiled.cubin.startswith(b"\x7fELF")
    assert 4 <= compiled.registers <= 32
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    assert f"Compiling entry function 'scale' for '{arch}'" in compiled.log
    assert 0 < compiled.seconds < 60


def test_spills_are_reported() -> None:
    compiled = compile_source(_SPILLS, "sm_80", name="spills")
    assert compiled.registers == 32
    assert compiled.spill_bytes > 100
    assert compiled.stack_bytes > 100


@pytest.mark.parametrize("numbers", [(32, 0, 0), (255, 8, 2**33), (None, None, None)])
def test_what_is_kept_comes_back(numbers: tuple[Any, ...]) -> None:
    compiled = Compiled(b"\x7fELF", *numbers, log="said", seconds=2.0)
    assert Compiled.from_bytes(compiled.to_bytes()) == replace(compiled, log="", seconds=0.0)


def test_the_report_covers_every_kernel_of_a_unit(scale_source: str) -> None:
    alone = compile_source(_SPILLS, "sm_80", name="unit")
    both = compile_source(scale_source + _SPILLS, "sm_80", name="unit")
    assert (both.registers, both.spill_bytes) == (alone.registers, alone.spill_bytes)


def test_an_error_names_the_line_and_keeps_the_source(cache_directory: Path) -> None:
    source = 'extern "C" __global__ void broken(float* y) { y[0] = nowhere; }\n'
    with pytest.raises(CompileError) as caught:
        compile_source(source, "sm_80", name="broken")
    message = str(caught.value)
    assert "broken.cu(1): error" in message and "nowhere" in message and "sm_80" in message
    assert "nowhere" in caught.value.log
    path = caught.value.source_path
    assert path is not None and path.parent == cache_directory / "failed" and str(path) in message
    assert path.read_text() == source


def test_an_arch_that_nvrtc_does_not_know(scale_source: str, cache_directory: Path) -> None:
    with pytest.raises(CompileError, match=r"NVRTC \d+\.\d+ does not compile scale for sm_20"):
        compile_source(scale_source, "sm_20", name="scale")


def test_an_error_without_a_place_for_the_source(cache_directory: Path) -> None:
    cache_directory.write_text("a file where the directory should be")
    with pytest.raises(CompileError, match="could not be saved") as caught:
        compile_source("nonsense", "sm_80", name="broken")
    assert caught.value.source_path is None


def test_headers_come_from_the_given_directory_alone(
    scale_source: str, cache_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "with blank" / "ours", tmp_path / "theirs"
    for directory, registers_value in ((ours, 5), (theirs, 7)):
        directory.mkdir(parents=True)
        (directory / "value.cuh").write_text(f"static constexpr int value = {registers_value};\n")
    source = '#include "value.cuh"\nstatic_assert(value == 5, "the wrong header");\n' + scale_source
    monkeypatch.chdir(theirs)
    assert compile_source(source, "sm_80", headers=ours).cubin
    with pytest.raises(CompileError, match=re.escape('could not open source file "value.cuh"')):
        compile_source(source, "sm_80")


def test_without_nvrtc_the_error_says_what_to_install(scale_source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        ProgramOptions = staticmethod(dict)

        @staticmethod
        def Program(*args: object) -> object:
            raise RuntimeError("Failed to dlopen libnvrtc.so.13")

    monkeypatch.setattr(compiling, "cuda_core", lambda: Core)
    monkeypatch.setattr("torch.version.cuda", "12.8")
    with pytest.raises(MissingToolchain) as caught:
        compile_source(scale_source, "sm_80")
    assert "libnvrtc.so.13" in str(caught.value)
    assert "your torch is built for CUDA 12.x: pip install 'tconv[cu12]'" in str(caught.value)


def test_without_cuda_core_the_error_says_what_to_install(scale_source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setattr("torch.version.cuda", None)
    toolchain.cuda_core.cache_clear()
    try:
        with pytest.raises(MissingToolchain, match=r"cuda\.core cannot be imported .*pip install 'tconv\[cu13\]'"):
            compile_source(scale_source, "sm_80")
    finally:
        toolchain.cuda_core.cache_clear()


@pytest.mark.parametrize(("nvrtc", "driver", "fits"), [((13, 0), (12, 8), False), ((12, 9), (12, 4), True)])
def test_nvrtc_must_not_be_of_a_newer_major_than_the_driver(
    nvrtc: tuple[int, int], driver: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: nvrtc)
    monkeypatch.setattr(toolchain, "driver_version", lambda: driver)
    if fits:
        toolchain.check_driver()
    else:
        with pytest.raises(MissingToolchain, match=r"this driver is of CUDA 12\.8; .*tconv\[cu12\]"):
            toolchain.check_driver()


def test_nvrtc_tells_its_version() -> None:
    assert toolchain.nvrtc_version() >= (12, 0)
