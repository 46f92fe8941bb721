"""The list of instances is complete: every parameter that a template reads is an axis, and the cases vary it."""

from __future__ import annotations

import re

import pytest

from tconv.errors import CompileError
from tconv.jit.compile import compile_source
from tconv.kernels import source
from tconv.kernels.instances import AXES, instances
from tconv.planner import FAMILIES, Gpu
from tconv.planner.direct.shape import DirectShape
from tconv.planner.plan import tile_fields
from tconv.problem import PRECISIONS

EVERY = [instance for family in AXES for instance in instances(family)]


def parameters(family: str) -> set[str]:
    headers = source.header_texts([source.family_header(family)])
    text = "".join(text for name, text in headers.items() if not name.startswith("primitives/"))
    # A part of a tile, as a type, stands for its own parameters.
    return set(re.findall(r"\b(?:Layer|Tile::[A-Z][A-Za-z]+|Tile)::\w+", text)) - {"Tile::BlockTile"}


@pytest.mark.parametrize("family", AXES)
def test_every_template_parameter_is_an_axis(family):
    assert parameters(family) == set(AXES[family])


def test_every_family_has_axes():
    assert {name.partition("/")[0] for name in source.header_files()} - {"primitives"} == set(AXES)
    assert all(source.family_header(family) in source.header_files() for family in AXES)


@pytest.mark.parametrize(
    ("family", "field"),
    [(family, field) for family in AXES for field, _ in tile_fields(next(instances(family)).kernel.tile)],
)
def test_instances_vary_the_tile(family, field):
    tiles = [instance.kernel.tile for instance in EVERY if instance.kernel.family == family]
    assert len({dict(tile_fields(tile))[field] for tile in tiles}) > 1


def test_every_instance_fits_into_shared_memory():
    """All of them in every run: one that does not must not wait for the run that takes it."""
    taken = {
        each.name: FAMILIES[each.kernel.family].launch_traits(each.kernel.layer, each.kernel.tile, 1).shared_bytes
        for each in EVERY
    }
    limit = Gpu.h200().shared_bytes_per_block
    assert {name: shared for name, shared in taken.items() if shared > limit} == {}


def test_instances_have_both_kinds_of_staging_on_both_sides():
    seen = {
        (DirectShape(i.problem.layer, i.kernel.tile).resident, i.kernel.tile.phase_lanes, i.problem.layer.stride[2] > 1)
        for i in instances()
    }
    # Column phases across lanes need a stride.
    assert seen == {(r, lanes, s) for r in (True, False) for lanes in (1, 32) for s in (True, False) if s or lanes == 1}


@pytest.mark.parametrize("family", AXES)
def test_instances_vary_the_layer(family):
    layers = [instance.problem.layer for instance in instances(family)]
    lacks = {"wgmma": {"fp64"}} | {name: {"fp32", "fp64"} for name in ("col2im", "col2im_wgmma", "col2im_rows")}
    assert {layer.precision for layer in layers} == set(PRECISIONS) - lacks.get(family, set())
    assert {layer.spatial_dims for layer in layers} == {1, 2, 3}
    assert {layer.bias for layer in layers} == {True, False}
    wide = {True, False} if "Layer::Index" in AXES[family] else {False}
    assert {instance.kernel.wide_index for instance in instances(family)} == wide


def test_units_are_small_and_name_what_they_are_for():
    for instance in EVERY:
        text = source.unit(instance.kernel)
        assert instance.kernel.layer.describe() in text
        assert len(text.splitlines()) - len(FAMILIES[instance.kernel.family].constants(instance.kernel)) < 40


@pytest.mark.parametrize("family", AXES)
def test_units_assert_the_numbers_of_the_planner(family):
    """A unit of a planner that thinks otherwise does not compile, and the compiler says what differs."""
    kernel = next(instances(family)).kernel
    text = source.unit(kernel)
    for constant, number in FAMILIES[family].constants(kernel).items():
        assertion = f'::{constant} == {int(number)}, "{constant} is {int(number)} to the planner"'
        assert text.count(assertion) == 1
        text = text.replace(assertion, assertion.replace(str(int(number)), str(number + 1)))
    with pytest.raises(CompileError) as error:
        compile_source(text, "sm_80", headers=source.header_directory())
    for constant, number in FAMILIES[family].constants(kernel).items():
        assert f"{constant} is {number + 1} to the planner" in error.value.log


def test_written_files_have_no_numbers_of_a_planner_to_assert():
    kernel = EVERY[0].kernel
    assert "_assert(" not in source.functions(kernel, "kernel")


def test_inlined_text_includes_nothing():
    kernels = [(instance.kernel, f"kernel_{n}") for n, instance in enumerate(EVERY) if n % 20 == 0]
    text = source.inlined(kernels)
    assert "#include" not in text
    assert all(f"\n{name}(" in text for _, name in kernels)


def test_weights_are_used_and_outputs_written_behind_the_wait_for_their_preparation():
    """On a GPU the two kernels overlap. The emulator runs one after the other, so the text has to say it."""
    text = source.headers_text(["mma/mma.cuh"])
    body = text[text.index("TCONV_DEVICE void mma(") :]
    waits = body.index("wait_for_kernel_before();")
    assert all(waits < body.index(use) for use in ("weights.ask()", "mma_join<", "mma_store<"))
    preparing = text[text.index("TCONV_DEVICE void mma_weights(") :]
    begins = preparing.index("let_next_kernel_begin();")
    assert all(begins < preparing.index(use) for use in ("mma_weights_of_phases<", "filters.reorder("))
