"""The plot of every layer's speed-up."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from results import KINDS, Results, cases, kind, machine, speedup

_COLOURS = ("#c4622d", "#2f6fb3", "#8a8a8a")


def digest(layers: Results) -> str:
    """Stands in the plot's file, so that a plot of other results is found without drawing it again."""
    return hashlib.sha256(json.dumps(layers, sort_keys=True).encode()).hexdigest()


def draw(layers: Results, path: Path) -> None:
    """One dot a layer, sorted by speed-up, on a logarithmic axis; as SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "tconv", "font.size": 9})
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
    figure.savefig(path, metadata={"Date": None, "Description": digest(layers)})
    plt.close(figure)
