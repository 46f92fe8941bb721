"""The plots: every layer's speed-up, and how time grows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import GROWTH_BASE, KINDS, ROOT, Results, cases, kind, machine, speedup

_COLOURS = ("#c4622d", "#2f6fb3", "#8a8a8a")
#: The panels of the plot of growth, and what is written below them.
_QUANTITIES = {"batch": "batch", "size": "height and width", "channels": "channels in and out"}
_STYLES: dict[str, dict[str, Any]] = {
    "PyTorch's default": {"color": _COLOURS[2], "marker": "o"},
    "tconv": {"color": _COLOURS[1], "marker": "o"},
    "floor": {"color": "#444444", "linestyle": "--"},
}


def digest(results: Results) -> str:
    """Stands in the plot's file, so that a plot of other results is found without drawing it again."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def draw_layers(layers: Results, path: Path) -> None:
    """One dot a layer, sorted by speed-up, on a logarithmic axis; as SVG."""
    plt = _pyplot()
    known = cases()
    timed = {name: result for name, result in layers["layers"].items() if "tconv_ms" in result}
    sorted_layers = sorted((speedup(result), name) for name, result in timed.items())
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    axes.axhline(1, color="#444444", linewidth=1)
    for each, colour in zip(KINDS, _COLOURS, strict=True):
        places = [place for place, (_, name) in enumerate(sorted_layers) if kind(known[name]) == each]
        heights = [sorted_layers[place][0] for place in places]
        axes.scatter(places, heights, s=18, color=colour, label=each)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylabel("speed-up over PyTorch's default")
    axes.set_xlabel(f"{len(sorted_layers)} layers, on {machine(layers['environment'])}")
    axes.set_xticks([])
    axes.grid(axis="y", which="both", linewidth=0.3)
    axes.legend(frameon=False, loc="upper left")
    _save(figure, path, layers)


def draw_growth(growth: Results, path: Path) -> None:
    """A panel for each quantity, both axes logarithmic: PyTorch, tconv and the floor; as SVG."""
    figure, panels = _pyplot().subplots(1, len(_QUANTITIES), figsize=(8, 3), sharey=True, layout="constrained")
    for axes, (quantity, words) in zip(panels, _QUANTITIES.items(), strict=True):
        for name, points in curves(growth, quantity).items():
            axes.plot(points.keys(), points.values(), label=name, linewidth=1.2, markersize=3.5, **_STYLES[name])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(list(curves(growth, quantity)["tconv"]))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel(words)
        axes.grid(axis="y", linewidth=0.3)
    panels[0].set_ylabel("milliseconds")
    panels[0].legend(frameon=False, loc="upper left")
    figure.supxlabel(f"on {machine(growth['environment'])}", fontsize=9)
    _save(figure, path, growth)


def curves(growth: Results, quantity: str) -> dict[str, dict[int, float]]:
    """Milliseconds by this quantity, ascending, of the layers in which the others are the base's, for each curve.

    The floor lacks what no rates are known for.
    """
    others = {name: value for name, value in GROWTH_BASE.items() if name != quantity}
    timed = [result for result in growth["layers"].values() if "tconv_ms" in result]
    chosen = [result for result in timed if others.items() <= result["at"].items()]
    chosen.sort(key=lambda result: result["at"][quantity])
    return {
        "PyTorch's default": {result["at"][quantity]: result["pytorch_ms"]["default"] for result in chosen},
        "tconv": {result["at"][quantity]: result["tconv_ms"] for result in chosen},
        "floor": {result["at"][quantity]: result["floor_ms"] for result in chosen if result["floor_ms"]},
    }


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "tconv", "font.size": 9})
    return plt


def _save(figure: Any, path: Path, results: Results) -> None:
    figure.savefig(path, metadata={"Date": None, "Description": digest(results)})
    _pyplot().close(figure)


#: By the name of the results that they show: where they are, and what draws them.
PLOTS: dict[str, tuple[Path, Callable[[Results, Path], None]]] = {
    "layers": (ROOT / "docs" / "layers.svg", draw_layers),
    "growth": (ROOT / "docs" / "growth.svg", draw_growth),
}
