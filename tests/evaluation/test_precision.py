"""Which arithmetic PyTorch runs: by kind, against 38 measured layers, and by measuring."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tconv.codegen.runtime.conv_transpose import _allows_tf32 as written_files_allow_tf32
from tconv.evaluation.precision import arithmetic, measured, resolve
from tconv.evaluation.reference import Operands, conv_transpose, rounded_tf32
from tconv.precision import allows_tf32, of_kind, without_tf32
from tconv.problem import TF32, Layer, Precision, Problem, Triple

ROWS = json.loads((Path(__file__).parents[1] / "data" / "precision.json").read_text(encoding="utf-8"))
CPU = torch.device("cpu")
DENSE = Problem(Layer(2, 16, 8, (1, 3, 3), bias=True), 4, (1, 8, 8))


def three(values: list[int], fill: int) -> Triple:
    depth, height, width = (*[fill] * (3 - len(values)), *values)
    return depth, height, width


def problem_of(row: dict[str, Any]) -> Problem:
    layer = Layer(
        len(row["kernel"]),
        row["in_channels"],
        row["out_channels"],
        three(row["kernel"], 1),
        three(row["stride"], 1),
        three(row["padding"], 0),
        three(row["dilation"], 1),
        row["groups"],
        row["bias"],
    )
    return Problem(layer, row["batch"], three(row["spatial"], 1), three(row["output_padding"], 0))


def test_the_rows_are_those_that_were_measured() -> None:
    assert len(ROWS) == 38
    assert sum(row["ran"] in TF32 for row in ROWS) == 23


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}: {row['layer']}")
def test_the_rule_of_kinds_says_what_was_measured(row: dict[str, Any]) -> None:
    kind = of_kind(problem_of(row))
    assert (kind in TF32) == (row["ran"] in TF32)
    # Which way an engine rounds its ties follows from the kind of layer in one direction only.
    assert kind != "tf32_rna" or row["ran"] == "tf32_rna"


def test_what_is_wanted_wins_over_what_pytorch_does() -> None:
    assert resolve(DENSE, "match", device=CPU) == "tf32"
    assert resolve(DENSE, "fp32", device=CPU) == "fp32"
    few = replace(DENSE, layer=replace(DENSE.layer, out_channels=3))
    assert resolve(few, "match", device=CPU) == "fp32"
    assert resolve(few, "tf32", device=CPU) == "tf32"
    dilated = replace(DENSE, layer=replace(DENSE.layer, stride=(1, 1, 2), dilation=(1, 1, 2)))
    assert resolve(dilated, "tf32", device=CPU) == resolve(dilated, "match", device=CPU) == "tf32_rna"


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp64"])
def test_other_types_have_their_own_arithmetic(precision: Any) -> None:
    problem = replace(DENSE, layer=replace(DENSE.layer, precision=precision))
    assert resolve(problem, "tf32", device=CPU) == precision


def test_measuring_tells_rounded_operands_from_exact_ones() -> None:
    def on_tensor_cores(operands: Operands) -> Tensor:
        return conv_transpose(rounded_tf32(operands.x), rounded_tf32(operands.weight), operands.bias, DENSE)

    assert measured(DENSE, device=CPU) == "fp32"
    assert measured(DENSE, device=CPU, baseline=on_tensor_cores) == "tf32"


@pytest.mark.parametrize("precision", TF32)
def test_measuring_tells_how_ties_are_rounded(precision: Precision) -> None:
    problem = Problem(Layer(2, 32, 8, (1, 3, 3)), 1, (1, 40, 40))

    def on_tensor_cores(operands: Operands) -> Tensor:
        x, weight = (rounded_tf32(tensor, precision) for tensor in operands[:2])
        return conv_transpose(x, weight, None, problem)

    assert measured(problem, device=CPU, baseline=on_tensor_cores) == precision


def test_measuring_runs_the_full_batch_and_looks_at_its_first_sample() -> None:
    batches = []

    def by_batch(operands: Operands) -> Tensor:
        batches.append(operands.x.shape[0])
        y = conv_transpose(rounded_tf32(operands.x), rounded_tf32(operands.weight), operands.bias, DENSE)
        y[1:] = 0
        return y

    assert measured(DENSE, device=CPU, baseline=by_batch) == "tf32"
    assert batches == [4]


def test_pytorch_runs_without_tf32_where_fp32_is_asked_for() -> None:
    for precision, allowed in (("fp32", False), ("tf32", True), ("fp16", True)):
        with arithmetic(precision):  # type: ignore[arg-type]
            assert allows_tf32() is allowed
        assert allows_tf32()
    with pytest.raises(ValueError, match="within"), arithmetic("fp32"):
        raise ValueError("within")
    assert allows_tf32()


def test_the_older_flag_is_read_where_pytorch_has_no_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_get_fp32_precision_getter", raising=False)
    for allowed in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert allows_tf32() is allowed and written_files_allow_tf32() is allowed


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="this PyTorch has the older flag alone")
def test_the_newer_flag_decides_where_there_is_one() -> None:
    """A flag that says "none" leaves it to the one above it. Reading the older flag may raise by then."""
    owners = (torch.backends.cudnn.conv, torch.backends.cudnn, torch.backends)
    before = [owner.fp32_precision for owner in owners]
    try:
        for flags in product(("none", "ieee", "tf32"), repeat=3):
            for owner, flag in zip(owners, flags, strict=True):
                owner.fp32_precision = flag
            allowed = next((flag for flag in flags if flag != "none"), "none") == "tf32"
            assert allows_tf32() is allowed and written_files_allow_tf32() is allowed, flags
            with without_tf32():
                assert not allows_tf32()
            assert allows_tf32() is allowed, flags
    finally:
        for owner, flag in zip(owners, before, strict=True):
            owner.fp32_precision = flag
