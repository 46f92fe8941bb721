"""What is measured, how an interrupted run goes on, and the tables: the documents say what the results say."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tconv.planner import Gpu
from tconv.precision import allows_tf32

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SOURCE = BENCHMARKS.parent / "src"
ENVIRONMENT = {"gpu": "NVIDIA X", "torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "9.19.0", "kernels": "0"}


Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A script of benchmarks/ by name, imported as the scripts import each other."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in {path.stem for path in BENCHMARKS.glob("*.py")} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def report(script: Script) -> ModuleType:
    return script("report")


@pytest.fixture
def on_h200(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find an H200 to measure on, as far as planning goes."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(script("layers"), "gpu_of", lambda device: Gpu.h200())


def measured(pytorch: float, tconv: float, floor: float, equal: bool = True) -> dict[str, Any]:
    times = {"tconv_ms": tconv, "pytorch_ms": {"default": pytorch}, "floor_ms": floor}
    times["left_to_pytorch"] = pytorch < tconv
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
    assert f"so that the library hands it over: `{dense[0]}` (0.25x).\n" in text


def written_model(pytorch: float, file: float, compiled: float | None = None, **others: Any) -> dict[str, Any]:
    layer = {"problem": "2-D 1→1", "plan": "direct", "error": 1.5e-7, "pytorch_error": 2e-4}
    ways = {"pytorch": pytorch, "best_setting": pytorch - 1, "compiled": compiled, "file": file, "file_compiled": None}
    both = {"inference": ways, "as_called": {**ways, "file": 2 * file}, "lines": 1200, "own_lines": 100}
    return measured(pytorch, file, 0.1) | {"reasons": [], "layers": [layer, layer], **both, **others}


def test_models_are_listed(report: ModuleType) -> None:
    results = {"environment": ENVIRONMENT, "layers": {"unet": written_model(6.8, 1.0, 4.0), "other": {"equal": False}}}
    text = report.models_text(results)
    row = "| [unet](examples/unet.py) | 6.8 | 5.8 | 4 | 1 | **6.8x** | 4.0x | 3.4x | 0.1 | yes |\n"
    assert row in text and "other" not in text and "the file compiled" not in text
    assert "| 2-D 1→1<br>2-D 1→1 |" in report.examples_body(results)
    assert "| 1.5e-07 / 2.0e-04<br>1.5e-07 / 2.0e-04 | 1 / 6.8 | 0.1 |\n" in report.examples_body(results)


def test_where_a_model_is_faster_otherwise_is_said(report: ModuleType) -> None:
    unet = written_model(6.8, 5.0, 4.0, pytorch_from="the shorter of two that differ by 9%")
    unet["inference"]["file_compiled"] = 3.5
    text = report.models_text({"environment": ENVIRONMENT, "layers": {"unet": unet}})
    assert "torch.compile(ModelNew(...))" in text and "\n| `unet` | 4 | 3.5 | 4 |  |\n" in text
    assert "| 5 † |" in text and "† unet: PyTorch's time is from the shorter of two that differ by 9%\n" in text


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
    monkeypatch.setattr(report, "PLOTS", {"layers": report.PLOTS["layers"]._replace(path=tmp_path / "plot.svg")})
    assert report.stale() == ["plot.svg"]
    (tmp_path / "plot.svg").write_text(f"<svg>{report.digest(layers)}</svg>")
    assert report.stale() == []
    layers["layers"][next(iter(layers["layers"]))]["tconv_ms"] = 1.5
    assert report.stale() == ["plot.svg"]


def test_each_marked_part_has_a_text_of_its_own(report: ModuleType) -> None:
    parts = f"{report.BEGIN}old\n{report.END}"
    expected = f"a\n{report.BEGIN}one\n{report.END}b\n{report.BEGIN}two\n{report.END}c\n"
    assert report.replaced(f"a\n{parts}b\n{parts}c\n", "one\n", "two\n") == expected
    with pytest.raises(SystemExit, match="markers"):
        report.replaced(f"a\n{parts}", "one\n", "two\n")


def test_one_set_of_results_has_two_plots(report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = list(report.cases())[:2]
    layers = {"environment": ENVIRONMENT, "layers": {name: measured(2, 1, 1) for name in names}}
    monkeypatch.setattr(report, "load", {"layers": layers}.get)
    monkeypatch.setattr(report, "targets", dict)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    drawn = {name: plot._replace(path=tmp_path / f"{name}.svg") for name, plot in report.PLOTS.items()}
    monkeypatch.setattr(report, "PLOTS", drawn)
    assert report.stale() == ["speedups.svg", "layers.svg"]


def test_a_missing_plot_of_growth_is_stale(report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    growth = {"environment": ENVIRONMENT, "layers": {}}
    monkeypatch.setattr(report, "load", {"growth": growth}.get)
    monkeypatch.setattr(report, "targets", dict)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    drawn = {name: plot._replace(path=tmp_path / f"{name}.svg") for name, plot in report.PLOTS.items()}
    monkeypatch.setattr(report, "PLOTS", drawn)
    assert report.stale() == ["growth.svg"]


def test_written_files_have_their_lines_and_both_ways(script: Script) -> None:
    def series(milliseconds: float) -> dict[str, float]:
        return dict.fromkeys(("median", "low", "high"), milliseconds)

    def sides(reference: float, **others: float) -> dict[str, Any]:
        named = {name.replace("_", "."): series(each) for name, each in others.items()}
        return {"candidate": series(1), "reference": series(reference), "alternatives": named, "compiled": None}

    ways = script("written").ways
    both = {"as_called": ways(sides(6.0, channels_last=4.5, torch_compile=3.0)), "inference": ways(sides(5.0))}
    assert both["inference"]["best_setting"] == 5.0 and both["inference"]["compiled"] is None
    result = {"equal": True, "reasons": [], "lines": 1200, "own_lines": 100, **both}
    refused = {"equal": False, "reasons": ["no file was written and timed"]}
    body = script("performance").written_body({"environment": ENVIRONMENT, "layers": {"a": result, "b": refused}})
    assert "| `a` | 1,200 (1,100) | 6 | 4.5 | 3 | 1 | 5 | 5 |  | 1 |\n" in body
    assert "| `b`: no file was written and timed |" in body


def test_training_steps(script: Script) -> None:
    """Gradients are those of one pass, whatever ran before; a step changes parameters."""
    training = script("training")
    model, given = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), torch.randn(5, 3)
    side = training.Training(model, [given])
    first = side.gradients()
    assert all(map(torch.equal, first, side.gradients())) and len(first) == 2
    assert training.distance(first, [each.double() for each in first]) == 0
    assert training.distance([first[0] * 1.5, first[1]], first) == pytest.approx(0.5)
    before = [parameter.clone() for parameter in model.parameters()]
    side.step()
    assert not any(map(torch.equal, before, model.parameters()))


def test_training_steps_are_told_beside_eager_ones(script: Script) -> None:
    sides = {"pytorch": (6.0, 1000), "compile": (4.0, 900), "backend": (3.5, 950), "file": (3.0, 1020)}
    result: dict[str, Any] = {"equal": True, "reasons": [], "file_as_called": 1.05, "file_inference": 1.0}
    result["compile_as_called"] = 2.1
    for name, (milliseconds, peak) in sides.items():
        result |= {f"{name}_step": milliseconds, f"{name}_peak": peak}
    refused = {"equal": False, "reasons": ["file's gradients are far"]}
    results = {"environment": ENVIRONMENT, "layers": {"a": result, "b": refused}}
    body = script("performance").training_body({"float32": results, "bfloat16": None})
    assert "| `a` | 6 | 4 | 3.5 | 3 | 0.50 | 0.75 | 1.02 | 0.50 | 1.05 |\n" in body
    assert "| `b`: file's gradients are far |" in body
    assert "Training steps in float32 on" in body and "bfloat16" not in body


def dense(layer: str, dtype: str, layout: str, result: dict[str, Any]) -> dict[str, Any]:
    return {"layer": layer, "type": dtype, "format": layout, **result}


def test_dense_layers_have_their_formats_side_by_side(script: Script) -> None:
    refused = {"equal": False, "reasons": ["PyTorch's operator runs: so it is"]}
    results = [
        dense("k2", "float16", "contiguous", measured(8, 1, 0.5)),
        dense("k2", "float16", "channels_last", measured(2, 4, 0.5)),
        dense("k3", "float16", "contiguous", measured(4, 2, 0.25)),
        dense("k3", "float16", "channels_last", measured(3, 1, 0.25, equal=False)),
        dense("k3", "float32, no TF32", "contiguous", refused),
    ]
    text = script("performance").dense_body({"environment": ENVIRONMENT, "layers": dict(enumerate(results))})
    # Speed-ups 8 and 2 in one format, 1/2 and 3 in the other.
    assert "geometric mean 4.0x contiguous, 1.2x channels_last:" in text
    assert "| k2 | float16 | 8 | 1 | 8.0x | 2 | 4 | 0.50x ‡ | 0.5 | yes |\n" in text
    assert "\n‡ predicted to be faster in PyTorch" in text
    assert "| k3 | float16 | 4 | 2 | 2.0x | 3 | 1 | 3.0x | 0.25 | no |\n" in text
    assert "| k3 | float32, no TF32 |  |  |  |  |  |  |  | no |\n" in text


def test_what_was_not_measured_says_so(script: Script) -> None:
    performance = script("performance")
    assert performance.dense_body(None) == performance.growth_body(None) == "Nothing has been measured yet.\n"


def test_a_column_has_both_of_pytorchs_times_and_ours_over_the_floor(script: Script) -> None:
    slow = {
        "pytorch_ms": {"default": 6.0, "cudnn.benchmark": 7.0, "channels_last": 4.0},
        "tconv_ms": 2.0,
        "floor_ms": 0.5,
    }
    layers = {"layers": {"a": slow, "unknown": slow | {"floor_ms": None}, "unequal": {"equal": False, "floor_ms": 1.0}}}
    assert script("plot").multiples(layers) == {"a": (12.0, 8.0, 4.0)}


def test_a_layers_speed_ups_are_over_the_default_and_the_best_setting(script: Script) -> None:
    slow = {"pytorch_ms": {"default": 6.0, "cudnn.benchmark": 7.0, "channels_last": 1.5}, "tconv_ms": 2.0}
    alone = {"pytorch_ms": {"default": 6.0}, "tconv_ms": 2.0}
    layers = {"layers": {"a": slow, "b": alone, "untimed": {"equal": False}}}
    assert script("plot").speedups(layers) == {"a": (3.0, 0.75), "b": (3.0, 3.0)}


def test_a_curve_has_the_layers_that_differ_in_one_quantity(script: Script) -> None:
    base = {"batch": 8, "channels": 64, "size": 64}
    results = [
        {"at": base | {"batch": 16}, **measured(6, 2, 0.5)},
        {"at": base, **measured(4, 1, 0.25)},
        {"at": base | {"size": 128}, **measured(9, 3, 1) | {"floor_ms": None}},
        {"at": base | {"batch": 32}, "equal": False, "reasons": ["PyTorch's operator runs: so it is"]},
    ]
    growth = {"environment": ENVIRONMENT, "layers": dict(enumerate(results))}
    curves = script("plot").curves
    batch = {"PyTorch's default": {8: 4, 16: 6}, "tconv": {8: 1, 16: 2}, "floor": {8: 0.25, 16: 0.5}}
    assert curves(growth, "batch") == batch
    assert list(curves(growth, "batch")["tconv"]) == [8, 16]
    assert curves(growth, "size") == {
        "PyTorch's default": {64: 4, 128: 9},
        "tconv": {64: 1, 128: 3},
        "floor": {64: 0.25},
    }
    assert "3 of these 4 layers are equal" in script("performance").growth_body(growth)


@pytest.mark.usefixtures("on_h200")
def test_dense_layers_are_measured_in_each_type_and_format(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = script("dense"), {}

    def measure(case: dict[str, Any], quick: bool, variant: str) -> dict[str, Any]:
        assert quick
        return {"dtype": case["dtype"], "variant": variant, "floor": case["floor_ms"], "tf32": allows_tf32()}

    monkeypatch.setattr(module, "measure", measure)
    for name, measure_one in module.wanted().items():
        seen[name] = measure_one()
        assert name == "{layer}, {type}, {format}".format(**seen[name])
    assert len(seen) == 7 * 3 * 2 + 1 + 3
    assert allows_tf32()
    row = "k(3,7), 8×64→64, 512×512"
    names = {"layer": row, "type": "bfloat16", "format": "channels_last"}
    found = {"dtype": "bfloat16", "variant": "channels_last", "floor": 0.517614, "tf32": True}
    assert seen[f"{row}, bfloat16, channels_last"] == names | found
    # As the line of cases.json has it, and 355/51 of it without TF32.
    assert seen[f"{row}, float32, contiguous"]["floor"] == 1.016274
    names = {"layer": row, "type": "float32, no TF32", "format": "contiguous"}
    found = {"dtype": "float32", "variant": "contiguous", "floor": 7.074064, "tf32": False}
    assert seen[f"{row}, float32, no TF32, contiguous"] == names | found
    assert "k3 s2 p1 op1, 8×128→64, 128×128, float16, contiguous" in seen


@pytest.mark.usefixtures("on_h200")
def test_growth_changes_one_quantity_at_a_time(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("growth")
    problem_of, base = script("layers").problem_of, module.GROWTH_BASE
    monkeypatch.setattr(module, "measure", lambda case, quick: {"problem": problem_of(case), "floor": case["floor_ms"]})
    seen = {name: measure_one() for name, measure_one in module.wanted().items()}
    changed = [sum(result["at"][name] != value for name, value in base.items()) for result in seen.values()]
    assert sorted(changed) == [0] + [1] * (6 + 4 + 6)
    large = seen["batch 8, channels 512, size 64"]
    assert large["problem"].input_shape == (8, 512, 64, 64)
    assert large["problem"].output_shape == (8, 512, 128, 128)
    assert large["floor"] == round(2 * 8 * 512 * 512 * 16 * 64 * 64 / 355e12 * 1e3, 6)


def options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"only": "", "budget": float("inf"), "fresh": False, **changes})


@pytest.fixture
def runs(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """benchmarks/runs.py on a GPU, with results in a folder of its own."""
    module = script("runs")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(script("results"), "RESULTS", tmp_path)
    return module


def test_a_run_goes_on_where_it_stopped(runs: ModuleType) -> None:
    def interrupted() -> dict[str, Any]:
        raise RuntimeError("stopped")

    one, other = measured(2, 1, 1), measured(4, 1, 1)
    with pytest.raises(RuntimeError, match="stopped"):
        runs.measure_missing("some", {"one": lambda: one, "other": interrupted}, options())
    assert runs.load("some") == {"environment": ENVIRONMENT, "layers": {"one": one}}
    assert runs.measure_missing("some", {"one": interrupted, "other": lambda: other}, options()) == 0
    assert runs.load("some")["layers"] == {"one": one, "other": other}
    assert runs.measure_missing("some", {"one": lambda: other}, options(fresh=True)) == 0
    assert runs.load("some")["layers"] == {"one": other}


def test_a_run_says_what_is_missing_and_what_is_unequal(runs: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {
        "good": lambda: measured(2, 1, 1),
        "bad": lambda: measured(2, 1, 1, equal=False) | {"reasons": ["it lies"]},
    }
    assert runs.measure_missing("some", wanted, options(budget=-1.0)) == 1
    assert "2 layers are still missing" in capsys.readouterr().err
    assert runs.measure_missing("some", wanted, options(only="good")) == 0
    assert runs.measure_missing("some", wanted, options()) == 1
    assert "bad: NOT EQUAL: it lies 2.00x" in capsys.readouterr().out


def test_a_run_refuses_results_of_another_machine(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.measure_missing("some", {"one": lambda: measured(2, 1, 1)}, options()) == 0
    monkeypatch.setattr(runs, "environment", lambda: ENVIRONMENT | {"kernels": "1"})
    assert runs.measure_missing("some", {"two": lambda: measured(2, 1, 1)}, options()) == 2
    assert list(runs.load("some")["layers"]) == ["one"]


def test_a_run_goes_on_with_kernels_of_the_same_machine_code(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.measure_missing("some", {"one": lambda: measured(2, 1, 1)}, options()) == 0
    monkeypatch.setattr(runs, "environment", lambda: ENVIRONMENT | {"kernels": "1"})
    monkeypatch.setattr(runs, "same_kernels", lambda: {"0", "1"})
    assert runs.measure_missing("some", {"two": lambda: measured(2, 1, 1)}, options()) == 0
    assert list(runs.load("some")["layers"]) == ["one", "two"]
    monkeypatch.setattr(runs, "environment", lambda: ENVIRONMENT | {"kernels": "1", "torch": "another"})
    assert runs.measure_missing("some", {"three": lambda: measured(2, 1, 1)}, options()) == 2


class FakeClock:
    """Every call takes as long as its result says; counts the calls that were timed."""

    def __init__(self) -> None:
        self.timed: list[float] = []

    def device_ms(self, call: Callable[[], float], count: int, between: object = None) -> list[float]:
        self.timed += [call()] * count
        return [call()] * count

    synchronised_ms = device_ms

    def host_us(self, call: Callable[[], float], count: int, between: object = None) -> float:
        return 1.0


@pytest.mark.parametrize(("quick", "counts"), [(False, 10 * 10), (True, 5 * 3)])
def test_quick_times_long_calls_less_often_and_the_default_alone(
    script: Script, monkeypatch: pytest.MonkeyPatch, quick: bool, counts: int
) -> None:
    layers, clock = script("layers"), FakeClock()
    monkeypatch.setattr(layers, "CudaClock", lambda: clock)
    monkeypatch.setattr(layers, "other_settings", lambda *_: {"cudnn.benchmark": 5.0})
    found = layers.times(lambda: 2.0, lambda: 6.0, (), quick)
    assert (found["tconv_ms"], found["pytorch_ms"]["default"]) == (2.0, 6.0)
    assert ("cudnn.benchmark" in found["pytorch_ms"]) is not quick
    # Besides the rounds, one more series for the time with everything waited for.
    assert clock.timed.count(6.0) == counts + (3 if quick else 10)


def test_stamps_have_their_places_in_the_kernels(script: Script, tmp_path: Path) -> None:
    stamps = script("stamps")
    for kind, (_, header, _) in stamps.STAMPED.items():
        names = stamps.stamped_headers(kind, tmp_path / kind)
        text = (tmp_path / kind / header).read_text()
        assert all(text.count(f"tconv_stamp({number});") == 1 for number in range(len(names)))


@pytest.mark.usefixtures("on_h200")
def test_kinds_are_layers_that_pytorch_takes(script: Script) -> None:
    layers = script("layers")
    found = {f"{kind}: {name}": case for kind, cases in script("kinds").kinds().items() for name, case in cases.items()}
    for name, case in found.items():
        problem = layers.problem_of(case)
        x = torch.empty((case["batch"], case["in_channels"], *case["input_size"]), device="meta")
        weight = torch.empty(
            (case["in_channels"], case["out_channels"] // case["groups"], *case["kernel"]), device="meta"
        )
        theirs = getattr(torch, f"conv_transpose{len(case['kernel'])}d")(x, weight, **layers.arguments(problem))
        assert tuple(theirs.shape[2:]) == problem.output_size[-len(case["kernel"]) :], name
        assert layers.floor_ms(problem) > 0


# ---- same_code.py ----------------------------------------------------------------------------------------------------


@pytest.mark.rotates(6)
def test_kernels_of_other_machine_code_are_noticed(script: Script, tmp_path: Path) -> None:
    same_code = script("same_code")
    before = tmp_path / "src"
    shutil.copytree(SOURCE, before, ignore=shutil.ignore_patterns("__pycache__"))
    kernels = before / "tconv" / "kernels" / "direct"
    products = kernels / "products.cuh"
    text = products.read_text(encoding="utf-8")
    # Comments and names do not count.
    renamed = text.replace("DirectAccumulators", "DirectSums")
    products.write_text(f"// The same.\n#define DirectSums DirectAccumulators\n{renamed}", encoding="utf-8")
    first = next(iter(same_code.every_instance()))
    now = same_code.codes(SOURCE, [first])
    assert same_code.codes(before, [first]) == now and same_code.codes(before, ["no such instance"]) == [""]
    changed = text.replace("weights[first_weight + c], accumulator)", "weights[first_weight + c], -accumulator)")
    assert changed != text
    products.write_text(changed, encoding="utf-8")
    assert same_code.codes(before, [first]) != now


def test_results_of_the_same_machine_code_hold(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    results = script("results")
    monkeypatch.setattr(results, "kernels", lambda: "new")
    of_others = {"kernels": "other", "as": ["old"]}
    for stored, others in ((None, set()), ({"kernels": "new", "as": ["old"]}, {"old"}), (of_others, set())):
        monkeypatch.setattr(results, "load", lambda name, stored=stored: stored)
        assert results.same_kernels() == {"new"} | others
        said = results.machine(ENVIRONMENT | {"kernels": "old"})
        assert ("before the latest change" in said) is ("old" not in others)


def test_floors_on_an_h200_are_those_on_file(script: Script, on_h200: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TF32 is allowed."""
    layers, known = script("layers"), script("results").cases()
    monkeypatch.setattr(layers, "allows_tf32", lambda: True)
    found = {name: layers.permitted_floor_ms(layers.problem_of(case)) for name, case in known.items()}
    assert found == pytest.approx({name: case["floor_ms"] for name, case in known.items()}, rel=2e-3)


def test_means_have_types_in_rows_and_formats_side_by_side(script: Script) -> None:
    names = list(script("results").cases())[:3]
    now = ENVIRONMENT | {"kernels": script("results").kernels()}
    of_cases = dict(zip(names, (measured(8, 1, 0.5), measured(2, 1, 0.5), {"equal": False}), strict=True))
    layers = {"environment": now, "layers": of_cases}
    few = {"environment": now, "layers": {names[0]: measured(1, 4, 0.5)}}
    results = [
        dense("k2", "float16", "contiguous", measured(8, 1, 0.5)),
        dense("k2", "float16", "channels_last", measured(3, 1, 0.5)),
        dense("k3", "float16", "contiguous", measured(2, 1, 0.5)),
    ]
    of_dense = {"environment": ENVIRONMENT, "layers": dict(enumerate(results))}
    variants = {"channels_last": few, "bfloat16": few}
    body = script("summaries").means_body(layers, variants, of_dense)
    assert "| 2 of `cases.json` | the model's own | **4.0x** | 2.0x to 8.0x |  |  |\n" in body
    assert "| 1 with groups or few channels | the model's own |  |  | **0.25x** | 0.25x to 0.25x |\n" in body
    assert "| 1 with groups or few channels | bfloat16 | **0.25x** | 0.25x to 0.25x |  |  |\n" in body
    assert "| 2 dense ¶ | float16 | **4.0x** | 2.0x to 8.0x | **3.0x** | 3.0x to 3.0x |\n" in body
    assert body.count("before the latest change") == 1
    assert body.endswith("\n¶ before the latest change of the kernels.\n")
    assert "¶" not in script("summaries").means_body(layers, variants, of_dense | {"environment": now})
    assert script("summaries").means_body(None, {}, None) == "Nothing has been measured yet.\n"


def test_what_pytorch_runs_faster_is_listed(script: Script) -> None:
    known = script("results").cases()
    fast, slow = list(known)[:2]
    other = measured(8, 4, 0.5)
    other["pytorch_ms"]["channels_last"] = 2.0
    now = ENVIRONMENT | {"kernels": script("results").kernels()}
    layers = {"environment": now, "layers": {fast: measured(8, 4, 0.5), slow: other}}
    variants = {"channels_last": {"environment": now, "layers": {fast: measured(1, 4, 0.5)}}}
    of_dense = {"environment": now, "layers": {"k2": dense("k2", "float64", "contiguous", measured(1, 2, 0.5))}}
    models = {"unet": written_model(6.8, 5.0, 4.0), "good": written_model(6.8, 1.0, 4.0), "refused": {"equal": False}}
    body = script("summaries").slower_body(layers, variants, of_dense, {"environment": ENVIRONMENT, "layers": models})
    assert f"| {slow} | {known[slow]['dtype']}, contiguous | channels_last | 2 | 4 | 0.5 | 0.50x |\n" in body
    assert f"| {fast} | {known[fast]['dtype']}, channels_last | default | 1 | 4 | 0.5 | 0.25x |\n" in body
    assert "| k2 | float64, contiguous | default | 1 | 2 | 0.5 | 0.50x |\n" in body
    assert "| the model `unet` ¶ | float32, contiguous | `torch.compile` | 4 | 5 | 0.1 | 0.80x |\n" in body
    assert body.endswith("\n¶ before the latest change of the kernels.\n")
    assert body.count("\n") == 4 + 4 + 2 and script("summaries").slower_body(None, {}, None, None).startswith("Nothing")


def test_fused_models_and_training_steps_are_summed_up(script: Script) -> None:
    def fused(compiled: float, eager: float, equal: bool = True) -> dict[str, Any]:
        return {"compile_ms": compiled, "pytorch_ms": {"default": eager}, "tconv_ms": 1.0, "equal": equal}

    models = {"gelu": fused(2, 4), "clamp_3d": fused(8, 16), "dac": fused(1, 1), "vae": fused(9, 9, equal=False)}
    summaries = script("summaries")
    body = summaries.fused_means_body({"float32": {"environment": ENVIRONMENT, "layers": models}, "bfloat16": None})
    assert "| float32, 3 models | 4.0x | 8.0x | 2.5x | 4.0x |\n" in body and "bfloat16" not in body
    assert summaries.fused_means_body({"float32": None}) == "Nothing has been measured yet.\n"
    steps = {"pytorch_step": 8.0, "compile_step": 4.0, "backend_step": 3.0, "file_step": 2.0}
    step = {**steps, "pytorch_peak": 1000, "file_peak": 500, "equal": True}
    layers = {"a": step, "b": step | {"file_step": 8.0}, "c": {"equal": False}}
    body = summaries.training_means_body({"float32": {"environment": ENVIRONMENT, "layers": layers}, "bfloat16": None})
    assert "| float32, 2 models | 0.50 | 1.00 | 0.75 | 0.50 |\n" in body
    assert summaries.training_means_body({}) == "Nothing has been measured yet.\n"


def test_a_row_for_every_layer(script: Script) -> None:
    fast, slow = measured(pytorch=0.2, tconv=0.1, floor=0.05), measured(pytorch=0.1, tconv=0.4, floor=0.05)
    fast["pytorch_ms"]["channels_last"] = 0.15
    text = script("performance").every_layer_body({"environment": ENVIRONMENT, "layers": {"a": fast, "b": slow}})
    assert "geometric means of 2 layers 0.71x and 0.61x" in text
    assert "| a | 0.2 | 0.15 | 0.1 | 2.0x | 1.5x | 0.05 | yes |" in text
    assert "| b | 0.1 | 0.1 | 0.4 | 0.25x ‡ | 0.25x | 0.05 | yes |" in text


def test_a_stored_figure_of_other_kernels_says_so(
    report: ModuleType, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**ENVIRONMENT, "kernels": script("results").kernels()}
    stored = {"environment": environment, "layers": {"unet": written_model(2.0, 1.0)}}
    monkeypatch.setattr(report, "load", lambda name: stored)
    assert "before the latest change" not in report.stored("unet")
    environment["kernels"] = "older"
    assert "before the latest change of the kernels, unet took 1 ms and PyTorch 2 ms: 2.0x" in report.stored("unet")
    assert "No figures are stored for vocoder" in report.stored("vocoder")


# ---- models.py -------------------------------------------------------------------------------------------------------


def test_whole_models_are_compared_and_timed_by_turns(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    models = script("models")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for of in (torch.nn.Module, torch.Tensor):
        monkeypatch.setattr(of, "cuda", lambda self: self)
    made = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ConvTranspose2d(8, 4, 4, 2, 1))
    found = models.measure(lambda: (made, (torch.rand(1, 3, 9, 9),)), ["eager"])
    assert (found["layers"], found["difference"], found["equal"]) == (1, 0.0, True)
    for side in found["ways"]["eager"].values():
        shortest, longest = side["from_to_ms"]
        assert 0 < side["host_ms"] <= side["ms"] and shortest <= side["ms"] <= longest


def test_models_that_no_graph_takes_say_why(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    models = script("models")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for of in (torch.nn.Module, torch.Tensor):
        monkeypatch.setattr(of, "cuda", lambda self: self)

    def refuses(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(models, "in_a_graph", refuses)
    found = models.measure(lambda: (torch.nn.ConvTranspose1d(2, 2, 2), (torch.rand(1, 2, 5),)), ["graph"])
    assert found["ways"] == {"graph": {"why_not": "operation not permitted when stream is capturing"}}


def test_the_largest_difference_is_beside_the_largest_result(script: Script) -> None:
    difference = script("models").difference
    one, other = torch.tensor([1.0, -4.0]), torch.tensor([1.5, -4.0])
    assert difference({"y": one, "indices": torch.tensor([1])}, {"y": other, "indices": torch.tensor([2])}) == 0.125
    assert difference((one, [other]), (one, [one])) == 0.125


def test_a_model_that_is_slower_beyond_the_spread_is_marked(script: Script) -> None:
    def sides(theirs: float, ours: float) -> dict[str, Any]:
        spread = {name: [ms * 0.9, ms * 1.1] for name, ms in (("pytorch", theirs), ("tconv", ours))}
        times = (("pytorch", theirs), ("tconv", ours))
        return {name: {"ms": ms, "from_to_ms": spread[name], "host_ms": ms / 2} for name, ms in times}

    ways = {"eager": sides(4, 2), "graph": {"why_not": "it waits"}, "compiled": sides(2, 3)}
    models = {"vocoder": {"layers": 4, "ways": ways}, "other": {"layers": 1, "ways": {"compiled": sides(2, 2.1)}}}
    body = script("performance").models_body({"environment": ENVIRONMENT, "models": models})
    assert "geometric means 2.00x eager, 0.80x compiled:" in body
    assert "| vocoder | 4 | 4 | 2 | 50% |  |  |  | 2 | 3 § | 50% |\n" in body
    assert "| other | 1 |  |  |  |  |  |  | 2 | 2.1 | 50% |\n" in body and "§ slower beyond" in body
