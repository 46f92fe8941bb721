"""The rules in the generated file are the planner's: recorded kernels, configuration text, launches, sizes."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, generated_text, planned_layers

from tconv.codegen.generate import recorded_kernel
from tconv.kernels.source import ANY_LAYER, PARAMETERS, configuration, function, inlined, launching, tile_members
from tconv.planner import DIRECT, FAMILIES, Gpu, Kernel, Plan, Unplannable
from tconv.planner.direct.builder import default_tile, direct_tile
from tconv.precision import of_kind
from tconv.problem import PRECISIONS, TF32, InvalidProblem, Layer, Problem
from tconv.sandbox.cut import Cut, cut_of, told
from tconv.sandbox.emulated import ask

GPU = Gpu.h200()


@pytest.fixture(scope="module")
def files() -> dict[str, Namespace]:
    """By family, one that records a kernel of it."""
    of_direct, of_others = (
        executed(generated_text(EXAMPLES / f"{n}.py")) for n in ("strided_dilated", "square_kernel")
    )
    return {"direct": of_direct, "mma": of_others, "wgmma": of_others}


@pytest.fixture
def file(files: dict[str, Namespace]) -> Namespace:
    return files["direct"]


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


def layer_in(file: Namespace, layer: Layer) -> object:
    axes = (layer.kernel, layer.stride, layer.padding, layer.dilation)
    channels = (layer.spatial_dims, layer.in_channels, layer.out_channels)
    return file["_Layer"](*channels, *axes, layer.groups, layer.bias, layer.precision)


def plan_in(file: Namespace, problem: Problem) -> object:
    """What the file plans for this problem's shapes and dtype."""
    layer = problem.layer
    used = slice(3 - layer.spatial_dims, None)
    shapes = (problem.input_shape, layer.weight_shape, (layer.out_channels,) if layer.bias else None)
    options = (layer.stride[used], layer.padding[used], problem.output_padding[used])
    dtype = getattr(torch, layer.dtype)
    return file["_plan"](layer.spatial_dims, dtype, *shapes, *options, layer.groups, layer.dilation[used])


def unwrapped(tile: str) -> str:
    """The text of a tile without breaks in statements."""
    return re.sub(r"\n {6}", " ", tile)


def assert_same(got: Any, plan: Plan) -> None:
    """A file's own plan is the planner's."""
    assert unwrapped(got.kernel.tile) == tile_members(plan.kernel.tile)
    assert got.output_size == plan.problem.output_size
    assert (got.kernel.threads, got.kernel.shared_bytes) == (plan.kernel.threads, plan.shared_bytes)
    assert got.kernel.prepares_inputs == (plan.inputs is not None)


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_layers_that_were_not_recorded(file: Namespace, seed: int) -> None:
    """They take the kernel without a tile, whose launch the CUDA text computes."""
    file["_FLOAT32"] = "fp32"
    for problem in map(random_problem, range(seed, seed + 40)):
        if problem.layer.precision in TF32:  # float32 layers' precision is the file's choice
            continue
        got: Any = plan_in(file, problem)
        assert (got.kernel.family, got.kernel.tile, got.kernel.shared_bytes) == (ANY_LAYER, None, 0)
        assert got.output_size == problem.output_size


def of_any_blocks(tile: str) -> str:
    return re.sub(r", blocks = \d+;", ";", unwrapped(tile))


@pytest.mark.parametrize("name", ["strided_dilated", "square_kernel"])
def test_the_text_tells_how_a_recorded_kernel_is_launched(name: str) -> None:
    """As the planner does, at sizes of which some want offsets of 64 bits."""
    file = executed(generated_text(EXAMPLES / f"{name}.py"))
    (planned_layer,) = planned_layers(EXAMPLES / f"{name}.py")
    recorded = [plan.kernel for plan in planned_layer.variants.values() if plan.kernel.tile is not None]
    by_text = {of_any_blocks(tile_members(kernel.tile)): kernel for kernel in recorded}
    for own, kernels in file["_RECORDED"].items():
        layer = Layer(*own)
        for kernel in kernels:
            cut = cut_of(kernel._replace(layer=own), file["_cuda_source"])
            for problem in (Problem(layer, 3, (1, 7, 64)), Problem(layer, 1, (1, 40_000, 40_000))):
                planned = by_text[of_any_blocks(kernel.tile)]
                if unwrapped(kernel.tile) != tile_members(
                    planned.tile
                ):  # compiled for fewer blocks, which then do not spill
                    planned = replace(planned, tile=replace(planned.tile, blocks=kernel.blocks))
                plan = FAMILIES[kernel.family].replan(problem, planned, GPU)
                how = told(cut, problem, GPU.multiprocessors, ask)
                assert plan is not None
                assert (how.source == cut.wide_source) == plan.kernel.wide_index
                assert (how.grid, how.threads, how.shared_bytes) == (plan.grid, kernel.threads, plan.shared_bytes)
                assert (how.preparation, how.inputs) == (plan.preparation, plan.inputs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_plans_a_recorded_kernel_as_the_planner(files: dict[str, Namespace], seed: int, family: str) -> None:
    problem, file = random_problem(seed), files[family]
    try:
        plan = FAMILIES[family].plan(problem, GPU)
    except Unplannable:
        return
    layer = layer_in(file, problem.layer)
    file["_FLOAT32"] = "tf32" if problem.layer.precision in TF32 else "fp32"
    file["_RECORDED"][layer] = [eval(recorded_kernel(problem.layer, plan.kernel), file)]
    try:
        file["_plan"].cache_clear()
        got = plan_in(file, problem)
    finally:
        del file["_RECORDED"][layer]
        file["_FLOAT32"] = "fp32"
        file["_plan"].cache_clear()
    assert_same(got, plan)


@pytest.mark.parametrize("seed", range(2000, 2030))
def test_writes_the_configuration_as_the_library(file: Namespace, seed: int) -> None:
    layer = random_problem(seed).layer
    kernel = Kernel("direct", layer, default_tile(layer), wide_index=seed % 2 == 0)
    recorded = eval(recorded_kernel(layer, kernel), file)
    ours = recorded._replace(layer=layer_in(file, layer), wide_index=kernel.wide_index)
    assert unwrapped(file["_configuration"](ours, "some_name")) == configuration(kernel, "some_name")
    for ending in PARAMETERS:
        assert file["_function"](ours, "some_name", ending) == function(kernel, "some_name", ending)


def test_float32_follows_what_was_recorded_then_the_kind_of_the_layer(file: Namespace) -> None:
    file["_FLOAT32"] = "match"
    file["_plan"].cache_clear()
    kinds = set()
    for problem in map(random_problem, range(3000, 3300)):
        if problem.layer.dtype == "float32":
            got = plan_in(file, problem).kernel.layer.precision  # type: ignore[attr-defined]
            assert got == of_kind(problem)
            kinds.add(got)
    assert kinds == {"fp32", *TF32}
    recorded = Problem(Layer(2, 8, 8, (1, 3, 3)), 1, (1, 9, 9))
    assert plan_in(file, recorded).kernel.layer.precision == "tf32"  # type: ignore[attr-defined]
    file["_plan"].cache_clear()
    kernel = Kernel("direct", recorded.layer, direct_tile(recorded.layer, 8, 1, 4, rows=2))
    file["_RECORDED"][layer_in(file, recorded.layer)] = [eval(recorded_kernel(recorded.layer, kernel), file)]
    assert plan_in(file, recorded).kernel.layer.precision == "fp32"  # type: ignore[attr-defined]


def test_too_large_a_problem_is_refused(file: Namespace) -> None:
    file["_plan"].cache_clear()
    long_axis = Problem(Layer(1, 1, 1, (1, 1, 1), (1, 1, 2**20)), 1, (1, 1, 2**12))
    with pytest.raises(ValueError, match=r"an axis of the output .* is too long"):
        plan_in(file, long_axis)
    file["_FLOAT32"] = "fp32"
    layer = Layer(2, 1024, 1024, (1, 3, 3), precision="fp32")
    many_blocks = Problem(layer, 2**20, (1, 999, 999))
    for kernel in (Kernel("direct", layer, default_tile(layer)), Kernel("plain", layer, None)):
        text = inlined([(kernel, "k")]) + launching(kernel.family, "k")
        with pytest.raises(ValueError, match="2-D 1024→1024 k3 s1 fp32 would need more blocks than a grid has"):
            told(Cut(text, text, "k"), many_blocks, GPU.multiprocessors, ask)


def test_shapes_that_are_no_transposed_convolution_have_no_plan(file: Namespace) -> None:
    plan = file["_plan"]
    good = dict(stride=(2, 2), padding=(0, 0), output_padding=(1, 1), groups=1, dilation=(1, 1))
    shapes = ((2, 3, 5, 5), (3, 4, 2, 2), (4,))

    def planned(x=shapes[0], weight=shapes[1], bias=shapes[2], dims=2, **changes):  # type: ignore[no-untyped-def]
        return plan(dims, torch.float64, x, weight, bias, **{**good, **changes})

    assert planned() is not None
    assert planned(dims=1) is None
    assert planned(x=(2, 4, 5, 5)) is None
    assert planned(x=(2, 3, 0, 5)) is None
    assert planned(weight=(3, 4, 2)) is None
    assert planned(bias=(3,)) is None
    assert planned(groups=2) is None
    assert planned(groups=0) is None
    assert planned(stride=(2,)) is None
    assert planned(stride=(0, 1)) is None
    assert planned(padding=(-1, 0)) is None
    assert planned(padding=(9, 9)) is None
    assert planned(output_padding=(2, 0)) is None
    assert planned(output_padding=(2, 2), dilation=(3, 3)) is not None
