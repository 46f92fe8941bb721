"""Reports as files: JSON, and a page for a browser that needs nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tconv.cli.speeds import compiled_hint, remarks, speed, speeds
from tconv.cli.verdict_table import equal_at
from tconv.errors import Trouble


@dataclass(frozen=True)
class Bar:
    """A line of a chart: `value` in the chart's unit, of a kind that has a colour."""

    label: str
    value: float
    kind: str
    text: str = ""


def check_writable(*paths: Path | None) -> None:
    """Before anything takes time: reports could be written there.

    Raises:
        Trouble: a folder is not there, or is not for us to write in.
    """
    for path in paths:
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise Trouble(f"cannot write {path}: {_why_not(path)}; choose another place for the report")


def write_reports(report: dict[str, Any], json_path: Path | None, html_path: Path | None) -> None:
    """Write a report where it is wanted, each file whole or not at all.

    Raises:
        Trouble: a path cannot be written.
    """
    from tconv.rewriter.output import write_whole

    if json_path is not None:
        write_whole(json_path, json.dumps(report, indent=2) + "\n")
    if html_path is not None:
        write_whole(html_path, page(report))


def page(report: dict[str, Any]) -> str:
    """One HTML page without scripts, and without anything that a network would bring.

    Args:
        report: what the JSON of `tconv optimize` has, or that of `tconv verify` and `tconv bench`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from tconv.version import __version__

    environment = Environment(
        loader=PackageLoader("tconv.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": _figure, "error": lambda value: f"{value:.2g}"}
    optimized = report if "whole_file" in report else None
    judged = report["whole_file"] if optimized else report
    layers = report["layers"] if optimized else []
    timing = judged["timing"] if judged else None
    found = judged["verdict"] if judged else {}
    words = "each layer equal, the whole file not judged"
    if judged:
        words = equal_at(judged["level"], found["inference_only"], found["default_stream_only"])
    return environment.get_template("report.html").render(
        optimized=optimized,
        judged=judged,
        equal=report["equal"],
        words=words,
        title=f"{report['model']} by tconv" if optimized else f"{report['candidate']} beside {report['model']}",
        speed=_speed(report, timing),
        slower=timing["slower"] if timing else bool(optimized and (report["speedup"] or 1) < 1),
        whole=_of_ways(timing) if timing else [],
        remarks=[*remarks(timing), compiled_hint(timing, report["output" if optimized else "candidate"])]
        if timing
        else [],
        layers=[(layer, _of_layer(layer), _of_errors(layer)) for layer in layers],
        searched=[(answer, _of_search(answer)) for answer in (report["search"] if optimized else [])],
        steps=_of_steps(report["seconds"]),
        version=__version__,
    )


def _speed(report: dict[str, Any], timing: dict[str, Any] | None) -> str:
    """How fast, as the last line has it: the layers alone where the whole file was not timed."""
    if timing is not None:
        return speeds(timing)[0]
    speedup = report.get("speedup")
    return "not timed" if speedup is None else speed(speedup)[0]


def _of_ways(timing: dict[str, Any]) -> list[tuple[str, list[Bar]]]:
    """Charts of the file as it is called and in inference, by their captions."""
    called, inference = timing["as_called"], _of_sides(timing)
    if timing["floor_ms"] is not None:
        inference += _told([Bar("floor", timing["floor_ms"], "floor")], "ms")
    captions = {"As called": [] if called is None else _of_sides(called), "Inference": inference}
    return [(caption, bars) for caption, bars in captions.items() if bars]


def _of_sides(sides: dict[str, Any]) -> list[Bar]:
    """Medians, each with its 20th and 80th percentile."""
    named = {"PyTorch": sides["reference"], **{f"PyTorch, {way}": each for way, each in sides["alternatives"].items()}}
    bars = [(name, each, "theirs") for name, each in named.items()]
    bars += [("ModelNew", sides["candidate"], "ours"), ("ModelNew, torch.compile", sides["compiled"], "ours")]
    return [
        Bar(
            name,
            each["median"],
            kind,
            f"{_figure(each['median'])} ms ({_figure(each['low'])} to {_figure(each['high'])})",
        )
        for name, each, kind in bars
        if each is not None
    ]


def _of_layer(layer: dict[str, Any]) -> list[Bar]:
    time = layer["time_ms"]
    if time is None:
        return []
    bars = [Bar("PyTorch", time["pytorch"], "theirs"), Bar("tconv", time["ours"], "ours")]
    return _told(bars if time["floor"] is None else [*bars, Bar("floor", time["floor"], "floor")], "ms")


def _of_errors(layer: dict[str, Any]) -> list[Bar]:
    """The pooled error, PyTorch's own, and what is allowed."""
    checks = [] if layer["verdict"] is None else layer["verdict"]["checks"]
    pooled = next((check for check in checks if check["name"] == "pooled error"), None)
    if pooled is None or not all(isinstance(pooled[side], float) for side in ("got", "allowed")):
        return []
    bars = [Bar("tconv", pooled["got"], "ours")]
    if layer["pytorch_error"] is not None:
        bars += [Bar("PyTorch", layer["pytorch_error"], "theirs")]
    bars += [Bar("allowed", pooled["allowed"], "floor")]
    return [replace(bar, text=f"{bar.value:.2g}") for bar in bars]


def _of_search(answer: dict[str, Any]) -> list[Bar]:
    """PyTorch and every kernel that was tried, by what tells tiles apart."""
    tiles = [each["tile"] for each in answer["measured"]]
    bars = [Bar("PyTorch", answer["pytorch_ms"], "theirs")]
    for each in answer["measured"]:
        alike = [tile for tile in tiles if tile.keys() == each["tile"].keys()]
        differs = (name for name, value in each["tile"].items() if any(tile[name] != value for tile in alike))
        words = ", ".join(f"{name}={each['tile'][name]}" for name in differs)
        bars.append(Bar(f"{each['family']}: {words}" if words else each["family"], each["ms"], "ours"))
    return _told(bars, "ms")


def _of_steps(seconds: dict[str, float]) -> list[Bar]:
    return _told((Bar(step, taken, "step") for step, taken in seconds.items()), "s")


def _told(bars: Iterable[Bar], unit: str) -> list[Bar]:
    return [replace(bar, text=f"{_figure(bar.value)} {unit}") for bar in bars]


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _why_not(path: Path) -> str:
    if path.is_dir():
        return "it is a folder"
    return "its folder is not writable" if path.absolute().parent.is_dir() else "its folder does not exist"
