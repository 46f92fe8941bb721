"""Transposed convolutions as functions, with the signatures of `torch.nn.functional`.

Kernels on tensor cores round the factors of float32 products to TF32 where `torch.backends.cudnn.allow_tf32` permits
it, also for layers for which cuDNN has no engine that rounds. PyTorch's operator runs the calls on which it was
measured or is predicted to be faster: `tconv.explain` says so, and TCONV_INSIST=1 turns that off.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tconv import epilogues, ops, slices
from tconv.epilogues import Epilogue
from tconv.former_names import takes_former_names


@takes_former_names
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    epilogue: Epilogue | None = None,
    epilogue_inputs: Sequence[Tensor] = (),
    out: Tensor | None = None,
) -> Tensor:
    """Transposed convolution over one spatial axis, with gradients.

    Args:
        input: (N, in_channels, L), or (in_channels, L).
        weight: (in_channels, out_channels / groups, kernel).
        bias: (out_channels,), or None.
        stride, padding, output_padding, groups, dilation: PyTorch's, in elements; a number, or one for each axis.
        epilogue: what is computed of each result, in the same kernel where tconv runs the layer.
        epilogue_inputs: what the epilogue takes beside the result; each broadcasts to it.
        out: a tensor of the result's shape, dtype and device, which gets the result. It shares no memory with other
            tensors of the call. A kernel writes there directly if `out` is a slice of the channels of a contiguous or
            channels_last tensor; otherwise the result is copied there.

    Returns:
        (N, out_channels, L_out), with L_out = (L - 1)*stride - 2*padding + dilation*(kernel - 1) + output_padding + 1;
        without N if the input has none.

    Raises:
        RuntimeError: PyTorch's operator refuses the arguments, or `out` is given where a gradient is asked for.
        ValueError: `out` has another shape, dtype or device than the result.
        NotWarmedUp: a CUDA graph is being captured, and the kernel is not loaded yet.
        CompileError, MissingToolchain: the kernel cannot be built on this machine.
        InvalidProgram: the epilogue is none that a kernel can compute; the message names the operation.

    Equivalent to: ``torch.nn.functional.conv_transpose1d(input, weight, bias, …)``;
    with an epilogue, ``epilogue(…, *epilogue_inputs)`` of that.
    """
    arguments = (stride, padding, output_padding, groups, dilation)
    if out is not None:
        return slices.conv_transpose(
            1, input, weight, bias, *arguments, out=out, epilogue=epilogue, epilogue_inputs=epilogue_inputs
        )
    if epilogue is None:
        return ops.conv_transpose(1, input, weight, bias, *arguments)
    return epilogues.conv_transpose(
        1, input, weight, bias, *arguments, epilogue=epilogue, epilogue_inputs=epilogue_inputs
    )


@takes_former_names
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    epilogue: Epilogue | None = None,
    epilogue_inputs: Sequence[Tensor] = (),
    out: Tensor | None = None,
) -> Tensor:
    """Transposed convolution over two spatial axes, with gradients.

    Args:
        input: (N, in_channels, H, W), or (in_channels, H, W); contiguous or channels_last.
        weight: (in_channels, out_channels / groups, kernel_h, kernel_w).
        bias: (out_channels,), or None.
        stride, padding, output_padding, groups, dilation: as of `conv_transpose1d`.
        epilogue, epilogue_inputs, out: as of `conv_transpose1d`.

    Returns:
        (N, out_channels, H_out, W_out) in the memory format that PyTorch would choose; each size as in
        `conv_transpose1d`.

    Raises:
        As `conv_transpose1d`.

    Equivalent to: ``torch.nn.functional.conv_transpose2d(input, weight, bias, …)``;
    with an epilogue, ``epilogue(…, *epilogue_inputs)`` of that.
    """
    arguments = (stride, padding, output_padding, groups, dilation)
    if out is not None:
        return slices.conv_transpose(
            2, input, weight, bias, *arguments, out=out, epilogue=epilogue, epilogue_inputs=epilogue_inputs
        )
    if epilogue is None:
        return ops.conv_transpose(2, input, weight, bias, *arguments)
    return epilogues.conv_transpose(
        2, input, weight, bias, *arguments, epilogue=epilogue, epilogue_inputs=epilogue_inputs
    )


@takes_former_names
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    epilogue: Epilogue | None = None,
    epilogue_inputs: Sequence[Tensor] = (),
    out: Tensor | None = None,
) -> Tensor:
    """Transposed convolution over three spatial axes, with gradients.

    Args:
        input: (N, in_channels, D, H, W), or (in_channels, D, H, W); contiguous or channels_last_3d.
        weight: (in_channels, out_channels / groups, kernel_d, kernel_h, kernel_w).
        bias: (out_channels,), or None.
        stride, padding, output_padding, groups, dilation: as of `conv_transpose1d`.
        epilogue, epilogue_inputs, out: as of `conv_transpose1d`.

    Returns:
        (N, out_channels, D_out, H_out, W_out) in the memory format that PyTorch would choose; each size as in
        `conv_transpose1d`.

    Raises:
        As `conv_transpose1d`.

    Equivalent to: ``torch.nn.functional.conv_transpose3d(input, weight, bias, …)``;
    with an epilogue, ``epilogue(…, *epilogue_inputs)`` of that.
    """
    arguments = (stride, padding, output_padding, groups, dilation)
    if out is not None:
        return slices.conv_transpose(
            3, input, weight, bias, *arguments, out=out, epilogue=epilogue, epilogue_inputs=epilogue_inputs
        )
    if epilogue is None:
        return ops.conv_transpose(3, input, weight, bias, *arguments)
    return epilogues.conv_transpose(
        3, input, weight, bias, *arguments, epilogue=epilogue, epilogue_inputs=epilogue_inputs
    )
