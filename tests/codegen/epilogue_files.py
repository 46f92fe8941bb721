"""Model files with something behind their layers, and the files that are written for them, in the emulator."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from codegen_helpers import executed, fused_text, launched
from torch import Tensor, nn

BLOCK = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self, slope=0.2, padding=1, act=nn.Mish):
            super().__init__()
            self.up = nn.ConvTranspose2d(5, 6, 3, 2, padding, 1)
            self.norm, self.act, self.slope = nn.BatchNorm2d(6, momentum=0.3), act(), slope
            self.gate = nn.Parameter(torch.rand(6, 1, 1))
        def forward(self, x, skip, gate):
            y = self.up(x)
            y = self.norm(y)
            y = F.leaky_relu(y, self.slope, inplace=True) * self.gate
            return self.act(y) * gate + skip

    def get_init_inputs():
        return []
    def get_inputs():
        return [torch.rand(2, 5, 4, 5), torch.rand(2, 6, 8, 10), torch.rand(2, 6, 1, 1)]
"""
SEQUENCE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.ConvTranspose2d(5, 6, 3, 2)
            self.up = nn.Sequential(layer, nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout())
            self.last = nn.Sequential(nn.ConvTranspose2d(6, 1, 4, 2), nn.Tanh())
        def forward(self, x):
            return self.last(self.up(x))

    def get_inputs():
        return [torch.rand(2, 5, 3, 4)]
"""


CONSTANTS = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.bound = nn.ConvTranspose2d(5, 6, 3, 2), 0.25
        def forward(self, x):
            y = self.up(x) + 0.5
            y = torch.min(y, torch.tensor(self.bound, device=y.device))
            return y * torch.tensor(2.0, dtype=y.dtype, device=y.device)

    def get_inputs():
        return [torch.rand(2, 5, 3, 4)]
"""
JOINED = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.ConvTranspose2d(5, 6, 3, 2), nn.ConvTranspose2d(10, 3, 2)
            self.norm = nn.BatchNorm2d(3)
        def forward(self, x, skip):
            y = torch.cat([skip, self.first(x), skip[:, :1]], 1)
            z = self.norm(self.second(y))
            z = torch.cat([torch.relu(z), y[:, :, :-1, :-1]], 1) if skip is None else z
            return torch.cat([y[:, 1:], torch.tanh(y[:, :1])], 1), z

    def get_inputs():
        return [torch.rand(2, 5, 4, 5), torch.rand(2, 3, 9, 11)]
"""


class File:
    """A written file in the emulator, beside the model file that it was made from, and what it launches."""

    def __init__(self, path: Path, text: str) -> None:
        self.ours, self.theirs = executed(text), executed(path.read_text(encoding="utf-8"))
        self.launches = launched(self.ours)

    @property
    def programs(self) -> list[str]:
        """Of what was launched."""
        return [launch.kernel.program for launch in self.launches]

    @property
    def widths(self) -> list[int]:
        """The same, of how many channels the tensors have of which results are a slice; 0 for all of it."""
        return [launch.y_channels if launch.y_channels > launch.shape[1] else 0 for launch in self.launches]

    def models(self, *arguments: Any, training: bool = False, **options: Any) -> tuple[nn.Module, nn.Module]:
        """ModelNew and Model with the same parameters, statistics among them."""
        torch.manual_seed(5)
        theirs = self.theirs["Model"](*arguments, **options)
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) - 0.3 * (tensor.dim() > 1))
        ours = self.ours["ModelNew"](*arguments, **options)
        ours.load_state_dict(theirs.state_dict())
        return ours.train(training), theirs.train(training)


Made = Callable[..., File]
TYPES = ("float16", "bfloat16", "float64")


def maker(folder: Path) -> Made:
    """Writes model files into a folder, and what tconv writes for them, once for each text and types."""
    known: dict[Any, tuple[Path, str]] = {}

    def make(text: str, types: tuple[str, ...] = ()) -> File:
        if (text, types) not in known:
            path = folder / f"model_{len(known)}.py"
            path.write_text(textwrap.dedent(text), encoding="utf-8")
            known[text, types] = path, fused_text(path, ("direct", "mma"), types=types)
        return File(*known[text, types])

    return make


def inputs(batch: int = 2, dtype: torch.dtype = torch.float32, rows: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch)
    shapes = [(batch, 5, rows, 5), (batch, 6, 2 * rows, 10), (batch, 6, 1, 1)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-3) -> bool:
    return torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance)


def same_state(ours: nn.Module, theirs: nn.Module) -> bool:
    pairs = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    return all(close(mine, other) for mine, other in pairs)
