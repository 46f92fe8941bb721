"""What a candidate's text tells: what builds CUDA code, what only speaks of it, and where it asks for a GPU."""

from __future__ import annotations

import pytest

from tconv.sandbox.source_scan import builds_cuda, cuda_autocast, gpu_conditions

INLINE = "from torch.utils.cpp_extension import load_inline\n"


@pytest.mark.parametrize(
    "source",
    [
        INLINE + 'TEXT = """__global__ void f() {}"""\nload_inline("a", "", TEXT)',
        INLINE + 'load_inline("a", cpp_sources="", cuda_sources=read())',
        INLINE + 'load_inline(**{"name": "a", "cuda_sources": read()})',
        INLINE + 'load_inline(**dict(cuda_sources=read()))',
        "from torch.utils import cpp_extension as e\ne.load('a', ['a.cpp', 'a.cu'])",
        "from torch.utils.cpp_extension import CUDAExtension",
        "import torch.utils.cpp_extension as e\ne.CUDAExtension('a', read())",
        "import torch\nk = torch.cuda._compile_kernel(read(), 'f')",
        "import subprocess\nT = '__global__ void f() {}'\nsubprocess.run(['nvcc', '-'], input=T)",
        "import ctypes\nT = f'__global__ void {1}() {{}}'\nctypes.CDLL('libnvrtc.so.12')",
        "import triton.language as tl",
        "from cuda.core import Program",
        "def f():\n    import cupy",
    ],
)  # fmt: skip
def test_what_builds_cuda(source: str) -> None:
    assert builds_cuda(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Like a kernel: __global__ void f()."""\n' + INLINE,
        INLINE + "# __global__ void f() {}, built with cuda_sources=[text] from f.cu\n",
        INLINE + 'def f():\n    """Beats __global__ code."""\n    return 1',
        INLINE + 'class A:\n    x = 1\n    "__global__, as a.cu has it"',
        INLINE + 'load_inline("a", cpp_sources="int f() { return 1; }", functions=["f"])',
        INLINE + 'load_inline("a", "int f() { return 1; }", cuda_sources=[])',
        "NOTE = 'no __global__ here'\nprint(NOTE)",
        "from .cuda import f",
        "x = 'cuda'",
        "def broken(",
    ],
)
def test_what_only_speaks_of_it(source: str) -> None:
    assert not builds_cuda(source)


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("if x.is_cuda: y = 0", "x.is_cuda"),
        ("y = 0 if not x.is_cuda else f(x)", "x.is_cuda"),
        ("fast = x.is_cuda and x.dim() == 4", "x.is_cuda"),
        ("if x.device.type == 'cuda': y = 0", "x.device.type == 'cuda'"),
        ("if 'cpu' != x.device.type in ('cuda', 'xpu'): y = 0", "'cpu' != x.device.type in ('cuda', 'xpu')"),
        ("if x.device == torch.device('cuda:0'): y = 0", "x.device == torch.device('cuda:0')"),
        ("if str(x.device).startswith('cuda'): y = 0", "str(x.device).startswith('cuda')"),
        ("if torch.cuda.is_available(): y = 0", "torch.cuda.is_available()"),
        ("y = f(x) if cuda.is_available() else x", "cuda.is_available()"),
        ("match x.device.type:\n    case 'cpu' if x.is_cuda: y = 0", "x.is_cuda"),
    ],
)
def test_where_a_gpu_is_asked_for(source: str, asked: str) -> None:
    assert [text for _, text in gpu_conditions(f"import torch\n{source}")] == [asked]
    assert [line for line, _ in gpu_conditions(f"\n\n{source}")] in ([3], [4])


@pytest.mark.parametrize(
    ("source", "on"),
    [
        ("with torch.autocast('cuda'): y = 0", True),
        ("with torch.autocast(device_type='cuda:0', dtype=torch.half): y = 0", True),
        ("@torch.cuda.amp.autocast()\ndef forward(): y = 0", True),
        ("from torch.cuda.amp import autocast\nwith autocast(): y = 0", True),
        ("from torch import autocast\nwith autocast('cpu'): y = 0", False),
        ("with torch.autocast(x.device.type): y = 0", False),
        ("'torch.cuda.amp.autocast()'", False),
    ],
)
def test_autocast_that_a_gpu_alone_has(source: str, on: bool) -> None:
    assert [*cuda_autocast(source)] == [1 + source.startswith("from")] * on


@pytest.mark.parametrize(
    "source",
    [
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'",
        "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "x = x.cuda().to('cuda')",
        "if __name__ == '__main__':\n    if torch.cuda.is_available(): main()",
        "if x.is_contiguous() and mode == 'nearest': y = 0",
        "# x.is_cuda\n'x.is_cuda'",
        "if word.startswith('cu') or word == 'cudnn': y = 0",
        "def broken(",
    ],
)
def test_where_none_is_asked_for(source: str) -> None:
    assert gpu_conditions(source) == []
