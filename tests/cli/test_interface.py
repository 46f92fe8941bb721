"""Model files with other names and without functions: what the command line says in their place."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tconv.cli.app import app
from tconv.cli.options import interface_of
from tconv.errors import Trouble
from tconv.evaluation.files.judge import judge
from tconv.rewriter.outcome import Request
from tconv.rewriter.run import optimize
from tconv.sandbox.model_file import MODEL, Interface, ModelFileError, load
from tconv.sandbox.worker import Workshop

NET = """\
import torch
from torch import nn


class Part(nn.Module):
    def forward(self, x):
        return x


class Generator(nn.Module):
    def __init__(self, channels, stride=1, mode="plain"):
        super(Generator, self).__init__()
        self.up = nn.ConvTranspose2d(3, channels, 2, stride=stride)

    def forward(self, x, keep=None):
        y = self.up(x)
        return y if keep is None else y * keep[:, None, None, None]
"""
CANDIDATE = NET.replace("Generator", "ModelNew")
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write_file


def tconv(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


# ---- what the options mean


def made(text: str) -> torch.Tensor:
    (value,) = eval(interface_of("Model", [text], None).inputs, {"torch": torch})
    return value


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("2x3x4x5", (2, 3, 4, 5), torch.float32),
        ("7", (7,), torch.float32),
        ("2x3:bfloat16", (2, 3), torch.bfloat16),
        ("2x3:float16", (2, 3), torch.float16),
        ("2x3:float64", (2, 3), torch.float64),
        ("2x03:int64", (2, 3), torch.int64),
        ("50:bool", (50,), torch.bool),
        ("9:uint8", (9,), torch.uint8),
    ],
)
def test_an_input(text: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    value = made(text)
    assert value.shape == shape and value.dtype == dtype


def test_values_of_inputs() -> None:
    assert made("50").min() < 0 < made("50").max()
    assert set(made("50:int32").tolist()) == {0, 1}


def test_several_inputs_by_commas_and_again() -> None:
    inputs = interface_of("Net", ["1x2, 3:int64,", "4"], None)
    expected = "[torch.randn(1, 2), torch.randint(0, 2, (3,), dtype=torch.int64), torch.randn(4)]"
    assert inputs == Interface("Net", expected)
    assert interface_of("Model", None, None) == MODEL


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["64"], [64]),
        (["64", "3"], [[64, 3], {}]),
        (["[1]", "{'a': 2}"], [[[1], {"a": 2}], {}]),
        (["64", "stride=2", "mode = 'a=b'"], [[64], {"stride": 2, "mode": "a=b"}]),
        (["kernel_size=(2, 3)", "bias=False"], [[], {"kernel_size": (2, 3), "bias": False}]),
        (["'x == y'"], ["x == y"]),
        (["-1  # less"], [-1]),
        (["1e999"], [float("inf")]),
    ],
)
def test_arguments(given: list[str], expected: object) -> None:
    assert eval(interface_of("Model", None, given).arguments) == expected


@pytest.mark.parametrize("text", ["2xx3", "x", "2x3:float", "2x-3", "2x3:", "2*3", "1.5", "2X3", "2x3:torch.int64"])
def test_no_input(text: str) -> None:
    with pytest.raises(Trouble, match="write it as 8x3x64x64 or 8x3x64x64:bfloat16: the types are float32, ") as caught:
        interface_of("Model", [text], None)
    assert f"got --inputs {text};" in str(caught.value)


def test_a_shape_with_commas() -> None:
    with pytest.raises(Trouble, match="got --inputs 1,3,8,8, 4 tensors of one axis; write one tensor as 1x3x8x8, "):
        interface_of("Model", ["1,3,8,8"], None)
    for given in (["8,8"], ["1", "3", "8"], ["1,3,8x8"]):
        assert len(eval(interface_of("Model", given, None).inputs, {"torch": torch})) == sum(
            len(text.split(",")) for text in given
        )


@pytest.mark.parametrize("text", ["relu", "mode=relu", "print()", "1 +", "stride=", "2 ** 3", "a==1"])
def test_no_argument(text: str) -> None:
    with pytest.raises(Trouble, match="write a Python literal") as caught:
        interface_of("Model", None, [text])
    assert f"got --init {text};" in str(caught.value)


# ---- what becomes of the file


def test_the_functions_stand_behind_the_file() -> None:
    interface = interface_of("Generator", ["1x3x4x4"], ["5"])
    text = interface.completed(NET, "net.py")
    assert text.startswith(NET) and text.endswith("]\n")
    ast.parse(text)
    assert Interface("Generator").completed(NET, "net.py") == NET
    assert "def get_init_inputs():\n    return []\n" in Interface("N", "[0]").completed("x = 1", "net.py")
    assert "def get_inputs" not in Interface("N", "", "[0]").completed("x = 1", "net.py")


def test_line_ends_stay() -> None:
    text = Interface("N", "[0]", "[1]").completed("x = 1\r\n", "net.py")
    assert text.count("\n") == text.count("\r\n") and "\r\r" not in text


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("def get_inputs(): return [0]", "--inputs"),
        ("from data import get_inputs", "--inputs"),
        ("get_init_inputs = list", "--init"),
        ("if True:\n    def get_init_inputs(): return [5]", "--init"),
    ],
)
def test_what_the_file_has_is_not_replaced(line: str, given: str) -> None:
    with pytest.raises(ModelFileError, match=rf"net.py has get_\w+\(\) itself: leave out {given}, or change it there"):
        interface_of("Generator", ["1x3x4x4"], ["5"]).completed(f"{NET}\n{line}\n", "net.py")


def test_a_local_function_of_that_name_is_another() -> None:
    text = f"{NET}\nclass Data:\n    def get_inputs(self):\n        get_init_inputs = 3\n"
    assert interface_of("Generator", ["1x3x4x4"], ["5"]).completed(text, "net.py") != text


# ---- the commands


@pytest.fixture
def shared(one_workshop: None, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take the processes of all tests."""
    for module in ("tconv.evaluation.files.judge", "tconv.sandbox.worker"):
        monkeypatch.setattr(f"{module}.Workshop", lambda **options: nullcontext(workshop))


OPTIONS = ("--model", "Generator", "--inputs", "2x3x5x4,2", "--init", "4", "--init", "stride=2")


def test_verify(workshop: Workshop, write: Write) -> None:
    interface = interface_of("Generator", ["2x3x5x4", "2"], ["4", "stride=2"])
    model = write("net.py", NET)
    report = judge(model, write("new.py", CANDIDATE), interface=interface, workshop=workshop)
    assert report.equal, report.reasons
    wrong = write("wrong.py", CANDIDATE.replace("y * keep", "y + keep"))
    assert not judge(model, wrong, interface=interface, workshop=workshop).equal


def test_explain_and_tune(write: Write, shared: None) -> None:
    path = write("net.py", NET)
    code, out, err = tconv("explain", path, *OPTIONS)
    assert (code, err) == (0, "") and "2x3x5x4 → 2x4x10x8" in out
    code, out, err = tconv("tune", path, "--dry-run", *OPTIONS)
    assert (code, err) == (0, "") and "on 2x3x5x4" in out


@pytest.mark.parametrize("command", ["optimize", "verify", "explain", "tune"])
def test_every_command_says_what_it_lacks(command: str, write: Write, shared: None) -> None:
    path = write("net.py", NET)
    more = {"verify": (write("new.py", CANDIDATE), "--device=cpu"), "tune": ("--dry-run",)}.get(command, ())
    code, _, err = tconv(command, path, *more)
    assert code == 2 and "it has Part, Generator; add `class Model(Generator): pass`" in err
    assert err.endswith("or name it, as --model Generator\n")
    code, _, err = tconv(command, path, *more, "--model", "Generatr")
    assert code == 2 and err.endswith("has no class Generatr: it has Part, Generator; name it, as --model Generator\n")
    code, _, err = tconv(command, path, *more, "--model", "Generator")
    assert code == 2 and "has no get_init_inputs(), and Generator takes channels: give them, as --init 64" in err
    code, _, err = tconv(command, path, *more, "--model", "Generator", "--init", "4")
    assert code == 2 and "has no get_inputs(): add one" in err and "as --inputs 8x3x64x64" in err
    code, _, err = tconv(command, path, *more, "--inputs", "3*4")
    assert code == 2 and "got --inputs 3*4; write it as" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_the_written_file_stands_on_its_own(write: Write, one_workshop: None, workshop: Workshop) -> None:
    path = write("net.py", NET)
    interface = interface_of("Generator", ["2x3x5x4"], ["4", "stride=2"])
    outcome = optimize(Request(path, path.with_name("out.py"), interface=interface))
    assert outcome.equal and outcome.written
    text = outcome.request.output.read_text()
    assert "# ModelNew is the model file's Generator" in text
    assert "class ModelNew(nn.Module)" in text and "super(ModelNew, self)" in text and "class Part(nn.Module)" in text
    assert text.count("def get_inputs():") == text.count("def get_init_inputs():") == 1
    file = load(outcome.request.output, Interface("ModelNew"))
    assert (file.init_args, file.init_kwargs) == ((4,), {"stride": 2})
    (x,) = file.make_inputs(0)
    assert x.shape == (2, 3, 5, 4)
    assert judge(path, outcome.request.output, interface=interface, workshop=workshop).equal


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_class_that_is_not_in_the_file_is_not_rewritten(write: Write, one_workshop: None) -> None:
    write("nets.py", NET)
    path = write("net.py", "from nets import Generator\n")
    request = Request(path, path.with_name("out.py"), interface=interface_of("Generator", ["2x3x5x4"], ["4"]))
    with pytest.raises(ModelFileError, match="its Generator is no class statement; write `class Generator"):
        optimize(request)


def test_reports_name_the_file(write: Write, shared: None) -> None:
    report = write("net.py", NET).with_name("report.json")
    paths = (report.with_name("net.py"), write("new.py", CANDIDATE))
    code, out, _ = tconv("verify", *paths, *OPTIONS, "--device", "cpu", "--json", report)
    assert code == 0 and out.splitlines()[-1] == "equal (default checks)"
    assert json.loads(report.read_text())["model"] == "net.py"
