"""`tconv explain`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tconv.cli.app import app

pytestmark = pytest.mark.usefixtures("one_workshop")
EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = {layer}

    def forward(self, x):
        return self.up(x)

def get_inputs():
    return [{inputs}]
"""


def explained(path: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["explain", str(path)])
    return result.exit_code, result.stdout, result.stderr


def test_every_layer_with_its_plan_and_reasons() -> None:
    code, out, err = explained(EXAMPLES / "unet.py")
    assert (code, err) == (0, "")
    heads = re.findall(r"^(\S+): 2-D (\d+)→(\d+) k2 s2 bias \w+$", out, re.MULTILINE)
    assert heads == [(f"ups.{i}.up", str(512 >> i), str(256 >> i)) for i in range(4)]
    assert "  8x512x16x16 → 8x256x32x32\n" in out
    launches = re.findall(r"^  \w*mma: \d+ blocks of \d+ threads and [\d.]+ KiB of shared memory$", out, re.MULTILINE)
    assert len(launches) == 4
    assert out.count("  - ") >= 4
    assert "Planned for one NVIDIA" in out.splitlines()[-1]
    if "H200" in out.splitlines()[-1]:
        # The last layer's: 64x128^2 in and 32x256^2 out for a batch of 8, in float32, at 4.25 TB/s.
        megabytes = 4 * (8 * (64 * 128**2 + 32 * 256**2) + 64 * 32 * 4 + 32) / 1e6
        assert f"floor {megabytes / 4.25e3:.4g} ms" in out


@pytest.mark.parametrize(
    ("layer", "inputs", "says"),
    [
        ("nn.ConvTranspose2d(3, 4, 2)", "torch.rand(1, 5, 8, 8)", "channels"),
        ("nn.Conv2d(3, 4, 2)", "torch.rand(1, 3, 8, 8)", "no transposed convolution"),
        ("nn.ConvTranspose2d(3, 4, 2)", "", "get_inputs()"),
    ],
)
def test_a_bad_model_file_is_exit_2_with_one_line(layer: str, inputs: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.format(layer=layer, inputs=inputs))
    code, out, err = explained(path)
    assert (code, out) == (2, "")
    assert err.startswith("tconv: ") and err.count("\n") == 1 and says in err


def test_a_missing_file_is_exit_2(tmp_path: Path) -> None:
    code, _, err = explained(tmp_path / "nothing.py")
    assert code == 2 and err.count("\n") == 1 and "nothing.py" in err
