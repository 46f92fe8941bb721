"""`tconv doctor` and `tconv cache`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tconv.cli import doctor, exit_codes
from tconv.cli.app import app
from tconv.errors import MissingToolchain
from tconv.jit import cache
from tconv.settings import Settings
from tconv.version import __version__

NAMES = ["tconv", "Python", "torch", "GPU", "cuda-core", "cuda-bindings", "NVRTC", "nvcc", "g++", "ninja"]
NAMES += ["Python.h", "cache"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.usefixtures("kernels")  # other tests fill the process's own meanwhile
def test_every_part_is_reported_with_its_state() -> None:
    findings = list(doctor.examine())
    assert [finding.name for finding in findings] == NAMES
    shown = run("doctor")
    for finding in findings:
        (line,) = [line for line in shown.stdout.splitlines() if line.split()[1:2] == [finding.name]]
        assert line.split()[0] == ("ok" if finding.remedy is None else "missing" if finding.required else "absent")
        assert finding.found in line
    missing = any(finding.required and finding.remedy is not None for finding in findings)
    assert shown.exit_code == (exit_codes.TROUBLE if missing else exit_codes.EQUAL)


def test_what_is_here_is_told_as_it_is() -> None:
    import torch

    found = {finding.name: finding.found for finding in doctor.examine()}
    assert found["tconv"] == __version__
    assert found["torch"].startswith(torch.__version__)
    assert ("built for the CPU" in found["torch"]) == (torch.version.cuda is None)
    assert found["GPU"].startswith(torch.cuda.get_device_name() if torch.cuda.is_available() else "n")
    compiler = found["NVRTC"].split(".")
    assert len(compiler) == 2 and int(compiler[0]) >= 12


def test_without_a_compiler_optimize_cannot_check_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    shown = run("doctor")
    assert shown.exit_code == 2
    assert "apt install g++" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "`tconv optimize` cannot run here: g++."


def test_without_ninja_on_path_load_inline_alone_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    which = doctor.shutil.which
    monkeypatch.setattr(
        "shutil.which", lambda name, path=None: None if name == "ninja" else which(name, path=path) or f"/bin/{name}"
    )
    finding = next(finding for finding in doctor.examine() if finding.name == "ninja")
    assert finding.remedy is not None and "pip install ninja" in finding.remedy and not finding.required


def test_a_missing_nvrtc_comes_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise MissingToolchain("NVRTC cannot be loaded; pip install 'tconv[cu13]'")

    monkeypatch.setattr("tconv.jit.toolchain.nvrtc_version", absent)
    shown = run("doctor")
    assert shown.exit_code == 2
    assert "pip install 'tconv[cu13]'" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "`tconv optimize` cannot run here: NVRTC."


def test_an_nvrtc_newer_than_the_driver_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tconv.jit.toolchain.nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr("tconv.jit.toolchain.driver_version", lambda: (12, 4))
    finding = next(finding for finding in doctor.examine() if finding.name == "NVRTC")
    assert finding.found == "13.0" and finding.required
    assert finding.remedy is not None and "tconv[cu12]" in finding.remedy


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cache.KernelCache:
    """A cache of two kernels of one and two MiB, in the place of the process's own."""
    held = cache.KernelCache(Settings.of({"TCONV_CACHE_DIR": str(tmp_path / "kept")}).cache_directory)
    held.put(b"one", bytes(2**20 - 32))
    held.put(b"two", bytes(2**21 - 32))
    monkeypatch.setattr(cache, "default_cache", lambda: held)
    return held


def test_cache_info_and_clear(kernels: cache.KernelCache) -> None:
    assert run("cache", "info").stdout == f"2 kernels of 3.0 MiB, in {kernels.directory}\n"
    assert run("cache", "clear").stdout == f"removed: 2 kernels of 3.0 MiB, in {kernels.directory}\n"
    assert kernels.get(b"one") is None
    cleared = run("cache", "info")
    assert (cleared.exit_code, cleared.stdout) == (0, f"0 kernels of 0.0 MiB, in {kernels.directory}\n")


def test_programs_of_the_emulator_count_and_go(kernels: cache.KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tconv.emulator import Launch
    from tconv.emulator import cache as programs
    from tconv.emulator import run as emulate

    monkeypatch.setattr(programs, "settings", lambda: Settings(kernels.directory))
    y = torch.zeros(3)
    source = 'extern "C" __global__ void one(float* y) { y[threadIdx.x] = 1; }'
    emulate(source, [Launch("one", 1, 3, 0, (y,))])
    assert y.tolist() == [1, 1, 1]
    assert ", 2 emulator programs of " in run("cache", "info").stdout
    assert ", 2 emulator programs of " in run("cache", "clear").stdout
    assert "emulator program" not in run("cache", "info").stdout


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "default_cache", lambda: cache.KernelCache(None))
    assert "set TCONV_CACHE_DIR" in run("cache", "info").stdout
    finding = next(finding for finding in doctor.examine() if finding.name == "cache")
    assert finding.remedy is not None and not finding.required


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_cache_that_may_not_be_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(cache, "default_cache", lambda: cache.KernelCache(Path(name) / "cache"))
        Path(name).chmod(0o000)
        superuser = os.geteuid() == 0
        if superuser:  # permissions do not bind the superuser: be somebody else for a while
            os.seteuid(65534)
        try:
            finding = doctor._cache()
        finally:
            if superuser:
                os.seteuid(0)
            Path(name).chmod(0o755)
    assert (finding.name, finding.required) == ("cache", False)
