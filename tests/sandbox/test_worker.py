"""Processes for somebody's program: limits, endings, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from targets import Program, Refuses

from tconv.errors import Trouble
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.trace import layers
from tconv.sandbox.worker import RemoteError, Worker, WorkerFailed, Workshop

TESTS = Path(__file__).parents[1]


@pytest.fixture
def worker(workshop: Workshop) -> Iterator[Worker]:
    with workshop.start(Program, timeout_s=60, greeting="good day") as worker:
        yield worker


def is_running(pid: int) -> bool:
    """False also for a process that has ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_a_worker_keeps_its_target_between_calls(worker: Worker) -> None:
    assert worker.call("greet", timeout_s=10, name="you") == "good day you 1"
    assert worker.call("greet", timeout_s=10, name="you") == "good day you 2"


def test_workers_are_processes_of_their_own(workshop: Workshop, worker: Worker) -> None:
    with workshop.start(Program, timeout_s=60) as other:
        pids = {worker.call("pid", timeout_s=10), other.call("pid", timeout_s=10), os.getpid()}
        assert len(pids) == 3
        assert other.call("greet", timeout_s=10, name="me") == "hello me 1"


def test_what_it_prints_is_kept_apart_from_what_it_answers(worker: Worker) -> None:
    assert worker.call("talk", timeout_s=10) == {"answer": [1, 2.5, None]}
    assert sorted(worker.output().splitlines()) == ["straight to the descriptor", "to stderr", '{"value": "forged"}']


def test_an_endless_loop_is_ended(worker: Worker) -> None:
    pid = worker.call("pid", timeout_s=10)
    with pytest.raises(WorkerFailed, match=r"took longer than 0\.2 s"):
        worker.call("loop", timeout_s=0.2)
    assert wait_until_gone(pid)
    with pytest.raises(WorkerFailed, match="had ended before"):
        worker.call("greet", timeout_s=10, name="you")


def test_a_call_is_begun_and_ended_while_others_are_asked(workshop: Workshop, worker: Worker) -> None:
    with workshop.start(Program, timeout_s=60) as other:
        worker.begin("greet", timeout_s=10, name="you")
        assert other.call("greet", timeout_s=10, name="me") == "hello me 1"
        assert worker.finish() == "good day you 1"
        worker.begin("leave", timeout_s=10, code=3)
        assert other.call("greet", timeout_s=10, name="me") == "hello me 2"
        with pytest.raises(WorkerFailed, match="ended with exit code 3 in the middle"):
            worker.finish()
        other.begin("greet", timeout_s=0.2, name="me")
        time.sleep(0.4)
        assert other.finish() == "hello me 3", "it came in time, whenever it is asked for"
        other.begin("loop", timeout_s=0.2)
        pid = other._pid
        time.sleep(0.4)
        with pytest.raises(WorkerFailed, match=r"took longer than 0\.2 s"):
            other.finish()
    assert wait_until_gone(pid)


@pytest.mark.parametrize("code", [0, 7])
def test_leaving_in_the_middle_is_a_failure_whatever_the_exit_code(worker: Worker, code: int) -> None:
    with pytest.raises(WorkerFailed, match=f"ended with exit code {code} in the middle"):
        worker.call("leave", timeout_s=10, code=code)


def test_a_crash_is_named(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match="was ended by SIGSEGV"):
        worker.call("crash", timeout_s=10)


def test_sys_exit_is_an_exception_like_others(worker: Worker) -> None:
    with pytest.raises(RemoteError, match="SystemExit: 0"):
        worker.call("quit", timeout_s=10)
    assert worker.call("greet", timeout_s=10, name="you")


def test_an_exception_comes_back_with_its_traceback(workshop: Workshop, worker: Worker) -> None:
    with pytest.raises(RemoteError, match=r"in fail(.|\n)*ValueError: of our own making"):
        worker.call("fail", timeout_s=10)
    with pytest.raises(RemoteError, match="not today"):
        workshop.start(Refuses, timeout_s=60)


def test_the_memory_limit(workshop: Workshop) -> None:
    with workshop.start(Program, timeout_s=60, memory_bytes=2 * 2**30) as worker:
        assert worker.call("hoard", timeout_s=30, gigabytes=1) == 2**30
        with pytest.raises(RemoteError, match="MemoryError"):
            worker.call("hoard", timeout_s=30, gigabytes=3)


@pytest.mark.parametrize("away", [False, True])
def test_what_a_worker_started_ends_with_it(worker: Worker, tmp_path: Path, away: bool) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(WorkerFailed, match="took longer"):
        worker.call("start_child", timeout_s=1, pid_file=str(pid_file), away=away)
    assert wait_until_gone(int(pid_file.read_text()))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[[[", "wrote something else than an answer to its socket"),
        ("[" * 100_000, "wrote something else than an answer"),
        ("3", "wrote an answer of its own to its socket"),
        ('{"value": 3}', "wrote an answer of its own"),
        ('{"value": 3, "number": 1}', "wrote an answer of its own"),
        ('{"number": 2}', "wrote an answer of its own"),
        ('{"error": 3, "number": 2}', "wrote an answer of its own"),
    ],
)
def test_what_is_no_answer_ends_the_worker(worker: Worker, line: str, reason: str) -> None:
    with pytest.raises(WorkerFailed, match=reason):
        worker.call("say", timeout_s=10, line=line)
    with pytest.raises(WorkerFailed, match="had ended before"):
        worker.call("pid", timeout_s=10)


def test_an_answer_given_twice_is_noticed_with_the_next(worker: Worker) -> None:
    assert worker.call("say", timeout_s=10, line='{"value": "forged", "number": 2}') == "forged"
    with pytest.raises(WorkerFailed, match="wrote an answer of its own"):
        worker.call("pid", timeout_s=10)


def test_the_limit_is_on_the_whole_answer(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match=r"took longer than 0\.3 s"):
        worker.call("drip", timeout_s=0.3)


def test_an_answer_without_end_is_not_read_to_its_end(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tconv.sandbox.conversation._LONGEST_ANSWER", 2**17)
    with pytest.raises(WorkerFailed, match="answered more than 131072 bytes"):
        worker.call("greet", timeout_s=10, name="x" * 2**19)


def test_a_worker_stands_still_while_it_is_not_asked(worker: Worker) -> None:
    worker.call("spin", timeout_s=10)
    pid = worker.call("pid", timeout_s=10)
    deadline = time.monotonic() + 10
    while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert time.monotonic() < deadline, state
    assert worker.call("greet", timeout_s=10, name="you") == "good day you 1"


def test_what_a_worker_started_stands_still_with_it(workshop: Workshop, worker: Worker, tmp_path: Path) -> None:
    """Also what is neither in its group nor its child; and it goes on with the worker."""
    file = tmp_path / "count"
    worker.call("start_counter", timeout_s=10, file=str(file), leaves=False)
    with workshop.start(Program, timeout_s=60) as other:
        time.sleep(0.02)
        before = file.read_text()
        for _ in range(20):
            assert other.call("greet", timeout_s=10, name="you")
        time.sleep(0.05)
        assert file.read_text() == before
    worker.call("wait_for_more", timeout_s=10, file=str(file))
    worker.close()
    assert wait_until_gone(int(before.split()[0]))


def test_what_leaves_a_worker_altogether_ends_at_once(worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "count"
    worker.call("start_counter", timeout_s=10, file=str(file), leaves=True)
    assert wait_until_gone(int(file.read_text().split()[0]))
    assert worker.call("greet", timeout_s=10, name="you") == "good day you 1"


def test_the_machines_trouble_is_passed_on(worker: Worker) -> None:
    with pytest.raises(Trouble, match="no room"):
        worker.call("is_in_trouble", timeout_s=10)
    assert worker.call("greet", timeout_s=10, name="you")


def test_a_log_that_became_a_pipe_is_not_waited_for(worker: Worker) -> None:
    worker.call("talk", timeout_s=10)
    worker._log.unlink()
    os.mkfifo(worker._log)
    assert worker.output() == ""


def test_a_worker_that_ends_the_process_it_was_forked_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "sandbox"), prepend=os.pathsep)
    with Workshop() as own:
        worker = own.start(Program, timeout_s=60)
        worker.call("end_its_parent", timeout_s=10)
        pid = worker.call("pid", timeout_s=10)
        worker.close()
        assert wait_until_gone(pid)
        with pytest.raises(Trouble, match="the process that starts all others is gone"):
            own.start(Program, timeout_s=60)


def interrupted_program(tmp_path: Path, stop: signal.Signals) -> tuple[int, int, list[Path]]:
    """Run a program that waits for a worker, send it a signal; its exit code, the worker's pid, and what is left."""
    pid_file = tmp_path / "pid"
    code = f"""
        import sys, tempfile
        from pathlib import Path
        from targets import Program
        from tconv.sandbox.worker import Workshop
        tempfile.tempdir = {str(tmp_path)!r}
        try:
            with Workshop() as shop, shop.start(Program, timeout_s=60) as worker:
                Path({str(pid_file)!r}).write_text(str(worker.call("pid", timeout_s=10)))
                worker.call("loop", timeout_s=60)
        except KeyboardInterrupt:
            sys.exit(130)
    """
    search = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS / "sandbox")])
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "PYTHONPATH": search}, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    # As a terminal does: to the whole foreground group.
    os.killpg(program.pid, stop)
    return program.wait(timeout=30), int(pid_file.read_text()), list(tmp_path.glob("tconv-*"))


def test_ctrl_c_ends_the_workers_and_leaves_no_files(tmp_path: Path) -> None:
    code, worker, left = interrupted_program(tmp_path, signal.SIGINT)
    assert code == 130
    assert wait_until_gone(worker)
    assert left == []


def test_workers_end_with_a_program_that_was_killed(tmp_path: Path) -> None:
    code, worker, _ = interrupted_program(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert wait_until_gone(worker)


def test_a_process_that_cannot_start_is_the_machines_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    monkeypatch.setattr("tconv.sandbox.worker._PACKAGE_ROOT", f"{tmp_path}{os.pathsep}{TESTS.parent / 'src'}")
    with Workshop() as broken, pytest.raises(Trouble, match=r"did not start: ImportError: libtorch_cpu\.so"):
        broken.start(Program, timeout_s=60)


def test_nothing_is_imported_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the process that forks, nor by what it forks; also where the environment names it, without a word."""
    here, model = tmp_path / "here", tmp_path / "model.py"
    here.mkdir()
    for name in ("resource", "queue", "types", "json", "torch", "tconv", "numpy", "neighbour"):
        (here / f"{name}.py").write_text("raise SystemExit('imported from the current directory')")
    model.write_text(
        "import queue, types\nimport torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.up = torch.nn.ConvTranspose1d(2, 3, 4)\n"
        "    def forward(self, x):\n        return self.up(x)\n"
        "def get_inputs():\n    return [torch.rand(1, 2, 5)]\n"
    )
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep + os.environ.get("PYTHONPATH", ""))
    with Workshop() as workshop:
        assert [layer.name for layer in layers(model, workshop=workshop)] == ["up"]
        model.write_text("import neighbour\n")
        with pytest.raises(ModelFileError, match="imports neighbour, which is not installed"):
            layers(model, workshop=workshop)
