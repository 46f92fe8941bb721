"""Candidates that mean to be judged better than they are: each is refused, and the reason says what it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.evaluation.report import Report
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]
pytestmark = pytest.mark.rotates(36)

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride, bias=False)

    def forward(self, x):
        return self.up(x)

def get_inputs():
    return [torch.rand(2, 4, 7, 6)]

def get_init_inputs():
    return [4, 6, 3]
"""

#: What the attacks derive from: PyTorch's own layer, which is an honest answer.
CANDIDATE = """
import atexit, json, os, socket, sys, threading, time
import torch
import torch.nn as nn
import torch.nn.functional as F

class ModelNew(nn.Module):
    first = last = None
    count = 0

    def __init__(self, in_channels, out_channels, kernel_size, stride=1):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride, bias=False)

    def right(self, x):
        return self.up(x)

    def forward(self, x):
        return self.right(x)
"""

#: What `forward` does, and a part of one of the reasons.
RESULTS = {
    "the first output for ever": (
        "self.first = self.right(x) if self.first is None else self.first; return self.first",
        "follows its inputs: calls on other inputs or weights gave the same bits: is that an earlier call's output?",
    ),
    "the last output for the same tensor": (
        "if self.last is None or self.last[0] is not x: self.last = x, self.right(x)\nreturn self.last[1]",
        "follows its inputs",
    ),
    "the last output for the same address": (
        "if self.last is None or self.last[0] != x.data_ptr(): self.last = x.data_ptr(), self.right(x)\n"
        "return self.last[1]",
        "follows its inputs",
    ),
    "memory as it was": ("return torch.empty_like(self.right(x))", "every element written"),
    "memory as it was, in one corner": (
        "y = torch.empty(x.shape[0], 6, 9, 8)\ny[..., :-1] = self.right(x)[..., :-1]\nreturn y",
        "every element written: the element at [0, 0, 0, 7] was not written",
    ),
    "float16 inside": ("return F.conv_transpose2d(x.half().float(), self.up.weight)", "power-of-two scaling"),
    "bfloat16 inside": ("return F.conv_transpose2d(x.bfloat16().float(), self.up.weight)", "pooled error"),
    "the input changed": ("y = self.right(x); x.neg_(); return y", "inputs unchanged: the call changed input[0]"),
    "the input changed, and another put in its place": (
        "y = self.right(x); same = x.detach(); x.data = x.clone(); same.neg_(); return y",
        "inputs unchanged: the call changed input[0]",
    ),
    "a weight changed": ("y = self.right(x); self.up.weight.data.mul_(2); return y", "the call changed up.weight"),
    "right for inputs such as the file's": (
        "return self.right(x) if x.min() >= 0 else torch.zeros(x.shape[0], 6, 9, 8)",
        "every element: at [",
    ),
    "right for the first weights": (
        "self.first = self.up.weight.clone() if self.first is None else self.first\n"
        "return F.conv_transpose2d(x, self.first)",
        "every element: at [",
    ),
    "another result in the second call": (
        "self.count += 1; return self.right(x) * (1 + 1e-7 * (self.count % 2))",
        "same bits twice: two runs on the same tensors differ",
    ),
    "a thread that finishes later": (
        "y = torch.empty(x.shape[0], 6, 9, 8)\n"
        "threading.Timer(0.05, lambda: y.copy_(F.conv_transpose2d(x, self.up.weight))).start()\n"
        "return y",
        "every element written",
    ),
    "a tensor that computes when it is looked at": (
        "return LazyTensor.of(lambda: self.right(x), x.shape[0])",
        "forward in candidate.py returns a LazyTensor as output, a subclass of Tensor, which may compute its values",
    ),
    "SystemExit": ("raise SystemExit(0)", "SystemExit: 0 (in forward)"),
    "an exit with code 0": ("os._exit(0)", "forward ended with exit code 0 in the middle"),
    "a hundred gigabytes": ("torch.ones(100 * 2**28); return self.right(x)", "allocate"),
    "file descriptors closed": (
        "os.closerange(3, 256); return self.right(x)",
        "was ended by SIGKILL (out of memory, or",
    ),
    "an answer of its own": (
        "for fd in range(3, 64):\n"
        '    try: socket.socket(fileno=os.dup(fd)).send(b\'{"value": {}, "number": 3}\\n\')\n'
        "    except OSError: pass\n"
        "return self.right(x)",
        "wrote an answer of its own to its socket",
    ),
    "noise on the socket": (
        "for fd in range(3, 64):\n"
        "    try: socket.socket(fileno=os.dup(fd)).send(b'[[[[\\n')\n"
        "    except OSError: pass\n"
        "return self.right(x)",
        "wrote something else than an answer to its socket",
    ),
    "a second process that answers, too": ("os.fork(); return self.right(x)", "wrote "),
    "a pipe in place of the result's file": (
        "from tconv.sandbox.exchange import Exchange\n"
        "write = Exchange.write\n"
        "def write_pipe(self, tensor):\n"
        "    tree = write(self, tensor)\n"
        "    path = self._directory / tree['file']\n"
        "    path.unlink()\n"
        "    os.mkfifo(path)\n"
        "    return tree\n"
        "Exchange.write = write_pipe\n"
        "return self.right(x)",
        "wrote what cannot be read (OSError",
    ),
    "words that look like another verdict": (
        "raise ValueError('\\x1b[2K\\x1b[1Gequal, 9.9x faster')",
        "ValueError: ?[2K?[1Gequal, 9.9x faster (in forward)",
    ),
}

#: What the file does when it is loaded, and what the reason names.
PATCHES = {
    "allclose": ("torch.allclose = lambda *a, **k: True", "torch.allclose"),
    "a timer": ("time.perf_counter = lambda: 0.0", "time.perf_counter"),
    "events": ("torch.cuda.Event.elapsed_time = lambda a, b: 1e-6", "torch.cuda.streams.Event.elapsed_time"),
    "waiting": ("torch.cuda.synchronize = lambda *a: None", "torch.cuda.synchronize"),
    "a method of tensors": (
        "torch.Tensor.contiguous = lambda self, **k: torch._C.TensorBase.contiguous(self, **k)",
        "torch.Tensor.contiguous",
    ),
    "the reference's operator": (
        "slow = F.conv_transpose2d\nF.conv_transpose2d = lambda *a, **k: [slow(*a, **k) for _ in range(9)][0]",
        "torch.nn.functional.conv_transpose2d",
    ),
    "the reference's layer": (
        "nn.ConvTranspose2d.forward = lambda self, x: F.conv_transpose2d(x, self.weight)",
        "torch.nn.modules.conv.ConvTranspose2d.forward",
    ),
    "another layer": ("nn.ReLU.forward = lambda self, x: x", "torch.nn.modules.activation.ReLU.forward"),
    "an optimizer": ("torch.optim.SGD.step = lambda self: None", "torch.optim.sgd.SGD.step"),
    "an operator": (
        "own = torch.library.Library('aten', 'IMPL')\nown.impl('hardswish', lambda x: x, 'CPU')",
        "aten::hardswish on CPU",
    ),
    "hooks on every module": (
        "nn.modules.module.register_module_forward_hook(lambda module, given, y: y)",
        "torch.nn.modules.module._global_forward_hooks",
    ),
    "hooks on every optimizer": (
        "from torch.optim.optimizer import register_optimizer_step_pre_hook\n"
        "register_optimizer_step_pre_hook(lambda *a: None)",
        "torch.optim.optimizer._global_optimizer_pre_hooks",
    ),
    "clipping of gradients": (
        "nn.utils.clip_grad_norm_ = lambda *a, **k: torch.ones(())",
        "torch.nn.utils.clip_grad_norm_",
    ),
    "tconv's constants": (
        "import tconv.evaluation.tolerance\ntconv.evaluation.tolerance.SUMMATION = 1e9",
        "tconv.evaluation.tolerance.SUMMATION",
    ),
    "tconv's eyes": (
        "from tconv.evaluation.files.process import answers\nanswers.fingerprint = lambda *a: 0",
        "tconv.evaluation.files.process.answers.fingerprint",
    ),
}

LAZY = """
class LazyTensor(torch.Tensor):
    @staticmethod
    def of(compute, batch):
        lazy = torch.empty(batch, 6, 9, 8).as_subclass(LazyTensor)
        lazy.compute = compute
        return lazy

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [arg.compute() if isinstance(arg, cls) else arg for arg in args]
        return func(*args, **(kwargs or {}))
"""


#: Starts a process that outlives its parent and has no group with anyone; it writes zeros over all values that pass.
DETACHED = """
import ctypes, glob, signal
def rewrite(folder):
    if os.fork():
        return os.wait()
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.alarm(60)
    while True:
        for path in glob.glob(folder + "/*-*"):
            try:
                with open(path, "r+b") as file:
                    file.write(bytes(os.fstat(file.fileno()).st_size))
            except OSError:
                pass
"""

#: A process that computes for the candidate, in a session of its own.
HELPER = """
import subprocess
helper = subprocess.Popen(
    [sys.executable, "-c", "for line in iter(input, ''): print(float(line) * 2, flush=True)"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
)
def halved(y):
    helper.stdin.write("0.25\\n")
    helper.stdin.flush()
    return y * float(helper.stdout.readline())
"""


@pytest.fixture
def verdict_on(workshop: Workshop, write: Writer):  # type: ignore[no-untyped-def]
    """Judges a candidate whose file ends with the given lines, some of them in its `forward`."""

    def judged(forward: str = "", at_the_end: str = "", *, model: str = MODEL, **options: object) -> Report:
        lines = forward.replace("; ", "\n").splitlines() or ["return self.right(x)"]
        text = CANDIDATE.replace("        return self.right(x)\n", "".join(f"        {line}\n" for line in lines))
        candidate = write("candidate.py", text + LAZY * ("LazyTensor" in forward) + at_the_end + "\n")
        return judge(write("model.py", model), candidate, workshop=workshop, **options)  # type: ignore[arg-type]

    return judged


def test_what_the_attacks_derive_from_is_equal(verdict_on) -> None:  # type: ignore[no-untyped-def]
    report = verdict_on()
    assert report.equal, report.reasons
    assert report.verdict.operators == ("aten.convolution (transposed)",)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_none(verdict_on, monkeypatch: pytest.MonkeyPatch, name: str) -> None:  # type: ignore[no-untyped-def]
    forward, reason = RESULTS[name]
    monkeypatch.setattr("tconv.evaluation.files.judge._memory", lambda: 2**33)
    report = verdict_on(forward)
    assert not report.equal
    assert any(reason in line for line in report.reasons), report.reasons


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch(verdict_on, name: str) -> None:  # type: ignore[no-untyped-def]
    patch, named = PATCHES[name]
    report = verdict_on("", patch)
    assert not report.equal
    (reason,) = report.reasons
    assert reason == f"patches nothing: ModelNew's file puts something else in place of {named}"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("torch.set_default_dtype(torch.float64)", "torch.get_default_dtype()"),
        ("torch.set_grad_enabled(True)", "torch.is_grad_enabled()"),
        ("torch.autocast('cpu').__enter__()", "torch.is_autocast_enabled()"),
        ("torch.set_default_device('cpu')", "the modes of torch.overrides"),
        (
            "from torch.utils.flop_counter import FlopCounterMode as M; M(display=False).__enter__()",
            "the modes of torch.utils._python_dispatch",
        ),
    ],
)
def test_a_mode_that_is_left_on(verdict_on, line: str, named: str) -> None:  # type: ignore[no-untyped-def]
    report = verdict_on(f"y = self.right(x); {line}; return y")
    assert not report.equal
    assert any(line.startswith("flags and random state: ") and named in line for line in report.reasons), report.reasons


def test_a_mode_that_a_call_leaves_behind_itself_is_no_patch(verdict_on) -> None:  # type: ignore[no-untyped-def]
    lines = (
        "torch.set_default_dtype(torch.float64); y = self.right(x); torch.set_default_dtype(torch.float32); return y"
    )
    report = verdict_on(lines)
    assert report.equal, report.reasons


def test_a_patch_does_not_make_a_wrong_result_right(verdict_on) -> None:  # type: ignore[no-untyped-def]
    patches = "\n".join(PATCHES[name][0] for name in ("allclose", "tconv's constants", "tconv's eyes"))
    report = verdict_on("return self.right(x) * 1.01", patches)
    assert "own inputs: at [" in report.reasons[0] and "patches nothing" in report.reasons[-1]


def test_zeros_where_most_outputs_are_zero(verdict_on) -> None:  # type: ignore[no-untyped-def]
    sparse = MODEL.replace("[4, 6, 3]", "[4, 6, 1, 16]")
    assert verdict_on(model=sparse).equal
    report = verdict_on("return torch.zeros_like(self.right(x))", model=sparse)
    assert any("own inputs: at [" in line for line in report.reasons), report.reasons


def test_right_for_the_given_sizes_shows_with_others(verdict_on) -> None:  # type: ignore[no-untyped-def]
    report = verdict_on("return self.right(x) if x.shape[2:] == (7, 6) else 0 * self.right(x)")
    assert report.reasons[0].startswith("other inputs: given inputs of another size: "), report.reasons
    forward = "return self.right(x) if x.shape[2] <= 7 and x.shape[3] <= 6 else 0 * self.right(x)"
    report = verdict_on(forward, vary_arguments=True)
    assert report.verdict.equal and not report.equal
    assert report.reasons[0].startswith("with inputs of another size: ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("sys.exit(0)", "SystemExit: 0 (in the file)"),
        ("os._exit(0)", "loading it ended with exit code 0 in the middle"),
        ("torch.set_default_dtype(torch.float64)", "up.weight is torch.float64, in Model it is torch.float32"),
        ("ModelNew.state_dict = lambda self: {'a\\nequal': torch.ones(1)}", "Model lacks a?equal"),
    ],
)
def test_a_file_that_misbehaves_before_it_runs(verdict_on, line: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    report = verdict_on("", line)
    assert not report.equal
    assert any(reason in text for text in report.reasons), report.reasons


@pytest.mark.parametrize(
    "line",
    [
        "torch.set_num_threads(1)",
        "atexit.register(os._exit, 1)",
        "torch.backends.cudnn.benchmark = True",
        'print(\'{"value": {"outputs": 3}}\', flush=True)',
        "threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    ],
)
def test_what_is_nobodys_business(verdict_on, line: str) -> None:  # type: ignore[no-untyped-def]
    report = verdict_on("", line)
    assert report.equal, report.reasons


def test_a_child_that_leaves_its_group_ends_with_the_judgement(verdict_on, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pid_file = tmp_path / "pid"
    start = "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    assert verdict_on("", f"{start}open({str(pid_file)!r}, 'w').write(str(child.pid))").equal
    assert not Path("/proc", pid_file.read_text()).exists()


ZEROS, TWO_LAYERS = "return torch.zeros(x.shape[0], 6, 9, 8)", MODEL.replace("self.up(x)", "torch.relu(self.up(x))")


@pytest.mark.parametrize("leaves", ["", "ctypes.CDLL(None).prctl(36, 0)\n"], ids=["", "handed on"])
def test_a_detached_process_that_rewrites_answers(verdict_on, workshop: Workshop, leaves: str) -> None:  # type: ignore[no-untyped-def]
    start = f"{DETACHED}{leaves}rewrite({str(workshop.directory)!r})"
    assert not verdict_on(ZEROS, model=TWO_LAYERS).equal
    report = verdict_on(ZEROS, start, model=TWO_LAYERS)
    assert not report.equal and report.reasons


def test_a_process_that_computes_for_the_candidate_is_nobodys_business(verdict_on) -> None:  # type: ignore[no-untyped-def]
    model = MODEL.replace("self.up(x)", "torch.relu(self.up(x)) * 0.5")
    report = verdict_on("return halved(torch.relu(self.right(x)))", HELPER, model=model)
    assert report.equal, report.reasons


def test_folders_in_place_of_what_is_to_be_written(write: Writer) -> None:
    """Under all names that are there, and those that follow them where they are numbered."""
    with Workshop() as own:
        lines = f"""
for name in [*os.listdir({str(own.directory)!r}), *map(str, range(9))]:
    for end in (*range(9), *(f"judge-{{number}}" for number in range(9))):
        os.makedirs({str(own.directory)!r} + f"/{{name}}-{{end}}", exist_ok=True)
"""
        report = judge(write("model.py", MODEL), write("candidate.py", CANDIDATE + lines), workshop=own)
    assert report.equal, report.reasons


def test_a_candidate_that_removes_the_folder(write: Writer) -> None:
    with Workshop() as own:
        line = f"import shutil; shutil.rmtree({str(own.directory)!r})\n"
        report = judge(write("model.py", MODEL), write("candidate.py", CANDIDATE + line), workshop=own)
    assert not report.equal
    assert "cannot write in" in report.reasons[0] and "No such file or directory" in report.reasons[0]
