"""The generated file beside old compilers: NVRTC 11.7, and the headers of PyTorch 1.13.0. Fetched by pip."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from codegen_helpers import EXAMPLES, executed, generated_text
from other_nvrtc import compile_with, extracted, fetched

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def options() -> list[dict[str, Any]]:
    """What load_inline is given for the families that GPUs of that time run, in every type that the families have."""
    found = []
    for family, types in (("direct", ("float16", "bfloat16", "float64")), ("mma", ("float16", "bfloat16"))):
        file = executed(generated_text(EXAMPLES / "asymmetric_kernel.py", families=[family], types=types))
        assert list(file["_CUDA"]) == [family] and len(file["_RECORDED"]) == 1 + len(types)
        found.append(file["_load_options"](family, (8, 0)))
    return found


def test_nvrtc_11_7_compiles_it_for_sm_80(options: list[dict[str, Any]], tmp_path: Path) -> None:
    sources = {f"file {number}": each["cuda_sources"][0] for number, each in enumerate(options)}
    compile_with("nvidia-cuda-nvrtc-cu11==11.7.99", sources, ("sm_80",), tmp_path)


def test_the_binding_compiles_with_pytorch_1_13(
    options: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("the pybind11 of PyTorch 1.13 knows Python up to 3.11")
    folder = tmp_path_factory.mktemp("torch")
    tags = ("--platform", "manylinux1_x86_64", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311")
    include = extracted(fetched("torch==1.13.0", folder, *tags), folder, "torch/include")
    # As its load_inline puts the file together.
    lines = ["#include <torch/extension.h>", *options[0]["cpp_sources"]]
    main = folder / "main.cpp"
    main.write_text("\n".join(lines), encoding="utf-8")
    includes = [f"-I{path}" for path in (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))]
    flags = ["-std=c++14", "-fPIC", f"-DTORCH_EXTENSION_NAME={options[0]['name']}", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    command = ["g++", "-w", *flags, *includes, "-c", str(main), "-o", str(folder / "main.o")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


def test_nvcc_compiles_it_as_c_plus_plus_14(options: list[dict[str, Any]], cuda_home: Path, tmp_path: Path) -> None:
    """As PyTorch up to 1.13 asks of nvcc; the headers of that release want an nvcc of its time."""
    source = tmp_path / "cuda.cu"
    for each in options:
        source.write_text(each["cuda_sources"][0], encoding="utf-8")
        flags = ["-std=c++14", "-D__CUDA_NO_HALF_OPERATORS__", *each["extra_cuda_cflags"]]
        command = [str(cuda_home / "bin" / "nvcc"), *flags, "-c", str(source), "-o", str(tmp_path / "cuda.o")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0 and "warning" not in result.stderr, result.stderr
