"""The plots: speed-ups of every layer, what it takes beside its floor, and how time grows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from results import GROWTH_BASE, KINDS, ROOT, Results, cases, geometric_mean, kind, machine
from texts import factor

_COLOURS = ("#c4622d", "#2f6fb3", "#8a8a8a")
#: Who is timed on each layer, and how that looks.
_SIDES: dict[str, dict[str, Any]] = {
    "PyTorch's default": {"color": _COLOURS[2], "marker": "o", "markersize": 4},
    "PyTorch's best setting": {"color": _COLOURS[0], "marker": "o", "markersize": 4, "fillstyle": "none"},
    "tconv": {"color": _COLOURS[1], "marker": "o", "markersize": 4},
}
#: The line that joins the marks of one layer.
_JOINED: dict[str, Any] = {"color": "#cccccc", "linewidth": 1, "zorder": 0}
_ABOVE_RIGHT = {"horizontalalignment": "right", "verticalalignment": "bottom"}
#: Empty columns between kinds of layers.
_GAP = 2
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


def draw_speedups(layers: Results, path: Path) -> None:
    """A column a layer, by its speed-up over PyTorch's default, and that over PyTorch's best setting; as SVG."""
    figure, axes = _pyplot().subplots(figsize=(8, 3.2), layout="constrained")
    pairs = sorted(speedups(layers).values())
    places = range(len(pairs))
    for side, heights in zip(("PyTorch's default", "PyTorch's best setting"), zip(*pairs, strict=True), strict=True):
        label = f"over {side}: {factor(geometric_mean(heights))} in the geometric mean"
        axes.plot(places, heights, linestyle="", label=label, **_SIDES[side])
    axes.vlines(places, [best for _, best in pairs], [default for default, _ in pairs], **_JOINED)
    axes.axhline(1, color="#444444", linewidth=1)
    axes.text(0.99, 1, "as fast as PyTorch", transform=axes.get_yaxis_transform(), **_ABOVE_RIGHT)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 5, 10, 20])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylabel("speed-up of tconv")
    axes.set_xticks([])
    axes.set_xlabel(f"{len(pairs)} layers, on {machine(layers['environment'])}")
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(frameon=False, loc="upper left")
    _save(figure, path, layers)


def speedups(layers: Results) -> dict[str, tuple[float, float]]:
    """Of each layer that was timed: PyTorch's default time over tconv's, and PyTorch's best time over tconv's."""
    timed = {name: result for name, result in layers["layers"].items() if "tconv_ms" in result}
    return {
        name: (result["pytorch_ms"]["default"] / result["tconv_ms"], best_setting(result) / result["tconv_ms"])
        for name, result in timed.items()
    }


def best_setting(result: Results) -> float:
    """Milliseconds of a layer in PyTorch's fastest setting, the default included."""
    return min(result["pytorch_ms"].values())


def draw_layers(layers: Results, path: Path) -> None:
    """A column a layer, by kind and then by PyTorch's default: what each side takes, in times the floor; as SVG."""
    figure, axes = _pyplot().subplots(figsize=(8, 3.8), layout="constrained")
    known, times, place, middles = cases(), multiples(layers), 0, {}
    for each in KINDS:
        columns = sorted((column for name, column in times.items() if kind(known[name]) == each), reverse=True)
        if not columns:
            continue
        places = range(place, place + len(columns))
        for side, heights in zip(_SIDES, zip(*columns, strict=True), strict=True):
            axes.plot(places, heights, linestyle="", label=None if middles else side, **_SIDES[side])
        axes.vlines(places, list(map(min, columns)), list(map(max, columns)), **_JOINED)
        middles[each.replace(", ", ",\n")] = place + (len(columns) - 1) / 2
        place += len(columns) + _GAP
    axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
    axes.text(0.01, 1, "floor", verticalalignment="bottom", transform=axes.get_yaxis_transform())
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylabel("time, as a multiple of the floor")
    axes.set_xticks(list(middles.values()), list(middles))
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(f"{len(times)} layers, on {machine(layers['environment'])}")
    axes.grid(axis="y", which="both", linewidth=0.3)
    axes.legend(frameon=False, loc="upper right", ncols=len(_SIDES))
    _save(figure, path, layers)


def multiples(layers: Results) -> dict[str, tuple[float, ...]]:
    """Of each layer that has a floor the times of `_SIDES`, in their order, over it."""
    found = {}
    for name, result in layers["layers"].items():
        if "tconv_ms" in result and result["floor_ms"]:
            times = (result["pytorch_ms"]["default"], best_setting(result), result["tconv_ms"])
            found[name] = tuple(milliseconds / result["floor_ms"] for milliseconds in times)
    return found


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


class Plot(NamedTuple):
    """Where a plot is, what draws it, and the name of the results that it shows."""

    path: Path
    draw: Callable[[Results, Path], None]
    results: str


PLOTS = {
    "speedups": Plot(ROOT / "docs" / "speedups.svg", draw_speedups, "layers"),
    "layers": Plot(ROOT / "docs" / "layers.svg", draw_layers, "layers"),
    "growth": Plot(ROOT / "docs" / "growth.svg", draw_growth, "growth"),
}
