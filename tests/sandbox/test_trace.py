"""Tracing: every way of making and calling a transposed convolution is found, on fake tensors and for real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tconv.problem import Layer, Problem
from tconv.sandbox.model_file import ModelFileError, load
from tconv.sandbox.trace import TracedLayer, layers, trace
from tconv.sandbox.worker import WorkerFailed, Workshop

Write = Callable[[str], Path]

HEAD = """
    import torch
    from torch import nn
    import torch.nn.functional as F
"""
INPUTS = """
    def get_inputs():
        return [torch.rand(2, 3, 8, 8)]
"""


def model(body: str, inputs: str = INPUTS, head: str = HEAD) -> str:
    return head + body + inputs


def test_finds_every_kind_of_layer(model_file: Write) -> None:
    path = model_file(
        model("""
    class Up(nn.ConvTranspose2d):
        def forward(self, x):
            return super().forward(x).relu()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 5, 3, groups=1, bias=False))
            self.lazy = nn.LazyConvTranspose2d(5, (1, 2), dilation=(1, 3))
        def forward(self, x):
            return self.lazy(self.norm(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = Up(3, 4, 2, stride=2)
            self.blocks = nn.ModuleList([Block()])
            self.plain = nn.Conv2d(5, 4, 1)
            self.weight = nn.Parameter(torch.rand(4, 2, 3))
        def forward(self, x):
            x = self.up(x)
            for block in self.blocks:
                x = self.plain(block(x))
            x = self.up(self.up(x[:, :3]).narrow(1, 0, 3)[:, :, :18, :21])
            return F.conv_transpose1d(
                x.flatten(2), self.weight * 2, stride=2, padding=1, output_padding=1, groups=2)
    """)
    )
    two = Layer(2, 3, 4, (1, 2, 2), (1, 2, 2), bias=True)
    expected = [
        TracedLayer("up", Problem(two, 2, (1, 8, 8))),
        TracedLayer("blocks.0.norm", Problem(Layer(2, 4, 5, (1, 3, 3)), 2, (1, 16, 16))),
        TracedLayer("blocks.0.lazy", Problem(Layer(2, 5, 5, (1, 1, 2), dilation=(1, 1, 3), bias=True), 2, (1, 18, 18))),
        TracedLayer("up", Problem(two, 2, (1, 18, 21)), 2),
    ]
    found = layers(load(path))
    assert found[: len(expected)] == expected
    (call,) = found[len(expected) :]
    line = path.read_text().splitlines().index("        return F.conv_transpose1d(") + 1
    last = Layer(1, 4, 4, (1, 1, 3), (1, 1, 2), (0, 0, 1), groups=2)
    assert call == TracedLayer(f"line {line}", Problem(last, 2, (1, 1, 36 * 42), (0, 0, 1)), 1, True, line)
    assert not call.elsewhere


def test_counts_repeated_calls_and_keeps_other_dtypes(model_file: Write) -> None:
    path = model_file(
        model("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 3, 1).to(torch.bfloat16)
        def forward(self, x):
            for _ in range(5):
                x = self.up(x.to(torch.bfloat16))
            return x
    """)
    )
    layer = Layer(2, 3, 3, (1, 1, 1), bias=True, precision="bf16")
    assert layers(load(path)) == [TracedLayer("up", Problem(layer, 2, (1, 8, 8)), 5)]


def test_unbatched_and_three_dimensional(model_file: Write) -> None:
    path = model_file(
        model("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose3d(3, 4, (1, 2, 3), stride=(2, 1, 3))
        def forward(self, x):
            return self.up(x[0].unsqueeze(-1))
    """)
    )
    assert layers(load(path)) == [
        TracedLayer("up", Problem(Layer(3, 3, 4, (1, 2, 3), (2, 1, 3), bias=True), 1, (8, 8, 1)))
    ]


def test_huge_inputs_cost_no_memory(model_file: Write) -> None:
    path = model_file(
        model(
            """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2)
        def forward(self, x):
            return self.up(x)
    """,
            """
    def get_inputs():
        return [torch.rand(2 ** 20, 3, 1024, 1024)]
    """,
        )
    )
    (layer,) = layers(load(path))
    assert layer.problem.input_shape == (2**20, 3, 1024, 1024)


ASKS_FOR_VALUES = """
    import numpy as np

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2)
        def forward(self, x):
            size = int(x.abs().sum() > 0) + int(np.asarray(x.detach())[0, 0, 0, 0] >= 0)
            return self.up(x[:, :, : 2 + size])
"""


def test_models_that_ask_for_values_run_for_real(model_file: Write) -> None:
    (layer,) = layers(load(model_file(model(ASKS_FOR_VALUES))))
    assert layer.problem.input_size == (1, 4, 8)


def test_a_real_run_that_needs_too_much_memory_says_why_it_was_real(model_file: Write, workshop: Workshop) -> None:
    path = model_file(
        model(
            ASKS_FOR_VALUES,
            """
    def get_inputs():
        return [torch.rand(2 ** 20, 3, 1024, 1024)]
    """,
        )
    )
    with pytest.raises(ModelFileError, match=r"allocate.*run for real, since with fake tensors"):
        layers(path, workshop=workshop)


def test_cuda_means_the_cpu(model_file: Write, workshop: Workshop) -> None:
    path = model_file(
        model(
            """
    class Model(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, channels, 2, device="cuda").cuda()
        def forward(self, x):
            return self.up(x.to("cuda:0"))
    """,
            """
    def get_inputs():
        return [torch.rand(2, 3, 8, 8, device="cuda").cuda()]
    def get_init_inputs():
        return [[], {"channels": 7}]
    """,
        )
    )
    (layer,) = layers(path, workshop=workshop)
    assert layer.problem.layer.out_channels == 7


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("pass", True),
        ("torch.backends.cudnn.allow_tf32 = False", False),
    ],
)
def test_says_whether_the_file_allows_tf32(model_file: Write, workshop: Workshop, line: str, allowed: bool) -> None:
    path = model_file(
        model(f"""
    {line}
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2)
        def forward(self, x):
            return self.up(x)
    """)
    )
    assert trace(path, workshop=workshop).tf32 is allowed


def test_calls_in_imported_files_are_elsewhere(model_file: Write, workshop: Workshop) -> None:
    path = model_file(
        model("""
    from blocks_beside import up

    class Model(nn.Module):
        def forward(self, x):
            return up(x)
    """)
    )
    (path.parent / "blocks_beside.py").write_text(
        "import torch\nimport torch.nn.functional as F\n\n"
        "def up(x):\n    return F.conv_transpose2d(x, torch.ones(3, 1, 2, 2))\n"
    )
    (layer,) = layers(path, workshop=workshop)
    assert (layer.name, layer.called, layer.line, layer.elsewhere) == ("blocks_beside.py line 5", True, None, True)


CONSTRUCTOR = "    class Model(nn.Module):\n        def __init__(self):\n            "
FORWARD = "    class Model(nn.Module):\n        def forward(self, x):\n            "

#: The file's text, words of the one line that it ends with.
BAD_FILES = {
    "no Model": ("", INPUTS, "no class Model"),
    "syntax error": ("    def f(:\n", "", r"model\.py line 4: .*not valid Python"),
    "raises": ("    raise OSError('disk on fire')\n", "", r"model\.py line 4: OSError: disk on fire"),
    "imports what is not installed": ("    import a_package_of_nobody\n", "", "pip install a_package_of_nobody"),
    "constructor raises": (CONSTRUCTOR + "1 / 0\n", INPUTS, "line 6: ZeroDivisionError"),
    "no get_inputs": (FORWARD + "return x\n", "", "no get_inputs"),
    "get_inputs returns nothing": (FORWARD + "return x\n", "    def get_inputs(): pass\n", r"get_inputs\(\).*returns"),
    "output is no tensor": (FORWARD + "return 'x'\n", INPUTS, "returns no tensor but str"),
    "wrong channels": (FORWARD + "return nn.ConvTranspose2d(4, 4, 2)(x)\n", INPUTS, r"line 6: Runtime.*channels"),
    "is no module": ("    class Model:\n        pass\n", INPUTS, "not a torch.nn.Module"),
}


@pytest.mark.parametrize("which", BAD_FILES)
def test_bad_files_end_in_one_line(model_file: Write, workshop: Workshop, which: str) -> None:
    body, inputs, words = BAD_FILES[which]
    with pytest.raises(ModelFileError, match=words) as error:
        layers(model_file(model(body, inputs)), workshop=workshop)
    assert "\n" not in str(error.value) and "model.py" in str(error.value)


def test_a_file_that_never_ends_is_ended(model_file: Write, workshop: Workshop) -> None:
    with pytest.raises(WorkerFailed, match="took longer than 2 s"):
        layers(model_file("while True: pass\n"), timeout_s=2, workshop=workshop)


def test_a_missing_file(tmp_path: Path, workshop: Workshop) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        layers(tmp_path / "nowhere.py", workshop=workshop)
