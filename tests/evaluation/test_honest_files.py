"""Model files that are read as they stand: a candidate with the same text is equal, and one that is wrong is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strict import judge

from tconv.sandbox.worker import Workshop

pytestmark = pytest.mark.rotates(20)

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
EPILOGUE = "\ndef get_inputs():\n    return [torch.randn(3, 4, 8, 8)]\n"
#: A class, what is changed in it, and the reason.
FILES = {
    "a buffer that no state has, in an operator that 16 bits lack": (
        """
class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 4, 2, 1)
        self.register_buffer("window", torch.hann_window(16), persistent=False)

    def forward(self, x):
        return torch.fft.rfft(self.up(x) * self.window).abs()
""",
        ("self.window)", "self.window.half().to(x.dtype))"),
        "other inputs",
    ),
    "what a hook remembers": (
        """
class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.kept = nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.BatchNorm2d(6), {}
        self.up.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.kept["up"] = [output]

    def forward(self, x):
        y = torch.relu(self.norm(self.up(x)))
        return y, self.kept["up"][0].mean((2, 3))
""",
        ("[output]", "[output.detach()]"),
        "",
    ),
    "another default type": (
        """
torch.set_default_dtype(torch.float64)

class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 4, 2, 1)

    def forward(self, x):
        return self.up(x)
""",
        ("self.up(x)", "F.conv_transpose2d(x.float(), self.up.weight.float(), self.up.bias.float(), 2, 1).double()"),
        "every element",
    ),
}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_honest_files(workshop: Workshop, write: Callable[[str, str], Path], name: str, wrong: bool) -> None:
    text, (right, change), reason = FILES[name]
    model, candidate = (HEAD + text.replace("NAME", who) + EPILOGUE for who in ("Model", "ModelNew"))
    if wrong:
        assert right in candidate
        candidate = candidate.replace(right, change)
    report = judge(write("model.py", model), write("new.py", candidate), training=True, workshop=workshop)
    assert report.equal is not wrong, report.reasons
    assert not wrong or any(reason in each for each in report.reasons), report.reasons
    assert all("does not run in float64" not in check.reason for check in report.verdict.checks)
