"""What every test shares: caches of the tests' own, the GPU marker, one torch to fork from, and the CUDA compiler."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from tconv.sandbox.worker import Workshop
from tconv.settings import Settings, settings

pytest_plugins = ["rotation"]

#: Of tconv's kernels, and of what Inductor compiles: that one does not ask for which instructions it did.
_CACHES = ("TCONV_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_caches_key = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Caches for the whole run: the user's own are not touched, and what one worker compiles, all use."""
    kept = Settings.of({**os.environ, "TCONV_CACHE_DIR": ""}).cache_directory
    config.stash[_caches_key] = [variable for variable in _CACHES if variable not in os.environ]
    for variable in config.stash[_caches_key]:
        os.environ[variable] = tempfile.mkdtemp(prefix="tconv-tests-")
        if variable == "TCONV_CACHE_DIR" and kept is not None:
            _lend_what_compilers_made(kept / "tests", Path(os.environ[variable]))
    if getattr(config.option, "numprocesses", None):  # beside each other, threads of torch only wait for a processor
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    _put_own_tools_on_path()
    # A shell lets what it starts in the background ignore Ctrl-C, and so would all processes of the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _lend_what_compilers_made(kept: Path, of_run: Path) -> None:
    """Programs of the emulator and cubins stay from run to run, by digests of all that makes them; nothing else does.

    Each test still runs what it built. `make clean` removes them.
    """
    for folder in ("emulator", "kernels"):
        with suppress(OSError):  # without a place to keep them each run makes its own
            (kept / folder).mkdir(parents=True, exist_ok=True)
            if os.access(kept / folder, os.W_OK):
                (of_run / folder).symlink_to(kept / folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    for variable in config.stash.get(_caches_key, []):
        shutil.rmtree(os.environ.pop(variable), ignore_errors=True)


@pytest.fixture(autouse=True)
def kernels_on_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests on a GPU are about tconv's kernels, also where PyTorch's are predicted to be faster; others about both."""
    for variable in ("TCONV_DISABLE", "TCONV_INSIST"):
        monkeypatch.delenv(variable, raising=False)
    if request.node.get_closest_marker("gpu") is not None:
        monkeypatch.setenv("TCONV_INSIST", "1")
    settings.cache_clear()
    yield
    settings.cache_clear()


def _put_own_tools_on_path() -> None:
    """Wheels bring ninja into the environment's bin folder, which is on PATH only where it was activated."""
    scripts = sysconfig.get_path("scripts")
    if scripts not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = scripts + os.pathsep + os.environ["PATH"]


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    """One process, in which torch is imported, to fork all workers from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        # Workers find the targets of these folders.
        for folder in ("sandbox", "evaluation"):
            patch.setenv("PYTHONPATH", str(Path(__file__).parent / folder), prepend=os.pathsep)
        shop = Workshop(traces=True)
    with shop:
        yield shop


@pytest.fixture
def one_workshop(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would start a process with torch of its own takes the one of all tests."""
    for module in ("tconv.rewriter.run", "tconv.sandbox.trace"):
        monkeypatch.setattr(f"{module}.Workshop", lambda **options: nullcontext(workshop))


@pytest.fixture(scope="session")
def cuda_home() -> Path:
    """The folder whose bin/nvcc runs: of the wheels in this environment, else of the machine; skips without one."""
    candidates = [Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"]
    candidates += [Path(value) for name in ("CUDA_HOME", "CUDA_PATH") if (value := os.environ.get(name))]
    if (found := shutil.which("nvcc")) is not None:
        candidates.append(Path(found).resolve().parent.parent)
    candidates.append(Path("/usr/local/cuda"))
    for home in candidates:
        if (home / "bin" / "nvcc").exists():
            return home
    pytest.skip("needs nvcc: pip install -e '.[toolkit]', or set CUDA_HOME")
