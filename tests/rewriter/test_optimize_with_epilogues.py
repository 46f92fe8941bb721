"""The whole job without a GPU where something stands behind the layers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from codegen_helpers import executed

from tconv.cli.optimize import _show
from tconv.codegen.headers import whole
from tconv.codegen.planned import LayerEpilogue
from tconv.emulator import Launch
from tconv.kernels import source
from tconv.pointwise.functor import functor
from tconv.rewriter import check
from tconv.rewriter.outcome import Outcome, Request, to_dict
from tconv.rewriter.run import optimize

pytestmark = [
    pytest.mark.rotates(36),
    pytest.mark.skipif(torch.cuda.is_available(), reason="these say what happens without a GPU"),
    pytest.mark.usefixtures("one_workshop"),
]

MODEL = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose1d(3, 4, 4, 2)
            self.last = nn.ConvTranspose1d(4, 3, 2)
            self.norm = nn.BatchNorm1d(4)
        def forward(self, x):
            x = self.up(x)
            x = self.norm(x)
            x = torch.relu(x) * 0.5
            return torch.cat([self.last(x), x[:, :3, 1:]], 2).abs()

    def get_inputs():
        return [torch.rand(3, 3, 9)]
"""
PROGRAM = "max((y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3, 0) * 0.5"
Write = Callable[..., Path]


def outcome_of(model: Path, **options: object) -> Outcome:
    return optimize(Request(model, model.with_name("out.py"), archs=("sm_90a",), **options))  # type: ignore[arg-type]


def test_the_kernels_take_what_stands_behind(model_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """In evaluation mode: the model is built to train."""
    outcome = outcome_of(model_file(MODEL))
    assert outcome.written and outcome.equal and outcome.mistakes == ()
    up, last = outcome.layers
    assert (
        up.layer.epilogues == (LayerEpilogue(),)
        and up.layer.in_evaluation == (LayerEpilogue(PROGRAM),)
        and last.layer.kernel_epilogues == ()
    )
    assert len(up.of_epilogue) == len(up.layer.variants) and not last.of_epilogue
    text = outcome.request.output.read_text()
    assert re.search(rf"^# +then {re.escape(PROGRAM)}$", text, re.MULTILINE)
    assert f"# In one kernel: {PROGRAM[:60]}" in text
    assert "cuda_fused(self.up, x, epilogue=epilogue, modules=[self.norm], reads=[], site=0)" in text
    (line,) = (number for number, each in enumerate(MODEL.splitlines()) if "torch.cat" in each)
    assert outcome.apart == (f"line {line}: around it stands `torch.cat([self.last(x), x[:, :3, 1:]], 2)`",)
    told = json.loads(json.dumps(to_dict(outcome)))
    assert told["layers"][0]["epilogues"] == [{"program": PROGRAM, "into": 0, "backward": False}] and told[
        "apart"
    ] == list(outcome.apart)
    assert set(told["layers"][0]["epilogue_verdicts"]) == set(up.of_epilogue)
    _show(outcome)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Not fused: line" in shown and ", then max((y" in shown


def test_without_fusing(model_file: Write) -> None:
    outcome = outcome_of(model_file(MODEL), fuse=False)
    assert outcome.written and outcome.apart == () and all(not each.layer.kernel_epilogues for each in outcome.layers)
    text = outcome.request.output.read_text()
    assert "cuda_fused" not in text and "_PROGRAMS" not in text and "        x = torch.relu(x) * 0.5\n" in text
    assert "_PROGRAMS" not in executed(text)


def test_a_part_of_a_concatenation_is_judged_in_its_place(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MODEL.replace("torch.cat([self.last(x), x[:, :3, 1:]], 2).abs()", "torch.cat([skip, self.last(x)], 1)")
    text = text.replace("def forward(self, x):", "def forward(self, x, skip):").replace(
        "9)]", "9), torch.rand(3, 2, 21)]"
    )
    outcome = outcome_of(model_file(text))
    assert outcome.written and outcome.equal
    last = outcome.layers[1]
    assert last.layer.kernel_epilogues == (LayerEpilogue("", 5),) and len(last.of_epilogue) == len(last.layer.variants)
    written = outcome.request.output.read_text()
    assert "return cuda_fused(self.last, x, before=[skip])" in written
    assert re.search(r"^# +into 5 channels$", written, re.MULTILINE)


@pytest.mark.slow
def test_a_kernel_that_writes_beside_its_part_is_not_taken(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole concatenation is looked at, not the part alone."""
    text = MODEL.replace("torch.cat([self.last(x), x[:, :3, 1:]], 2).abs()", "torch.cat([skip, self.last(x)], 1)")
    text = text.replace("def forward(self, x):", "def forward(self, x, skip):").replace(
        "9)]", "9), torch.rand(3, 2, 21)]"
    )
    run_emulator = check.run

    def spoiling(source: str, launches: list[Launch], **options: object) -> None:
        run_emulator(source, launches, **options)  # type: ignore[arg-type]
        if launches[-1].arguments[4:5] == (5,):
            launches[-1].arguments[3].view(-1)[-1] = 0  # type: ignore[union-attr]

    monkeypatch.setattr(check, "run", spoiling)
    outcome = outcome_of(model_file(text))
    assert outcome.written and all(not each.layer.kernel_epilogues for each in outcome.layers)
    assert any("into 5 channels" in mistake for mistake in outcome.mistakes), outcome.mistakes


def test_a_wrong_program_is_not_written(model_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file goes without, and says that this is a bug."""

    def wrong(program: object, name: str) -> str:
        return functor(program, name).replace("Sum(0.5)", "Sum(0.5001)")  # type: ignore[arg-type]

    for module in (source, whole):
        monkeypatch.setattr(module, "functor", wrong)
    monkeypatch.setattr(whole, "_whole", whole._whole.__wrapped__)  # texts that are kept have the right one
    outcome = outcome_of(model_file(MODEL))
    assert outcome.written and outcome.equal and all(not each.layer.kernel_epilogues for each in outcome.layers)
    assert "cuda_fused" not in outcome.request.output.read_text()
    assert any(f"then {PROGRAM}" in mistake and "pooled error" in mistake for mistake in outcome.mistakes), (
        outcome.mistakes
    )


def test_a_file_that_does_not_run_with_epilogues_goes_without(model_file: Write) -> None:
    """As one that looks at who calls its functions."""
    held = """        @property
        def half(self):
            try:
                raise KeyError
            except KeyError as error:
                assert error.__traceback__.tb_frame.f_back.f_code.co_name == "forward"
            return 0.5
        def forward"""
    text = MODEL.replace("torch.relu(x) * 0.5", "torch.relu(x) * self.half").replace("        def forward", held)
    outcome = outcome_of(model_file(text))
    assert outcome.written and outcome.equal and "cuda_fused" not in outcome.request.output.read_text()
    (reason,) = (each for each in outcome.apart if "AssertionError" in each)
    assert reason.startswith("line 18: the file does not run with its epilogue: ")
