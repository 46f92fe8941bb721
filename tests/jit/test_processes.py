"""Several processes on one cache: racing, killed, forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tconv.jit import loader
from tconv.jit.cache import KernelCache, default_cache
from tconv.planner import Kernel

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

#: What the scripts below begin with. Children report by their exit code.
_COMMON = """
import os, signal, sys, time
from pathlib import Path
from tconv.jit import loader
from tconv.jit.cache import KernelCache
from tconv.planner import DIRECT, Gpu
from tconv.problem import Layer, Problem

def kernel(channels):
    return DIRECT.plan(Problem(Layer(1, channels, 2, kernel=(1, 1, 3)), 1, (1, 1, 9)), Gpu.h200()).kernel

def fork(work, *arguments):
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            work(*arguments)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(1)
    return child

def join(*children):
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


def _run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _COMMON + script, str(directory)],
        env=os.environ | {"TCONV_CACHE_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no warning either
    return done


@pytest.mark.rotates(4)
def test_two_dozen_processes_on_a_cold_cache(cache_directory: Path, kernel: Kernel) -> None:
    _run(
        """
def work(gate):
    os.read(gate, 1)  # ends when the parent closes its side: all start at once
    cubin = loader.build(kernel(2), "sm_80").cubin
    Path(sys.argv[1], f"got-{os.getpid()}").write_bytes(cubin)

Path(sys.argv[1]).mkdir()
receiver, sender = os.pipe()
children = [fork(lambda: (os.close(sender), work(receiver))) for _ in range(24)]
os.close(sender)
join(*children)
""",
        cache_directory,
    )
    cubins = [path.read_bytes() for path in cache_directory.glob("got-*")]
    assert len(cubins) == 24
    assert set(cubins) == {loader.build(kernel, "sm_80").cubin}
    assert default_cache().info().entries == 1
    assert list((cache_directory / "kernels" / "tmp").iterdir()) == []


def test_processes_that_write_the_same_entry(tmp_path: Path) -> None:
    _run(
        """
def race(n):
    cache, mine = KernelCache(Path(sys.argv[1])), bytes([n]) * 100_000
    for turn in range(40):
        cache.put(b"shared", mine)
        got = cache.get(b"shared")
        assert got is not None and len(got) == 100_000 and len(set(got)) == 1, turn

join(fork(race, 1), fork(race, 2))
""",
        tmp_path,
    )
    assert KernelCache(tmp_path).info().entries == 1


def test_a_cache_that_others_clear_and_look_at(tmp_path: Path) -> None:
    _run(
        """
import logging
logging.getLogger("tconv").setLevel(logging.ERROR)  # a write may fail, and say so

def use(n):
    for turn in range(300):
        cache, key = KernelCache(Path(sys.argv[1])), bytes([turn % 5])
        cache.put(key, key * 1000)
        assert cache.get(key) in (None, key * 1000)

def clear():
    while True:
        KernelCache(Path(sys.argv[1])).clear()

def look():
    while True:
        assert KernelCache(Path(sys.argv[1])).info().entries <= 5

users, others = [fork(use, n) for n in range(2)], [fork(clear), fork(look)]
join(*users)
for other in others:
    assert os.waitpid(other, os.WNOHANG) == (0, 0), "it failed"
    os.kill(other, signal.SIGKILL)
""",
        tmp_path,
    )


_STOPS_IN_THE_WRITE = """
def stop(file):
    print("writing", flush=True)
    time.sleep(300)

os.fsync = stop
loader.build(kernel(2), "sm_80")
"""


def test_a_killed_writer(cache_directory: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", _COMMON + _STOPS_IN_THE_WRITE], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
    (left,) = (cache_directory / "kernels" / "tmp").iterdir()
    assert left.stat().st_size > 1000
    assert default_cache().info().entries == 0
    compiled = []
    compile_source = loader.compile_source
    monkeypatch.setattr(loader, "compile_source", lambda *a, **k: compiled.append(a) or compile_source(*a, **k))
    cubin = loader.build(kernel, "sm_80").cubin
    assert loader.build(kernel, "sm_80").cubin == cubin
    assert len(compiled) == default_cache().info().entries == 1
    os.utime(left, (0, 0))
    KernelCache(cache_directory).get(b"any")
    assert not left.exists()  # swept, once it is too old to be of a living writer


def test_writers_killed_at_any_moment(tmp_path: Path) -> None:
    _run(
        """
def write():
    cache = KernelCache(Path(sys.argv[1]))
    while True:
        for key in range(4):
            cache.put(bytes([key]), bytes([key]) * 1_000_000)

for turn in range(20):
    writer = fork(write)
    time.sleep(0.02 + turn * 0.0017)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    cache = KernelCache(Path(sys.argv[1]))
    for key in range(4):
        assert cache.get(bytes([key])) in (None, bytes([key]) * 1_000_000)
    files = Path(sys.argv[1], "kernels", "entries").glob("*/*")
    assert {file.stat().st_size for file in files} <= {1_000_032}
""",
        tmp_path,
    )


@pytest.mark.rotates(4)
def test_fork_after_import_and_after_the_first_use(cache_directory: Path) -> None:
    _run(
        """
def build(channels):
    cubin = loader.build(kernel(channels), "sm_80").cubin
    Path(sys.argv[1], f"forked-{channels}").write_bytes(cubin)

Path(sys.argv[1]).mkdir()
join(fork(build, 2), fork(build, 3))  # the compiler is not loaded in the parent
loader.build(kernel(4), "sm_80")
join(fork(build, 4), fork(build, 5), fork(build, 6))  # it is
assert loader.build(kernel(5), "sm_80").cubin == Path(sys.argv[1], "forked-5").read_bytes()
""",
        cache_directory,
    )
    assert default_cache().info().entries == 5
    _run(
        """
import tempfile
os.environ["TCONV_CACHE_DIR"] = tempfile.mkdtemp(dir=sys.argv[1])  # cold
for channels in range(2, 7):
    cubin = loader.build(kernel(channels), "sm_80").cubin
    assert cubin == Path(sys.argv[1], f"forked-{channels}").read_bytes(), channels
""",
        cache_directory,
    )
