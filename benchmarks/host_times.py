"""What a call costs the processor: layers of the files in examples/generated beside PyTorch's, the library's layers and
their prepared calls beside PyTorch's, and layers with what stands behind them in one kernel beside those layers alone;
all on small inputs.

    PYTHONPATH=src python3 benchmarks/host_times.py [PART ...]

Writes benchmarks/results/host.json: microseconds of a call, medians of batches of calls by turns, without gradients and
with those of the weights. The GPU is waited for between batches, outside of what is timed.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fused import file_of, loaded, write_all
from results import ROOT, Results, environment, load, save
from runs import insisting
from torch import nn

import tconv
from tconv.sandbox import model_file
from tconv.sandbox.worker import own_tools_on_path

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ROUNDS, _CALLS = 60, 20
_GENERATED = ROOT / "examples" / "generated"
_SIZE = 8
#: Models of one layer and its epilogue.
_FUSED = ("clamp_3d", "clamp_scale", "gelu", "mish_hardtanh")


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _TRANSPOSED)}


def batch_us(call: Callable[[], Any]) -> float:
    """Of one call, in a row of them."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - started) / _CALLS * 1e6


def medians(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    for call in calls.values():
        for _ in range(_CALLS):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            times[name].append(batch_us(call))
    torch.cuda.synchronize()
    return {name: round(statistics.median(of_it), 2) for name, of_it in times.items()}


def measure(path: Path) -> Results:
    file, reference_file = (
        model_file.load(path, model_file.CANDIDATE),
        model_file.load(path.parents[1] / path.name.replace("_new.py", ".py")),
    )
    model = file.construct(0, *file.init_args, **file.init_kwargs).cuda()
    reference = reference_file.construct(0, *reference_file.init_args, **reference_file.init_kwargs).cuda()
    found: Results = {}
    for name, ours in layers_of(model).items():
        theirs = reference.get_submodule(name)
        x = torch.rand(1, ours.in_channels, *[_SIZE] * len(ours.kernel_size), device="cuda")
        calls = {"tconv": lambda layer=ours, x=x: layer(x), "pytorch": lambda layer=theirs, x=x: layer(x)}
        with torch.no_grad():
            without = medians(calls)
        with_gradients = medians(calls)
        found[name] = {"inference_us": without, "gradients_us": with_gradients}
        ratios = [each["tconv"] / each["pytorch"] for each in (without, with_gradients)]
        print(path.stem, name, without, with_gradients, *(f"{ratio:.2f}" for ratio in ratios), flush=True)
    return found


def measure_fused(name: str) -> Results:
    """A model whose layer runs with its epilogue, beside the same layer called by a module of its own."""
    fused, apart = (loaded(file_of(name, fuse=fuse)) for fuse in (True, False))
    model = fused.ModelNew(*fused.get_init_inputs()).cuda()
    layer = next(iter(layers_of(apart.ModelNew(*apart.get_init_inputs()).cuda()).values()))
    alone = Alone(layer)
    x = torch.rand(1, layer.in_channels, *[_SIZE] * len(layer.kernel_size), device="cuda")  # type: ignore[arg-type]
    calls = {"fused": lambda: model(x), "layer": lambda: alone(x)}
    with torch.no_grad():
        found: Results = {"inference_us": medians(calls)}
    found["gradients_us"] = medians(calls)
    print(name, found, *(f"{each['fused'] / each['layer']:.2f}" for each in found.values()), flush=True)
    return found


def small_layers() -> dict[str, tuple[nn.Module, nn.Module, torch.Tensor]]:
    """PyTorch's layer, the library's and an input; of the last, a kernel before it prepares the weights."""
    made = {
        "depthwise": (nn.ConvTranspose1d(512, 512, 4, 2, groups=512), (1, 512, 125), torch.bfloat16),
        "sam_64_32": (nn.ConvTranspose2d(64, 32, 2, 2), (1, 64, 16, 16), torch.bfloat16),
        "pix2pix_512_512": (nn.ConvTranspose2d(512, 512, 4, 2, 1), (1, 512, 2, 2), torch.float32),
        "dense_64_64": (nn.ConvTranspose2d(64, 64, 3), (8, 64, 64, 64), torch.float16),
        "dense_256_128": (nn.ConvTranspose2d(256, 128, 4, 2, 1), (8, 256, 32, 32), torch.float16),
    }
    found = {}
    for name, (layer, shape, dtype) in made.items():
        theirs = layer.to("cuda", dtype)
        found[name] = theirs, tconv.optimize(copy.deepcopy(theirs)), torch.rand(shape, device="cuda", dtype=dtype)
    return found


def measure_library(theirs: nn.Module, ours: Any, x: torch.Tensor) -> Results:
    """A layer's call, and its prepared call, which takes no part in gradients."""
    call = tconv.prepare(ours, x)
    with torch.no_grad():
        y = call(x)
    calls = {"tconv": lambda: ours(x), "pytorch": lambda: theirs(x)}
    prepared = {"prepared": lambda: call(x), "prepared_out": lambda: call(x, out=y)}
    with torch.no_grad():
        found: Results = {"inference_us": medians(calls | prepared)}
    found["gradients_us"] = medians(calls)
    return found


class Alone(nn.Module):
    """A model of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def of_library() -> Results:
    with insisting():
        return {name: measure_library(*layers) for name, layers in small_layers().items()}


def of_models() -> Results:
    return {path.stem: measure(path) for path in sorted(_GENERATED.glob("*_new.py"))}


def of_fused() -> Results:
    for fuse in (True, False):
        write_all([name for name in _FUSED if not file_of(name, fuse=fuse).exists()], fuse=fuse)
    return {name: measure_fused(name) for name in _FUSED}


#: What is measured, each with an environment of its own.
PARTS: dict[str, Callable[[], Results]] = {"library": of_library, "models": of_models, "fused": of_fused}


def main() -> None:
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    wanted = parsed.parse_args().parts or list(PARTS)
    own_tools_on_path()
    for part in wanted:
        found = {"environment": environment(), "layers": PARTS[part]()}
        print(part, found["layers"], flush=True)
        save("host", (load("host") or {}) | {part: found})


if __name__ == "__main__":
    main()
