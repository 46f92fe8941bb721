"""What times lead to: which layers are left, what is written, what is said. The times themselves are made up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import by_kind, executed

from tconv.cli.optimize import _show
from tconv.cli.reports import page
from tconv.codegen.planned import PlannedLayer
from tconv.evaluation.report import Report
from tconv.evaluation.verdict import AsCalled, Check, Series, Timing, Verdict
from tconv.planner import Gpu
from tconv.planner.choice import leading
from tconv.planner.tuned import Question, Tuned
from tconv.rewriter import run
from tconv.rewriter.check import Build, LayerCheck, LayerTime
from tconv.rewriter.findings import with_findings
from tconv.rewriter.outcome import Outcome, Request, to_dict
from tconv.rewriter.pipeline import build
from tconv.rewriter.search import Searched
from tconv.sandbox.emulated import install
from tconv.sandbox.worker import Workshop
from tconv.tuning.jobs import Job
from tconv.tuning.measure import Answer

pytestmark = pytest.mark.rotates(4)  # each takes seconds

EQUAL = Verdict((Check("pooled error", True, 1e-7, 2e-7),))
UNEQUAL = Verdict((Check("pooled error", False, 1.0, 2e-7, "wrong"),))
MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ConvTranspose2d(2, 2, 2)
            self.b = nn.Sequential(nn.ConvTranspose2d(2, 2, 2))
            self.weight = nn.Parameter(torch.randn(2, 2, 1, 1))

        def forward(self, x):
            x = self.b(self.a(x))
            return F.conv_transpose2d(x, self.weight) + F.conv_transpose2d(x, -self.weight.exp())

    def get_inputs():
        return [torch.rand(1, 2, 4, 4)]
"""
CALL = "line 14"

#: What ends the last line of a file in one type.
TYPES = "; float32 only, others: --types"


@pytest.fixture
def job(
    model_file: Callable[[str], Path], workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs the job as on a GPU on which the layers have these times, ours and PyTorch's."""

    def run_it(
        times: dict[str, tuple[float, float]],
        whole: float = 2.0,
        wrong: Sequence[str] = (),
        shared: bool = False,
        as_called: float = 1.0,
        **options: Any,
    ) -> Outcome:
        def check_layers(file: Any, layers: Sequence[PlannedLayer], *_: Any, **__: Any) -> Iterator[LayerCheck]:
            for layer in layers:
                verdict = UNEQUAL if layer.plan.kernel.family in wrong else EQUAL
                checked = LayerCheck(layer, (Build("sm_90", 64, 0),), verdict, 1e-7, layer.plan.problem)
                checked = replace(checked, others={use: EQUAL for use in layer.variants if use})
                yield LayerCheck(layer) if layer.left else replace(checked, time=LayerTime(*times[layer.name], 0.5))

        @contextmanager
        def begun(model: Path, **options: Any) -> Iterator[Any]:
            assert options["device"] == "cuda" and not options["emulated"]
            others = {"channels_last": Series(whole / 2, whole / 2, whole / 2)}
            ways = Series(1, 1, 1), Series(whole, whole, whole)
            called = AsCalled(Series(as_called, as_called, as_called), ways[1], alternatives=others, calls=100)
            timing = Timing(*ways, "by turns", alternatives=others, as_called=called)
            report = Report(model.name, "out.py", "cuda", "match", EQUAL, timing=timing)
            noted = replace(report, timing=replace(timing, compiled=Series(0.1, 0.1, 0.1)))
            judgement = SimpleNamespace(report=lambda compile, **_: noted if compile else report)
            yield SimpleNamespace(beside=lambda candidate: judgement, ready=lambda: None)

        monkeypatch.setattr(run, "check_layers", check_layers)
        monkeypatch.setattr(run, "gpu_is_shared", lambda: shared)
        monkeypatch.setattr(run.judging, "begun", begun)
        monkeypatch.setattr(run, "load_libraries", lambda: None)
        monkeypatch.setattr(run._Job, "_gpu", lambda self: Gpu.h200())
        monkeypatch.setattr(run._Job, "_resolve", lambda self, problem, wanted: by_kind(problem, wanted))
        model = model_file(MODEL)
        request = Request(model, model.with_name("out.py"), search=False, **options)
        return run._Job(request, workshop, lambda step: None, on_gpu=True).run()

    return run_it


FAST = (1.0, 3.0)
SLOW = (2.0, 1.0)


def test_slower_layers_are_replaced_all_the_same(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": SLOW, "b.0": FAST, CALL: SLOW})
    assert outcome.written and outcome.slower == ("a", CALL)
    assert not any(check.layer.left for check in outcome.layers)


def test_the_file_says_what_was_found(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": SLOW, "b.0": FAST, CALL: FAST}, whole=2.5, as_called=1.25)
    text = outcome.request.output.read_text()
    head = text.partition("\n\n")[0].splitlines()
    found = head.index(f"# Found on one NVIDIA H200 by PyTorch {torch.__version__}, in milliseconds of a call:")
    assert head[found - 1 :] == [
        "#",
        head[found],
        "#",
        "#   a               2, PyTorch 1, floor 0.5: 0.50x",
        "#                   error 1e-07, PyTorch's 1e-07, allowed 2e-07",
        "#   b.0             1, PyTorch 3, floor 0.5: 3.00x",
        "#                   error 1e-07, PyTorch's 1e-07, allowed 2e-07",
        "#   line 14         1, PyTorch 3, floor 0.5: 3.00x",
        "#                   error 1e-07, PyTorch's 1e-07, allowed 2e-07",
        "#   the whole file  1, PyTorch 2.5, best other 1.25: 2.50x",
        "#   as called       1.25, PyTorch 2.5, best other 1.25: 2.00x",
    ]
    # But for that it is the text that was judged.
    layers = [check.layer for check in outcome.layers]
    judged = build(outcome.request.model, layers)
    assert text.replace("\n".join(["", *head[found - 1 :]]), "", 1) == judged


def test_times_on_a_gpu_that_others_use_say_so(job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: FAST}, shared=True)
    assert "# Found on one NVIDIA H200, which other programs used, by PyTorch" in outcome.request.output.read_text()
    _show(outcome)
    assert "Not checked: how fast it is: other programs use this GPU" in capsys.readouterr().out
    assert "other programs use this GPU" in page(to_dict(outcome))


def test_the_page_has_every_kernel_that_the_search_tried(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: FAST})
    problem = outcome.layers[0].layer.plan.problem
    question = Question(problem)
    kernels = [kernel for kernel, _ in leading(question, Gpu.h200(), 4)]
    tuned = [Tuned(kernel.family, kernel.tile, 0.5 + n, 8.0, 4) for n, kernel in enumerate(kernels)]
    answer = Answer(Job("a", problem, (question,), ()), question, 8.0, 1.5, tuned[0], tuple(tuned))
    shown = page(to_dict(replace(outcome, searched=Searched((answer,)))))
    assert "best of 4 kernels" in shown and "planner's first choice 1.5" in shown
    for kernel, milliseconds in zip(kernels, ("0.5 ms", "1.5 ms", "2.5 ms", "3.5 ms"), strict=True):
        assert f">{kernel.family}" in shown and milliseconds in shown


def test_no_name_begins_a_line_of_the_file(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: FAST})
    check = outcome.layers[0]
    odd = replace(outcome, layers=(replace(check, layer=replace(check.layer, name="a\nraise SystemExit")),))
    assert "#   a?raise SystemExit  1, PyTorch 3" in with_findings("# generated\n\nx = 1\n", odd)


def test_only_faster_leaves_the_slower_ones(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": SLOW, "b.0": FAST, CALL: FAST}, only_faster=True)
    assert outcome.written and [check.layer.name for check in outcome.layers if check.layer.left] == ["a"]
    text = outcome.request.output.read_text()
    assert '_LEFT = (\n    "a",\n)\n' in text and "cuda_conv_transpose2d(x, self.weight)" in text
    namespace = executed(text)
    install(namespace)
    launched: list[object] = []
    launch = namespace["_launch"]
    namespace["_launch"] = lambda how, *tensors: (launched.append(how.kernel), launch(how, *tensors))
    torch.manual_seed(0)
    ours = namespace["ModelNew"]()
    x = torch.rand(1, 2, 4, 4)
    theirs = torch.nn.ConvTranspose2d(2, 2, 2)
    theirs.load_state_dict(ours.a.state_dict())
    torch.testing.assert_close(ours.a(x), theirs(x), rtol=0, atol=0)
    assert launched == []
    ours(x)
    assert len(launched) == 3


@pytest.mark.parametrize(("as_called", "warns"), [(2.09, False), (2.11, True)])
def test_only_faster_goes_by_inference_and_warns_of_calls(
    job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], as_called: float, warns: bool
) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: FAST}, whole=2.0, as_called=as_called, only_faster=True)
    assert outcome.written and not any(check.layer.left for check in outcome.layers)
    _show(outcome)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Slower as called: 2.11 ms, PyTorch 2 ms") for line in lines) is warns
    assert (": SLOWER than PyTorch as called;" in lines[-1]) is warns


def test_only_faster_leaves_what_is_slower_in_inference_however_fast_it_is_called(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": SLOW, "b.0": FAST, CALL: FAST}, as_called=0.1, only_faster=True)
    assert [check.layer.name for check in outcome.layers if check.layer.left] == ["a"]


def test_only_faster_leaves_calls_at_their_line(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: SLOW}, only_faster=True)
    text = outcome.request.output.read_text()
    assert "_LEFT" not in text
    assert "return F.conv_transpose2d(x, self.weight) + F.conv_transpose2d(x, -self.weight.exp())" in text


def test_only_faster_may_write_nothing(job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = job({"a": SLOW, "b.0": SLOW, CALL: SLOW}, only_faster=True)
    assert outcome.equal and not outcome.written and not outcome.request.output.exists()
    _show(outcome)
    assert capsys.readouterr().out.splitlines()[-1] == "equal, and no layer faster than PyTorch: nothing was written"


def test_the_table_and_the_last_line(job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = job({"a": SLOW, "b.0": FAST, CALL: FAST}, whole=6.81)
    _show(outcome)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "problem", "plan"]
    assert lines[0].split()[-4:] == ["ms", "PyTorch", "speed-up", "floor"]
    assert lines[1].split()[:4] == ["a", "2-D", "2→2", "k2"]
    assert lines[1].split()[-7:] == ["1e-07", "(1e-07,", "2e-07)", "2", "1", "0.50x", "0.5"]
    assert lines[-1] == f"equal (default checks); as called 6.8x (best other 3.4x), inference 6.8x (3.4x){TYPES}"
    _show(job({"a": SLOW, "b.0": SLOW, CALL: SLOW}, whole=0.3))
    last = capsys.readouterr().out.splitlines()[-1]
    assert "as called 0.3x (best other 0.15x), inference 0.3x (0.15x): SLOWER than PyTorch;" in last


def test_what_torch_compile_gains_stands_before_the_last_line(
    job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    _show(job({"a": FAST, "b.0": FAST, CALL: FAST}, compile=True))
    *_, line, last = capsys.readouterr().out.splitlines()
    assert line == "Fastest: out.py as model = torch.compile(ModelNew(...)): in inference 0.1 ms."
    assert last == f"equal (default checks); as called 2x (best other 1.00x), inference 2x (1.00x){TYPES}"
    _show(job({"a": FAST, "b.0": FAST, CALL: FAST}))
    assert "torch.compile" not in capsys.readouterr().out


def test_long_names_are_not_cut(job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = job({"a": SLOW, "b.0": FAST, CALL: FAST})
    check = outcome.layers[0]
    name = "model." * 20 + "end"
    _show(replace(outcome, layers=(replace(check, layer=replace(check.layer, name=name)),)))
    shown = "".join(line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line[:1] not in ("", " "))
    assert shown.startswith(name)


def test_without_nvcc_the_layers_times_add_up(job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: (1.0, 4.0)}, missing=("nvcc not found: conda install it",))
    assert outcome.report is None and outcome.load_inline == "not built" and outcome.written
    assert outcome.speedup == pytest.approx((3 + 3 + 2 * 4) / 4)
    _show(outcome)
    lines = capsys.readouterr().out.splitlines()
    assert "load_inline not built: nvcc not found: conda install it" in lines
    assert lines[-1] == f"each layer equal; 3.5x faster{TYPES}"
    assert to_dict(outcome)["load_inline"] == "not built"
    shown = page(to_dict(outcome))
    assert "each layer equal, the whole file not judged; 3.5x faster" in shown
    assert "load_inline not built: nvcc not found: conda install it" in shown


def test_the_page_has_every_layer(job: Callable[..., Outcome]) -> None:
    shown = page(to_dict(job({"a": SLOW, "b.0": FAST, CALL: FAST}, only_faster=True)))
    assert [name for name in ("a", "b.0", CALL) if f"<h3><code>{name}</code>" in shown] == ["a", "b.0", CALL]
    assert "to PyTorch: slower than PyTorch here" in shown and shown.count("3.00x") == 2
    # After the file's two charts, of each of the two layers: PyTorch, tconv and the floor, then the error, PyTorch's
    # own and the allowed one.
    assert re.findall(r"\"width: ([0-9.]+)%", shown)[6:] == 2 * ["100.00", "33.33", "16.67", "50.00", "50.00", "100.00"]


def test_not_equal_says_why(job: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: FAST})
    wrong = Verdict((Check("every element", False, 1.0, 0.1, "at [0] got 1, expected 0 ± 0.1"),))
    broken = replace(outcome, layers=(replace(outcome.layers[0], verdict=wrong), *outcome.layers[1:]), written=False)
    assert not broken.equal
    _show(broken)
    lines = capsys.readouterr().out.splitlines()
    assert "Not equal: a: every element: at [0] got 1, expected 0 ± 0.1" in lines
    assert lines[-1].startswith("NOT EQUAL") and lines[-1].endswith("was not written")


DENSE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ConvTranspose2d(64, 64, 2, stride=2)

        def forward(self, x):
            return self.a(x)

    def get_inputs():
        return [torch.rand(12, 64, 64, 64)]
"""


def families(outcome: Outcome) -> list[str]:
    return [check.layer.plan.kernel.family for check in outcome.layers]


def test_where_a_gpu_compares_every_family_is_tried(
    job: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "MODEL", DENSE)
    outcome = job({"a": FAST})
    assert outcome.written and families(outcome) == ["wgmma"]
    assert '"wgmma": r' in outcome.request.output.read_text()


def test_a_family_that_is_wrong_here_gives_way_to_the_proven_ones(
    job: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(globals(), "MODEL", DENSE)
    outcome = job({"a": FAST}, wrong=["wgmma"])
    assert outcome.written and outcome.equal and families(outcome) == ["direct"]
    assert '"wgmma": r' not in outcome.request.output.read_text()
    assert outcome.mistakes == ("a: pooled error: wrong",) and to_dict(outcome)["mistakes"] == [*outcome.mistakes]
    assert "Kernels that were wrong" in page(to_dict(outcome))
    _show(outcome)
    bug = "A bug in tconv, please report it with the model file: a plainer kernel was taken, for a: pooled error: wrong"
    assert bug in capsys.readouterr().out.splitlines()


def test_what_no_family_gets_right_is_not_called_a_bug(
    job: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "MODEL", DENSE)
    outcome = job({"a": FAST}, wrong=["direct", "wgmma"])
    assert not outcome.equal and outcome.mistakes == ()


def test_what_the_proven_families_get_wrong_is_not_written(job: Callable[..., Outcome]) -> None:
    outcome = job({"a": FAST, "b.0": FAST, CALL: FAST}, wrong=["direct", "mma"])
    assert not outcome.written and not outcome.equal
