"""nn.Sequential that runs a layer and the modules after it in one kernel."""
# mypy: ignore-errors

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from tconv.codegen.runtime.epilogues import cuda_fused
    from tconv.codegen.runtime.equal import _Equal
    from tconv.codegen.runtime.known_epilogues import _POINTWISE
    from tconv.codegen.runtime.modules import _CudaForward

# ---- copied from here on


class CudaSequential(nn.Sequential, metaclass=_Equal):
    """torch's class. The modules after a layer run in the layer's kernel where this file has such a kernel."""

    _stands_for = nn.Sequential

    def forward(self, input):
        modules = list(self)
        while modules:
            layer, behind = modules.pop(0), []
            while isinstance(layer, _CudaForward) and modules and type(modules[0]) in _POINTWISE:
                behind.append(modules.pop(0))
            input = cuda_fused(layer, input, modules=behind) if behind else layer(input)
        return input


CudaSequential.__name__ = "Sequential"  # in repr
