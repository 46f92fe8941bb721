"""Gradients of layers with an epilogue."""
# mypy: ignore-errors

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tconv.codegen.runtime.conv_transpose import _apply, _gradients, _run, _wanted
    from tconv.codegen.runtime.known_epilogues import _PROGRAMS

# ---- copied from here on


class _Fused(torch.autograd.Function):
    """A layer and its epilogue in one kernel. Kernels compute the gradients where the file records how. Else backward
    computes the layer again, then the epilogue by PyTorch's operators, and differentiates that."""

    @staticmethod
    def forward(ctx, launch, layer, options, known, x, weight, bias, *operands):
        y = _run(launch, x, weight, bias, *operands)
        ctx.save_for_backward(x, weight, bias, *operands, y if known.keeps else None)
        ctx.layer, ctx.options, ctx.known = layer, options, known
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        return y

    @staticmethod
    def backward(ctx, gradient):
        again, needed = torch.is_grad_enabled(), ctx.needs_input_grad[4:]  # again: gradients of gradients are wanted
        *saved, y = ctx.saved_tensors
        found = None if again else _known_gradients(ctx, gradient, needed, saved, y)
        if found is not None:
            return (None, None, None, None, *found)
        with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
            # One tensor may stand in several places: each place gets its own view.
            given = [t if t is None else t.view_as(t) if again else t.detach() for t in saved]
            wanted = [t for t, need in zip(given, needed) if need]
            for t in () if again else wanted:
                t.requires_grad_()
            y = ctx.known.again(_apply(*given[:3], ctx.options, ctx.layer), *given[3:])
        found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=again, allow_unused=True))
        return (None, None, None, None, *(next(found) if need else None for need in needed))


_apply_fused = super(torch.autograd.Function, _Fused).apply


def _known_gradients(ctx, gradient, needed, saved, y):
    """Gradients of a layer and its epilogue as recorded, by kernels or from the result; None where none is recorded."""
    x, weight, bias, *operands = saved
    known, of_layer, found, sums = ctx.known, gradient, [None] * len(operands), {}
    sources = [source if need else None for source, need in zip(known.sources, needed[3:])]
    if not (known.backward or known.slope) or "again" in sources:
        return None
    if any(needed[:3]) or any(source and source[0] == "layer" for source in sources):
        if known.slope:
            of_layer = known.slope(gradient, y)
        else:
            launch = _wanted((x, weight, bias), ctx.options, known.backward)
            if launch is None:
                return None
            of_layer = _run(launch, x, weight, bias, *(operands[place] for place in known.reads), gradient)
    for place, (name, source) in enumerate(zip(_PROGRAMS[known.program], sources)):
        if source:
            of, factor = source
            part = gradient if of == "given" else of_layer
            # ---- where tensors scale
            if of not in ("given", "layer"):
                part, factor = _sums(ctx, of, factor, saved, gradient, name), 1
                if part is None:
                    return None
            # ---- where tensors scale
            kept = {"ou": range(x.dim()), "sa": (0, 1), "ch": (1,), "sc": ()}[name[:2]]
            over = tuple(axis for axis in range(x.dim()) if axis not in kept)
            if over:
                # The bias and an operand that is added to each channel have the same sum. Each gets its own copy.
                sum_of = sums.get((of, over))
                part = sums[of, over] = part.sum(over) if sum_of is None else sum_of.clone()
            part = part.reshape(operands[place].shape)
            found[place] = (part if factor == 1 else part * factor).to(x.dtype)
    of_bias = sums.get(("layer", (0, *range(2, x.dim())))) if needed[2] else None
    needed = (*needed[:2], needed[2] and of_bias is None)
    # ---- where results are promoted
    if known.from_type:  # the layer's own gradients are computed in its type, as PyTorch does
        of_layer, x, weight = (t.to(known.from_type) for t in (of_layer, x, weight))
    # ---- where results are promoted
    of_inputs = _gradients(ctx, of_layer, (x, weight), needed)[:3] if any(needed) else (None, None, None)
    return (*of_inputs[:2], of_inputs[2] if of_bias is None else of_bias.clone(), *found)


# ---- where tensors scale
# A gradient that is summed along rows and columns takes at most this number of bytes at once, if one sample fits.
_SUMMED_BYTES = 2**27


def _sums(ctx, program, reads, saved, gradient, name):
    """The gradient of an operand by a program of its own, in slices of the batch. It is summed along rows and columns
    unless the operand has a value for each output."""
    x, weight, bias, *operands = saved
    whole, parts, names = name.startswith("ou"), [], _PROGRAMS[ctx.known.program]
    samples = len(x) if whole else max(1, _SUMMED_BYTES // (gradient[0].numel() * gradient.element_size()))
    for first in range(0, len(x), samples):
        own = slice(first, first + samples)
        of_part = [t[own] if names[place][:2] in ("ou", "sa") else t for place, t in enumerate(operands)]
        launch = _wanted((x[own], weight, bias), ctx.options, program)
        if launch is None:
            return None
        part = _run(launch, x[own], weight, bias, *(of_part[place] for place in reads), gradient[own])
        wide = torch.promote_types(part.dtype, torch.float32)
        parts.append(part if whole else part.sum(list(range(2, x.dim())), keepdim=True, dtype=wide))
    return part if whole else torch.cat(parts)


# ---- where tensors scale
