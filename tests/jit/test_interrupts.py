"""Ctrl-C at any moment of a first call: the next call works, and the cache holds nothing half written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tconv.jit import loader, toolchain
from tconv.jit.compile import compile_source
from tconv.planner import DIRECT, Gpu, Plan
from tconv.problem import Layer, Problem

#: The first build of a process, interrupted in its n-th line of Python, and the same build again; one child for each n,
#: because what an interrupted import or a half-loaded library leaves behind lasts as long as the process. The lines are
#: those of the main thread, which is the one that Ctrl-C interrupts.
_INTERRUPTED = """
import json, os, sys
from tconv.jit import loader
from tconv.planner import DIRECT, Gpu
from tconv.problem import Layer, Problem

kernel = DIRECT.plan(Problem(Layer(1, 2, 2, kernel=(1, 1, 3)), 1, (1, 1, 9)), Gpu.h200()).kernel
lines = 0

def interrupt_in(line):
    def trace(frame, event, argument):
        global lines
        lines += event == "line"
        if lines == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace
    return trace

def build(line):
    sys.settrace(interrupt_in(line))
    try:
        loader.build(kernel, "sm_80")
    except BaseException:  # at some lines Python's own locks make another error of it
        pass
    sys.settrace(None)
    return lines

def in_child(work):
    receiver, sender = os.pipe()
    if os.fork() == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = repr(error)
        os.write(sender, json.dumps(answer).encode())
        os._exit(0)
    os.close(sender)
    answer = json.loads(os.read(receiver, 100_000))
    os.wait()
    return answer

def after_interrupt(line):
    os.environ["TCONV_CACHE_DIR"] += f"/{line}"
    build(line)
    first = loader.build(kernel, "sm_80")
    return "right" if first == loader.build(kernel, "sm_80") and first.cubin.startswith(b"\\x7fELF") else "wrong"

total = in_child(lambda: build(-1))
print(json.dumps({line: in_child(lambda: after_interrupt(line)) for line in range(1, total)}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_interrupted_anywhere_in_the_first_compilation(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        env=os.environ | {"TCONV_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) >= 10
    assert set(answers.values()) == {"right"}, answers
    entries = list(tmp_path.rglob("kernels/entries/*/*"))
    assert len(entries) == len(answers) + 1  # one of the child that counted lines
    assert len({entry.read_bytes() for entry in entries}) == 1


def test_a_process_ends_after_what_was_interrupted() -> None:
    program = """
import os, signal, threading, time
from tconv.jit.toolchain import uninterrupted

began = threading.Event()
def work():
    began.set()
    time.sleep(1)
    print("ended", flush=True)

def interrupt():
    began.wait()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
uninterrupted(work)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stdout == "ended\n"


def test_an_interrupted_import_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    imports = []

    def pass_by() -> None:
        imports.append(threading.current_thread())
        began.set()
        assert go_on.wait(20)

    monkeypatch.setitem(sys.modules, "gate_of_a_test", SimpleNamespace(pass_by=pass_by))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_import.py").write_text("import gate_of_a_test\ngate_of_a_test.pass_by()\n")
    interrupt = _interrupts_main_after(began)
    with pytest.raises(KeyboardInterrupt):
        toolchain._import("slow_import")
    interrupt.join()
    go_on.set()
    assert toolchain._import("slow_import").__name__ == "slow_import"
    assert len(imports) == 1


def _interrupts_main_after(event: threading.Event) -> threading.Thread:
    def work() -> None:
        assert event.wait(60)
        time.sleep(0.1)  # the main thread gets to where it waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Of a kernel that is not loaded, on a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(loader, "check_driver", lambda: None)
    monkeypatch.setattr(loader, "gpu_of", lambda device: Gpu.h200())
    monkeypatch.setattr(loader, "Launcher", lambda kernel, plan, device, *preparing: kernel)
    return DIRECT.plan(Problem(Layer(1, 2, 2, kernel=(1, 1, 3)), 1, (1, 1, 9)), Gpu.h200())


@pytest.mark.parametrize("step", ["build", "load"])
def test_an_interrupted_load_is_done_again(plan: Plan, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loader, "build", lambda kernel, arch: loader.Built(kernel, b"cubin"))
    monkeypatch.setattr(loader, "load", lambda *_: "kernel")
    with monkeypatch.context() as patched:
        patched.setattr(loader, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            loader.launcher(plan, 0)
    assert loader.launcher(plan, 0) == "kernel"


def test_who_waits_for_another_thread_can_be_interrupted(
    plan: Plan, scale_source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_source(scale_source, "sm_80")  # NVRTC meddles with the handlers of signals
    compiling, go_on = threading.Event(), threading.Event()
    builds = []

    def build(kernel: Any, arch: str) -> loader.Built:
        builds.append(threading.current_thread())
        compiling.set()
        assert go_on.wait(20)
        return loader.Built(kernel, b"cubin")

    monkeypatch.setattr(loader, "build", build)
    monkeypatch.setattr(loader, "load", lambda cubin, *_: cubin)
    first = threading.Thread(target=loader.launcher, args=(plan, 0))
    first.start()
    interrupt = _interrupts_main_after(compiling)
    assert compiling.wait(60)
    with pytest.raises(KeyboardInterrupt):
        loader.launcher(plan, 0)
    interrupt.join()
    go_on.set()
    first.join()
    assert loader.launcher(plan, 0) == b"cubin"
    assert builds == [first]
