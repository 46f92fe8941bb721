"""Whether the kernels in a written file are right, layer by layer: compiled, run, judged and, on a GPU, timed.

What is compiled and run is the file's own CUDA text. Without a GPU the emulator runs it, at a size that it can bear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tconv.codegen.generate import PlannedLayer
from tconv.emulator import run
from tconv.errors import CompileError, Trouble
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.draws import draw
from tconv.evaluation.equality import Candidate, check_layer, further_draws
from tconv.evaluation.precision import Wanted
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Verdict
from tconv.jit.compile import Compiled, compile_source
from tconv.memory import aligned
from tconv.planner import FAMILIES, Gpu, Plan, floor_seconds
from tconv.planner.choice import runs_on
from tconv.problem import TF32, Problem
from tconv.rewriter.shrink import describe_change, shrink
from tconv.sandbox.cut import Cut, WrittenFile
from tconv.sandbox.emulated import emulator_launches

#: What NVRTC makes of a text, given with the name of the kernel in it and the arch.
Compile = Callable[[str, str, str], Compiled]

#: Of blocks that go on from box to box as many run in the emulator: at its sizes more would have one box each.
_EMULATED_AT_ONCE = 2
#: Draws of inputs and weights; a GPU gets as many as the rules say.
_DRAWS = {"cpu": 2, "cuda": 5}


@dataclass(frozen=True)
class Build:
    """What NVRTC made of one layer's kernel for one arch; None where it does not report."""

    arch: str
    registers: int | None
    spill_bytes: int | None


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds of one call, medians; the floor is the roofline bound, None where it is not known."""

    ours: float
    pytorch: float
    floor: float | None

    @property
    def speedup(self) -> float:
        return self.pytorch / self.ours


@dataclass(frozen=True)
class LayerCheck:
    """One transposed convolution of the model, and what was found out about its kernel.

    Args:
        verdict: None for a layer that is left to PyTorch.
        pytorch_error: the relative error of PyTorch's own result, beside the verdict's pooled error.
        judged_at: the problem that was run.
        time: None where it was not measured.
        portable: the verdict of the layer's portable kernel, where it has one.
    """

    layer: PlannedLayer
    builds: tuple[Build, ...] = ()
    verdict: Verdict | None = None
    pytorch_error: float | None = None
    judged_at: Problem | None = None
    time: LayerTime | None = None
    portable: Verdict | None = None

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Of every kernel that was judged, by the layer's name and by where it runs if that is elsewhere."""
        found = {self.layer.name: self.verdict, f"{self.layer.name}, elsewhere": self.portable}
        return {name: verdict for name, verdict in found.items() if verdict is not None}

    @property
    def equal(self) -> bool:
        """Whether every kernel of the layer was judged, and is equal."""
        verdicts = self.verdicts.values()
        return len(verdicts) == len(self.layer.plans) and all(verdict.equal for verdict in verdicts)

    @property
    def shrunk(self) -> str:
        """How the problem that was run differs from the model's own; empty if it does not."""
        return describe_change(self.layer.plan.problem, self.judged_at) if self.judged_at else ""


def check_layers(
    file: WrittenFile,
    layers: Sequence[PlannedLayer],
    archs: Sequence[str],
    compiled: Compile,
    *,
    gpu: Gpu | None = None,
    bench: bool = True,
) -> Iterator[LayerCheck]:
    """Check every layer in turn.

    Args:
        archs: what NVRTC compiles for, beside the GPU's own arch.
        compiled: `compile_text`, that remembers: layers may share a text, and a GPU runs what was compiled before.
        gpu: runs the kernels at their full size; without one the emulator runs them smaller.
        bench: time them where there is a GPU.

    Raises:
        CompileError: NVRTC refuses a kernel.
        EmulatorError: a kernel does what no kernel may.
    """
    for layer in layers:
        if layer.left:
            yield LayerCheck(layer)
            continue
        full = layer.plan.problem
        problem = full if gpu else shrink(full)
        wanted = list(dict.fromkeys([full, problem, further_draws(problem)]))
        at_once = None if gpu else _EMULATED_AT_ONCE
        # Those of each kernel that the file has for the layer.
        portable = (False, True)[: len(layer.plans)]
        cuts = [dict(zip(wanted, file.cuts(wanted, portable=p, at_once=at_once), strict=True)) for p in portable]
        builds = tuple(_builds(layer, [of_sizes[full] for of_sizes in cuts], archs, compiled))
        device = "cuda" if gpu else "cpu"
        candidates: list[Candidate] = []
        verdicts: list[Verdict] = []
        for plan, of_sizes in zip(layer.plans, cuts, strict=True):
            candidates.append(_candidate(of_sizes, plan, problem, compiled, gpu))
            verdicts.append(_judge(candidates[-1], plan, problem, device))
        time = _time(candidates[0], problem, gpu) if gpu and bench and verdicts[0].equal else None
        yield LayerCheck(layer, builds, verdicts[0], _pytorch_error(problem, device), problem, time, *verdicts[1:])


def compile_text(source: str, kernel: str, arch: str) -> Compiled:
    """What NVRTC makes of a file's CUDA text.

    Raises:
        CompileError: it refuses.
        Trouble: it does not know the arch.
    """
    try:
        return compile_source(source, arch, name=kernel)
    except CompileError as error:
        if "gpu-architecture" not in error.log:
            raise
        raise Trouble(f"this NVRTC does not compile for {arch}; leave it out, or install a newer one") from None


def _builds(layer: PlannedLayer, cuts: Sequence[Cut], archs: Sequence[str], compiled: Compile) -> Iterator[Build]:
    """Every kernel of the layer is compiled for every arch that has its family; of each arch the best one tells."""
    for arch in archs:
        there = [
            compiled(cut.source, cut.kernel, arch)
            for plan, cut in zip(layer.plans, cuts, strict=True)
            if runs_on(plan.kernel.family, plan.problem, Gpu.h200(), arch)
        ]
        yield from (Build(arch, each.registers, each.spill_bytes) for each in there[:1])


def _candidate(
    cuts: Mapping[Problem, Cut], plan: Plan, problem: Problem, compiled: Compile, gpu: Gpu | None
) -> Candidate:
    """One of a layer's launches where it can run; on a GPU for as many samples as draws have."""
    if gpu is None:
        return partial(_emulated, cuts[problem], problem)
    launches: dict[int, Candidate] = {}
    for each in (problem, further_draws(problem)):
        cut = cuts[each]
        launches[each.batch] = _on_gpu(cut, replace(plan, problem=each), compiled(cut.source, cut.kernel, gpu.arch))

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return launches[x.shape[0]](x, weight, bias)

    return candidate


def _judge(candidate: Candidate, plan: Plan, problem: Problem, device: str) -> Verdict:
    wanted: Wanted = "tf32" if problem.layer.precision in TF32 else "fp32"
    reach = FAMILIES[plan.kernel.family].reach
    return check_layer(candidate, problem, wanted, device=device, draw_count=_DRAWS[device], reach=reach)


def _emulated(cut: Cut, problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The launch in the emulator, as a candidate."""
    y = torch.empty(problem.output_shape, dtype=x.dtype)
    run(cut.source, emulator_launches(cut, problem, *_as_launched(cut, x, weight, bias), y))
    return y


def _as_launched(cut: Cut, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the file hands to the launch: contiguous, and where weights are prepared aligned."""
    x, weight = x.contiguous(), weight.contiguous()
    if cut.preparation is not None:
        x, weight = aligned(x), aligned(weight)
    return x, weight, None if bias is None else bias.contiguous()


def _pytorch_error(problem: Problem, device: str) -> float:
    """The relative error of PyTorch's operator against float64, on one draw."""
    operands = draw(problem, torch.device(device), 0)
    result = conv_transpose(*operands, problem)
    comparison = Comparison(Tolerance.of(problem.layer, problem.layer.precision))
    comparison.add(result, result, operands, problem)
    return comparison.relative(comparison.baseline.exact)


def _on_gpu(cut: Cut, plan: Plan, compiled: Compiled) -> Candidate:
    """The launch by cuda.core, as a candidate."""
    from tconv.jit.loader import Launcher, load_all

    problem = plan.problem
    device = torch.cuda.current_device()
    assert cut.grid is not None and cut.shared_bytes is not None, "a recorded kernel runs what it was planned for"
    plan = replace(
        plan, grid=cut.grid, shared_bytes=cut.shared_bytes, preparation=cut.preparation, inputs=cut.inputs
    )
    kernel, preparing, of_inputs = load_all(plan, compiled.cubin, device, cut.kernel)
    launch = Launcher(kernel, plan, device, preparing, of_inputs)

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight, bias = _as_launched(cut, x, weight, bias)
        y = torch.empty(problem.output_shape, dtype=x.dtype, device=x.device)
        launch(x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
        return y

    return candidate


def _time(candidate: Candidate, problem: Problem, gpu: Gpu) -> LayerTime:
    """The kernel and PyTorch's operator by turns."""
    from tconv.evaluation.stopwatch import CudaClock
    from tconv.evaluation.timing import interleave

    operands = draw(problem, torch.device("cuda"), 0)
    calls = {"ours": partial(candidate, *operands), "pytorch": partial(conv_transpose, *operands, problem)}
    times = interleave(CudaClock(), calls)
    floor = floor_seconds(problem, gpu)
    ours, pytorch = times["ours"].series.median, times["pytorch"].series.median
    return LayerTime(ours, pytorch, None if floor is None else floor * 1e3)
