"""The algebra of phases and taps, and validity, against PyTorch's own operator in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tconv.evaluation.reference import conv_transpose
from tconv.problem import Axis, InvalidProblem, Layer, Problem

CONVOLUTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@st.composite
def layers(draw):
    dims = draw(st.integers(1, 3))
    largest = {1: 9, 2: 4, 3: 3}[dims]

    def values(low, high, unused):
        return (unused,) * (3 - dims) + tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.integers(1, 3))
    return Layer(
        dims,
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 3)),
        values(1, largest, 1),
        values(1, largest + 1, 1),
        values(0, largest + 1, 0),
        values(1, largest + 1, 1),
        groups,
        draw(st.booleans()),
        "fp64",
    )


@st.composite
def problems(draw):
    layer = draw(layers())
    unused = 3 - layer.spatial_dims
    size = (1,) * unused + tuple(draw(st.integers(1, 5)) for _ in range(layer.spatial_dims))
    extra = (0,) * unused + tuple(draw(st.integers(0, max(a.stride, a.dilation) - 1)) for a in layer.axes[unused:])
    try:
        return Problem(layer, draw(st.integers(0, 2)), size, extra)
    except InvalidProblem:
        assume(False)


def tensors(problem):
    generator = torch.Generator().manual_seed(0)
    shapes = (problem.input_shape, problem.layer.weight_shape, (problem.layer.out_channels,))
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return x, weight, bias if problem.layer.bias else None


def by_phases(problem, x, weight, bias):
    """The definition that the kernels follow, one output index at a time on every axis."""
    layer = problem.layer
    x = x.reshape(problem.batch, layer.groups, layer.in_channels_per_group, *problem.input_size)
    weight = weight.reshape(layer.groups, layer.in_channels_per_group, layer.out_channels_per_group, *layer.kernel)
    y = torch.zeros(problem.batch, layer.groups, layer.out_channels_per_group, *problem.output_size, dtype=x.dtype)
    for o in itertools.product(*map(range, problem.output_size)):
        reads = []
        for axis, index, size in zip(layer.axes, o, problem.input_size, strict=True):
            position, phase = divmod(index, axis.stride)
            inputs = ((k, position - axis.shift_of(k)) for k in axis.taps(phase))
            reads.append([(k, i) for k, i in inputs if 0 <= i < size])
        for (kd, d), (kh, h), (kw, w) in itertools.product(*reads):
            y[(..., *o)] += torch.einsum("ngi,gio->ngo", x[..., d, h, w], weight[..., kd, kh, kw])
    y = y.reshape(problem.output_shape)
    return y if bias is None else y + bias.reshape(-1, *(1,) * layer.spatial_dims)


@settings(max_examples=150, deadline=None)
@given(problems())
@example(Problem(Layer(1, 2, 1, (1, 1, 3), (1, 1, 2), (0, 0, 4), (1, 1, 5), 1, True, "fp64"), 2, (1, 1, 4), (0, 0, 4)))
@example(Problem(Layer(2, 2, 2, (1, 2, 3), (1, 5, 4), (0, 3, 1), (1, 2, 2), 2, False, "fp64"), 1, (1, 3, 2), (0, 4, 1)))
@example(Problem(Layer(3, 1, 1, (2, 2, 2), (3, 3, 3), (0, 0, 0), (1, 1, 1), 1, False, "fp64"), 0, (1, 2, 1), (2, 0, 1)))
def test_phases_and_taps_are_pytorchs_operator(problem):
    x, weight, bias = tensors(problem)
    expected = conv_transpose(x, weight, bias, problem)
    assert tuple(expected.shape) == problem.output_shape
    torch.testing.assert_close(by_phases(problem, x, weight, bias), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=300, deadline=None)
@given(layers(), st.integers(1, 4), st.integers(0, 6))
def test_what_is_invalid_here_is_invalid_in_pytorch(layer, size, extra):
    unused = 3 - layer.spatial_dims
    input_size, output_padding = (1,) * unused + (size,) * (3 - unused), (0,) * unused + (extra,) * (3 - unused)
    x = torch.zeros(1, layer.in_channels, *input_size[unused:], dtype=torch.float64)
    weight = torch.zeros(layer.weight_shape, dtype=torch.float64)
    arguments = (layer.stride, layer.padding, output_padding)
    try:
        Problem(layer, 1, input_size, output_padding)
    except InvalidProblem:
        with pytest.raises(RuntimeError):
            CONVOLUTIONS[layer.spatial_dims](
                x, weight, None, *(v[unused:] for v in arguments), layer.groups, layer.dilation[unused:]
            )
    else:
        CONVOLUTIONS[layer.spatial_dims](
            x, weight, None, *(v[unused:] for v in arguments), layer.groups, layer.dilation[unused:]
        )


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9), st.integers(1, 40))
def test_phases_cover_every_tap_once(kernel, stride, padding, dilation):
    axis = Axis(kernel, stride, padding, dilation)
    taps = [list(axis.taps(phase)) for phase in range(stride)]
    assert sorted(k for phase in taps for k in phase) == list(range(kernel))
    assert sum(map(bool, taps)) == axis.phases_with_taps
    assert max(map(len, taps)) == axis.taps_per_phase
    for phase, members in enumerate(taps):
        for k in members:
            assert axis.phase_of(k) == phase
            assert k * dilation - padding == axis.shift_of(k) * stride + phase
        shifts = [axis.shift_of(k) for k in members]
        assert [b - a for a, b in itertools.pairwise(shifts)] == [axis.shift_period] * (len(shifts) - 1)


@given(st.integers(1, 9), st.integers(0, 20), st.integers(1, 60))
def test_positions_cover_the_output(stride, padding, size):
    axis = Axis(1, stride, padding, 1)
    assert {o // stride for o in range(size)} == set(range(axis.positions(size)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"in_channels": 0}, "in_channels=0"),
        ({"groups": 2}, "in_channels=3 with groups=2"),
        ({"stride": (1, 0, 1)}, r"stride=\(1, 0, 1\)"),
        ({"padding": (0, 0, -1)}, "padding="),
        ({"kernel": (2, 1, 1)}, "unused axis"),
        ({"precision": "int8"}, "precision 'int8'"),
        ({"spatial_dims": 4}, "4 spatial dimensions"),
    ],
)
def test_invalid_layers_say_what_was_got(change, named):
    values = {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "kernel": (1, 3, 3), **change}
    with pytest.raises(InvalidProblem, match=named):
        Layer(**values)


def test_counts():
    layer = Layer(2, 32, 64, (1, 3, 3), (1, 5, 5), (0, 1, 1), (1, 2, 2))
    problem = Problem(layer, 16, (1, 64, 128))
    assert problem.output_shape == (16, 64, 318, 638)
    assert problem.multiply_adds == 16 * 32 * 64 * 9 * 64 * 128
    assert problem.bytes_moved == 4 * (16 * 32 * 64 * 128 + 32 * 64 * 9 + 16 * 64 * 318 * 638)
    assert layer.products_per_output == 32
    assert layer.describe() == "2-D 32→64 k3 s5 p1 d2 fp32"
    assert layer.in_channels_last().describe() == "2-D 32→64 k3 s5 p1 d2 fp32 weights channels_last"
