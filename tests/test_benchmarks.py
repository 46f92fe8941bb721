"""The generated tables: they say what the results say, and the README says what they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ENVIRONMENT = {"gpu": "NVIDIA X", "torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "9.19.0", "kernels": "0"}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/report.py, imported as the script imports its neighbours."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    yield report
    for name in {"report", "results", "plot"} - before:
        sys.modules.pop(name, None)


def measured(pytorch: float, tconv: float, floor: float, equal: bool = True) -> dict[str, Any]:
    times = {"tconv_ms": tconv, "pytorch_ms": {"default": pytorch}, "floor_ms": floor}
    return {"equal": equal, **times, "pytorch_from": "by turns with the candidate"}


def test_readme_and_plot_say_what_the_results_say(report: ModuleType) -> None:
    assert report.stale() == []


def test_layers_are_summed_up_by_kind(report: ModuleType) -> None:
    known = report.cases()
    grouped = [name for name, case in known.items() if case["groups"] > 1][:2]
    dense = [name for name, case in known.items() if report.kind(case) == "dense"][:1]
    results = [measured(8, 1, 0.5), measured(4, 2, 0.5, equal=False), measured(1, 4, 1)]
    text = report.layers_text({"environment": ENVIRONMENT, "layers": dict(zip(grouped + dense, results, strict=True))})
    assert "3 of the 79 layers" in text
    assert "one NVIDIA X, PyTorch 2.11.0, CUDA 13.0, cuDNN 9.19.0, before the latest change of the kernels" in text
    # Speed-ups 8 and 2 of the grouped ones, 1/4 of the dense one; times over the floor 2, 4 and 4.
    assert "| groups, depthwise | 2 | 1 | **4.0x** | 2.0x to 8.0x | 2 | 2.8x |\n" in text
    assert "| dense | 1 | 1 | **0.25x** | 0.25x to 0.25x | 0 | 4.0x |\n" in text
    assert "| all | 3 | 2 | **1.6x** | 0.25x to 8.0x | 2 | 3.2x |\n" in text
    assert "few channels" not in text


def test_models_are_listed(report: ModuleType) -> None:
    layer = {"problem": "2-D 1→1", "plan": "direct", "error": 1.5e-7, "pytorch_error": 2e-4}
    unet = measured(6.8, 1, 0.1) | {"layers": [layer, layer], "kernels": "0"}
    results = {"environment": ENVIRONMENT, "examples": {"unet": unet}}
    row = "| [unet](examples/unet.py) | 6.8 | 1 | **6.8x** | 0.1 | yes |\n"
    assert row in report.models_text(results)
    assert "\\*" not in report.models_text(results)
    assert "| 2-D 1→1<br>2-D 1→1 |" in report.examples_body(results)
    assert "| 1.5e-07 / 2.0e-04<br>1.5e-07 / 2.0e-04 | 1 / 6.8 | 0.1 |\n" in report.examples_body(results)
    earlier = {"environment": ENVIRONMENT, "examples": {"unet": unet | {"kernels": "1"}}}
    assert "| 6.8 | 1 \\* | **6.8x** |" in report.models_text(earlier)
    assert report.models_text(earlier).endswith("\\* with earlier kernels.\n")


def test_a_text_between_markers_is_replaced_and_nothing_else(report: ModuleType) -> None:
    text = f"before\n{report.BEGIN}old\n{report.END}after\n"
    assert report.replaced(text, "new\n") == f"before\n{report.BEGIN}new\n{report.END}after\n"
    with pytest.raises(SystemExit, match="markers"):
        report.replaced("no markers", "new\n")


def test_a_plot_of_other_results_is_stale(report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layers = {"environment": ENVIRONMENT, "layers": {next(iter(report.cases())): measured(2, 1, 1)}}
    monkeypatch.setattr(report, "load", lambda name: layers if name == "layers" else None)
    monkeypatch.setattr(report, "targets", dict)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "PLOT", tmp_path / "plot.svg")
    assert report.stale() == ["plot.svg"]
    (tmp_path / "plot.svg").write_text(f"<svg>{report.digest(layers)}</svg>")
    assert report.stale() == []
    layers["layers"][next(iter(layers["layers"]))]["tconv_ms"] = 1.5
    assert report.stale() == ["plot.svg"]
