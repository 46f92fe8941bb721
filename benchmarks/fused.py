"""Whole models with arithmetic behind their transposed convolutions, by PyTorch, `torch.compile` and tconv's backend.

    PYTHONPATH=src python3 benchmarks/fused.py [--only NAME] [--type bfloat16] [--channels-last]

The models are those of benchmarks/fused/ and two of the examples. Writes benchmarks/results/fused.json, or of another
type or memory format fused-bfloat16.json and so on: medians of milliseconds with a cold L2 cache, and how far each
result is from PyTorch's in exact arithmetic, beside how far PyTorch's own is.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from results import ROOT, Results
from runs import measure_missing, milliseconds, parser

import tconv
from tconv.compiler import backend
from tconv.evaluation.stopwatch import CudaClock
from tconv.tuning.trials import Distance

#: Results may be so many times as far from exact ones as PyTorch's own.
_AS_FAR = 2.0
_EXAMPLES = ("unet", "vocoder")


def models() -> dict[str, Path]:
    """Model files by name."""
    folder = ROOT / "benchmarks" / "fused"
    return {
        path.stem: path for path in [*sorted(folder.glob("*.py")), *(ROOT / "examples" / f"{e}.py" for e in _EXAMPLES)]
    }


def loaded(path: Path) -> ModuleType:
    """The module of a model file."""
    found = importlib.util.spec_from_file_location(f"fused_{path.stem}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def measure(path: Path, dtype: torch.dtype, channels_last: bool, clock: CudaClock) -> Results:
    """Of one model."""
    torch.manual_seed(0)
    file = loaded(path)
    model = file.Model(*file.get_init_inputs()).cuda().eval()
    inputs = [t.cuda() for t in file.get_inputs()]
    with torch.no_grad():
        torch.backends.cudnn.allow_tf32 = False
        exact = model(*inputs)
        torch.backends.cudnn.allow_tf32 = True
        model, inputs = model.to(dtype), [t.to(dtype) for t in inputs]
        if channels_last:
            inputs = [_channels_last(t) for t in inputs]
            for layer in model.modules():
                if isinstance(layer, torch.nn.modules.conv._ConvNd):
                    layer.weight.data = _channels_last(layer.weight)
        allowed = _AS_FAR * Distance.between(model(*inputs), exact).pooled + 1e-6
        found: Results = {"pytorch_ms": {"default": milliseconds(partial(model, *inputs), clock)}, "reasons": []}
        for name, compiler in (("compile", "inductor"), ("tconv", backend)):
            torch._dynamo.reset()
            started = time.perf_counter()
            compiled = torch.compile(model, backend=compiler)
            distance = Distance.between(compiled(*inputs), exact).pooled
            found[f"{name}_seconds"] = round(time.perf_counter() - started, 1)
            if not distance <= allowed:
                found["reasons"].append(f"{name} is {distance:.2g} from exact, allowed is {allowed:.2g}")
            found[f"{name}_ms"] = milliseconds(partial(compiled, *inputs), clock)
        found["layer_ms"] = layer_ms(model, inputs, clock)
    found["equal"] = not found["reasons"]
    print(path.stem, {key: value for key, value in found.items() if key.endswith("_ms")}, flush=True)
    return found


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    format: Any = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)
    return tensor.to(memory_format=format)


def layer_ms(model: torch.nn.Module, inputs: list[torch.Tensor], clock: CudaClock) -> float | None:
    """Of a model's only layer, without what stands behind it."""
    up = getattr(model, "up", None)
    if not isinstance(up, torch.nn.modules.conv._ConvTransposeNd):
        return None
    call: Callable[..., Any] = getattr(tconv, f"conv_transpose{len(up.kernel_size)}d")
    arguments = (up.stride, up.padding, up.output_padding, up.groups, up.dilation)
    return milliseconds(partial(call, inputs[0], up.weight, up.bias, *arguments), clock)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--type", default="float32", help="of weights and inputs")
    made.add_argument("--channels-last", action="store_true", help="memory format of weights and inputs")
    options = made.parse_args()
    if not torch.cuda.is_available():
        print("fused.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    clock, dtype = CudaClock(), getattr(torch, options.type)
    parts = ["fused", *[options.type] * (options.type != "float32"), *["channels_last"] * options.channels_last]
    wanted = {name: partial(measure, path, dtype, options.channels_last, clock) for name, path in models().items()}
    return measure_missing("-".join(parts), wanted, options)


if __name__ == "__main__":
    sys.exit(main())
