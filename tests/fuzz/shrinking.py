"""From a case that fails to a small one that still fails, as a line of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from random_cases import Case

from tconv.problem import InvalidProblem, Layer, Problem, Triple


def shrink(case: Case, fails: Callable[[Case], bool], attempts: int = 200) -> Case:
    """The smallest case found by making one thing smaller at a time, as long as it fails.

    Args:
        attempts: calls of `fails` at most.
    """
    tried = {case}
    found = True
    while found:
        found = False
        for smaller in _smaller(case):
            if smaller in tried:
                continue
            if len(tried) > attempts:
                return case
            tried.add(smaller)
            if fails(smaller):
                case, found = smaller, True
                break
    return case


def as_python(case: Case) -> str:
    """The case as an item of `kept_cases.KEPT`: positional, and without what is left at its default."""
    problem, layer = case.problem, case.problem.layer
    values = [getattr(layer, name) for name in Layer.__dataclass_fields__]
    defaults = [field.default for field in Layer.__dataclass_fields__.values()]
    while values[-1] == defaults[len(values) - 1]:
        values.pop()
    of_problem = [f"Layer({', '.join(map(repr, values))})", repr(problem.batch), repr(problem.input_size)]
    if any(problem.output_padding):
        of_problem.append(repr(problem.output_padding))
    options = [
        f"{name}={getattr(case, name)!r}"
        for name, field in Case.__dataclass_fields__.items()
        if name != "problem" and getattr(case, name) != field.default
    ]
    return "Case(" + ", ".join([f"Problem({', '.join(of_problem)})", *options]) + "),"


def _smaller(case: Case) -> Iterator[Case]:
    """Valid cases with one thing made smaller, the greatest steps first."""
    for changes in _changes(case):
        try:
            yield _changed(case, changes)
        except InvalidProblem:
            continue


def _changes(case: Case) -> Iterator[dict[str, Any]]:
    """What to change, by field of `Case`, `Problem` or `Layer`."""
    problem, layer = case.problem, case.problem.layer
    if layer.groups > 1:
        yield from ({"groups": groups} for groups in _below(layer.groups, 1))
    yield from ({"batch": batch} for batch in _below(problem.batch, 1))
    for name in ("in_channels", "out_channels"):
        for one in _below(getattr(layer, name) // layer.groups, 1):
            yield {name: one * layer.groups}
    for axis in range(3 - layer.spatial_dims, 3):
        for source, name in _by_axis(problem):
            values: Triple = getattr(source, name)
            floor = 0 if "padding" in name else 1
            yield from ({name: _with(values, axis, value)} for value in _below(values[axis], floor))
    for axis in range(3 - layer.spatial_dims, 3):
        if layer.spatial_dims > 1 and layer.axes[axis].is_trivial and problem.input_size[axis] == 1:
            yield {"spatial_dims": layer.spatial_dims - 1} | {
                name: _to_front(getattr(source, name), axis) for source, name in _by_axis(problem)
            }
    yield from ({name: value} for name, value in (("bias", False), ("weights_last", False), ("precision", "fp32")))
    yield from ({name: Case.__dataclass_fields__[name].default} for name in ("storage", "multiprocessors"))
    yield {"wide_index": False}
    yield {"tensor_cores": False}
    yield {"seed": 0}


def _changed(case: Case, changes: dict[str, Any]) -> Case:
    layer = case.problem.layer
    if "groups" in changes:  # the channels of one group stay as they are
        groups = changes["groups"]
        changes |= {name: getattr(layer, name) // layer.groups * groups for name in ("in_channels", "out_channels")}

    def of(kind: Any) -> dict[str, Any]:
        return {name: value for name, value in changes.items() if name in kind.__dataclass_fields__}

    layer = replace(layer, **of(Layer))
    if layer.weights_last:  # smaller, it may be no order of its own any more
        layer = replace(layer, weights_last=False).in_channels_last()
    problem = replace(case.problem, layer=layer, **of(type(case.problem)))
    return replace(case, problem=problem, **of(Case))


def _below(value: int, floor: int) -> Iterator[int]:
    """The floor, the middle, and one less: few steps, and in the end the smallest."""
    yield from dict.fromkeys(v for v in (floor, (value + floor) // 2, value - 1) if floor <= v < value)


def _by_axis(problem: Problem) -> list[tuple[Problem | Layer, str]]:
    """What has one value an axis, and its owner."""
    of_problem = [(problem, name) for name in ("input_size", "output_padding")]
    return of_problem + [(problem.layer, name) for name in ("kernel", "stride", "dilation", "padding")]


def _to_front(values: Triple, axis: int) -> Triple:
    depth, height, width = (values[axis], *values[:axis], *values[axis + 1 :])
    return depth, height, width


def _with(values: Triple, axis: int, value: int) -> Triple:
    depth, height, width = (value if number == axis else old for number, old in enumerate(values))
    return depth, height, width
