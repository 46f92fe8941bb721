"""The short generated tables of docs/performance.md and docs/fusing.md: means, and where PyTorch is faster.

docs/notes/measurements.md has the long ones, by `performance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from performance import WHOLLY_FUSED
from results import EARLIER, FORMATS, Results, cases, geometric_mean, is_earlier, machine, speedup
from texts import NOTHING, factor, milliseconds, table

#: Marks a row of results that are older than the rest of its table.
OLDER = " ¶"
#: What `layers.json` is measured in, where a table asks for a type.
_OWN = "the model's own"
_CASES, _FEW, _DENSE = "of `cases.json`", "with groups or few channels", "dense"
#: PyTorch's ways of running a whole model, by the words of a table.
_WAYS = {"best setting": "best_setting", "`torch.compile`": "compiled"}


def means_body(layers: Results | None, variants: Mapping[str, Results | None], dense: Results | None) -> str:
    """How many times as fast as PyTorch's default layers are, by type and memory format."""
    if not layers:
        return NOTHING
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for of, dtype, layout, result in _single(layers, variants, dense):
        found.setdefault((of, dtype), {}).setdefault(layout, []).append(speedup(result))
    rows = []
    for (of, dtype), ratios in found.items():
        count = max(map(len, ratios.values()))
        rows.append([f"{count} {of}", dtype, *(cell for layout in FORMATS for cell in _mean(ratios.get(layout, [])))])
    head = ["layers", "type", *(words for layout in FORMATS for words in (layout, "from, to"))]
    said = f"How many times as fast as PyTorch's default, on {machine(layers['environment'])}; geometric means"
    return f"{said}:\n\n" + _explained(table(head, rows))


def slower_body(
    layers: Results | None, variants: Mapping[str, Results | None], dense: Results | None, written: Results | None
) -> str:
    """Layers and models that PyTorch runs faster in one of its ways."""
    if not layers:
        return NOTHING
    rows = []
    for name, dtype, layout, result in _single(layers, variants, dense, named=True):
        way = min(result["pytorch_ms"], key=result["pytorch_ms"].__getitem__)
        best, ours = result["pytorch_ms"][way], result["tconv_ms"]
        if best < ours:
            times = map(milliseconds, (best, ours, result["floor_ms"]))
            rows.append([name, f"{dtype}, {layout}", way, *times, factor(best / ours)])
    for name, result in written["layers"].items() if written else ():
        if times_of := result.get("inference"):
            ways = {way: times_of[key] for way, key in _WAYS.items() if times_of[key] is not None}
            way = min(ways, key=ways.__getitem__)
            best, ours = ways[way], times_of["file"]
            if best < ours:
                times = map(milliseconds, (best, ours, result["floor_ms"]))
                model = f"the model `{name}`{_older(written)}"
                rows.append([model, "float32, contiguous", way, *times, factor(best / ours)])
    head = ["layer", "type, format", "PyTorch's fastest way", "its ms", "tconv ms", "floor ms", "speed-up"]
    said = f"Where one of PyTorch's ways is faster, on {machine(layers['environment'])}"
    return f"{said}:\n\n" + _explained(table(head, rows))


def fused_means_body(measured: Mapping[str, Results | None]) -> str:
    """Whole models by tconv's backend beside `torch.compile` and eager, in each type and format."""
    rows, environment = [], None
    for name, results in measured.items():
        if results:
            environment = environment or results["environment"]
            equal = {model: layer for model, layer in results["layers"].items() if layer["equal"]}
            wholly, every = [equal[model] for model in WHOLLY_FUSED if model in equal], list(equal.values())
            rows.append([f"{name}, {len(every)} models", *_fused_means(wholly), *_fused_means(every)])
    if environment is None:
        return NOTHING
    models = ", ".join(f"`{model}`" for model in WHOLLY_FUSED)
    head = ["", "one kernel: than `torch.compile`", "than eager", "all: than `torch.compile`", "than eager"]
    return (
        f'How many times as fast models are with `backend="tconv"`, on {machine(environment)}; geometric means. One '
        f"kernel computes all of {models}:\n\n" + table(head, rows)
    )


def training_means_body(trainings: Mapping[str, Results | None]) -> str:
    """What training steps of written files take beside eager ones and those of `torch.compile`."""
    rows, environment = [], None
    for name, training in trainings.items():
        equal = [result for result in training["layers"].values() if result["equal"]] if training else []
        if training and equal:
            environment = environment or training["environment"]
            pairs = [("file_step", "pytorch_step"), ("file_step", "compile_step"), ("backend_step", "compile_step")]
            pairs.append(("file_peak", "pytorch_peak"))
            means = (geometric_mean(each[ours] / each[theirs] for each in equal) for ours, theirs in pairs)
            rows.append([f"{name}, {len(equal)} models", *(f"{mean:.2f}" for mean in means)])
    if environment is None:
        return NOTHING
    head = ["", "file / eager", "file / `torch.compile`", "backend / `torch.compile`", "peak memory, file / eager"]
    said = f"Training steps (forward, backward and SGD), on {machine(environment)}; geometric means of ratios"
    return f"{said}:\n\n" + table(head, rows)


def _single(
    layers: Results, variants: Mapping[str, Results | None], dense: Results | None, named: bool = False
) -> Iterator[tuple[str, str, str, Results]]:
    """Every layer that was timed, with its type and format.

    Args:
        named: each by its name and type; else by the set that it belongs to. Either is marked if it is older.
    """
    known = cases()

    def own(name: str) -> str:
        return str(known[name]["dtype"]) if named else _OWN

    for name, result in layers["layers"].items():
        if "tconv_ms" in result:
            yield name if named else _CASES, own(name), FORMATS[0], result
    for variant, results in variants.items():
        for name, result in results["layers"].items() if results else ():
            if "tconv_ms" in result:
                dtype, layout = (own(name), variant) if variant in FORMATS else (variant, FORMATS[0])
                yield (name if named else _FEW) + _older(results), dtype, layout, result
    for result in dense["layers"].values() if dense else ():
        if "tconv_ms" in result:
            yield (result["layer"] if named else _DENSE) + _older(dense), result["type"], result["format"], result


def _older(results: Results) -> str:
    """The mark of results that are not of the kernels of now."""
    return OLDER if is_earlier(results["environment"]) else ""


def _explained(text: str) -> str:
    """A table with what its mark means, where it has one."""
    return text + (f"\n{OLDER.strip()} {EARLIER}.\n" if OLDER in text else "")


def _mean(ratios: list[float]) -> list[str]:
    """The mean, and from where to where."""
    if not ratios:
        return ["", ""]
    return [f"**{factor(geometric_mean(ratios))}**", f"{factor(min(ratios))} to {factor(max(ratios))}"]


def _fused_means(layers: list[Results]) -> list[str]:
    """How many times as fast as `torch.compile`, and as eager."""
    if not layers:
        return ["", ""]
    of_compile = geometric_mean(each["compile_ms"] / each["tconv_ms"] for each in layers)
    of_eager = geometric_mean(each["pytorch_ms"]["default"] / each["tconv_ms"] for each in layers)
    return [factor(of_compile), factor(of_eager)]
