"""Every instance compiles for every arch that needs its own machine code, without spilling and soon."""

from __future__ import annotations

import time

import pytest
from kernel_runs import INSTANCES
from other_nvrtc import compile_with

from tconv.jit.compile import compile_source
from tconv.jit.loader import compile_kernel
from tconv.kernels import source

ARCHS = ("sm_75", "sm_80", "sm_90a")
#: Processor time: three times that of the slowest instance on a machine at rest. Loops unrolled by mistake take more.
MOST_SECONDS = 2.0
COMPAT_ARCHS = ("sm_86", "sm_89", "sm_100a", "sm_120a")


def check(name: str, arch: str) -> None:
    if INSTANCES[name].kernel.family == "mma" and arch == "sm_75":
        return  # its instructions are from sm_80 on
    kernel, compiled = compile_kernel(INSTANCES[name].kernel, arch, name)
    assert compiled.spill_bytes == 0, compiled.log
    start = time.process_time()
    compile_source(source.unit(kernel), arch, name=name, headers=source.header_directory())
    seconds = time.process_time() - start
    assert seconds < MOST_SECONDS, f"{seconds:.2f} s of processor time"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", INSTANCES)
def test_instance_compiles(name, arch):
    check(name, arch)


@pytest.mark.compat
@pytest.mark.parametrize("arch", COMPAT_ARCHS)
@pytest.mark.parametrize("name", INSTANCES)
def test_instance_compiles_for_other_archs(name, arch):
    check(name, arch)


@pytest.mark.compat
def test_instances_compile_with_nvrtc_12_4(tmp_path):
    texts = {name: source.inlined([(instance.kernel, "tconv_kernel")]) for name, instance in INSTANCES.items()}
    compile_with("nvidia-cuda-nvrtc-cu12==12.4.127", texts, ARCHS, tmp_path)
