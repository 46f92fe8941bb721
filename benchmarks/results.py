"""The files in benchmarks/results and benchmarks/cases.json, and what the reports read out of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
#: The models of examples/.
EXAMPLES = (
    *("strided_dilated", "asymmetric_kernel", "square_kernel", "asymmetric_input_and_kernel"),
    *("unet", "vocoder"),
)
KINDS = ("groups, depthwise", "few channels", "dense")
#: In what else layers are measured; each has a file of results.
VARIANTS = ("channels_last", "bfloat16")
#: The memory formats of benchmarks/dense.py, side by side in its table.
FORMATS = ("contiguous", "channels_last")
#: Of results that are older than the kernels.
EARLIER = "before the latest change of the kernels"
#: The layer around which benchmarks/growth.py changes one quantity at a time.
GROWTH_BASE = {"batch": 8, "channels": 64, "size": 64}
_FEW_CHANNELS = 8

#: A whole file of results, or what it holds of one layer or model.
Results = dict[str, Any]


def load(name: str) -> Results | None:
    """The results of that name, None where nothing was measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def save(name: str, results: Results) -> None:
    """Write the results of that name, whole or not at all."""
    RESULTS.mkdir(exist_ok=True)
    aside = RESULTS / f".{name}.json"
    aside.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(RESULTS / f"{name}.json")


def cases() -> dict[str, Results]:
    """The layers of cases.json by id."""
    listed = json.loads((ROOT / "benchmarks" / "cases.json").read_text(encoding="utf-8"))
    return {case["id"]: case for case in listed}


def kind(case: Results) -> str:
    """The row of the summary that a layer belongs to."""
    if case["groups"] > 1:
        return KINDS[0]
    few = min(case["in_channels"], case["out_channels"]) <= _FEW_CHANNELS
    return KINDS[1] if few else KINDS[2]


def speedup(result: Results) -> float:
    """PyTorch's default time over tconv's."""
    return result["pytorch_ms"]["default"] / result["tconv_ms"]


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def kernels() -> str:
    """Which kernels these are: the start of a digest of them, without comments and indentation."""
    from tconv.kernels.source import family_header, headers_text
    from tconv.planner import FAMILIES

    text = headers_text(list(map(family_header, FAMILIES)))
    lines = (line.partition("//")[0].strip() for line in text.splitlines())
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()[:12]


def environment() -> dict[str, str]:
    """What a measurement on this machine depends on."""
    import platform

    import torch

    from tconv.jit.toolchain import driver_version, nvrtc_version
    from tconv.version import __version__

    def dotted(version: tuple[int, ...] | None) -> str:
        return ".".join(map(str, version or ()))

    cudnn = torch.backends.cudnn.version() or 0
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": f"CUDA {dotted(driver_version())}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}",
        "nvrtc": dotted(nvrtc_version()),
        "python": platform.python_version(),
        "tconv": __version__,
        "kernels": kernels(),
    }


def machine(environment: dict[str, str]) -> str:
    """The environment in a few words."""
    torch, cuda, cudnn = environment["torch"].split("+")[0], environment["cuda"], environment["cudnn"]
    earlier = f", {EARLIER}" if is_earlier(environment) else ""
    return f"one {environment['gpu']}, PyTorch {torch}, CUDA {cuda}, cuDNN {cudnn}{earlier}"


def is_earlier(environment: dict[str, str]) -> bool:
    """Whether the kernels had another machine code than those of now."""
    return environment["kernels"] not in same_kernels()


def same_kernels() -> set[str]:
    """`kernels` and what they were called when they had the same machine code (benchmarks/same_code.py)."""
    same = load("same_code") or {}
    return {kernels(), *(same["as"] if same.get("kernels") == kernels() else [])}
