"""The generated file beside old compilers: NVRTC 11.7, and the headers of PyTorch 1.13.0. Fetched by pip."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from codegen_helpers import EXAMPLES, Namespace, executed, generated_text

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def file() -> Namespace:
    return executed(generated_text(EXAMPLES / "vocoder.py"))


@pytest.fixture(scope="module")
def options(file: Namespace) -> dict[str, object]:
    """What load_inline is given for one layer in every dtype."""
    (kernel, *_) = file["_module_kernels"](file["ModelNew"](*file["get_init_inputs"]()))
    layers = [kernel.layer._replace(precision=precision) for precision in ("fp32", "tf32", "fp16", "bf16", "fp64")]
    return file["_load_options"]([file["_kernel"](layer) for layer in layers], (8, 0))


def fetched(requirement: str, folder: Path, *tags: str) -> Path:
    """The wheel of a requirement, or a loud skip where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *tags]
    result = subprocess.run([*command, "-d", str(folder), requirement], capture_output=True, text=True, timeout=900)
    if result.returncode != 0:
        pytest.skip(f"cannot fetch {requirement}: {result.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def extracted(wheel: Path, folder: Path, prefix: str) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(prefix)])
    wheel.unlink()
    return folder / prefix


#: Compiles the source at argv[2] with the NVRTC in the folder argv[1].
_NVRTC_11_7 = """
import ctypes, pathlib, sys
libraries, source = map(pathlib.Path, sys.argv[1:])
for builtins in libraries.glob("libnvrtc-builtins*"):
    ctypes.CDLL(str(builtins))
nvrtc = ctypes.CDLL(str(libraries / "libnvrtc.so.11.2"))
program = ctypes.c_void_p()
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), b"file.cu", 0, None, None) == 0
flags = (ctypes.c_char_p * 2)(b"--gpu-architecture=sm_80", b"-std=c++14")
status = nvrtc.nvrtcCompileProgram(program, 2, flags)
log = ctypes.create_string_buffer(1 << 20)
nvrtc.nvrtcGetProgramLog(program, log)
assert status == 0, log.value
size = ctypes.c_size_t()
assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0 and size.value > 1000
"""


def test_nvrtc_11_7_compiles_it_for_sm_80(
    options: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("nvrtc")
    wheel = fetched("nvidia-cuda-nvrtc-cu11==11.7.99", folder, "--platform", "manylinux1_x86_64")
    libraries = extracted(wheel, folder, "nvidia/cuda_nvrtc/lib")
    source = folder / "file.cu"
    source.write_text(options["cuda_sources"][0], encoding="utf-8")
    # In a process of its own: this release leaves the thread that called it with another locale.
    command = [sys.executable, "-c", _NVRTC_11_7, str(libraries), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_the_binding_compiles_with_pytorch_1_13(
    options: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("the pybind11 of PyTorch 1.13 knows Python up to 3.11")
    folder = tmp_path_factory.mktemp("torch")
    tags = ("--platform", "manylinux1_x86_64", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311")
    include = extracted(fetched("torch==1.13.0", folder, *tags), folder, "torch/include")
    # As its load_inline puts the file together.
    lines = ["#include <torch/extension.h>", *options["cpp_sources"]]
    lines += ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", 'm.def("launch", launch, "launch");', "}"]
    main = folder / "main.cpp"
    main.write_text("\n".join(lines), encoding="utf-8")
    includes = [f"-I{path}" for path in (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))]
    flags = ["-std=c++14", "-fPIC", f"-DTORCH_EXTENSION_NAME={options['name']}", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    command = ["g++", "-w", *flags, *includes, "-c", str(main), "-o", str(folder / "main.o")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


def test_nvcc_compiles_it_as_c_plus_plus_14(options: dict[str, list[str]], cuda_home: Path, tmp_path: Path) -> None:
    """As PyTorch up to 1.13 asks of nvcc; the headers of that release want an nvcc of its time."""
    source = tmp_path / "cuda.cu"
    source.write_text(options["cuda_sources"][0], encoding="utf-8")
    flags = ["-std=c++14", "-D__CUDA_NO_HALF_OPERATORS__", *options["extra_cuda_cflags"]]
    command = [str(cuda_home / "bin" / "nvcc"), *flags, "-c", str(source), "-o", str(tmp_path / "cuda.o")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "warning" not in result.stderr, result.stderr
