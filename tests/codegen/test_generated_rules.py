"""The rules in the generated file are the planner's: which kernel runs which sizes, and how it is launched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, generated_text, planned_layers

from tconv.codegen.cuda import Written, cuda_texts
from tconv.codegen.records import _kernel, _layer, record_of
from tconv.planner import DIRECT, FAMILIES, Gpu, Kernel, Plan, Unplannable
from tconv.planner.choice import replan
from tconv.planner.direct.builder import default_tile
from tconv.problem import PRECISIONS, InvalidProblem, Layer, Problem
from tconv.sandbox.cut import Cut, cut_of, launch_of, runs_all
from tconv.sandbox.emulated import ask

GPU = Gpu.h200()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text() -> str:
    return generated_text(EXAMPLES / "strided_dilated.py")


@pytest.fixture
def file(text: str) -> Namespace:
    """One whose rules take the CPU for a GPU that runs all kernels."""
    file = executed(text)
    file.update(runs_all(file))
    return file


def random_problem(seed: int) -> Problem:
    """A problem that PyTorch accepts, from the whole parameter space, some of it huge."""
    random_ = random.Random(seed)

    def triple(dims: int, fill: int, choices: list[int]) -> tuple[int, int, int]:
        depth, height, width = [fill] * (3 - dims) + [random_.choice(choices) for _ in range(dims)]
        return depth, height, width

    while True:
        dims, groups = random_.randint(1, 3), random_.choice([1, 1, 1, 2, 5, 32])
        layer = Layer(
            dims,
            groups * random_.choice([1, 2, 3, 16, 100]),
            groups * random_.choice([1, 3, 4, 17, 64, 300]),
            triple(dims, 1, [1, 2, 3, 4, 5, 16, 41]),
            triple(dims, 1, [1, 1, 2, 3, 4, 8, 33, 70]),
            triple(dims, 0, [0, 0, 1, 2, 9]),
            triple(dims, 1, [1, 1, 2, 3, 4, 7]),
            groups,
            random_.random() < 0.5,
            random_.choice(PRECISIONS),
        )
        size = triple(dims, 1, [1, 2, 3, 4, 5, 31, 200] + ([5000] if dims < 3 else []))
        extra = tuple(random_.randrange(max(axis.stride, axis.dilation)) for axis in layer.axes)
        try:
            problem = Problem(layer, random_.choice([1, 2, 16, 400]), size, extra)  # type: ignore[arg-type]
            DIRECT.plan(problem, GPU)
        except (InvalidProblem, Unplannable):
            continue
        return problem


def entry(plan: Plan, name: str = "conv_it") -> tuple[str, str]:
    """What a file says of a plan: the layer, and the kernel."""
    written = record_of(plan, Written(plan.kernel, name))
    return _layer(plan.problem.layer), _kernel(plan.problem.layer, written, 0, {})


def launch_in(file: Namespace, problem: Problem) -> Any:
    """What the file says of a call with this problem's shapes and dtype."""
    layer = problem.layer
    used = slice(3 - layer.spatial_dims, None)
    shapes = (problem.input_shape, layer.weight_shape, (layer.out_channels,) if layer.bias else None)
    options = (layer.stride[used], layer.padding[used], problem.output_padding[used], layer.groups)
    file["_launch_for"].cache_clear()
    return file["_launch_for"](CPU, getattr(torch, layer.dtype), *shapes, (*options, layer.dilation[used]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_a_recorded_kernel_runs_the_sizes_that_it_is_for(file: Namespace, seed: int, family: str) -> None:
    problem = random_problem(seed)
    try:
        plan = FAMILIES[family].plan(problem, GPU)
    except Unplannable:
        return
    layer, kernel = (eval(said, file) for said in entry(plan))
    file["_RECORDED"] = {layer: [kernel]}
    taken = set()
    for other in (problem, *other_sizes(problem)):
        try:
            planned = replan(other, plan.kernel, GPU)
        except Unplannable:
            continue
        if not FAMILIES[family].any_size and other.input_size != problem.input_size:
            planned = None  # files record such kernels with their own size
        got = launch_in(file, other)
        taken.add(planned is None)
        if planned is None:
            assert got == "none takes an input of this size"
            continue
        assert got.kernel is kernel
        assert (got.batch, got.input_size, got.output_size) == (other.batch, other.input_size, other.output_size)
        assert (got.shape, got.samples) == (other.output_shape, other.batch)
        assert got.kernel.shared_bytes == planned.shared_bytes
        assert got.kernel.weight_bytes == (0 if planned.preparation is None else planned.preparation.bytes)
        assert got.kernel.prepares_inputs == (planned.inputs is not None)
    assert False in taken


def other_sizes(problem: Problem) -> Iterator[Problem]:
    """Other widths, and axes of one element or more, in other batches."""
    unused = 3 - problem.layer.spatial_dims
    for number, more in enumerate((1, 2, 4, 7, 8, 16)):
        for axis in range(unused, 3):
            size = list(problem.input_size)
            for value in (size[axis] + more, more):
                size[axis] = value
                depth, height, width = size
                try:
                    yield replace(problem, input_size=(depth, height, width), batch=1 + number)
                except InvalidProblem:
                    continue


@pytest.mark.parametrize("seed", range(2000, 2030))
def test_a_layer_is_found_by_what_a_call_is_given(file: Namespace, seed: int) -> None:
    """And by nothing else: each argument counts."""
    problem = random_problem(seed)
    layer = problem.layer
    plan = DIRECT.plan(problem, GPU)
    said, kernel = (eval(text, file) for text in entry(plan))
    file["_RECORDED"] = {said: [kernel]}
    assert launch_in(file, problem).kernel is kernel
    last = [slice(None, 2), slice(2, None)]

    def changed(values: tuple[int, ...]) -> Any:
        return (*values[last[0]], values[2] + 1)

    others: list[dict[str, Any]] = [
        {"kernel": changed(layer.kernel)},
        {"stride": changed(layer.stride)},
        {"padding": changed(layer.padding)},
        {"dilation": changed(layer.dilation)},
        {"bias": not layer.bias},
        {"in_channels": layer.in_channels + layer.groups},
        {"out_channels": layer.out_channels + layer.groups},
        {"in_channels": 7 * layer.in_channels, "out_channels": 7 * layer.out_channels, "groups": 7 * layer.groups},
    ]
    for change in others:
        try:
            other = replace(problem, layer=replace(layer, **change), output_padding=(0, 0, 0))
        except InvalidProblem:
            continue
        assert launch_in(file, other) == "none was made for these arguments of the layer", change


@pytest.mark.parametrize("name", ["strided_dilated", "square_kernel", "vocoder"])
def test_the_text_tells_how_a_recorded_kernel_is_launched(name: str) -> None:
    """As the planner does, also where offsets of 32 bits do not reach."""
    file = executed(generated_text(EXAMPLES / f"{name}.py"))
    layers = planned_layers(EXAMPLES / f"{name}.py")
    planned = {}
    for layer in layers:
        for plan in layer.variants.values():
            planned.setdefault(plan.kernel, plan)
    kept = [kernel for kernels in file["_RECORDED"].values() for kernel in kernels]
    assert len(kept) == len(planned)
    by_name = dict(zip((kernel.name for kernel in kept), planned.values(), strict=True))
    seen = set()
    for kernel in kept[:4]:
        plan = by_name[kernel.name]
        cut, unused = cut_of(kernel, file["_CUDA"]), 3 - plan.problem.layer.spatial_dims
        small = (1,) * unused + (7,) * (2 - unused) + (64,)
        large = (
            (1,) * unused
            + (40_000,) * (2 - unused)
            + (40_000 if unused < 2 else 2**30 // plan.problem.layer.stride[2],)
        )
        for batch, size in ((3, small), (1, plan.problem.input_size), (1, large)):
            problem = Problem(plan.problem.layer, batch, size)  # type: ignore[arg-type]
            try:
                expected = replan(problem, plan.kernel, GPU)
            except Unplannable:
                with pytest.raises(ValueError, match="more blocks than a grid has"):
                    launch_of(cut, problem, GPU.multiprocessors, ask)
                continue
            if expected is None:  # a kernel for one input an axis, or for rows of other widths
                continue
            how = launch_of(cut, problem, GPU.multiprocessors, ask)
            assert how.too_far == (expected.kernel.wide_index and not plan.kernel.wide_index)
            assert (how.grid, how.threads) == (expected.grid, expected.kernel.threads)
            assert how.shared_bytes == expected.shared_bytes == kernel.shared_bytes
            assert (how.preparation, how.inputs) == (expected.preparation, expected.inputs)
            seen.add(how.too_far)
    assert seen == {False, True}


# ---- what is no call of a kernel


def test_too_long_an_axis(file: Namespace) -> None:
    """Sizes and places have 32 bits in the kernels."""
    layer = Layer(1, 1, 1, (1, 1, 1), (1, 1, 2**20))
    said, kernel = (eval(text, file) for text in entry(DIRECT.plan(Problem(layer, 1, (1, 1, 4)), GPU)))
    file["_RECORDED"] = {said: [kernel]}
    assert launch_in(file, Problem(layer, 1, (1, 1, 2**11 - 1))).kernel is kernel
    assert launch_in(file, Problem(layer, 1, (1, 1, 2**12))) == "an axis is too long for one launch"


def test_too_many_blocks_are_refused() -> None:
    layer = Layer(2, 1024, 1024, (1, 3, 3), precision="fp32")
    kernel = Kernel("direct", layer, default_tile(layer))
    texts = cuda_texts([Written(kernel, "conv_it")])
    cut = cut_of(SimpleNamespace(family="direct", name="conv_it", weight_bytes=0, prepares_inputs=False), texts)
    assert isinstance(cut, Cut) and cut.kernel == "conv_it"
    with pytest.raises(ValueError, match="conv_it would need more blocks than a grid has"):
        launch_of(cut, Problem(layer, 2**20, (1, 999, 999)), GPU.multiprocessors, ask)


class Every(dict[Any, Any]):
    """A record of every layer."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __contains__(self, layer: Any) -> bool:
        return True

    def __getitem__(self, layer: Any) -> Any:
        return [self.kernel]


def test_shapes_that_are_no_transposed_convolution_are_pytorchs_matter(file: Namespace) -> None:
    """Of a recorded layer nothing is said then, and nothing is launched."""
    good = {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1), "groups": 1, "dilation": (1, 1)}
    shapes = ((2, 3, 5, 5), (3, 4, 3, 3), (4,))
    layer = Layer(2, 3, 4, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=True, precision="fp64")
    said, kernel = (eval(text, file) for text in entry(DIRECT.plan(Problem(layer, 2, (1, 5, 5)), GPU)))
    file["_RECORDED"] = {said: [kernel]}

    def found(x=shapes[0], weight=shapes[1], bias=shapes[2], **changes):  # type: ignore[no-untyped-def]
        options = tuple({**good, **changes}.values())
        return file["_launch_for"](CPU, torch.float64, x, weight, bias, options)

    assert found().kernel is found(output_padding=(0, 1)).kernel is found(x=(1, 3, 1, 1)).kernel is kernel
    for wrong in (
        found(x=(2, 3, 5)),
        found(x=(2, 3, 5, 5, 5)),
        found(x=(2, 4, 5, 5)),
        found(x=(2, 3, 0, 5)),
        found(weight=(3, 4, 3)),
        found(bias=(3,)),
        found(bias=(4, 1)),
        found(bias=()),
        found(stride=(2,)),
        found(stride=(2, 2, 2)),
        found(output_padding=(2, 0)),
        found(output_padding=(-1, 0)),
    ):
        assert wrong == ""
    for other in ({"groups": 2}, {"groups": 0}, {"stride": (0, 2)}, {"padding": (-1, 1)}, {"padding": (1,)}):
        assert found(**other) in ("", "none was made for these arguments of the layer")
    for other in ({"dilation": (0, 1)}, {"dilation": (1, 1, 1)}, {"weight": (3, 4, 0, 3)}, {"padding": (9, 9)}):
        assert found(**other) in ("", "none was made for these arguments of the layer")
    for count in (1, 3):
        assert isinstance(found(output_padding=(1,) * count), str)


@pytest.mark.parametrize("seed", range(8))
def test_a_launch_is_what_pytorch_takes(file: Namespace, seed: int) -> None:
    """Of random sizes of recorded layers, good and bad: a kernel runs exactly what PyTorch has no error for."""
    draw, seen = random.Random(seed), set()
    layer = Layer(2, 3, 4, (1, 3, 3))
    file["_RECORDED"] = Every(eval(entry(DIRECT.plan(Problem(layer, 2, (1, 5, 5)), GPU))[1], file))
    for _ in range(400):
        dims, groups = draw.randint(1, 3), draw.choice([1, 1, 1, 2, 3])

        def some(values: list[int], dims: int = dims) -> tuple[int, ...]:
            return tuple(draw.choice(values) for _ in range(dims))

        x = (draw.choice([1, 2]), draw.choice([6, 6, 6, 6, 4]), *some([1, 2, 5, 9]))
        weight = (6, draw.choice([2, 3]), *some([1, 2, 3]))
        bias = draw.choice([None, (weight[1] * groups,), (weight[1] * groups,), (5,)])
        stride, dilation = some([1, 2, 3]), some([1, 1, 2])
        options = (stride, some([0, 0, 1, 2]), some([0, 0, 0, 1, 2]), groups, dilation)
        got = file["_launch_for"](CPU, torch.float32, x, weight, bias, options)
        given = [None if shape is None else torch.zeros(shape) for shape in (x, weight, bias)]
        try:
            y = getattr(torch, f"conv_transpose{dims}d")(*given, *options)
        except RuntimeError:
            assert got == "", (x, weight, bias, options)
        else:  # whether it takes a layer without outputs hangs on the device
            expected = tuple(y.shape) if min(y.shape[1:]) else ""
            assert (got if isinstance(got, str) else got.shape) == expected, (x, weight, bias, options)
        seen.add(isinstance(got, str))
    assert seen == {False, True}
