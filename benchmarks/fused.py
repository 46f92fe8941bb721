"""Whole models with arithmetic behind their layers: by PyTorch, `torch.compile`, tconv's backend and written files.

    PYTHONPATH=src python3 benchmarks/fused.py [--only NAME] [--type bfloat16] [--channels-last] [--no-files]

The models are those of benchmarks/fused/ and two examples. A file is what `tconv optimize` writes of a model, its
search included, and is timed as it is and under `torch.compile`; in float32 and contiguous alone. The backend takes the
kernels that the planner predicts to be the fastest.

Writes benchmarks/results/fused.json, or of another type or memory format fused-bfloat16.json and so on: medians of
milliseconds with a cold L2 cache, and how far each result is from PyTorch's in exact arithmetic, beside how far
PyTorch's own is.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from results import ROOT, Results
from runs import measure_missing, milliseconds, parser

import tconv
from tconv.compiler import backend
from tconv.evaluation.precision import Resolve, resolve, understood
from tconv.evaluation.stopwatch import CudaClock
from tconv.planner import Gpu
from tconv.rewriter.fusing import Fused, with_epilogues
from tconv.rewriter.pipeline import build, settle
from tconv.rewriter.planning import Basis, plan_layers
from tconv.rewriter.search import search
from tconv.sandbox.trace import trace
from tconv.sandbox.worker import Workshop
from tconv.tuning.compilers import compilers
from tconv.tuning.trials import Distance

#: Results may be so many times as far from exact ones as PyTorch's own.
AS_FAR = 2.0
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


def written(
    path: Path,
    gpu: Gpu,
    arithmetic: Resolve,
    pool: Executor,
    workshop: Workshop,
    types: tuple[str, ...] = (),
    fuse: bool = True,
) -> str:
    """The text that `tconv optimize` writes of a model file, for these types beside its own."""
    traced = trace(path, workshop=workshop)
    fused = with_epilogues(path, traced, workshop) if fuse else Fused(traced)
    wanted = understood("match", fused.trace.tf32)
    # As if others used the GPU: winners are not kept, so that the backend does not find them.
    found = search(fused.trace, gpu, pool, "match", arithmetic, {}, False, fused.programs)
    measured = {answer.question: answer.measured for answer in found.answers}
    known = {"tuned": found.tuned, "measured": measured, "programs": fused.programs}
    layers = plan_layers(fused.trace, path, Basis(gpu, types=types, **known), wanted, arithmetic)
    return build(path, settle(layers, gpu, [gpu.arch], pool)(), fused.text, fused.epilogues)


def file_of(name: str, types: tuple[str, ...] = (), fuse: bool = True) -> Path:
    """Where the file of a model for these types beside its own goes."""
    return ROOT / "build" / "fused" / f"{'_'.join((name, *types, *([] if fuse else ['apart'])))}_new.py"


def build_file(path: Path) -> int:
    """Builds the kernels of a model's file, as it is constructed."""
    file = loaded(path)
    file.ModelNew(*file.get_init_inputs())
    return 0


def write_all(names: list[str], types: tuple[str, ...] = (), fuse: bool = True) -> None:
    """The files of these models, for these types beside their own: each is built while the next ones are written."""
    from tconv.jit.loader import gpu_of

    file_of("").parent.mkdir(parents=True, exist_ok=True)
    script = [sys.executable, __file__, "--build"]
    arithmetic = partial(resolve, device=torch.device("cuda"))
    builds = {}
    with compilers() as pool, Workshop(traces=True) as workshop:
        for name in names:
            text = written(models()[name], gpu_of(0), arithmetic, pool, workshop, types, fuse)
            file_of(name, types, fuse).write_text(text, encoding="utf-8")
            builds[name] = subprocess.Popen([*script, str(file_of(name, types, fuse))])
    failed = [name for name, build in builds.items() if build.wait() != 0]
    if failed:
        raise RuntimeError(f"the files of {', '.join(failed)} were not built")


def measure(path: Path, dtype: torch.dtype, channels_last: bool, files: bool, clock: CudaClock) -> Results:
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
        allowed = AS_FAR * Distance.between(model(*inputs), exact).pooled + 1e-6
        found: Results = {"pytorch_ms": {"default": milliseconds(partial(model, *inputs), clock)}, "reasons": []}
        sides: dict[str, Callable[[], Any]] = {
            "compile": partial(torch.compile, model, backend="inductor"),
            "tconv": partial(torch.compile, model, backend=backend),
        }
        if files:
            sides["file"] = partial(_of_file, path.stem, model)
            sides["file_compiled"] = lambda: torch.compile(_of_file(path.stem, model), backend="inductor")
        for name, made in sides.items():
            torch._dynamo.reset()
            started = time.perf_counter()
            compiled = made()
            distance = Distance.between(compiled(*inputs), exact).pooled
            found[f"{name}_seconds"] = round(time.perf_counter() - started, 1)
            if not distance <= allowed:
                found["reasons"].append(f"{name} is {distance:.2g} from exact, allowed is {allowed:.2g}")
            found[f"{name}_ms"] = milliseconds(partial(compiled, *inputs), clock)
        found["layer_ms"] = layer_ms(model, inputs, clock)
    found["equal"] = not found["reasons"]
    print(path.stem, {key: value for key, value in found.items() if key.endswith("_ms")}, flush=True)
    return found


def _of_file(name: str, model: torch.nn.Module) -> torch.nn.Module:
    """The model of a written file, with the parameters of this one."""
    file = loaded(file_of(name))
    made: torch.nn.Module = file.ModelNew(*file.get_init_inputs()).cuda().eval()
    made.load_state_dict(model.state_dict())
    return made


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    format: Any = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)
    return tensor.to(memory_format=format)


def layer_ms(model: torch.nn.Module, inputs: list[torch.Tensor], clock: CudaClock) -> float | None:
    """Of a model's only layer, without its epilogue."""
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
    made.add_argument("--no-files", action="store_true", help="no written files")
    made.add_argument("--build", type=Path, metavar="FILE", help="build this written file, and no more")
    options = made.parse_args()
    if not torch.cuda.is_available():
        print("fused.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    if options.build:
        return build_file(options.build)
    clock, dtype = CudaClock(), getattr(torch, options.type)
    files = dtype == torch.float32 and not options.channels_last and not options.no_files
    if files:
        write_all([name for name in models() if options.only in name])
    parts = ["fused", *[options.type] * (options.type != "float32"), *["channels_last"] * options.channels_last]
    of_all = partial(measure, dtype=dtype, channels_last=options.channels_last, files=files, clock=clock)
    wanted = {name: partial(of_all, path) for name, path in models().items()}
    return measure_missing("-".join(parts), wanted, options)


if __name__ == "__main__":
    sys.exit(main())
