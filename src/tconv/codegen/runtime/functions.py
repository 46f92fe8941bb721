"""Functions in the place of torch.nn.functional.conv_transpose1d, 2d and 3d."""
# mypy: ignore-errors

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tconv.codegen.runtime.conv_transpose import _conv_transpose

# ---- copied from here on

cuda_conv_transpose1d = functools.partial(_conv_transpose, 1)
cuda_conv_transpose2d = functools.partial(_conv_transpose, 2)
cuda_conv_transpose3d = functools.partial(_conv_transpose, 3)
