"""torch's classes of layers, with a forward that runs the kernels."""
# mypy: ignore-errors

import functools
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from tconv.codegen.runtime.conv_transpose import _conv_transpose
    from tconv.codegen.runtime.equal import _Equal

# ---- copied from here on


class _CudaForward:
    # ---- where layers are built elsewhere
    _left = False  # True on a module that is left to PyTorch

    def __prepare_scriptable__(self):
        """Makes TorchScript compile torch's forward, as it cannot compile the functions of this file."""
        if type(self).forward is _CudaForward.forward:
            self.forward = super().forward
        return self

    # ---- where layers are built elsewhere
    def forward(self, input, output_size=None, epilogue=None):
        # ---- where layers are built elsewhere
        if self._left:
            return super().forward(input, output_size)
        # ---- where layers are built elsewhere
        dims, output_padding = len(self.kernel_size), self.output_padding
        if output_size is not None:
            sizes = (self.stride, self.padding, self.kernel_size, dims, self.dilation)
            output_padding = self._output_padding(input, output_size, *sizes)
        options = (self.stride, self.padding, output_padding, self.groups, self.dilation)
        return _conv_transpose(dims, input, self.weight, self.bias, *options, epilogue)


@functools.lru_cache(maxsize=None)
def _on_cuda(theirs):
    """A subclass of torch's class `theirs` whose forward runs the kernels above.

    Its name is torch's, for repr and for code that initialises weights by class names. Pickle uses its qualified name.
    """
    names = {"__module__": _CudaForward.__module__, "_stands_for": theirs}
    ours = _Equal(theirs.__name__, (_CudaForward, theirs), names)
    ours.__qualname__ = f"Cuda{theirs.__name__}"
    # ---- where layers are lazy
    if getattr(theirs, "cls_to_become", None):  # the class that a lazy module gets in its first call
        ours.cls_to_become = _on_cuda(theirs.cls_to_become)
    # ---- where layers are lazy
    return ours


CudaConvTranspose1d = _on_cuda(nn.ConvTranspose1d)
CudaConvTranspose2d = _on_cuda(nn.ConvTranspose2d)
CudaConvTranspose3d = _on_cuda(nn.ConvTranspose3d)
# ---- where layers are lazy
CudaLazyConvTranspose1d = _on_cuda(nn.LazyConvTranspose1d)
CudaLazyConvTranspose2d = _on_cuda(nn.LazyConvTranspose2d)
CudaLazyConvTranspose3d = _on_cuda(nn.LazyConvTranspose3d)
# ---- where layers are lazy
