"""Every instance compiles for every arch that needs its own machine code, without spilling, to little code."""

from __future__ import annotations

import pytest
from kernel_runs import INSTANCES
from other_nvrtc import compile_with

from tconv.jit.compile import compile_source
from tconv.jit.loader import compile_kernel
from tconv.kernels import source
from tconv.kernels.instances import AXES

ARCHS = ("sm_75", "sm_80", "sm_90a")
COMPAT_ARCHS = ("sm_86", "sm_89", "sm_100a", "sm_120a")
#: Archs that lack a family's instructions.
_BUT_HOPPER = {*ARCHS, *COMPAT_ARCHS} - {"sm_90a"}
WITHOUT = {"mma": {"sm_75"}, "col2im": {"sm_75"}} | dict.fromkeys(("wgmma", "col2im_wgmma", "col2im_rows"), _BUT_HOPPER)
#: A known miss: bytes that are stored and loaded again for want of registers, on a GPU that nothing was measured on.
SPILLS = {("2d-k3-s5-d2-fp64-tiled", "sm_100a"): 24}
#: A third more than the largest cubin of an instance, float64 on sm_120; loops unrolled by mistake make more.
MOST_BYTES = 350 * 1024
#: What ptxas says where it makes products of warpgroups wait for each other, or leaves registers where they are: the
#: results stay right, so nothing else would show it.
GIVEN_UP = ("Potential Performance Loss", "serialized")


def of_archs(*archs: str) -> pytest.MarkDecorator:
    """Each instance with those archs that run it."""
    pairs = [
        (name, arch)
        for name, instance in INSTANCES.items()
        for arch in archs
        if arch not in WITHOUT.get(instance.kernel.family, ())
    ]
    return pytest.mark.parametrize(("name", "arch"), pairs)


def check(name: str, arch: str) -> None:
    kernel, compiled = compile_kernel(INSTANCES[name].kernel, arch, name)
    assert compiled.spill_bytes <= SPILLS.get((name, arch), 0)
    assert len(compiled.cubin) < MOST_BYTES
    if WITHOUT.get(kernel.family) == _BUT_HOPPER:
        # What is kept has no log.
        log = compile_source(source.unit(kernel), arch, name=name, headers=source.header_directory()).log
        assert "ptxas info" in log, "without ptxas' messages nothing is shown here"
        assert not [line for line in log.splitlines() if any(word in line for word in GIVEN_UP)]


@pytest.mark.rotates(180)
@of_archs(*ARCHS)
def test_instance_compiles(name, arch):
    check(name, arch)


@pytest.mark.compat
@of_archs(*COMPAT_ARCHS)
def test_instance_compiles_for_other_archs(name, arch):
    check(name, arch)


@pytest.mark.compat
@pytest.mark.parametrize("family", AXES)
def test_instances_compile_with_nvrtc_12_4(family, tmp_path):
    kernels = {name: instance.kernel for name, instance in INSTANCES.items() if instance.kernel.family == family}
    texts = {name: source.inlined([(kernel, "tconv_kernel")]) for name, kernel in kernels.items()}
    archs = tuple(arch for arch in ARCHS if arch not in WITHOUT.get(family, ()))
    compile_with("nvidia-cuda-nvrtc-cu12==12.4.127", texts, archs, tmp_path)
