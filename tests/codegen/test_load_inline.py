"""What load_inline is given: its arguments under every PyTorch, and its two objects, compiled as far as no GPU goes."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, fused_text, generated_text
from test_generated_tails import BLOCK
from torch.utils import cpp_extension


@pytest.fixture(scope="module")
def file() -> Namespace:
    return executed(generated_text(EXAMPLES / "unet.py", families=("direct",)))


def kernels_of(file: Namespace) -> list[object]:
    return list(file["_module_kernels"](file["ModelNew"](*file["get_init_inputs"]())))


def test_a_kernel_is_an_extension_named_by_its_text(file: Namespace) -> None:
    first, *others = kernels_of(file)
    options = file["_load_options"](first, (9, 0))
    assert options["cuda_sources"][0].count('extern "C" __global__ void') == 1
    # Some releases look for "arch" among all flags, the extension's name included, and then add none of their own.
    assert options["name"].startswith("tconv_") and "arch" not in options["name"]
    assert file["_load_options"](first, (9, 0))["name"] == options["name"]
    assert file["_load_options"](first, (8, 0))["name"] != options["name"]
    assert len({file["_load_options"](each, (9, 0))["name"] for each in (first, *others)}) == 4
    assert "-gencode=arch=compute_90,code=sm_90" in options["extra_cuda_cflags"]
    assert not any("std=" in flag for flag in options["extra_cuda_cflags"]) and "extra_cflags" not in options
    for name, argument in inspect.signature(cpp_extension.load_inline).parameters.items():
        assert argument.default is not inspect.Parameter.empty or name in options


def test_headers_are_left_out_where_that_can_be_asked_for(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels_of(file)[0]
    monkeypatch.setattr(cpp_extension, "load_inline", lambda name, cpp_sources, no_implicit_headers=False: None)
    assert file["_load_options"](kernel, (9, 0))["no_implicit_headers"] is True
    monkeypatch.setattr(cpp_extension, "load_inline", lambda name, cpp_sources: None)
    assert "no_implicit_headers" not in file["_load_options"](kernel, (9, 0))


def test_the_binding_is_a_module_that_hands_over_numbers(file: Namespace, tmp_path: Path) -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        pytest.skip(f"needs {header}: install Python's development headers")
    main, extension = tmp_path / "main.cpp", tmp_path / "some_name.so"
    last = "int64_t launch(const std::vector<int64_t>& numbers) { return numbers.back() - numbers.size(); }\n"
    main.write_text(file["_BINDING"] + last, encoding="utf-8")
    flags = ["-std=c++14", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-fPIC"]
    command = ["g++", *flags, f"-I{header.parent}", "-DTORCH_EXTENSION_NAME=some_name", "-shared", str(main)]
    built = subprocess.run([*command, "-o", str(extension)], capture_output=True, text=True, timeout=300)
    assert built.returncode == 0 and not built.stderr, built.stderr
    spec = importlib.util.spec_from_file_location("some_name", extension)
    assert spec is not None and spec.loader is not None
    launch = importlib.util.module_from_spec(spec).launch
    assert launch(7) == 6
    assert launch(0, 0, 2**62 + 1) == 2**62 - 2 and launch(-(2**62)) == -(2**62) - 1
    for wrong, error in ((1.0, TypeError), (None, TypeError), (2**64, OverflowError)):
        with pytest.raises(error):
            launch(1, wrong, 3)


def test_each_kernel_is_built_once_and_launched(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[str] = []
    calls: list[tuple[object, ...]] = []
    answers = [0, 0, 700, -1, 0]

    class Extension:
        def launch(self, *arguments: object) -> int:
            if arguments[5] == 0:  # without outputs it says how many bytes the weights take: as they are, none
                return 0
            calls.append(arguments)
            return answers.pop(0)

    def load_inline(**options: object) -> Extension:
        builds.append(str(options["name"]))
        return Extension()

    current = [1]

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=78))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 99, raising=False)
    kernels = kernels_of(file)
    device = torch.device("cuda", 0)
    file["_build"](kernels, device)
    file["_build"](kernels[1:3], device)
    assert len(builds) == 4

    class OnGpu:
        """A tensor as far as a launch looks at it."""

        def __init__(self, *shape: int, address: int) -> None:
            self.shape, self.device, self._address = shape, device, address

        def data_ptr(self) -> int:
            return self._address

    plan = file["_Plan"](kernels[2].layer, 8, (1, 64, 64), (1, 128, 128), kernels[2])
    tensors = [OnGpu(8, 128, 64, 64, address=1), OnGpu(128, 64, 2, 2, address=2), OnGpu(64, address=3)]
    y = OnGpu(8, 64, 128, 128, address=4)
    file["_launch"](plan, *tensors, y)
    file["_launch"](plan, *tensors[:2], None, y)
    assert current == [1], "the caller's device is current again"
    assert calls[0] == (99, 78, 1, 2, 3, 4, 0, 8, 1, 64, 64, 1, 128, 128)
    assert calls[1][4] == 0
    with pytest.raises(RuntimeError, match=r"CUDA error 700 at the launch of 2-D 128→64 k2 s2 bias \w+ on \(8, 128, "):
        file["_launch"](plan, *tensors, y)
    other = kernels[0]._replace(layer=kernels[0].layer._replace(precision="fp16"))
    file["_build"]([other, *kernels], device)
    assert len(builds) == 5
    # Offsets of 32 bits do not reach: the same kernel is built with 64.
    file["_launch"](plan, *tensors, y)
    assert len(builds) == 6
    assert calls[4] == calls[3]
    assert (device, plan.kernel._replace(wide_index=True)) in file["_LAUNCHERS"]


def test_a_layer_that_no_kernel_was_made_for_is_named_once(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "load_inline", lambda **options: SimpleNamespace(launch=lambda *numbers: 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    device, layer = torch.device("cuda", 1), kernels_of(file)[0].layer  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file["_build"](kernels_of(file), device)
    other = next(file["_kernels"](layer._replace(kernel=(1, 3, 3), out_channels=6), file["_PLANNED"]))
    with pytest.warns(UserWarning, match=r"made for 2-D 512→6 k3 s2 bias \w+ on cuda:1: the plain .* tconv optimize"):
        file["_build"]([other], device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file["_build"]([other], device)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["direct", "mma", "wgmma"])
def test_both_objects_compile(family: str, cuda_home: Path, tmp_path: Path) -> None:
    """Everything but the link, which takes torch's CUDA libraries: main.cpp and cuda.cu, by ninja, as for a GPU."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        pytest.skip(f"needs {header}: install Python's development headers")
    source = tmp_path / "model_new.py"
    source.write_text(generated_text(EXAMPLES / "unet.py", families=[family]), encoding="utf-8")
    script = """
        import sys
        from pathlib import Path
        import torch
        from torch.utils import cpp_extension

        family, source, home, folder = sys.argv[1:]
        cpp_extension.CUDA_HOME, torch.version.cuda = home, torch.version.cuda or "13.0"
        file = {}
        exec(Path(source).read_text(encoding="utf-8"), file)
        kernels = list(file["_module_kernels"](file["ModelNew"](*file["get_init_inputs"]())))
        assert {kernel.family for kernel in kernels} == {family}
        kernels += [
            next(file["_kernels"](kernels[0].layer._replace(precision=p), file["_PLANNED"]))
            for p in ("fp16", "bf16", "fp64")
        ]
        for number, kernel in enumerate(kernels):
            try:
                where = f"{folder}/{number}"
                Path(where).mkdir()
                cpp_extension.load_inline(build_directory=where, **file["_load_options"](kernel, (9, 0)))
            except (RuntimeError, OSError, ImportError) as error:
                print(error)
    """
    folder = tmp_path / "build"
    folder.mkdir()
    arguments = [family, str(source), str(cuda_home), str(folder)]
    run = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments]
    shown = subprocess.run(run, capture_output=True, text=True, timeout=300)
    for built in folder.iterdir():
        assert {"main.o", "cuda.cuda.o"} <= {path.name for path in built.iterdir()}, shown.stdout + shown.stderr
    assert len(list(folder.iterdir())) == 7
    assert "warning" not in shown.stdout, shown.stdout


@pytest.mark.slow
def test_the_host_hands_over_what_a_program_reads(cuda_home: Path, tmp_path: Path) -> None:
    """The file's own host code, linked to a runtime that prints what it would launch."""
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(BLOCK), encoding="utf-8")
    file = executed(fused_text(path, ("direct",)))
    ((program, (operands, _)),) = file["_PROGRAMS"].items()
    kernel = next(iter(file["_module_kernels"](file["ModelNew"]())))
    kernel = kernel._replace(layer=kernel.layer._replace(tail=program))
    source, built, stub = tmp_path / "cuda.cu", tmp_path / "cuda.o", Path(__file__).with_name("runtime_stub.cpp")
    source.write_text(file["_cuda_source"](kernel), encoding="utf-8")
    nvcc = [str(cuda_home / "bin" / "nvcc"), "-std=c++17", "-arch=sm_80", "-c", str(source), "-o", str(built)]
    include, binary = f"-I{cuda_home / 'include'}", tmp_path / "launched"
    link = ["g++", f"-DOPERANDS={len(operands)}", include, str(stub), str(built), "-o", str(binary)]
    for command in (nvcc, link):
        made = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr
    shown = subprocess.run([str(binary)], capture_output=True, text=True, timeout=60).stdout
    read = " ".join(f"{0x900 + number:x}" for number in range(7))
    assert re.fullmatch(rf"tconv_kernel \d+ x \d+: 100 200 300 400 2 1 4 5 1 8 10 {read}\n", shown), shown
