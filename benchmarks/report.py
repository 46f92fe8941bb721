"""The tables of README.md, examples/README.md and of docs and the plots, from benchmarks/results.

python benchmarks/report.py             writes them
python benchmarks/report.py --check     exit code 1 where they are not what the results say
python benchmarks/report.py --stored X  prints the stored figures of one example
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from performance import (
    dense_body,
    every_layer_body,
    fused_body,
    growth_body,
    hopper_body,
    models_body,
    search_body,
    small_body,
    training_body,
    variants_body,
    written_body,
)
from plot import PLOTS, digest
from results import EXAMPLES, KINDS, ROOT, VARIANTS, Results, cases, geometric_mean, kind, load, machine, speedup
from summaries import fused_means_body, means_body, slower_body, training_means_body
from texts import NOTHING, factor, milliseconds, table

#: Types and formats of benchmarks/fused.py, and the names of their results.
FUSED = {"float32": "fused", "bfloat16": "fused-bfloat16", "channels_last": "fused-channels_last"}
#: Ways of benchmarks/training.py, and the names of their results.
TRAINING = {"float32": "training", "autocast to bfloat16": "training-autocast"}
BEGIN = "<!-- benchmarks: written by benchmarks/report.py -->\n"
END = "<!-- end of benchmarks -->\n"


def chart_body(layers: Results | None) -> str:
    """What stands between the first markers of README.md."""
    return f"![Speed-up of every layer]({PLOTS['speedups'].path.relative_to(ROOT)})\n" if layers else NOTHING


def gains_body(written: Results | None, layers: Results | None) -> str:
    """What stands between the second markers of README.md."""
    parts = [layers_text(layers)] if layers else []
    if written:
        parts.append(models_text(written))
    return "\n".join(parts) or NOTHING


def timed_examples(written: Results) -> dict[str, Results]:
    """Of whole models those of examples/ of which a file was written and timed."""
    measured = written["layers"]
    return {name: measured[name] for name in EXAMPLES if "lines" in measured.get(name, {})}


def models_text(written: Results) -> str:
    """The models of examples/, one row each."""
    rows = []
    for name, result in timed_examples(written).items():
        times = result["inference"]
        rows.append(
            [
                f"[{name}](examples/{name}.py)",
                *(milliseconds(times[way]) for way in ("pytorch", "best_setting", "compiled")),
                milliseconds(times["file"]) + disturbed(result),
                f"**{factor(times['pytorch'] / times['file'])}**",
                factor(best_of_pytorch(times) / times["file"]),
                factor(called["pytorch"] / called["file"]) if (called := result["as_called"]) else "",
                milliseconds(result["floor_ms"]),
                "yes" if result["equal"] else "no",
            ]
        )
    heads = ["model", "PyTorch's default", "best setting", "`torch.compile`", "tconv's file", "over the default"]
    heads += ["over the best", "as called, over the default", "floor", "equal"]
    return (
        f"**Models** rewritten by `tconv optimize` and built by `load_inline`, on {machine(written['environment'])}. "
        "Milliseconds of a whole forward pass in inference; the floor is that of its transposed convolutions:\n\n"
        + table(heads, rows)
        + faster_otherwise(written)
        + marked(written)
    )


def best_of_pytorch(times: Results) -> float:
    """Milliseconds of `Model` in its fastest other way: another setting, or `torch.compile`."""
    return min(filter(None, (times["best_setting"], times["compiled"])))


def faster_otherwise(written: Results) -> str:
    """The models that PyTorch runs faster than tconv's file, and what to do there."""
    rows = []
    for name, result in timed_examples(written).items():
        times, called = result["inference"], result["as_called"]
        if best_of_pytorch(times) < times["file"]:
            ways = [times, called] if called else [times]
            rows.append([f"`{name}`", *(milliseconds(value) for way in ways for value in of_compiling(way))])
    if not rows:
        return ""
    heads = ["PyTorch's best", "the file compiled"]
    return (
        "\nWhere PyTorch's best is faster than the file, most of the time passes between the transposed convolutions. "
        "Compile the file there, `torch.compile(ModelNew(...))`:\n\n"
        + table(["model", *heads, *(f"as called: {head}" for head in heads)], rows)
    )


def of_compiling(times: Results) -> tuple[float, float | None]:
    """Milliseconds of PyTorch's best, and of tconv's file under `torch.compile`."""
    return best_of_pytorch(times), times["file_compiled"]


def marked(written: Results) -> str:
    """What the daggers mean, where there are any."""
    results = timed_examples(written).items()
    lines = [
        f"† {name}: PyTorch's time is from {result['pytorch_from']}" for name, result in results if disturbed(result)
    ]
    return "".join(f"\n{line}\n" for line in lines)


def disturbed(result: Results) -> str:
    """A dagger where PyTorch's model took another time beside the candidate than in a process of its own."""
    return " †" if "differ" in result["pytorch_from"] else ""


def layers_text(layers: Results) -> str:
    """Single layers by kind, and where the plot of their floors is."""
    known, measured = cases(), layers["layers"]
    rows = []
    for name in (*KINDS, "all"):
        chosen = [result for case, result in measured.items() if name in (kind(known[case]), "all")]
        timed = [result for result in chosen if "tconv_ms" in result]
        if not timed:
            continue
        ratios = [speedup(result) for result in timed]
        rows.append(
            [
                name,
                str(len(chosen)),
                str(sum(result["equal"] for result in chosen)),
                f"**{factor(geometric_mean(ratios))}**",
                f"{factor(min(ratios))} to {factor(max(ratios))}",
                str(sum(ratio > 1 for ratio in ratios)),
                factor(geometric_mean(result["tconv_ms"] / result["floor_ms"] for result in timed)),
            ]
        )
    head = ["kind", "layers", "equal", "mean speed-up", "from, to", "faster", "mean time over the floor"]
    left = [name for name, result in measured.items() if "tconv_ms" in result and result["left_to_pytorch"]]
    named = ", ".join(f"`{name}` ({factor(speedup(measured[name]))})" for name in left)
    return (
        f"**Layers.** {len(measured)} of the {len(known)} layers of `benchmarks/cases.json`, taken from named models, "
        f"through the library, on {machine(layers['environment'])}, beside PyTorch's default. The times are those of "
        "tconv's own kernels, the means geometric "
        f"([each layer over its floor]({PLOTS['layers'].path.relative_to(ROOT)})):\n\n"
        + table(head, rows)
        + (f"\nPredicted to be faster in PyTorch, so that the library hands it over: {named}.\n" if left else "")
    )


def examples_body(written: Results | None) -> str:
    """What stands between the markers of examples/README.md."""
    if not written:
        return NOTHING

    def lines(result: Results, form: str) -> str:
        return "<br>".join(form.format(**layer) for layer in result["layers"])

    rows = [
        [
            f"[{name}]({name}.py)",
            lines(result, "{problem}"),
            f"[{name}_new.py](generated/{name}_new.py)",
            lines(result, "{plan}"),
            lines(result, "{error:.1e} / {pytorch_error:.1e}"),
            f"{milliseconds(result['tconv_ms'])} / {milliseconds(result['pytorch_ms']['default'])}",
            milliseconds(result["floor_ms"]),
        ]
        for name, result in timed_examples(written).items()
    ]
    head = ["model", "problem", "file", "plan", "error / PyTorch's", "ms / PyTorch's", "floor ms"]
    return f"On {machine(written['environment'])}:\n\n" + table(head, rows) + marked(written)


def replaced(text: str, *bodies: str) -> str:
    """`text` with each of `bodies` between the next markers."""
    done = ""
    for body in bodies:
        before, begin, rest = text.partition(BEGIN)
        _, end, text = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"the markers are missing: {BEGIN.strip()} and {END.strip()}")
        done += before + BEGIN + body + END
    return done + text


def targets() -> dict[Path, str]:
    """Every text with a generated part, as it should be."""
    written, layers, dense = load("written"), load("layers"), load("dense")
    variants = {variant: load(f"layers-{variant}") for variant in VARIANTS}
    fused = {name: load(file) for name, file in FUSED.items()}
    trainings = {name: load(file) for name, file in TRAINING.items()}
    bodies = {
        "README.md": [chart_body(layers), gains_body(written, layers)],
        "examples/README.md": [examples_body(written)],
        "docs/performance.md": [
            means_body(layers, variants, dense),
            slower_body(layers, variants, dense, written),
            models_body(load("models")),
        ],
        "docs/fusing.md": [f"{fused_means_body(fused)}\n{training_means_body(trainings)}"],
        "docs/notes/measurements.md": [
            written_body(written),
            variants_body(variants),
            dense_body(dense),
            growth_body(load("growth")),
            fused_body(fused),
            training_body(trainings),
            search_body(load("search")),
            every_layer_body(load("kinds")),
            small_body(load("small")),
        ],
        "docs/notes/hopper.md": [hopper_body(load("hopper")), every_layer_body(load("layers-h100"))],
    }
    return {ROOT / name: replaced((ROOT / name).read_text(encoding="utf-8"), *parts) for name, parts in bodies.items()}


def stale() -> list[str]:
    """The files that do not say what the results say."""
    wrong = [path for path, text in targets().items() if path.read_text(encoding="utf-8") != text]
    for plot in PLOTS.values():
        results = load(plot.results)
        if results and (not plot.path.exists() or digest(results) not in plot.path.read_text(encoding="utf-8")):
            wrong.append(plot.path)
    return [str(path.relative_to(ROOT)) for path in wrong]


def stored(name: str) -> str:
    """The stored figures of an example, marked as such."""
    written = load("written")
    result = timed_examples(written).get(name) if written else None
    if written is None or result is None:
        return f"No figures are stored for {name}; `make bench` takes them on a machine with a GPU."
    return (
        f"Stored figures, not measured here: on {machine(written['environment'])}, {name} took "
        f"{milliseconds(result['tconv_ms'])} ms and PyTorch {milliseconds(result['pytorch_ms']['default'])} ms: "
        f"{factor(speedup(result))}. The floor is {milliseconds(result['floor_ms'])} ms."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--stored", metavar="EXAMPLE", help="print the stored figures of an example")
    arguments = parser.parse_args()
    if arguments.stored:
        print(stored(arguments.stored))
        return 0
    if arguments.check:
        wrong = stale()
        for path in wrong:
            print(f"{path} is not what benchmarks/results says: run benchmarks/report.py", file=sys.stderr)
        return 1 if wrong else 0
    for path, text in targets().items():
        path.write_text(text, encoding="utf-8")
    for plot in PLOTS.values():
        results = load(plot.results)
        if results:
            plot.draw(results, plot.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
