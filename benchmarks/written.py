"""Whole models in the files that `tconv optimize` writes: lines, and times as called and in inference.

    PYTHONPATH=src python3 benchmarks/written.py [--only NAME] [--budget SECONDS] [--fresh]

The models are those of examples/ and of benchmarks/fused/. Beside each file stands PyTorch by default, in its fastest
setting and under `torch.compile`, and the file under `torch.compile`.

Writes benchmarks/results/written.json. A run goes on where an earlier one stopped.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from fused import models as fused_models
from results import ROOT, Results
from runs import measure_missing, parser

from examples import NAMES, optimized

_COMPILE = "torch.compile"


def models() -> dict[str, Path]:
    """Model files by name."""
    return {**{name: ROOT / "examples" / f"{name}.py" for name in NAMES}, **fused_models()}


def measure(path: Path) -> Results:
    """What `tconv optimize` finds out about a model, and how long the file is that it writes."""
    report, lines = optimized(path, "--compile")
    timing = ((report or {}).get("whole_file") or {}).get("timing")
    if report is None or timing is None or lines is None:
        reasons = ["no file was written and timed"] if report is None else report["reasons"]
        return {"equal": False, "reasons": reasons}
    return {
        "equal": report["equal"],
        "reasons": report["reasons"],
        "lines": lines,
        "own_lines": path.read_text(encoding="utf-8").count("\n"),
        "as_called": None if timing["as_called"] is None else ways(timing["as_called"]),
        "inference": ways(timing),
        "notes": timing["notes"],
        "pytorch_ms": {"default": timing["reference"]["median"]},
        "tconv_ms": timing["candidate"]["median"],
        "seconds": report["seconds"],
    }


def ways(sides: Results) -> Results:
    """Medians in milliseconds of all that was timed in one way of calling."""
    others = {way: series["median"] for way, series in sides["alternatives"].items()}
    compiled = others.pop(_COMPILE, None)
    return {
        "pytorch": sides["reference"]["median"],
        "best_setting": min([sides["reference"]["median"], *others.values()]),
        "compiled": compiled,
        "file": sides["candidate"]["median"],
        "file_compiled": None if sides["compiled"] is None else sides["compiled"]["median"],
    }


def main() -> int:
    options = parser(__doc__).parse_args()
    return measure_missing("written", {name: partial(measure, path) for name, path in models().items()}, options)


if __name__ == "__main__":
    sys.exit(main())
