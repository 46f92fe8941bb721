"""The six models of examples/ by `tconv optimize`, on a GPU: generated, built by load_inline, judged equal, timed.

    PYTHONPATH=src python3 benchmarks/examples.py

Writes benchmarks/results/examples.json. The files in examples/generated stay as they are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from results import ROOT, Results, environment, load, save

NAMES = (
    "strided_dilated",
    "asymmetric_kernel",
    "square_kernel",
    "asymmetric_input_and_kernel",
    "unet",
    "vocoder",
)


def measure(name: str) -> Results | None:
    """What `tconv optimize` finds out about an example; None where it could not judge and time the whole file."""
    started = time.monotonic()
    report, lines = optimized(ROOT / "examples" / f"{name}.py")
    seconds = round(time.monotonic() - started, 1)
    found = None if report is None else reduced(report)
    return None if found is None else {**found, "lines": lines, "command_seconds": seconds}


def optimized(model: Path, *options: str) -> tuple[Results | None, int | None]:
    """The report of `tconv optimize` on a model file, and the lines of what it writes; None for what there is not."""
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder) / "report.json", Path(folder) / f"{model.stem}_new.py"
        command = [sys.executable, "-m", "tconv", "optimize", str(model), "-o", str(output), "--json", str(report)]
        print(f"\n{model.stem}", flush=True)
        started = time.monotonic()
        subprocess.run([*command, *options], check=False)
        found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
        lines = output.read_text(encoding="utf-8").count("\n") if output.exists() else None
        print(f"{time.monotonic() - started:.1f} s, {lines} lines", flush=True)
        return found, lines


def reduced(report: Results) -> Results | None:
    """What the tables need of a report; None where it tells no time of an equal file."""
    timing = (report["whole_file"] or {}).get("timing")
    if timing is None or not report["equal"]:
        return None
    called = timing["as_called"]
    layers = [reduced_layer(layer) for layer in report["layers"] if layer["left"] is None]
    floors = [layer["floor_ms"] for layer in layers]
    return {
        "equal": report["equal"],
        "reasons": report["reasons"],
        "tconv_ms": timing["candidate"]["median"],
        "tconv_spread_ms": [timing["candidate"]["low"], timing["candidate"]["high"]],
        "pytorch_ms": pytorch_ms(timing),
        "as_called": called and {"tconv_ms": called["candidate"]["median"], "pytorch_ms": pytorch_ms(called)},
        "pytorch_spread_ms": [timing["reference"]["low"], timing["reference"]["high"]],
        "pytorch_from": timing["reference_source"],
        "settings": timing["settings"],
        "host_us": timing["host_us"],
        "floor_ms": None if None in floors else sum(floors),
        "layers": layers,
        "search": report["search"],
        "seconds": report["seconds"],
    }


def pytorch_ms(sides: Results) -> Results:
    """Medians of PyTorch's ways."""
    others = {way: series["median"] for way, series in sides["alternatives"].items()}
    return {"default": sides["reference"]["median"], **others}


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXAMPLE", help="all by default")
    names = parser.parse_args().names or NAMES
    if not torch.cuda.is_available():
        print("examples.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    here = environment()
    kept = load("examples")
    # What was measured with other kernels stays until it is measured again; tables mark it.
    same = kept is not None and {**kept["environment"], "kernels": here["kernels"]} == here
    measured = kept["examples"] if kept and same else {}
    failed = []
    for name in names:
        result = measure(name)
        if result is not None:
            measured[name] = {**result, "kernels": here["kernels"]}
            ordered = {each: measured[each] for each in NAMES if each in measured}
            save("examples", {"environment": here, "examples": ordered})
        if result is None or not result["equal"]:
            failed.append(name)
    if failed:
        print(f"not equal, or not judged and timed as a whole: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
