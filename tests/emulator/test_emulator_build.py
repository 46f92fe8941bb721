"""Building and calling: the compiler's absence and errors, arguments that do not fit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tconv.emulator import EmulatorError, Launch, build, errors, execution, program, run

SOURCE = """
extern "C" __global__ void add(float* y, int count, float* unused) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += 1;
}
"""


def test_missing_compiler_says_what_to_install(own_cache: Path, fake_compiler: Callable[[str], None]) -> None:
    with pytest.raises(EmulatorError, match=r"g\+\+ not found: install g\+\+") as error:
        build(SOURCE, "plain")
    assert error.value.kind == "build"


@pytest.mark.parametrize("message", ["cannot find libtsan_preinit.o: No such file", "cannot find -ltsan"])
def test_missing_sanitizer_runtime_says_what_to_install(
    own_cache: Path, fake_compiler: Callable[[str], None], message: str
) -> None:
    fake_compiler(f'[ "$1" = --version ] && exit 0\necho "/usr/bin/ld: {message}" >&2\nexit 1\n')
    with pytest.raises(EmulatorError, match=r"libtsan not found, which this mode needs: install it") as error:
        build(SOURCE, "thread")
    assert error.value.kind == "build"


def test_compile_errors_name_the_line(own_cache: Path) -> None:
    with pytest.raises(EmulatorError) as error:
        build(SOURCE.replace("y[i] += 1", "y[i] += undefined_name"), "plain")
    assert error.value.kind == "build"
    assert "kernel.cu:4:" in error.value.report and "undefined_name" in error.value.report


def test_what_the_emulator_lacks_does_not_compile(own_cache: Path) -> None:
    with pytest.raises(EmulatorError, match="__shared__"):
        build(SOURCE.replace("const int i", "__shared__ float tile[4];\n  const int i"), "plain")


def test_kernel_names_come_from_definitions_only() -> None:
    source = """
    // extern "C" __global__ void commented(int) {}
    extern "C" __global__ void declared(int);
    template <int N> __global__ void templated() {}
    extern "C" __global__ void __launch_bounds__(Shape<2>::threads * (1 + 1), 4)
    first(int a) {}
    extern "C" __global__ __launch_bounds__(32) void second() {}
    """
    assert program.kernel_names(source) == ["first", "second"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4), 4), "kernel add takes 3 arguments, got 2"),
        ((4, 4, None), "argument 0 of kernel add is an integer where the kernel takes a pointer"),
        ((torch.zeros(4), None, None), "argument 1 of kernel add is a pointer where the kernel takes an integer"),
        ((torch.zeros(4), 2**31, None), "argument 1 of kernel add, 2147483648, does not fit its 4 bytes"),
        ((torch.zeros(4, 2).T, 4, None), "argument 0 of add must be a contiguous CPU tensor"),
        ((torch.zeros(4), 4.0, None), "argument 1 of add is a float; allowed are tensors, integers and None"),
    ],
)
def test_arguments_that_do_not_fit(arguments: tuple[torch.Tensor | int | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(SOURCE, [Launch("add", 1, 32, 0, arguments)])


def test_launches_that_do_not_fit() -> None:
    y = torch.zeros(8)
    with pytest.raises(ValueError, match="got kernel 'other'; the source has add"):
        run(SOURCE, [Launch("other", 1, 32, 0, ())])
    with pytest.raises(ValueError, match="got block=2048; allowed are 1 to 1024"):
        Launch("add", 1, 2048, 0, ())
    with pytest.raises(ValueError, match=r"got blocks=range\(0, 3\); allowed are .* within the grid of 2"):
        Launch("add", 2, 32, 0, (), blocks=range(3))
    with pytest.raises(ValueError, match="two arguments overlap"):
        run(SOURCE, [Launch("add", 1, 32, 0, (y[:6], 6, y[2:]))])
    with pytest.raises(ValueError, match="the source has no kernel"):
        build("int x;", "plain")
    assert torch.equal(y, torch.zeros(8))


@pytest.mark.skipif(not Path("/proc/self/personality").exists(), reason="needs Linux's /proc")
def test_programs_start_without_address_randomisation() -> None:
    def personality() -> int:
        return int(subprocess.check_output(["cat", "/proc/self/personality"]), 16)

    before = personality()
    with execution._fixed_address_layout():
        assert personality() & 0x0040000 or personality() == before  # containers may forbid the change
    assert personality() == before


def test_a_thread_sanitizer_that_cannot_start_says_what_to_do() -> None:
    output = "FATAL: ThreadSanitizer: unexpected memory mapping 0x5a0000000000-0x5a0000001000"
    error = errors.failure(66, output, {})
    assert isinstance(error, EmulatorError) and error.kind == "build"
    assert "sysctl vm.mmap_rnd_bits=28" in error.report
