"""Every layer of benchmarks/cases.json through the library, on a GPU: judged equal, and timed beside PyTorch.

    PYTHONPATH=src python3 benchmarks/layers.py
    PYTHONPATH=src python3 benchmarks/layers.py --variant channels_last
    PYTHONPATH=src python3 benchmarks/layers.py --name layers-h100

Writes benchmarks/results/layers.json after each layer, so that an interrupted run goes on where it stopped. A variant
takes the layers with groups or few channels in another memory format or type, and has a file of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from results import KINDS, VARIANTS, Results, cases, kind
from runs import measure_missing, parser
from torch import Tensor

import tconv
from tconv.evaluation.draws import draw
from tconv.evaluation.equality import check_layer
from tconv.evaluation.precision import Wanted
from tconv.evaluation.reference import Operands
from tconv.evaluation.stopwatch import CudaClock
from tconv.evaluation.timing import Call, Measured, interleave, quantile
from tconv.jit.loader import compile_kernel, gpu_of
from tconv.planner import FAMILIES, Gpu, Unplannable, choose, floor_seconds
from tconv.planner.choice import why_pytorch
from tconv.planner.plan import tile_fields
from tconv.planner.tuned import Question
from tconv.precision import allows_tf32, of_kind, question_of
from tconv.problem import Layer, Precision, Problem, Triple
from tconv.tuning.compilers import compilers

_PRECISION: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_OURS = (tconv.conv_transpose1d, tconv.conv_transpose2d, tconv.conv_transpose3d)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_THEIRS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_DRAWS = 5
#: Calls a side: by turns in so many rounds of so many each; fewer of those that take long.
_ROUNDS, _EACH = 10, 10
_LONG_MS, _LONG_ROUNDS, _LONG_EACH = 5.0, 5, 3
_LONG_MS_IF_QUICK = 1.0


def layer(
    channels: tuple[int, int],
    kernel: list[int],
    stride: int,
    batch: int,
    size: list[int],
    *,
    padding: int | list[int] = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
    dtype: str = "float32",
) -> Results:
    """A layer as a line of cases.json has it; numbers count for each axis."""
    dims = len(kernel)
    return {
        "in_channels": channels[0],
        "out_channels": channels[1],
        "kernel": kernel,
        "stride": [stride] * dims,
        "padding": [padding] * dims if isinstance(padding, int) else padding,
        "output_padding": [output_padding] * dims,
        "dilation": [dilation] * dims,
        "groups": groups,
        "bias": bias,
        "batch": batch,
        "input_size": size,
        "dtype": dtype,
    }


def strided(
    kernel: int, batch: int, channels: tuple[int, int], size: int, padding: int = 0, output_padding: int = 0
) -> Results:
    """A dense 2-D layer of stride 2, all squares, as a line of cases.json would have it."""
    padded = {"padding": padding, "output_padding": output_padding}
    return layer(channels, [kernel] * 2, 2, batch, [size] * 2, **padded, bias=False)


def problem_of(case: Results) -> Problem:
    """The problem that a line of cases.json describes."""
    dims = len(case["kernel"])

    def three(name: str, filler: int) -> Triple:
        depth, height, width = [filler] * (3 - dims) + case[name]
        return depth, height, width

    layer = Layer(
        dims,
        case["in_channels"],
        case["out_channels"],
        kernel=three("kernel", 1),
        stride=three("stride", 1),
        padding=three("padding", 0),
        dilation=three("dilation", 1),
        groups=case["groups"],
        bias=case["bias"],
        precision=_PRECISION[case["dtype"]],
    )
    return Problem(layer, case["batch"], three("input_size", 1), three("output_padding", 0))


def as_pytorch_rounds(problem: Problem) -> Problem:
    """The problem in the arithmetic that PyTorch runs on float32 layers of its kind, under the flags in force."""
    if problem.layer.precision != "fp32" or not allows_tf32():
        return problem
    return replace(problem, layer=replace(problem.layer, precision=of_kind(problem)))


def floor_ms(problem: Problem) -> float | None:
    """The roofline bound on this GPU, in that arithmetic; None where nobody measured the GPU's rates."""
    seconds = floor_seconds(as_pytorch_rounds(problem), gpu_of(torch.cuda.current_device()))
    return None if seconds is None else round(seconds * 1e3, 6)


def permitted_floor_ms(problem: Problem) -> float | None:
    """The same, with TF32 wherever the flags allow it."""
    if problem.layer.precision == "fp32" and allows_tf32():
        problem = replace(problem, layer=replace(problem.layer, precision="tf32"))
    return floor_ms(problem)


def arguments(problem: Problem) -> dict[str, Any]:
    """The problem's parameters as keywords of torch.nn.functional.conv_transpose*d."""
    layer, used = problem.layer, slice(3 - problem.layer.spatial_dims, 3)
    named = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
    sized = {name: value[used] for name, value in (*named.items(), ("output_padding", problem.output_padding))}
    return {**sized, "groups": layer.groups}


def functions(problem: Problem) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The library's function and PyTorch's, which take input, weight and bias."""
    keywords, dims = arguments(problem), problem.layer.spatial_dims
    return partial(_OURS[dims - 1], **keywords), partial(_THEIRS[dims - 1], **keywords)


def varied(case: Results, variant: str | None) -> Results | None:
    """The case as `variant` has it; None where it has no such thing."""
    if variant == "bfloat16":
        return case | {"dtype": variant}
    return None if variant == "channels_last" and len(case["kernel"]) == 1 else case


def laid_out(operands: Operands, variant: str | None) -> Operands:
    """Input and weight in the memory format that `variant` asks for."""
    if variant != "channels_last":
        return operands
    memory_format = _LAST[operands.x.dim()]
    x, weight = (tensor.contiguous(memory_format=memory_format) for tensor in operands[:2])
    return Operands(x, weight, operands.bias)


def asked(problem: Problem, gpu: Gpu, variant: str | None) -> Question:
    """What the planner is asked for the library's call."""
    question = question_of(problem, gpu, allows_tf32())
    return question.in_channels_last() if variant == "channels_last" else question


def measure(case: Results, quick: bool, variant: str | None = None) -> Results:
    """The verdict on one layer, and its times.

    `quick` leaves draws, the awkward inputs and PyTorch's other settings out, and times long calls less often.
    """
    problem = problem_of(case)
    ours, theirs = functions(problem)
    operands = laid_out(draw(problem, torch.device("cuda"), seed=0), variant)
    explained = tconv.explain(*operands, **arguments(problem))
    if explained.plan is None:
        return {"equal": False, "reasons": [f"PyTorch's operator runs: {explained.reason}"]}

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return ours(*laid_out(Operands(x, weight, bias), variant)).contiguous()

    gpu = gpu_of(torch.cuda.current_device())
    question = asked(problem, gpu, variant)
    draws = 1 if quick else _DRAWS
    reach = FAMILIES[explained.plan.kernel.family].reach
    wanted: Wanted = "tf32" if allows_tf32() else "match"
    verdict = check_layer(candidate, problem, wanted, device="cuda", draw_count=draws, awkward=not quick, reach=reach)
    return {
        "equal": verdict.equal,
        "reasons": list(verdict.reasons),
        "draws": draws,
        "awkward_inputs": not quick,
        "error": next((check.got for check in verdict.checks if check.name == "pooled error"), None),
        "plan": {"family": explained.plan.kernel.family, "tile": dict(tile_fields(explained.plan.kernel.tile))},
        "left_to_pytorch": why_pytorch(question, explained.plan, gpu) is not None,
        "floor_ms": case["floor_ms"],
        **times(partial(ours, *operands), theirs, operands, quick),
    }


def times(ours: Call, theirs: Callable[..., Tensor], operands: Operands, quick: bool) -> Results:
    """Device milliseconds of both sides, by turns: medians with the 20th and 80th percentile; host microseconds."""
    clock = CudaClock()
    long = clock.device_ms(ours, 2)[-1] > (_LONG_MS_IF_QUICK if quick else _LONG_MS)
    rounds, each = (_LONG_ROUNDS, _LONG_EACH) if long else (_ROUNDS, _EACH)
    measured = interleave(clock, {"tconv": ours, "pytorch": partial(theirs, *operands)}, rounds=rounds, each=each)

    def spread(side: Measured) -> list[float]:
        return [round(side.series.low, 6), round(side.series.high, 6)]

    return {
        "tconv_ms": round(measured["tconv"].series.median, 6),
        "tconv_spread_ms": spread(measured["tconv"]),
        "pytorch_ms": {
            "default": round(measured["pytorch"].series.median, 6),
            **({} if quick else other_settings(clock, theirs, operands, each)),
        },
        "pytorch_spread_ms": spread(measured["pytorch"]),
        "host_us": {name: round(side.host_us, 2) for name, side in measured.items()},
    }


def other_settings(clock: CudaClock, theirs: Callable[..., Tensor], operands: Operands, count: int) -> dict[str, float]:
    """Medians of PyTorch with cudnn.benchmark, and on channels_last tensors where they exist."""

    def median(call: Call) -> float:
        return round(quantile(clock.device_ms(call, count), 0.5), 6)

    torch.backends.cudnn.benchmark = True
    found = {"cudnn.benchmark": median(partial(theirs, *operands))}
    torch.backends.cudnn.benchmark = False
    if operands.x.dim() in _LAST and operands.x.is_contiguous():
        found["channels_last"] = median(partial(theirs, *laid_out(operands, "channels_last")))
    return found


def measured(case: Results, quick: bool, variant: str | None) -> Results:
    """The layer of a line of cases.json, whose floor is that of one H200, on this GPU."""
    return measure(case | {"floor_ms": permitted_floor_ms(problem_of(case))}, quick, variant)


def compile_ahead(listed: Iterable[Results], variant: str | None) -> None:
    """Compiles the library's kernels for these lines of cases.json side by side, so that measuring need not wait."""
    gpu = gpu_of(torch.cuda.current_device())
    with compilers() as pool:
        waiting = []
        for case in listed:
            try:
                plan = choose(asked(problem_of(case), gpu, variant), gpu)
            except Unplannable:
                continue
            waiting.append(pool.submit(compile_kernel, plan.kernel, gpu.arch))
        for each in waiting:
            each.result()


def main() -> int:
    parsed = parser(__doc__)
    parsed.add_argument("--variant", choices=VARIANTS, help="another memory format or type")
    parsed.add_argument("--name", help="of the file in benchmarks/results")
    parsed.add_argument("--quick", action="store_true", help="one draw, no awkward inputs, PyTorch's default alone")
    options = parsed.parse_args()
    listed = {
        name: case
        for name, plain in cases().items()
        if not options.variant or kind(plain) != KINDS[-1]
        if (case := varied(plain, options.variant)) is not None
    }
    if torch.cuda.is_available():
        compile_ahead((case for name, case in listed.items() if options.only in name), options.variant)
    wanted = {name: partial(measured, case, options.quick, options.variant) for name, case in listed.items()}
    name = options.name or (f"layers-{options.variant}" if options.variant else "layers")
    return measure_missing(name, wanted, options)


if __name__ == "__main__":
    sys.exit(main())
