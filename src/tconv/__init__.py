"""Fast transposed convolutions for PyTorch.

tconv has PyTorch's functions and modules for transposed convolutions, on CUDA kernels that are compiled for each layer.
PyTorch's own operator runs the calls that have no kernel, and those that a kernel would slow down.

    layer = tconv.ConvTranspose2d(256, 128, 4, stride=2, padding=1).cuda()
    y = layer(x)                                            # as torch.nn.ConvTranspose2d
    y = tconv.conv_transpose2d(x, layer.weight, stride=2)   # as torch.nn.functional.conv_transpose2d
    print(tconv.explain(layer, x))                          # what runs, and why
    model = tconv.optimize(model, freeze=True)              # the layers of a model, in place, with weights that stay
    tconv.warmup(model, x)                                  # its kernels, compiled side by side before the first call
    compiled = torch.compile(model, backend="tconv")        # layers with the arithmetic that follows them

The kernels take CUDA tensors of float32, float16, bfloat16 and float64. Shapes in this reference are in elements: N is
the batch, D, H, W and L are depth, height, width and length. Times are in seconds and memory in bytes.

The command line is another way in: ``tconv optimize model.py`` rewrites a model file; ``tconv --help`` has the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tconv.version import __version__

if TYPE_CHECKING:
    from tconv.epilogues import Epilogue
    from tconv.errors import CompileError, InvalidProgram, MissingToolchain, NotWarmedUp, TconvError, Unsupported
    from tconv.explanation import Explanation, ModelExplanation, explain
    from tconv.functional import conv_transpose1d, conv_transpose2d, conv_transpose3d
    from tconv.modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
    from tconv.planner import Gpu
    from tconv.prepared_call import PreparedCall, prepare
    from tconv.replace import optimize, restore
    from tconv.warming import WarmUp, warmup

__all__ = [
    "CompileError",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Epilogue",
    "Explanation",
    "Gpu",
    "InvalidProgram",
    "MissingToolchain",
    "ModelExplanation",
    "NotWarmedUp",
    "PreparedCall",
    "TconvError",
    "Unsupported",
    "WarmUp",
    "__version__",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "explain",
    "optimize",
    "prepare",
    "restore",
    "warmup",
]

_MODULES = {
    "errors": ("CompileError", "InvalidProgram", "MissingToolchain", "NotWarmedUp", "TconvError", "Unsupported"),
    "explanation": ("Explanation", "ModelExplanation", "explain"),
    "functional": ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "modules": ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    "planner": ("Gpu",),
    "prepared_call": ("PreparedCall", "prepare"),
    "replace": ("optimize", "restore"),
    "epilogues": ("Epilogue",),
    "warming": ("WarmUp", "warmup"),
}


def __getattr__(name: str) -> Any:
    """Public names are imported at first use: the command line must not wait for torch to say ``--help``."""
    if name == "Tail":
        from tconv.epilogues import Epilogue
        from tconv.former_names import warn

        warn("tconv.Tail", "tconv.Epilogue")
        return Epilogue
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"tconv.{module}"), name)
            return value
    raise AttributeError(f"module 'tconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
