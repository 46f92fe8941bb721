"""Whole models in the files that `tconv optimize` writes: built by load_inline, judged equal, timed; and their lines.

    PYTHONPATH=src python3 benchmarks/written.py [--only NAME] [--budget SECONDS] [--fresh]

The models are those of examples/ and of benchmarks/fused/. Beside each file stands PyTorch by default, in its fastest
setting and under `torch.compile`, and the file under `torch.compile`; as called and in inference.

Writes benchmarks/results/written.json. A run goes on where an earlier one stopped. The files in examples/generated stay
as they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from fused import models as fused_models
from results import EXAMPLES, ROOT, Results
from runs import measure_missing, parser

_COMPILE = "torch.compile"


def models() -> dict[str, Path]:
    """Model files by name."""
    return {**{name: ROOT / "examples" / f"{name}.py" for name in EXAMPLES}, **fused_models()}


def measure(path: Path) -> Results:
    """What `tconv optimize` finds out about a model, and how long the file is that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder) / "report.json", Path(folder) / f"{path.stem}_new.py"
        command = [sys.executable, "-m", "tconv", "optimize", str(path), "-o", str(output), "--json", str(report)]
        subprocess.run([*command, "--compile"], check=False)
        found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
        lines = output.read_text(encoding="utf-8").count("\n") if output.exists() else None
    return reduced(found, lines, path.read_text(encoding="utf-8").count("\n"))


def reduced(report: Results | None, lines: int | None, own_lines: int) -> Results:
    """What the tables need of a report, and of a file with so many lines for a model with `own_lines`."""
    timing = ((report or {}).get("whole_file") or {}).get("timing")
    if report is None or timing is None or lines is None:
        return {"equal": False, "reasons": report["reasons"] if report else ["no file was written and timed"]}
    layers = [reduced_layer(layer) for layer in report["layers"] if layer["left"] is None]
    floors = [layer["floor_ms"] for layer in layers]
    return {
        "equal": report["equal"],
        "reasons": report["reasons"],
        "lines": lines,
        "own_lines": own_lines,
        "as_called": None if timing["as_called"] is None else ways(timing["as_called"]),
        "inference": ways(timing),
        "pytorch_from": timing["reference_source"],
        "pytorch_ms": {"default": timing["reference"]["median"]},
        "tconv_ms": timing["candidate"]["median"],
        "floor_ms": None if None in floors else sum(floors),
        "layers": layers,
        "notes": timing["notes"],
        "settings": timing["settings"],
        "host_us": timing["host_us"],
        "search": report["search"],
        "seconds": report["seconds"],
    }


def ways(sides: Results) -> Results:
    """Medians in milliseconds of all that was timed in one way of calling, and two spreads."""
    others = {way: series["median"] for way, series in sides["alternatives"].items()}
    compiled = others.pop(_COMPILE, None)
    return {
        "pytorch": sides["reference"]["median"],
        "best_setting": min([sides["reference"]["median"], *others.values()]),
        "compiled": compiled,
        "file": sides["candidate"]["median"],
        "file_compiled": None if sides["compiled"] is None else sides["compiled"]["median"],
        "pytorch_spread": [sides["reference"]["low"], sides["reference"]["high"]],
        "file_spread": [sides["candidate"]["low"], sides["candidate"]["high"]],
    }


def reduced_layer(layer: Results) -> Results:
    """One transposed convolution; its floor counts as often as the model runs it."""
    plan, time = layer["plan"], layer["time_ms"]
    error = next(check["got"] for check in layer["verdict"]["checks"] if check["name"] == "pooled error")
    return {
        "name": layer["name"],
        "problem": f"{layer['problem']} on {'x'.join(map(str, layer['input_shape']))}",
        "plan": f"{plan['family']}, {plan['grid']} blocks of {plan['threads']}",
        "error": error,
        "pytorch_error": layer["pytorch_error"],
        "tconv_ms": time["ours"],
        "pytorch_ms": time["pytorch"],
        "floor_ms": None if time["floor"] is None else time["floor"] * layer["count"],
    }


def main() -> int:
    options = parser(__doc__).parse_args()
    return measure_missing("written", {name: partial(measure, path) for name, path in models().items()}, options)


if __name__ == "__main__":
    sys.exit(main())
