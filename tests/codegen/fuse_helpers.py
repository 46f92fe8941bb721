"""Model files with one forward or another, and what becomes of their text when epilogues are handed to layers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from codegen_helpers import workshop

from tconv.rewriter.fusing import Fused, with_epilogues
from tconv.sandbox.epilogues import parted
from tconv.sandbox.model_file import load
from tconv.sandbox.trace import trace

MODEL = """
import math
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 3, 3, 2, 1, 1)
        self.ups = nn.ModuleList([nn.ConvTranspose2d(3, 3, 2, 2), nn.ConvTranspose2d(3, 3, 2, 2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3)])
        self.conv, self.act, self.norm = nn.Conv2d(3, 3, 1), nn.LeakyReLU(0.1, inplace=True), nn.BatchNorm2d(3)
        self.pool, self.drop, self.same = nn.MaxPool2d(2), nn.Dropout(0.5), nn.Identity()
        self.scale, self.weight = nn.Parameter(torch.rand(3, 1, 1)), nn.Parameter(torch.rand(3, 3, 2, 2))
        self.factor, self.seen = 0.5, []
        layers = nn.ConvTranspose2d(3, 3, 2, 2), nn.BatchNorm2d(3), nn.ReLU(True), nn.Conv2d(3, 3, 1)
        self.sequence = nn.Sequential(*layers)

{forward}

def get_inputs():
    return [torch.rand(2, 3, 4, 5), torch.rand(2, 3, 8, 10)]
"""

#: Of the body of `forward`.
FIRST_LINE = MODEL.partition("{forward}")[0].count("\n") + 2
#: Of the input and of `skip`; on the second one they do not fit together.
OTHER_SIZES = (((6, 9), (12, 18)), ((4, 5), (9, 11)))


def written(tmp_path: Path, body: str, crlf: bool = False) -> Path:
    forward = f"    def forward(self, x, skip):\n        {textwrap.dedent(body).strip()}" if "\n" not in body else body
    if "\n" in body and body.lstrip() != body:
        lines = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
        forward = f"    def forward(self, x, skip):\n{lines}"
    elif "\n" in body:
        forward = f"    def forward(self, x, skip):\n        {body}"
    path = tmp_path / "model.py"
    text = MODEL.replace("{forward}", forward + "\n")
    path.write_bytes(text.replace("\n", "\r\n").encode() if crlf else text.encode())
    return path


def fused_of(path: Path) -> Fused:
    return with_epilogues(path, trace(path, workshop=workshop()), workshop())


def programs_of(fused: Fused) -> list[str]:
    noted = [each for layer in fused.trace.layers for each in (*layer.epilogues, *layer.in_evaluation)]
    calls = [parted(each)[0] for each in noted]
    return list(dict.fromkeys(fused.programs[each] for each in calls if each in fused.programs))


def cuda_fused(
    layer: Callable[..., Any],
    *inputs: Any,
    epilogue: Any = None,
    modules: Any = (),
    before: Any = (),
    after: Any = (),
    reads: Any = None,
    site: int | None = None,
    **o: Any,
) -> Any:
    assert (reads is None) == (site is None)
    assert all(isinstance(module, torch.nn.Module) for module in modules)
    epilogue = torch.nn.Sequential(*modules) if modules and epilogue is None else epilogue
    result = layer(*inputs, **o) if epilogue is None else epilogue(layer(*inputs, **o))
    return torch.cat([*before, result, *after], 1) if before or after else result


def results(path: Path, text: str | None, training: bool) -> Any:
    """What a file, or another text in its place, gives on its own inputs and on larger ones, errors by their kind."""
    model = load(path, text=text, names={"cuda_fused": cuda_fused})
    module = model.construct(3)
    module.train(training)

    def called(*inputs: Any) -> Any:
        try:
            return module(*inputs)
        except Exception as error:
            return type(error).__name__

    found = [module(*model.make_inputs(seed)) for seed in (1, 2)]
    torch.manual_seed(4)
    found += [called(torch.rand(2, 3, *size), torch.rand(2, 3, *skip)) for size, skip in OTHER_SIZES]
    return [*found, *(t for t in module.state_dict().values()), len(module.seen)]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
