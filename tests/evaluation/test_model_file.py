"""Model files: what a good one gives, and the one line for each way in which one can be wrong."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tconv.evaluation.files.process.answers import Subject
from tconv.evaluation.files.sides import file_process
from tconv.evaluation.files.sides.file_process import CandidateFailed, Side
from tconv.evaluation.verdict import Level
from tconv.sandbox.exchange import Exchange
from tconv.sandbox.model_file import MODEL, ModelFileError, read_source
from tconv.sandbox.worker import Workshop

Writer = Callable[[str, str], Path]

GOOD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, kernel_size=3):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, 5, kernel_size, bias=False)

    def forward(self, x):
        return self.up(x)


def get_inputs():
    return [torch.rand(2, 4, 6, 7)]


def get_init_inputs():
    return [4]
"""


def open_side(
    shop: Workshop,
    path: Path,
    timeout_s: float = 60,
    failure: type[Exception] = ModelFileError,
    level: Level = "strict",
) -> Side:
    return Side(
        shop,
        path,
        MODEL,
        device=torch.device("cpu"),
        timeout_s=timeout_s,
        memory_bytes=None,
        level=level,
        failure=failure,
    )


def run(shop: Workshop, path: Path, timeout_s: float = 60) -> torch.Tensor:
    """Load, construct, make inputs, run: the output."""
    with open_side(shop, path, timeout_s) as side:
        side.construct(0, side.arguments())
        return side.forward(side.inputs(0)).outputs


def test_a_good_file(workshop: Workshop, write: Writer) -> None:
    with open_side(workshop, write("model.py", GOOD)) as side:
        assert side.arguments() == ((4,), {})
        assert side.signature() == {"channels": 4, "kernel_size": 3}
        state = side.construct(0, side.arguments())
        assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {"up.weight": (4, 5, 3, 3)}
        torch.manual_seed(0)
        assert torch.equal(state["up.weight"], torch.nn.ConvTranspose2d(4, 5, 3, bias=False).weight)
        side.begin_example(0)
        assert side.example() == [(2, 4, 6, 7)]
        traced = side.trace()
        assert traced.layer is not None and traced.layer.weight == "up.weight" and traced.layer.bias is None
        assert traced.layer.problem.layer.describe() == "2-D 4→5 k3 s1 fp32"
        (x,) = side.inputs(0)
        outcome = side.forward([x], state)
        torch.testing.assert_close(outcome.outputs, torch.nn.functional.conv_transpose2d(x, state["up.weight"]))
        assert outcome.changed == ()


def test_the_same_seed_gives_the_same_inputs_and_another_one_others(workshop: Workshop, write: Writer) -> None:
    with open_side(workshop, write("model.py", GOOD)) as side:
        first, other, again = (side.inputs(seed)[0] for seed in (1, 2, 1))
        assert torch.equal(first, again) and not torch.equal(first, other)
        cut = side.inputs(1, [(1, 4, 3, 7)])[0]
        assert torch.equal(cut, first[:1, :, :3])


def test_large_inputs_are_written_once_for_all_that_read_them(
    workshop: Workshop, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been changed since, or is a part of them, has a file of its own."""
    monkeypatch.setattr(file_process, "KEPT_BYTES", 0)
    path = write("model.py", GOOD)
    with open_side(workshop, path, level="default") as model, open_side(workshop, path, level="default") as other:
        other.beside = model
        written: list[Any] = []
        to_file = other._exchange.write
        monkeypatch.setattr(other._exchange, "write", lambda value: written.append(value) or to_file(value))
        for side in (model, other):
            state = side.construct(0, side.arguments())
        model.begin_example(0)
        shapes = model.example()
        (x,) = model.inputs(0, shapes)
        weight = state["up.weight"]
        written.clear()
        results = [other.forward([x], state).outputs]
        reader = Exchange(workshop.directory, "reader", digests=False)
        for _ in range(2):
            assert torch.equal(reader.read(model.example_for_another())[0], x)
        assert [each for each in written if isinstance(each, list)] == []
        results.append(other.forward([x.add_(1)]).outputs)
        (part,) = model.inputs(0, [(1, 4, 6, 7)])
        results.append(other.forward([part]).outputs)
        for result, given in zip(results, (x - 1, x, x[:1] - 1), strict=True):
            torch.testing.assert_close(result, torch.nn.functional.conv_transpose2d(given, weight))
        model.forget_example()
        assert [each for each in written if isinstance(each, list)] == [[x], [part]]


def test_at_the_strict_level_no_file_lies_there_while_others_run(workshop: Workshop, write: Writer) -> None:
    with open_side(workshop, write("model.py", GOOD)) as model:
        before = {*workshop.directory.iterdir()}
        model.begin_example(0)
        (x,) = model.inputs(0, model.example())
        assert {*workshop.directory.iterdir()} == before
        assert torch.equal(Exchange(workshop.directory, "reader").read(model.example_for_another())[0], x)
        assert {*workshop.directory.iterdir()} == before


def test_keyword_arguments_and_no_arguments(workshop: Workshop, write: Writer) -> None:
    with_keywords = GOOD.replace("return [4]", "return [[4], {'kernel_size': (1, 2)}]")
    assert run(workshop, write("model.py", with_keywords)).shape == (2, 5, 6, 8)
    without = GOOD.replace("self, channels, kernel_size=3", "self").replace("channels, 5, kernel_size", "4, 5, 3")
    assert run(workshop, write("model.py", without.split("def get_init_inputs")[0])).shape == (2, 5, 8, 9)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.rand(2, 4, 6, 7)", "torch.rand(2, 4, 6, 7).cuda()"),
        ("torch.rand(2, 4, 6, 7)", "torch.rand(2, 4, 6, 7, device='cuda')"),
        ("torch.rand(2, 4, 6, 7)", "torch.rand(2, 4, 6, 7, device=torch.device('cuda:0'), pin_memory=False)"),
        ("torch.rand(2, 4, 6, 7)", "torch.rand(2, 4, 6, 7).pin_memory().to('cuda', non_blocking=True)"),
        ("bias=False)", "bias=False, device='cuda').cuda().to('cuda:0').to(device=0)"),
        ("return self.up(x)", "return self.up(x) + torch.zeros(1, device=x.device).cuda(non_blocking=True)"),
        ("import torch.nn as nn", "import torch.nn as nn\ntorch.set_default_device('cuda')"),
        ("return [torch", "\n    with torch.device('cuda'):\n        return [torch"),
    ],
)
def test_cuda_means_the_cpu_where_there_is_no_gpu(workshop: Workshop, write: Writer, old: str, new: str) -> None:
    assert old in GOOD
    y = run(workshop, write("model.py", GOOD.replace(old, new)))
    assert y.device.type == "cpu" and torch.equal(y, run(workshop, write("plain.py", GOOD)))


BAD = {
    "no Model": (
        GOOD.replace("class Model", "class Net"),
        r"has no class Model: it has Net; add `class Model\(Net\): pass` for .*, or name it, as --model Net$",
    ),
    "no class": ("import torch\n", "model.py has no class Model: define one, a torch.nn.Module"),
    "a command line": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--width', required=True)\np.parse_args()\n",
        "SystemExit: model.py: error: the following arguments are required: --width; the file is loaded without arg",
    ),
    "Model no class": (GOOD + "\nModel = 3\n", "model.py has no class Model"),
    "syntax": (GOOD.replace("self.up(x)", "self.up(x"), r"model.py line 12: .*never closed.*not valid Python"),
    "raises": (GOOD + "\nraise RuntimeError('no luck\\ntoday')\n", "model.py line 22: RuntimeError: no luck today"),
    "raises elsewhere": (GOOD + "\nimport json\njson.loads('{')\n", r"model.py line 23: JSONDecodeError: Expecting"),
    "leaves": (GOOD + "\nimport sys\nsys.exit(0)\n", "model.py line 23: SystemExit: 0"),
    "not installed": (
        GOOD.replace("import torch\n", "import torch\nimport no_such_package.part\n", 1),
        "model.py imports no_such_package, which is not installed: pip install no_such_package$",
    ),
    "pip's name": (
        "import sys\nsys.modules['cv2'] = None\n" + GOOD.replace("import torch\n", "import torch\nimport cv2\n", 1),
        "model.py imports cv2, which is not installed: pip install opencv-python$",
    ),
    "no get_inputs": (
        GOOD.replace("def get_inputs", "def inputs"),
        r"model.py has no get_inputs\(\): add one .*, or give their shapes, as --inputs 8x3x64x64$",
    ),
    "no get_init_inputs": (
        GOOD.replace("def get_init_inputs", "def arguments"),
        r"model.py has no get_init_inputs\(\), and Model takes channels: give them, as --init 64 --init stride=2, or",
    ),
    "get_inputs gives nothing": (
        GOOD.replace("return [torch.rand(2, 4, 6, 7)]", "torch.rand(1)"),
        r"get_inputs\(\) in model.py returns nothing: return a list",
    ),
    "get_inputs gives a tensor": (
        GOOD.replace("[torch.rand(2, 4, 6, 7)]", "torch.rand(2, 4, 6, 7)"),
        r"get_inputs\(\) in model.py returns a Tensor: return a list",
    ),
    "get_inputs raises": (GOOD.replace("[torch.rand", "[1 / 0, torch.rand"), "line 16: ZeroDivisionError"),
    "get_init_inputs": (GOOD.replace("return [4]", "return 4"), r"get_init_inputs\(\) in model.py returns int: return"),
    "constructor": (GOOD.replace("return [4]", "return [4, 3, 2]"), r"TypeError: .*positional arguments.*Model\("),
    "no module": (
        GOOD.replace("(nn.Module)", "").replace("super().__init__()", ""),
        "Model in model.py is not a torch.nn",
    ),
    "wrong channels": (
        GOOD.replace("torch.rand(2, 4", "torch.rand(2, 3"),
        r"model.py line 12: RuntimeError: Given transposed=1.*to have 4 channels, but got 3 channels.*in forward",
    ),
    "no tensor": (GOOD.replace("return self.up(x)", "self.up(x)"), "forward in model.py returns NoneType, no tensor"),
    "odd output": (
        GOOD.replace("return self.up(x)", "return self.up(x), open"),
        "the output in model.py has a value of type builtins.builtin_function_or_method: use tensors",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_one_line_for_what_is_wrong(workshop: Workshop, write: Writer, text: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        run(workshop, write("model.py", text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_file_that_is_not_there_or_is_no_text(workshop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot read .*missing\.py: No such file"):
        run(workshop, tmp_path / "missing.py")
    with pytest.raises(ModelFileError, match=r"notes\.ipynb is a notebook: save its code as a \.py file"):
        run(workshop, tmp_path / "notes.ipynb")
    (tmp_path / "model.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match=r"model\.py is not UTF-8, nor what a coding line of it says: save"):
        run(workshop, tmp_path / "model.py")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("# \u00e9\r\nx = 1\r\n".encode("utf-8-sig"), "# \u00e9\r\nx = 1\r\n"),
        ("# -*- coding: latin-1 -*-\n# \u00e9\n".encode("latin-1"), "# -*- coding: utf-8 -*-\n# \u00e9\n"),
        ("#!\n# coding=cp1252\n# coding=x \u20ac\n".encode("cp1252"), "#!\n# coding=utf-8\n# coding=x \u20ac\n"),
        (b"# coding: latin-1\n\n# \xe9", "# coding: utf-8\n\n# \u00e9"),
    ],
)
def test_a_text_is_read_by_its_coding_line(raw: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(raw)
    assert read_source(tmp_path / "model.py") == text


@pytest.mark.parametrize("line", ["# coding: none-such", "# coding: hex", "# coding: ascii", ""])
def test_a_text_that_no_coding_line_explains(line: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(f"{line}\n\n# \u00e9".encode("latin-1"))
    with pytest.raises(ModelFileError, match="save it as UTF-8"):
        read_source(tmp_path / "model.py")


@pytest.mark.parametrize(
    ("text", "doing"),
    [
        (GOOD + "\nwhile True: ...\n", "loading it"),
        (GOOD.replace("return [torch", "\n    while True: ...\n    return [torch"), r"get_inputs\(\)"),
        (GOOD.replace("return self.up", "\n        while True: ...\n        return self.up"), "forward"),
    ],
)
def test_a_file_that_never_ends(workshop: Workshop, write: Writer, text: str, doing: str) -> None:
    with pytest.raises(ModelFileError, match=rf"model\.py: {doing} took longer than 1 s"):
        run(workshop, write("model.py", text), timeout_s=1)


def test_a_process_that_goes_away_leaves_its_last_line(workshop: Workshop, write: Writer) -> None:
    text = GOOD.replace("return self.up(x)", "print('so long', flush=True)\n        import os\n        os._exit(0)")
    with pytest.raises(ModelFileError, match=r"model\.py: forward ended with exit code 0 in the middle; .*: so long"):
        run(workshop, write("model.py", text))


def test_files_beside_the_model_file_can_be_imported(workshop: Workshop, write: Writer) -> None:
    write("parts.py", textwrap.dedent("CHANNELS = 4\n"))
    assert run(workshop, write("model.py", "from parts import CHANNELS\n" + GOOD)).shape == (2, 5, 8, 9)


def test_the_candidates_side_blames_the_candidate(workshop: Workshop, write: Writer) -> None:
    path = write("model.py", GOOD.replace("return self.up(x)", "raise ValueError('mine')"))
    with open_side(workshop, path, failure=CandidateFailed) as side:
        side.construct(0, side.arguments())
        with pytest.raises(CandidateFailed, match=re.escape("model.py line 12: ValueError: mine (in forward)")):
            side.forward(side.inputs(0))


def test_changed_inputs_and_parameters_are_noticed(workshop: Workshop, write: Writer) -> None:
    text = GOOD.replace("return self.up(x)", "x += 1\n        self.up.weight.data[0] = 0\n        return self.up(x)")
    with open_side(workshop, write("model.py", text)) as side:
        side.construct(0, side.arguments())
        assert side.forward(side.inputs(0)).changed == ("input[0]", "up.weight")


def test_outputs_that_change_after_the_call_are_noticed(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    subject = Subject(str(write("model.py", GOOD)), MODEL, "cpu", str(tmp_path), "here", digests=True, keeps=1)
    subject.construct(0, subject.arguments())
    plain = subject._write

    def while_a_thread_works(value: Any, what: str) -> Any:
        tree = plain(value, what)
        if what == "the output":
            value[0, 0, 0, 0] += 1
        return tree

    try:
        assert subject.forward(subject.inputs(0))["late"] == []
        monkeypatch.setattr(subject, "_write", while_a_thread_works)
        assert subject.forward(subject.inputs(1))["late"] == ["output"]
    finally:
        subject._stack.close()
