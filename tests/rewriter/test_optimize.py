"""The whole job without a GPU: what is written, what is refused, what is said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from codegen_helpers import DENSE, EXAMPLES, by_kind, executed, generated_text
from torch.utils._python_dispatch import TorchDispatchMode

from tconv import emulator
from tconv.cli.optimize import _archs, _cells, _summary, _types
from tconv.cli.reports import page
from tconv.codegen import cuda
from tconv.codegen.cuda import Written
from tconv.codegen.headers.whole import whole
from tconv.codegen.planned import PlannedLayer
from tconv.errors import OutOfMemory, Trouble
from tconv.jit.compile import Compiled
from tconv.jit.loader import compile_kept
from tconv.planner import DIRECT, Gpu
from tconv.problem import Layer, Problem
from tconv.rewriter import check, planning, run
from tconv.rewriter.outcome import Outcome, Request, to_dict
from tconv.rewriter.output import draft
from tconv.rewriter.planning import Basis, plan_layers
from tconv.rewriter.run import optimize
from tconv.sandbox.cut import cut_of, launch_of
from tconv.sandbox.emulated import ask, install
from tconv.sandbox.model_file import ModelFileError, load
from tconv.sandbox.trace import trace

pytestmark = [
    pytest.mark.rotates(8),  # each takes seconds
    pytest.mark.skipif(torch.cuda.is_available(), reason="these say what happens without a GPU"),
    pytest.mark.usefixtures("one_workshop"),
]

MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F
    from others import Own, up

    class Model(nn.Module):
        def __init__(self, channels: int = 4):
            super().__init__()
            self.first = nn.ConvTranspose2d(3, channels, 2, stride=2)
            self.own = Own(channels, 2, 1)
            self.weight = nn.Parameter(torch.randn(2, 3, 3, 3))

        def forward(self, x):
            return up(F.conv_transpose2d(self.own(self.first(x)), self.weight, padding=1))

    def get_inputs():
        return [torch.rand(64, 3, 100, 100)]
"""
OTHERS = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Own(nn.ConvTranspose2d):
        def forward(self, x):
            return F.conv_transpose2d(x, self.weight.abs(), self.bias)

    def up(x):
        return F.conv_transpose2d(x, x.new_ones(3, 1, 1, 1), groups=3)
"""
ONE_LAYER = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2)
        def forward(self, x):
            return self.up(x)

    def get_inputs():
        return [torch.rand(2, 3, 4, 4)]
"""
TWO_SIZES = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(8, 8, 3, padding=1)
        def forward(self, x):
            return self.up(x).sum() + self.up(x[:, :, :4, :4])

    def get_inputs():
        return [torch.rand(3, 8, 400, 400)]
"""
Write = Callable[..., Path]


@pytest.fixture
def mixed(model_file: Write) -> Path:
    model_file(OTHERS, "others.py")
    return model_file(MODEL)


#: Draws numbers that no seed decides.
NEVER_THE_SAME = """
    import torch
    from torch import nn

    calls = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.wave = nn.ConvTranspose1d(3, 4, 2), nn.ConvTranspose1d(1, 1, 2, dtype=torch.complex64)
        def forward(self, x):
            y = torch.relu(self.up(x))
            calls.append(None)
            return y * (1 << len(calls) % 16) + self.wave(y[:, :1] + 0j).abs().mean()

    def get_inputs():
        return [torch.rand(2, 3, 5)]
"""


def request_for(model: Path, **options: object) -> Request:
    return Request(model, model.with_name("out.py"), **options)  # type: ignore[arg-type]


@pytest.mark.rotates(12)
def test_a_model_that_nobody_can_judge_is_written_and_says_so(model_file: Write) -> None:
    model = model_file(NEVER_THE_SAME)
    outcome = optimize(request_for(model))
    assert outcome.written and outcome.report is None and outcome.unjudged
    (layer,) = outcome.layers
    assert layer.verdict is not None and layer.verdict.equal and layer.layer.kernel_epilogues, "each layer is judged"
    note = next(each for each in outcome.not_checked if each.startswith("the whole file: "))
    assert "called twice on the same inputs" in note and "gives two results" in note
    assert _summary(outcome)[0].startswith("each layer equal") and "the whole file not judged" in _summary(outcome)[0]
    told = to_dict(outcome)
    assert told["unjudged"] == outcome.unjudged and told["left"] == {"wave": "its numbers are complex"}
    html = page(told)
    assert "each layer equal, the whole file not judged; not timed" in html and "its numbers are complex" in html


def test_writes_a_file_that_is_equal_and_says_what_is_left(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    compiled: set[str] = set()
    emulated: set[str] = set()
    beside: list[int] = []

    def compile_and_note(source: str, *args: Any, **kwargs: Any) -> Any:
        compiled.add(source)
        return compile_kept(source, *args, **kwargs)

    def run_and_note(source: str, *args: Any, **kwargs: Any) -> None:
        emulated.add(source)
        emulator.run(source, *args, **kwargs)

    def draft_and_count(output: Path, text: str) -> Any:
        beside.append(len(list(output.parent.glob(".out_*"))))
        return draft(output, text)

    monkeypatch.setattr(check, "compile_kept", compile_and_note)
    monkeypatch.setattr(check, "run", run_and_note)
    monkeypatch.setattr(run, "draft", draft_and_count)
    outcome = optimize(request_for(mixed), steps.append)
    assert beside == [0, 0], "the draft that showed what is out of reach is gone before the next one"
    assert outcome.reasons == ()
    assert outcome.equal and outcome.written
    layers = {check.layer.name: check for check in outcome.layers}
    line = next(n for n, text in enumerate(mixed.read_text().splitlines(), 1) if "F.conv_transpose2d(" in text)
    call = f"line {line}"
    assert list(layers) == ["first", "own", call, "others.py line 10"]
    assert [check.layer.left for check in outcome.layers] == [False, True, False, True]
    assert "which does not call torch's: if it stands in another file" in layers["own"].layer.reason
    assert "file that the model file imports" in layers["others.py line 10"].layer.reason
    for name in ("first", call):
        checked = layers[name]
        assert checked.verdict is not None and checked.verdict.equal
        assert checked.judged_at is not None and checked.judged_at.batch == 8
        assert {made.arch for made in checked.builds} == {"sm_80"}
        assert all(0 < made.registers <= 255 for made in checked.builds)
    assert outcome.report is not None and outcome.report.equal
    assert steps[0] == "tracing model.py" and f"checking layer 3 of 4: {call}" in steps
    assert any("full size" in note and "first: batch 64 → 8" in note for note in outcome.not_checked)

    # The file stands alone, and what was left runs as it did.
    text = outcome.request.output.read_text()
    kernels = text.split('"direct": r"""')[1].split("\n// ==== ")[0]
    # Byte for byte from the file.
    assert len(compiled) == 2 and compiled == emulated
    assert all(source.startswith(kernels) for source in compiled)
    assert "own " in text.split("\n\n")[0] and "left to PyTorch" in text.split("\n\n")[0]
    monkeypatch.syspath_prepend(str(mixed.parent))
    namespace = executed(text)
    install(namespace)
    torch.manual_seed(0)
    candidate = namespace["ModelNew"]()
    model = load(mixed).construct(0)
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(candidate(x), model(x), rtol=2e-3, atol=2e-3)

    report = json.loads(json.dumps(to_dict(outcome)))
    assert report["equal"] and report["written"] and report["load_inline"] == "not tried"
    assert [layer["left"] is None for layer in report["layers"]] == [True, False, True, False]
    assert report["layers"][0]["builds"][0]["arch"] == "sm_80"
    assert report["layers"][0]["verdict"]["equal"] and report["whole_file"]["equal"]


def break_kernels(monkeypatch: pytest.MonkeyPatch, family: str, right: str, wrong: str) -> None:
    """Files are written with a mistake in the kernels of a family."""

    def broken(kernels: Sequence[Written]) -> str:
        text = whole(kernels)
        if kernels[0].kernel.family == family:
            assert text.count(right) == 1
            text = text.replace(right, wrong)
        return text

    monkeypatch.setattr(cuda, "whole", broken)


def test_a_wrong_kernel_is_not_written(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same job over kernels with one sign turned."""

    break_kernels(monkeypatch, "direct", "fmaf(", "-fmaf(")
    path = model_file(ONE_LAYER)
    output = path.with_name("out.py")
    output.write_text("# generated by tconv 0.0.1\n")
    outcome = optimize(Request(path, output))
    assert not outcome.equal and not outcome.written
    assert any(reason.startswith("up: every element: ") for reason in outcome.reasons)
    assert output.read_text() == "# generated by tconv 0.0.1\n"
    assert sorted(p.name for p in path.parent.glob("*")) == ["model.py", "out.py"]


def test_too_little_memory_is_trouble_and_no_plainer_kernel(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []

    def check_layers(file: object, layers: Sequence[PlannedLayer], *_: object, **options: Any) -> None:
        options["begins"]("checking layer 1 of 1: up")
        attempts.append(layers[0].name)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(run, "check_layers", check_layers)
    model = model_file(DENSE)
    says = "out of GPU memory while checking layer 1 of 1: up: CUDA out of memory. Tried to allocate 2.00 GiB; end"
    with pytest.raises(OutOfMemory, match=re.escape(says)):
        optimize(Request(model, model.with_name("out.py")))
    assert len(attempts) == 1 and not model.with_name("out.py").exists()


@pytest.mark.slow
def test_every_kernel_of_a_layer_is_checked(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best one, the one for any size, and both of another type, each block at several block tiles."""
    launches: list[tuple[str, int]] = []

    def run_and_note(source: str, made: Any, **kwargs: Any) -> None:
        launches.append((made[-1].kernel, made[-1].grid))
        emulator.run(source, made, **kwargs)

    monkeypatch.setattr(check, "run", run_and_note)
    outcome = optimize(request_for(model_file(DENSE), archs=("sm_90a",), types=("float16",)))
    (layer,) = outcome.layers
    assert outcome.written and layer.layer.any_size is not None
    uses = ["", ", any size", ", float16", ", float16, any size"]
    assert list(layer.verdicts) == [f"up{use}" for use in uses] and layer.equal
    names = ["conv_up", "conv_up_any_size", "conv_up_float16", "conv_up_float16_any_size"]
    assert list(dict.fromkeys(name for name, _ in launches)) == names
    assert {grid for _, grid in launches} == {2}
    assert {made.arch for made in layer.builds} == {"sm_90a"}
    report = json.loads(json.dumps(to_dict(outcome)))["layers"][0]
    assert report["plan"]["family"] == "wgmma"
    others = {use: plan["family"] for use, plan in report["other_plans"].items()}
    assert others == {use.removeprefix(", "): "wgmma" for use in uses[1:]}
    assert list(report["other_verdicts"]) == list(others)
    assert all(verdict["equal"] for verdict in report["other_verdicts"].values())
    assert re.fullmatch(r"wgmma: \d+ blocks of 384", _cells(layer, False)[2])


@pytest.mark.slow
def test_a_mistake_in_a_kernel_on_tensor_cores_keeps_it_out(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is then written with the plainest kernels."""
    step = "number += static_cast<int>(gridDim.x)"
    break_kernels(monkeypatch, "wgmma", f"{step};", f"{step} + 1;")
    outcome = optimize(request_for(model_file(DENSE), archs=("sm_90a",)))
    assert outcome.written
    assert {plan.kernel.family for check in outcome.layers for plan in check.layer.variants.values()} == {"direct"}


def test_what_no_kernel_of_the_file_runs_is_said(model_file: Write) -> None:
    outcome = optimize(request_for(model_file(ONE_LAYER), archs=("sm_75", "sm_80")))
    assert outcome.written and not [note for note in outcome.not_checked if "no kernel of the file" in note]


NOTHING = """
    import torch
    from torch import nn
    import torch.nn.functional as F
    from others import Own, up

    class Model(nn.Module):
        def forward(self, x):
            return {}

    def get_inputs():
        return [torch.rand(1, 3, 4, 4)]
"""


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("x + 1", "runs no transposed convolution"),
        ("up(x)", "nothing can be replaced: others.py line 10"),
    ],
)
def test_models_with_nothing_to_replace(model_file: Write, result: str, words: str) -> None:
    model_file(OTHERS, "others.py")
    with pytest.raises(ModelFileError, match=words):
        optimize(request_for(model_file(NOTHING.replace("{}", result))))


def test_a_model_that_never_ends_is_named(model_file: Write) -> None:
    with pytest.raises(ModelFileError, match=r"^model\.py took longer than 2 s"):
        optimize(request_for(model_file("while True: pass\n"), timeout_s=2))


@pytest.mark.parametrize("option", ["--only-faster", "--compile"])
def test_what_is_timed_needs_a_gpu(mixed: Path, option: str) -> None:
    with pytest.raises(Trouble, match=f"{option} .*: it needs a GPU, and no --no-bench"):
        optimize(request_for(mixed, **{option.strip("-").replace("-", "_"): True}))


def test_no_compiler_for_the_emulator(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    with pytest.raises(Trouble, match=r"g\+\+ not found: .*apt install"):
        optimize(request_for(mixed))


def test_archs() -> None:
    assert _archs(["sm_80,sm_90a", "sm_75", "sm_80"]) == ("sm_80", "sm_90a", "sm_75")
    for wrong in ("80", "compute_80", "sm_9", "sm_90b"):
        with pytest.raises(Trouble, match=f"got --arch {wrong}; write it as sm_80"):
            _archs([wrong])


def test_types() -> None:
    assert _types(["float16,bfloat16", "float16"]) == ("float16", "bfloat16")
    for wrong in ("half", "fp16", "int8"):
        with pytest.raises(Trouble, match=f"got --types {wrong}; the types are float32, float16, bfloat16, float64"):
            _types([wrong])


def test_other_types_and_what_becomes_of_other_calls_stand_in_the_file(model_file: Write) -> None:
    path = model_file(ONE_LAYER)
    outcome = optimize(request_for(path, types=("float64", "float32"), elsewhere="error"))
    assert outcome.written and list(outcome.layers[0].verdicts) == ["up", "up, float64"]
    namespace = executed(outcome.request.output.read_text())
    assert namespace["ELSEWHERE"] == "error"
    assert [str(layer.dtype) for layer in namespace["_RECORDED"]] == ["torch.float32", "torch.float64"]
    model = namespace["ModelNew"]()
    with pytest.raises(RuntimeError, match=r"no kernel of this file runs conv_transpose2d .*: they run on a GPU"):
        model(torch.rand(2, 3, 4, 4))
    install(namespace)
    namespace["_launch_for"].cache_clear()
    with torch.no_grad():
        torch.testing.assert_close(
            model.double()(x := torch.rand(2, 3, 5, 7).double()), torch.nn.ConvTranspose2d.forward(model.up, x)
        )
    with pytest.raises(RuntimeError, match="its kernels are for float32, float64, not for float16"):
        model.half()(torch.rand(2, 3, 4, 4).half())


def test_a_file_that_would_not_run_a_layer_at_other_sizes_is_refused(
    model_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_any_size", lambda *_: [])
    path = model_file(DENSE)
    with pytest.raises(ModelFileError, match=r"has no kernel for .*: none takes an input of this size"):
        optimize(request_for(path, archs=("sm_90a",)))
    assert not path.with_name("out.py").exists()


def test_an_arch_that_nvrtc_does_not_know(model_file: Write) -> None:
    path = model_file(ONE_LAYER)
    with pytest.raises(Trouble, match="does not compile for sm_20"):
        optimize(request_for(path, archs=("sm_20",)))


@pytest.mark.parametrize(
    ("line", "meant", "precision"),
    [("", "match", "tf32"), ("torch.backends.cudnn.allow_tf32 = False", "fp32", "fp32")],
)
def test_what_match_means_is_settled_by_the_file(model_file: Write, line: str, meant: str, precision: str) -> None:
    """For its layers, its text and its judgement alike."""
    outcome = optimize(request_for(model_file(f"{ONE_LAYER.replace('2, 3, 4, 4', '1, 3, 8, 8')}\n    {line}\n")))
    assert outcome.written and outcome.report is not None
    (layer,) = outcome.layers
    assert layer.layer.plan.problem.layer.precision == precision
    assert ("tf32=True" in outcome.request.output.read_text()) == (precision == "tf32")
    assert outcome.report.precision == meant


@pytest.mark.parametrize("into", [0, 12])
def test_what_is_timed_of_a_layer_is_its_launch_alone(into: int) -> None:
    """Who looks at a value waits for the GPU; only of a slice is it looked at what lies beside it."""
    called: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.overloadpacket._qualified_op_name)
            return func(*args, **(kwargs or {}))

    layer = Layer(2, 4, 6, (1, 3, 3))
    with Noted():
        place = check._Place(Problem(layer, 2, (1, 5, 5), into=into), torch.zeros(2, 4, 5, 5))
        place.result()
    assert ("aten::_local_scalar_dense" in called) == bool(into)
    assert ("aten::all" in called) == ("aten::fill_" in called) == bool(into)


def test_a_text_is_compiled_once(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers that are compiled alike have one text."""
    compiled: Counter[tuple[str, str]] = Counter()

    def compile_and_count(source: str, arch: str, **options: Any) -> Any:
        compiled[source, arch] += 1
        return compile_kept(source, arch, **options)

    monkeypatch.setattr(check, "compile_kept", compile_and_count)
    outcome = optimize(request_for(model_file(TWO_SIZES), archs=("sm_80", "sm_90a")))
    assert outcome.written and len(outcome.replaced) == 2
    assert list(compiled.values()) == [1] * 2  # for both archs


def test_what_is_begun_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of time by the pool, or when it is asked for."""
    made: list[str] = []

    def compile_and_note(source: str, kernel: str, arch: str) -> Compiled:
        made.append(source)
        return Compiled(source.encode(), 1, 0, 0, "", 0.0)

    monkeypatch.setattr(check, "compile_text", compile_and_note)
    with ThreadPoolExecutor(1) as pool:
        for compiler in (check.Compiler(pool), check.Compiler()):
            made.clear()
            compiler.begin([("a", "k", "sm_80"), ("b", "k", "sm_80"), ("a", "k", "sm_80")])
            assert [compiler(text, "k", "sm_80").cubin for text in "aba"] == [b"a", b"b", b"a"]
            assert sorted(made) == ["a", "b"]


# ---- the command


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tconv", "optimize", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_command_writes_the_committed_example(tmp_path: Path) -> None:
    output, report = tmp_path / "out.py", tmp_path / "report.json"
    process = command(
        EXAMPLES / "strided_dilated.py",
        "--arch",
        "sm_90a",
        "-o",
        output,
        "--json",
        report,
        "--html",
        tmp_path / "r.html",
    )
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    # What begins after ten seconds of silence is told off a terminal.
    assert all(line.startswith("tconv: ") for line in errors.splitlines()), errors
    assert output.read_bytes() == (EXAMPLES / "generated" / "strided_dilated_new.py").read_bytes()
    told = json.loads(report.read_text())
    steps = ["starting", "tracing strided_dilated.py", "looking at the epilogues of layers", "planning"]
    assert told["equal"] is True and list(told["seconds"])[:4] == steps
    assert (tmp_path / "r.html").read_text() == page(told)
    lines = shown.splitlines()
    assert lines[1].startswith("conv_transpose2d") and "32→64 k3 s5 p1 d2" in lines[1] and "on 16x32x64x128" in lines[1]
    assert any(line.startswith("Not checked: the link of load_inline; the full size") for line in lines)
    assert lines[-1] == "equal (default checks) in the emulator; not timed: no GPU; float32 only, others: --types"


def test_trouble_is_one_line_and_exit_2(tmp_path: Path) -> None:
    output = tmp_path / "mine.py"
    output.write_text("mine")
    process = command(EXAMPLES / "unet.py", "-o", output)
    shown, errors = process.communicate(timeout=60)
    *begun, trouble = errors.splitlines()
    assert (process.returncode, shown) == (2, "") and all(line == "tconv: starting" for line in begun), errors
    assert "--force" in trouble and output.read_text() == "mine"


def test_interrupted_in_the_middle_it_keeps_the_old_file(tmp_path: Path) -> None:
    output = tmp_path / "out.py"
    output.write_text("# generated by tconv 0.0.1\n")
    process = command(EXAMPLES / "unet.py", "-o", output)
    deadline = time.monotonic() + 60
    while len(os.listdir(tmp_path)) == 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(tmp_path)) == 2, "it should be checking its draft by now"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert os.listdir(tmp_path) == ["out.py"] and output.read_text() == "# generated by tconv 0.0.1\n"


def test_outcome_without_any_time_has_no_speedup() -> None:
    outcome = Outcome(Request(Path("a"), Path("b")), None, False, (), None, "not tried")  # type: ignore[arg-type]
    assert outcome.speedup is None


def test_one_layer_at_two_sizes_is_one_kernel(model_file: Write) -> None:
    """The sizes alone would ask for narrow blocks here and wide ones there, and for two precisions."""
    path = model_file(TWO_SIZES)
    gpu = Gpu.h200()
    large, small = plan_layers(trace(load(path)), path, Basis(gpu), "match", by_kind)
    assert DIRECT.plan(small.plan.problem, gpu).kernel.tile != large.plan.kernel.tile
    assert small.plan.kernel == large.plan.kernel and small.plan.kernel.layer.precision == "fp32"
    file = executed(generated_text(path))
    for planned in (large, small):
        problem = planned.plan.problem
        ((kernel,),) = file["_RECORDED"].values()
        how = launch_of(cut_of(kernel, file["_CUDA"]), problem, gpu.multiprocessors, ask)
        assert (how.grid, how.threads) == (planned.plan.grid, planned.plan.kernel.threads)
        assert not kernel.tf32
