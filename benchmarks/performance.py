"""The generated parts of docs/notes/measurements.md and docs/notes/hopper.md; `summaries` has the others."""

from __future__ import annotations

from collections.abc import Mapping

from plot import PLOTS
from results import FORMATS, Results, geometric_mean, machine, speedup
from texts import NOTHING, factor, milliseconds, table

#: Marks the speed-up of what the library leaves to PyTorch.
LEFT = " ‡"
#: Marks a model that became slower.
SLOWER = " §"


def variants_body(measured: dict[str, Results | None]) -> str:
    """Memory-bound layers in another format and type."""
    parts = []
    for variant, results in measured.items():
        if not results:
            continue
        rows = [
            [
                name,
                milliseconds(result["pytorch_ms"]["default"]),
                milliseconds(result["tconv_ms"]),
                factor(speedup(result)) + LEFT * result["left_to_pytorch"],
                "yes" if result["equal"] else "no",
            ]
            for name, result in results["layers"].items()
            if "tconv_ms" in result
        ]
        mean = factor(geometric_mean(speedup(result) for result in results["layers"].values() if "tconv_ms" in result))
        parts.append(
            f"In {variant}, on {machine(results['environment'])}, beside PyTorch on the same tensors; geometric mean "
            f"{mean}:\n\n" + noted(table(["layer", "PyTorch ms", "tconv ms", "speed-up", "equal"], rows))
        )
    return "\n".join(parts) or NOTHING


def dense_body(dense: Results | None) -> str:
    """Dense layers: a row for each layer and type, memory formats side by side."""
    if not dense:
        return NOTHING
    rows: dict[tuple[str, str], dict[str, Results]] = {}
    for result in dense["layers"].values():
        rows.setdefault((result["layer"], result["type"]), {})[result["format"]] = result
    head = [f"{layout}: {words}" for layout in FORMATS for words in ("PyTorch ms", "tconv ms", "speed-up")]
    cells = [[*names, *dense_cells(formats)] for names, formats in rows.items()]
    said = f"On {machine(dense['environment'])}, beside PyTorch's default on the same tensors; {dense_means(dense)}"
    return f"{said}:\n\n" + noted(table(["layer", "type", *head, "floor ms", "equal"], cells))


def every_layer_body(layers: Results | None) -> str:
    """Every layer that was measured, a row each."""
    if not layers:
        return NOTHING
    timed = {name: result for name, result in layers["layers"].items() if "tconv_ms" in result}
    best = {name: min(result["pytorch_ms"].values()) for name, result in timed.items()}
    rows = [
        [
            name,
            milliseconds(result["pytorch_ms"]["default"]),
            milliseconds(best[name]),
            milliseconds(result["tconv_ms"]),
            factor(speedup(result)) + LEFT * result["left_to_pytorch"],
            factor(best[name] / result["tconv_ms"]),
            milliseconds(result["floor_ms"]),
            "yes" if result["equal"] else "no",
        ]
        for name, result in timed.items()
    ]
    means = [
        factor(geometric_mean(map(speedup, timed.values()))),
        factor(geometric_mean(best[name] / result["tconv_ms"] for name, result in timed.items())),
    ]
    head = ["layer", "PyTorch's default ms", "its best ms", "tconv ms", "× default", "× best", "floor ms", "equal"]
    said = f"On {machine(layers['environment'])}; geometric means of {len(timed)} layers {means[0]} and {means[1]}"
    return f"{said}:\n\n" + noted(table(head, rows))


def small_body(small: Results | None) -> str:
    """Small layers: as called, in a CUDA graph, and on channels_last tensors."""
    if not small:
        return NOTHING
    layers = small["layers"]
    last = {name: found["channels_last"] for name, found in layers.items() if "channels_last" in found}
    rows = [
        [
            name,
            milliseconds(found["floor_ms"]),
            *(milliseconds(found["contiguous"][f"{side}_ms"]) for side in ("pytorch", "tconv", "graph")),
            *((milliseconds(last[name][f"{side}_ms"]) for side in ("pytorch", "tconv")) if name in last else ("", "")),
            factor(last[name]["pytorch_ms"] / last[name]["tconv_ms"]) if name in last else "",
        ]
        for name, found in layers.items()
    ]
    of_last = factor(geometric_mean(found["pytorch_ms"] / found["tconv_ms"] for found in last.values()))
    graphs = factor(geometric_mean(f["contiguous"]["tconv_ms"] / f["contiguous"]["graph_ms"] for f in layers.values()))
    head = ["layer", "floor ms", "PyTorch ms", "tconv ms", "in a graph ms", "last: PyTorch ms", "tconv ms", "×"]
    said = (
        f"On {machine(small['environment'])}. Geometric means: {of_last} PyTorch's speed on channels_last tensors "
        f"({len(last)} layers); the speed as called times {graphs} in a CUDA graph"
    )
    return f"{said}:\n\n" + table(head, rows)


def models_body(models: Results | None) -> str:
    """Models of other people's libraries: eager, in a CUDA graph, compiled."""
    if not models:
        return NOTHING
    named = {"eager": "eager", "graph": "in a CUDA graph", "compiled": "compiled"}
    rows, ratios = [], {way: [] for way in named}
    for name, found in models["models"].items():
        cells = []
        for way, of_way in ratios.items():
            sides = found["ways"].get(way, {})
            if "tconv" not in sides:
                cells += ["", "", ""]
                continue
            theirs, ours = sides["pytorch"], sides["tconv"]
            of_way.append(theirs["ms"] / ours["ms"])
            slower = SLOWER * (ours["from_to_ms"][0] > theirs["from_to_ms"][1])
            cells += [
                milliseconds(theirs["ms"]),
                milliseconds(ours["ms"]) + slower,
                f"{ours['host_ms'] / ours['ms']:.0%}",
            ]
        rows.append([name, str(found["layers"]), *cells])
    columns = [f"{words}: {of}" for words in named.values() for of in ("PyTorch ms", "tconv ms", "host")]
    means = [f"{geometric_mean(of_way):.2f}x {named[way]}" for way, of_way in ratios.items() if of_way]
    said = f"On {machine(models['environment'])}; geometric means {', '.join(means)}"
    text = f"{said}:\n\n" + table(["model", "layers", *columns], rows)
    return text + (f"\n{SLOWER.strip()} slower beyond the spread of both.\n" if SLOWER in text else "")


def hopper_body(hopper: Results | None) -> str:
    """Dense layers on Hopper: the tile that the model prefers, beside PyTorch's default and its best setting."""
    if not hopper:
        return NOTHING
    rows = []
    timed_frozen = all("frozen_ms" in result for result in hopper["layers"].values())
    for name, result in hopper["layers"].items():
        theirs, ours = result["pytorch_ms"], result["wgmma"][0]["ms"]
        times = (theirs["default"], theirs["best"], result["mma_ms"], ours)
        faster = (factor(theirs[setting] / ours) for setting in ("default", "best"))
        frozen = [milliseconds(result["frozen_ms"])] if timed_frozen else []
        rows.append([name, *map(milliseconds, times), *faster, *frozen, milliseconds(result["floor_ms"])])
    head = ["layer", "PyTorch's default ms", "its best ms", "`mma` ms", "`wgmma` ms", "× default", "× best"]
    head += ["frozen ms"] * timed_frozen + ["floor ms"]
    said = f"The tile that the model prefers, weights prepared in each call, on {machine(hopper['environment'])}"
    best = "PyTorch's best is the faster of its default and cudnn.benchmark on the same tensors"
    return f"{said}. {best}:\n\n" + table(head, rows)


def noted(text: str) -> str:
    """A table with what its mark means, where it has one."""
    meaning = "predicted to be faster in PyTorch, so that the library hands it over; the time is tconv's kernel's."
    return text + (f"\n{LEFT.strip()} {meaning}\n" if LEFT in text else "")


def dense_means(dense: Results) -> str:
    """The mean speed-up in each memory format."""
    told = []
    for layout in FORMATS:
        timed = [each for each in dense["layers"].values() if each["format"] == layout and "tconv_ms" in each]
        told += [f"{factor(geometric_mean(map(speedup, timed)))} {layout}"] if timed else []
    return f"geometric mean {', '.join(told) or 'not known'}"


def dense_cells(formats: dict[str, Results]) -> list[str]:
    """The figures of one row, by memory format, marked where left to PyTorch; empty cells where nothing was timed."""
    cells = []
    for layout in FORMATS:
        result = formats.get(layout, {})
        if "tconv_ms" in result:
            times = (result["pytorch_ms"]["default"], result["tconv_ms"])
            cells += [*map(milliseconds, times), factor(speedup(result)) + LEFT * result["left_to_pytorch"]]
        else:
            cells += [""] * 3
    floor = next((result["floor_ms"] for result in formats.values() if "floor_ms" in result), None)
    return [*cells, milliseconds(floor), "yes" if all(result["equal"] for result in formats.values()) else "no"]


#: Models whose layer and all of its epilogue are one kernel.
WHOLLY_FUSED = ("clamp_scale", "mish_hardtanh", "residual_3d", "gelu", "clamp_3d")


def fused_body(measured: dict[str, Results | None]) -> str:
    """Whole models with epilogues, in each type and format that was measured."""
    parts = [f"{_fused(name, results)}" for name, results in measured.items() if results]
    return "\n".join(parts) or NOTHING


def _fused(name: str, results: Results) -> str:
    layers = results["layers"]

    def times(layer: Results) -> tuple[float, float]:
        return layer["compile_ms"] / layer["tconv_ms"], layer["pytorch_ms"]["default"] / layer["tconv_ms"]

    rows, has_files = [], any("file_ms" in layer for layer in layers.values())
    for model, layer in sorted(layers.items()):
        of_compile, of_eager = times(layer)
        taken = [layer["pytorch_ms"]["default"], layer["compile_ms"], layer["tconv_ms"]]
        taken += [layer.get("file_ms"), layer.get("file_compiled_ms")] * has_files + [layer["layer_ms"]]
        equal = "" if layer["equal"] else " (not equal)"
        rows.append([f"`{model}`{equal}", *map(milliseconds, taken), factor(of_compile), factor(of_eager)])
    wholly = [times(layers[model]) for model in WHOLLY_FUSED if model in layers]
    means = [geometric_mean(column) for column in zip(*wholly, strict=True)] if wholly else []
    words = f"Those of which all is one kernel, {', '.join(f'`{model}`' for model in WHOLLY_FUSED)}: "
    head = [
        "model",
        "eager ms",
        "`torch.compile` ms",
        "tconv's backend ms",
        *["written file ms", "the file compiled ms"] * has_files,
        "its layer alone ms",
        "faster than compile",
    ]
    return (
        f"Whole models of `benchmarks/fused/` and two examples in {name}, on {machine(results['environment'])}:\n\n"
        + table([*head, "than eager"], rows)
        + (f"\n{words}{means[0]:.2f} and {means[1]:.2f} times as fast (geometric means).\n" if means else "")
    )


def written_body(written: Results | None) -> str:
    """Whole models in written files: their lines, and times as called and in inference."""
    if not written:
        return NOTHING
    rows = []
    for model, result in written["layers"].items():
        if not result["equal"] or "lines" not in result:
            rows.append([f"`{model}`: {'; '.join(result['reasons'])}", *[""] * 9])
            continue
        row = [f"`{model}`", f"{result['lines']:,} ({result['lines'] - result['own_lines']:,})"]
        for way in ("as_called", "inference"):
            times = result[way] or {}
            told = [times.get(name) for name in ("pytorch", "best_setting", "compiled", "file")]
            row += map(milliseconds, told)
        rows.append(row)
    ways = ["PyTorch", "best setting", "`torch.compile`", "file"]
    heads = [*(f"{way}, as called" for way in ways), *(f"{way}, inference" for way in ways)]
    return (
        f"On {machine(written['environment'])}; lines of the file, and in parentheses those beside the model's own; "
        "milliseconds:\n\n" + table(["model", "lines", *heads], rows)
    )


def training_body(trainings: Mapping[str, Results | None]) -> str:
    """Training steps of whole models by how they are called, and what gradients cost a forward pass."""
    return "\n".join(training_text(name, each) for name, each in trainings.items() if each) or NOTHING


def training_text(name: str, training: Results) -> str:
    """In one way of calling."""
    rows = []
    for model, result in training["layers"].items():
        if not result["equal"]:
            rows.append([f"`{model}`: {'; '.join(result['reasons'])}", *[""] * 9])
            continue
        steps = [milliseconds(result[f"{side}_step"]) for side in ("pytorch", "compile", "backend", "file")]
        ratios = [
            result["file_step"] / result["pytorch_step"],
            result["file_step"] / result["compile_step"],
            result["file_peak"] / result["pytorch_peak"],
            result["file_as_called"] / result["compile_as_called"],
            result["file_as_called"] / result["file_inference"],
        ]
        rows.append([f"`{model}`", *steps, *(f"{ratio:.2f}" for ratio in ratios)])
    heads = ["eager ms", "`torch.compile` ms", "tconv's backend ms", "file ms", "file / eager", "file / compile"]
    heads += ["peak memory / eager's", "forward / compile's", "as called / inference"]
    return (
        f"Training steps in {name} on {machine(training['environment'])}: forward, backward and SGD. The last columns "
        "are the file's forward pass with gradients asked for, beside `torch.compile`'s and beside the one without:\n\n"
        + table(["model", *heads], rows)
    )


def search_body(search: Results | None) -> str:
    """What the search of `tconv optimize` gains."""
    if not search:
        return NOTHING
    gains = sorted((layer["first_ms"] / layer["best_ms"] for layer in search["layers"].values()), reverse=True)
    faster = [gain for gain in gains if gain > 1]
    kernels = max(layer["tried"] for layer in search["layers"].values())
    return (
        f"Measured on {machine(search['environment'])}, for the {len(gains)} problems of `benchmarks/cases.json`: the "
        f"fastest of {kernels} kernels beats the planner's first, beyond the spread of both, on {len(faster)}. There "
        f"it is {geometric_mean(faster):.2f} times as fast on average, at most {gains[0]:.2f} times, and "
        f"{geometric_mean(gains):.2f} times on all of them (geometric means).\n"
    )


def growth_body(growth: Results | None) -> str:
    """The plot of growth, and how many of its layers are equal."""
    if not growth:
        return NOTHING
    equal = [result["equal"] for result in growth["layers"].values()]
    return (
        f"On {machine(growth['environment'])}; {sum(equal)} of these {len(equal)} layers are equal:\n\n"
        f"![Time by batch, size and channels](../{PLOTS['growth'][0].name})\n"
    )
