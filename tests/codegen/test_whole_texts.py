"""The whole CUDA text of every instance: it computes the same as the library's, tells its launch, takes as much."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_runs import INSTANCES, PROGRAMMED, emulate, random_tensors
from test_headers import EVALUATED, FOLDED, beside

from tconv.codegen.cuda import Written, cuda_texts
from tconv.codegen.headers.whole import _whole, whole
from tconv.jit.compile import compile_source
from tconv.kernels import source
from tconv.planner import FAMILIES, Gpu, Kernel
from tconv.sandbox.cut import cut_of, launch_of
from tconv.sandbox.emulated import ask

GPU = Gpu.h200()


def by_threes() -> dict[str, tuple[str, ...]]:
    """All evaluated instances: two of a family, most often of one type, behind one of any; by the name of that one."""
    found = {}
    for family in FAMILIES:
        names = [name for name in EVALUATED if INSTANCES[name].kernel.family == family]
        Random(family).shuffle(names)
        ones = names[: -(-len(names) // 3)]
        pairs = sorted(names[len(ones) :], key=lambda name: INSTANCES[name].kernel.layer.precision)
        found |= {one: (one, *pairs[2 * n : 2 * n + 2]) for n, one in enumerate(ones)}
    return found


THREES = by_threes()


def of_three(test: Any) -> Any:
    """By their scope, tests of the same instances run one after the other: their texts are made once, in seconds."""
    return pytest.mark.rotates(768, by="first")(pytest.mark.parametrize("first", THREES, scope="module")(test))


def named(kernels: Sequence[Kernel[Any]]) -> list[Written]:
    return [Written(kernel, f"tconv_kernel{number}") for number, kernel in enumerate(kernels)]


def kernels_of(first: str) -> list[Kernel[Any]]:
    return [INSTANCES[name].kernel for name in THREES[first]]


def whole_text(kernels: Sequence[Kernel[Any]]) -> str:
    return whole(named(kernels))


def test_every_instance_is_in_one_text_of_several() -> None:
    assert sorted(name for names in THREES.values() for name in names) == sorted(EVALUATED)


@of_three
def test_a_whole_text_computes_the_same(first: str) -> None:
    """Bit by bit, alone and beside others: what they have in common must not be what the first one has."""
    kernels = kernels_of(first)
    for number, (name, kernel) in enumerate(zip(THREES[first], kernels, strict=True)):
        tensors = random_tensors(INSTANCES[name].problem)
        expected = emulate(INSTANCES[name], tensors)
        for text, place in ((whole_text([kernel]), 0), (whole_text(kernels), number)):
            assert emulate(INSTANCES[name], tensors, text=text, name=f"tconv_kernel{place}").equal(expected), name


@of_three
def test_the_text_tells_the_launches(first: str) -> None:
    for number, name in enumerate(THREES[first]):
        tells_the_launch(name, kernels_of(first), number)


@pytest.mark.rotates(288)
@pytest.mark.parametrize("name", FOLDED)
def test_a_folded_text_tells_the_launch(name: str) -> None:
    tells_the_launch(name, [beside(name), INSTANCES[name].kernel], 1)


def tells_the_launch(name: str, kernels: Sequence[Kernel[Any]], number: int) -> None:
    """As the planner does, of one of the kernels."""
    problem, kernel = INSTANCES[name].problem, kernels[number]
    weight_bytes, prepares_inputs = int(kernel.prepares_weights), kernel.prepares_inputs
    of_file = SimpleNamespace(
        family=kernel.family,
        name=f"tconv_kernel{number}",
        weight_bytes=weight_bytes,
        prepares_inputs=prepares_inputs,
    )
    cut = cut_of(of_file, cuda_texts(named(kernels)))
    expected = FAMILIES[kernel.family].plan_with(problem, kernel, GPU)
    how = launch_of(cut, problem, GPU.multiprocessors, ask)
    assert (how.grid, how.threads, how.shared_bytes) == (expected.grid, kernel.threads, expected.shared_bytes)
    assert (how.preparation, how.inputs, how.too_far) == (expected.preparation, expected.inputs, False)


@pytest.mark.rotates(1728)
@pytest.mark.parametrize("name", PROGRAMMED)
def test_a_whole_text_with_a_program_computes_the_same(name: str) -> None:
    instance = PROGRAMMED[name]
    tensors = random_tensors(instance.problem)
    plain = replace(instance.kernel, layer=replace(instance.kernel.layer, epilogue=""))
    expected = emulate(instance, tensors)
    for kernels in ([instance.kernel], [plain, instance.kernel]):
        name = f"tconv_kernel{len(kernels) - 1}"
        assert emulate(instance, tensors, text=whole_text(kernels), name=name).equal(expected)


#: Known misses beside the library's kernel: bytes that are stored and loaded again for want of registers, where that
#: has none; and further registers of a thread.
SPILLS = {
    "2d-k3-s5-d2-tf32-stacked": 76,
    "2d-k3-s5-d2-fp32-stacked": 72,
    "2d-k3x2-s2x2-aligned-fp16-stacked": 68,
    "2d-k3x2-s2x2-aligned-fp16-stacked-weights_last": 68,
}
REGISTERS = {
    "mma-2d-one-pixel-fp16-flat": 18,
    "mma-1d-k1-s3-fp32-resident": 10,
    # Of one block a multiprocessor, which may take 255.
    "col2im_rows-2d-k5-s2-wide-tf32-whole_last": 13,
    "col2im_rows-2d-k4-s2-multiplier-fp16-whole_last": 12,
}


@of_three
def test_a_whole_text_takes_as_many_registers(first: str) -> None:
    for name in THREES[first]:
        takes_as_many_registers(name)


def takes_as_many_registers(name: str) -> None:
    """As they are given out, by eights, but for eight; and hardly any memory."""
    kernel = INSTANCES[name].kernel
    arch = "sm_90a" if kernel.family in ("wgmma", "col2im_wgmma", "col2im_rows") else "sm_90"
    library = compile_source(source.unit(kernel), arch, headers=source.header_directory()).log
    text = whole_text([kernel])
    assert source.launch_name("tconv_kernel0") in text
    log = compile_source(text, arch).log

    def taken(log: str) -> list[int]:
        return sorted((int(number) + 7) // 8 for number in re.findall(r"Used (\d+) registers", log))

    def spilled(log: str) -> int:
        return sum(map(int, re.findall(r"(\d+) bytes spill", log)))

    further = (REGISTERS.get(name, 8) + 7) // 8
    assert all(own <= most + further for own, most in zip(taken(log), taken(library), strict=True))
    # Another order of instructions: where registers are all in use, some of a tile's may not fit.
    assert spilled(log) <= spilled(library) + SPILLS.get(name, 64)


def test_two_things_that_differ_have_a_name_each() -> None:
    """Two structs may have a constant of one name: the taps along the height, and those along the width."""
    kernel = INSTANCES["wgmma-2d-k3x2-s2x2-aligned-one-prepared"].kernel
    other = next(i.kernel for i in INSTANCES.values() if i.kernel.family == "wgmma")
    own = whole_text([other, kernel]).partition("struct tconv_kernel1_layer {")[2].partition("};")[0]
    for name, value in (("height_kernel", 3), ("kernel", 2)):
        assert re.search(rf"\b{name}\s=\s+{value}\b", own)


def test_a_constant_stands_behind_those_that_it_is_computed_by() -> None:
    """Also behind one of another header: an axis' padding, of which a block tile's origin follows."""
    text = whole_text([INSTANCES["col2im-2d-many-row-phases-bf16-resident-last"].kernel])
    named = re.findall(r"^constexpr int (k\w+) = ([^;]+);", text, re.MULTILINE)
    seen: set[str] = set(re.findall(r"\b(k\w+) = -?\d", text))
    for name, value in named:
        assert set(re.findall(r"\bk[A-Z]\w*", value)) <= seen, name
        seen.add(name)
    assert text.index("kHeightPadding = ") < text.index("= kHeightPadding")


@pytest.mark.rotates(6)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_whole_text_is_the_same_each_time_and_names_no_header(family: str) -> None:
    kernels = [INSTANCES[name].kernel for name in EVALUATED if INSTANCES[name].kernel.family == family][::40]
    text = whole_text(kernels)
    _whole.cache_clear()
    assert text == whole_text(kernels)
    assert not [line for line in text.splitlines() if ".cuh" in line or len(line) > 120]
