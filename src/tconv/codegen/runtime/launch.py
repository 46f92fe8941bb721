"""How the kernels of a generated file are built, and launched."""
# mypy: ignore-errors

import functools
import hashlib
import inspect
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tconv.codegen.runtime.binding import _BINDING, _CUDA
    from tconv.codegen.runtime.dispatch import _gpu, _has_sm_90a

# ---- copied from here on

# ---- building and launching ------------------------------------------------------------------------------------------


def _load_options(family, capability):
    """The arguments of load_inline that build the kernels of a family for one compute capability."""
    from torch.utils.cpp_extension import load_inline

    cuda = _CUDA[family]
    version = "90a" if _has_sm_90a(capability) else "".join(map(str, capability))
    flags = ["-O3", f"-gencode=arch=compute_{version},code=sm_{version}"]
    flags += ["-DTCONV_OVERLAPS"] * (capability >= (9, 0))
    flags += ["--split-compile=0"] * ((torch.version.cuda or "") >= "13")  # compiles kernels in parallel
    options = {
        "name": "tconv_" + hashlib.sha256("\n".join([_BINDING, cuda] + flags).encode()).hexdigest()[:20],
        "cpp_sources": [_BINDING],
        "cuda_sources": [cuda],
        "extra_cuda_cflags": flags,
    }
    if "no_implicit_headers" in inspect.signature(load_inline).parameters:  # builds in seconds, not a minute
        options["no_implicit_headers"] = True
    return options


@functools.lru_cache(maxsize=None)
def _extension(family, capability):
    """The function that launches the kernels of a family, built at its first use."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(**_load_options(family, capability)).launch


def _can_build(kernel, gpu):
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None


def _samples(kernel, device, run, batch, input_size, output_size):
    """How many samples one launch takes, as its offsets have 32 bits.

    Called without pointers, `run` tells that, and allows the kernel its shared memory on the current device.
    """
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return _samples(kernel, device, run, batch, input_size, output_size)
    return run(kernel.place, 0, _gpu(device).multiprocessors, *[0] * 6, batch, *input_size, *output_size)


def _launch(launch, x, weight, bias, y, *operands):
    """Runs a kernel on contiguous tensors of one device, on the current stream."""
    device, kernel = x.device, launch.kernel
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return _launch(launch, x, weight, bias, y, *operands)
    pointers = [x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(), 0]
    # ---- where a kernel prepares
    if kernel.weight_bytes or kernel.prepares_inputs:
        # In this memory, prepared inputs lie behind prepared weights.
        prepared = kernel.weight_bytes // x.element_size() + (x.numel() if kernel.prepares_inputs else 0)
        prepared = x.new_empty(prepared)
        pointers[4] = prepared.data_ptr()
    # ---- where a kernel prepares
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # torch.cuda.current_stream() takes as long as a launch
    sizes = (launch.y_channels, x.shape[0], *launch.input_size, *launch.output_size)
    # ---- where programs are computed
    sizes += tuple([t.data_ptr() for t in operands])
    # ---- where programs are computed
    error = launch.run(kernel.place, stream, launch.gpu.multiprocessors, *pointers, *sizes)
    if error:
        raise RuntimeError(f"CUDA error {error} at the launch of {kernel.name} on {tuple(x.shape)}")
