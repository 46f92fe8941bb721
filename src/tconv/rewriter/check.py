"""Whether the kernels in a written file are right, layer by layer: compiled, run, judged and, on a GPU, timed.

What is compiled and run is the file's own CUDA text. Without a GPU the emulator runs it, at a size that it can bear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import _C, Tensor

from tconv.codegen.planned import PlannedLayer
from tconv.emulator import run
from tconv.errors import CompileError, Trouble
from tconv.evaluation.comparison import Comparison
from tconv.evaluation.draws import draw
from tconv.evaluation.epilogues import check_program
from tconv.evaluation.equality import Candidate, check_layer, further_draws
from tconv.evaluation.precision import as_stated
from tconv.evaluation.reference import conv_transpose
from tconv.evaluation.tolerance import Tolerance
from tconv.evaluation.verdict import Verdict
from tconv.jit.compile import Compiled
from tconv.jit.loader import Launcher, compile_kept, load_all, written_by
from tconv.kernels.source import LaunchNumbers
from tconv.memory import aligned
from tconv.planner import FAMILIES, Gpu, Kernel, Plan, floor_seconds
from tconv.planner.choice import runs_on
from tconv.problem import Problem
from tconv.rewriter.built import Extensions, Launch, launched
from tconv.rewriter.shrink import BUDGET, describe_change, shrink
from tconv.sandbox.cut import SLICED, Built, Cut, WrittenFile, launch_of
from tconv.sandbox.emulated import as_buffer, launch_for_few, launches
from tconv.sandbox.gpu_memory import release

#: Draws of inputs and weights of the kernel that the model runs, and of the layer's others; a GPU gets as many as the
#: rules say.
_DRAWS, _FEW_DRAWS = {"cpu": 2, "cuda": 3}, {"cpu": 1, "cuda": 2}
#: Multiply-adds of one run of those others.
_OTHERS_BUDGET = {"cpu": BUDGET // 5, "cuda": 10**9}


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
        others: the verdicts of the layer's other kernels, by their use: as `PlannedLayer.variants`.
        of_epilogue: of its kernels with the layer's epilogue, by that and by their use: as `PlannedLayer.fused`.
    """

    layer: PlannedLayer
    builds: tuple[Build, ...] = ()
    verdict: Verdict | None = None
    pytorch_error: float | None = None
    judged_at: Problem | None = None
    time: LayerTime | None = None
    others: Mapping[str, Verdict] = field(default_factory=dict)
    of_epilogue: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Of every kernel that was judged, by the layer's name and by its use."""
        own = {} if self.verdict is None else {self.layer.name: self.verdict}
        others = {**self.others, **self.of_epilogue}
        return own | {f"{self.layer.name}, {use}": verdict for use, verdict in others.items()}

    @property
    def equal(self) -> bool:
        """Whether every kernel of the layer was judged, and is equal."""
        verdicts = self.verdicts.values()
        expected = len(self.layer.variants) + len(self.layer.fused) * len(self.layer.kernel_epilogues)
        return len(verdicts) == expected and all(verdict.equal for verdict in verdicts)

    @property
    def shrunk(self) -> str:
        """How the problem that was run differs from the model's own; empty if it does not."""
        return describe_change(self.layer.plan.problem, self.judged_at) if self.judged_at else ""


@dataclass(frozen=True)
class _Wanted:
    """What the file launches for one layer.

    Args:
        run_at: the problem that each of its kernels is run at.
        launches: of each kernel, by problems: as planned, as run, of further draws, and of one sample.
        epilogues: of each kernel with each epilogue of the layer, the problem and its launch, in their order.
    """

    layer: PlannedLayer
    run_at: tuple[Problem, ...]
    launches: tuple[Mapping[Problem, Cut | Built], ...]
    epilogues: tuple[tuple[Problem, Cut | Built], ...]


def check_layers(
    file: WrittenFile,
    layers: Sequence[PlannedLayer],
    archs: Sequence[str],
    compiled: Compiler,
    *,
    gpu: Gpu | None = None,
    extensions: Extensions | None = None,
    bench: bool = True,
    begins: Callable[[str], None] = lambda step: None,
    quiet: Callable[[], None] = lambda: None,
) -> list[LayerCheck]:
    """Check every layer in turn, and time them then; what NVRTC is to compile for all of them is begun at once.

    Args:
        archs: what NVRTC compiles for, beside the GPU's own arch.
        compiled: compiles what no extension has.
        gpu: runs what the model runs at its full size; without one the emulator runs it smaller.
        extensions: what the file builds for the GPU, which runs that; without them it runs what NVRTC compiles.
        bench: time them where there is a GPU.
        begins: is told in a few words what begins.
        quiet: called before times are taken: when it returns, nothing else runs.

    Raises:
        CompileError: NVRTC refuses a kernel.
        EmulatorError: a kernel does what no kernel may.
    """
    run = _Runner(compiled, gpu, extensions)
    wanted = [None if layer.left else _wanted(file, layer, run) for layer in layers]
    for each in filter(None, wanted):
        for there, of_sizes in zip(_archs_of_each(each.layer, archs), each.launches, strict=True):
            run.begin(of_sizes.values(), there)
        if gpu is not None:  # the emulator compiles what it runs
            run.begin((launch for _, launch in each.epilogues), [gpu.arch])
    thoroughly = _smallest_of_each_family(filter(None, wanted))
    checks = []
    for number, (layer, found) in enumerate(zip(layers, wanted, strict=True), 1):
        begins(f"checking layer {number} of {len(layers)}: {layer.name}")
        awkward = gpu is not None or found in thoroughly
        checks.append(LayerCheck(layer) if found is None else _check(found, archs, run, awkward))
    if gpu is None or not bench:
        return checks
    quiet()
    begins("timing the layers")
    timed = []
    for check, found in zip(checks, wanted, strict=True):
        own = found is not None and check.verdict is not None and check.verdict.equal
        timed.append(replace(check, time=_time(found, run, gpu)) if found is not None and own else check)
    return timed


def check_other_sizes(file: WrittenFile, layers: Sequence[PlannedLayer]) -> None:
    """That the file's kernels run its layers at sizes that the model's inputs do not have.

    Raises:
        ModelFileError: PyTorch would run one.
    """
    plans = [plans[0].problem for layer in layers if not layer.left for plans in layer.groups]
    file.cuts([other for problem in dict.fromkeys(plans) for other in _other_sizes(problem)])


def _other_sizes(problem: Problem) -> Iterator[Problem]:
    """Another batch, odd sizes and even ones, and every axis longer."""
    unused = 3 - problem.layer.spatial_dims
    yield replace(problem, batch=problem.batch + 1)
    for more in (1, 2):
        depth, height, width = (size if axis < unused else size + more for axis, size in enumerate(problem.input_size))
        yield replace(problem, input_size=(depth, height, width))


@dataclass(frozen=True)
class _Runner:
    """Where launches run, and what makes them ready for that. The arguments are those of `check_layers`."""

    compiled: Compiler
    gpu: Gpu | None
    extensions: Extensions | None

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else "cuda"

    def launches(self, file: WrittenFile, problems: Sequence[Problem], use: str) -> Sequence[Cut | Built]:
        """Those that the file makes for these problems, by the kernel that is for that use."""
        found = file.cuts if self.extensions is None else file.built
        return found(problems, skip=int(use.endswith("any size")))

    def begin(self, launches: Iterable[Cut | Built], archs: Sequence[str]) -> None:
        """What they take begins to be compiled."""
        for launch in launches:
            if isinstance(launch, Cut):
                self.compiled.begin((launch.source, launch.kernel, arch) for arch in archs)
            elif self.extensions is not None:
                self.extensions.begin(launch.options)

    def candidate(self, launch: Cut | Built, problem: Problem) -> Candidate:
        """The launch, as a candidate."""
        if isinstance(launch, Built) and self.gpu is not None and self.extensions is not None:
            return _placed(launched(self.extensions, launch, problem, self.gpu), problem)
        assert isinstance(launch, Cut)
        if self.gpu is None:
            return _emulated(launch, problem)
        return launch_on_gpu(launch, problem, self.compiled, self.gpu)


def _wanted(file: WrittenFile, layer: PlannedLayer, run: _Runner) -> _Wanted:
    # Every kernel that the file has for the layer. At its own size it runs but one of them.
    full = [plan.problem for plan in layer.variants.values()]
    others = [shrink(problem, _OTHERS_BUDGET[run.device]) for problem in full]
    run_at = (full[0] if run.gpu else shrink(full[0]), *others[1:])
    launches = tuple(_launches(file, layer, run_at, run))
    return _Wanted(layer, run_at, launches, tuple(_launches_with_epilogue(file, layer, others, run)))


def _smallest_of_each_family(wanted: Iterable[_Wanted]) -> list[_Wanted]:
    """Of the layers that run kernels of one family and type, the one that the emulator runs fastest."""
    found: dict[tuple[str, str], _Wanted] = {}
    # Maps are as small as they go: what a run takes grows with the weights.
    for each in sorted(wanted, key=lambda each: math.prod(each.layer.plan.problem.layer.weight_shape)):
        found.setdefault((each.layer.plan.kernel.family, each.layer.plan.problem.layer.dtype), each)
    return list(found.values())


def _check(wanted: _Wanted, archs: Sequence[str], run: _Runner, awkward: bool) -> LayerCheck:
    """The layer's verdicts.

    Args:
        awkward: its own kernel is put to all rules, those on awkward inputs too, also where the emulator runs it.
    """
    layer, run_at = wanted.layer, wanted.run_at
    verdicts: dict[str, Verdict] = {}
    for (use, plan), of_sizes, problem in zip(layer.variants.items(), wanted.launches, run_at, strict=True):
        all_rules = run.gpu is not None or (awkward and not use)
        candidate = _candidate(of_sizes, problem, run)
        verdicts[use] = _judge(candidate, plan, problem, run.device, own=not use, awkward=all_rules)
    builds = tuple(_builds(wanted, archs, run.compiled))
    own = verdicts.pop("")
    of_epilogue = dict(_with_epilogue(wanted, run))
    error = _pytorch_error(run_at[0], run.device)
    return LayerCheck(layer, builds, own, error, run_at[0], None, verdicts, of_epilogue)


def _launches(
    file: WrittenFile, layer: PlannedLayer, run_at: Sequence[Problem], run: _Runner
) -> Iterator[dict[Problem, Cut | Built]]:
    """What the file launches by each of its kernels for the layer: as planned, and at all that rules take."""
    for (use, plan), problem in zip(layer.variants.items(), run_at, strict=True):
        wanted = list(dict.fromkeys([plan.problem, *_batches(problem)]))
        yield dict(zip(wanted, run.launches(file, wanted, use), strict=True))


def _batches(problem: Problem) -> tuple[Problem, ...]:
    """What rules run a problem at: its own batch, that of further draws, and one sample."""
    return problem, further_draws(problem), replace(problem, batch=min(1, problem.batch))


def _launches_with_epilogue(
    file: WrittenFile, layer: PlannedLayer, run_at: Sequence[Problem], run: _Runner
) -> Iterator[tuple[Problem, Cut | Built]]:
    """The same with each epilogue of the layer, in further draws."""
    for epilogue in layer.kernel_epilogues:
        for use, problem in zip(layer.variants, run_at, strict=True):
            if use not in layer.fused:
                continue
            few = epilogue.problem(further_draws(problem))
            yield few, run.launches(file, [few], use)[0]


def _with_epilogue(wanted: _Wanted, run: _Runner) -> Iterator[tuple[str, Verdict]]:
    """The verdicts of the layer's kernels with each of its epilogues."""
    uses = [
        (epilogue, *variant) for epilogue in wanted.layer.kernel_epilogues for variant in wanted.layer.fused.items()
    ]
    for (epilogue, use, plan), (few, launch) in zip(uses, wanted.epilogues, strict=True):
        verdict = check_program(run.candidate(launch, few), few, as_stated(plan.problem), device=run.device)
        yield ", ".join(filter(None, [epilogue.describe(), use])), verdict


class Compiler:
    """What NVRTC makes of the texts of written files, each once, however many layers and attempts share it.

    Args:
        pool: compiles what is begun; without one the caller's thread compiles what it asks for.
    """

    def __init__(self, pool: Executor | None = None) -> None:
        self._pool = pool
        self._begun: dict[tuple[str, str, str], Future[Compiled]] = {}
        self._made: dict[tuple[str, str, str], Compiled] = {}

    def begin(self, wanted: Iterable[tuple[str, str, str]]) -> None:
        """Texts that will be asked for, each with the name of the kernel in it and an arch."""
        for each in wanted:
            if self._pool is not None and each not in self._begun:
                self._begun[each] = self._pool.submit(compile_text, *each)

    def __call__(self, source: str, kernel: str, arch: str) -> Compiled:
        """As `compile_text`."""
        asked = (source, kernel, arch)
        if asked not in self._made:
            begun = self._begun.get(asked)
            self._made[asked] = compile_text(*asked) if begun is None else begun.result()
        return self._made[asked]


def compile_text(source: str, kernel: str, arch: str) -> Compiled:
    """What NVRTC makes of a file's CUDA text.

    Raises:
        CompileError: it refuses.
        Trouble: it does not know the arch.
    """
    try:
        return compile_kept(source, arch, name=kernel)
    except CompileError as error:
        if "gpu-architecture" not in error.log:
            raise
        raise Trouble(f"this NVRTC does not compile for {arch}; leave it out, or install a newer one") from None


def _builds(wanted: _Wanted, archs: Sequence[str], compiled: Compiler) -> Iterator[Build]:
    """Compiles every kernel of the layer that NVRTC compiles; of each arch the one that runs first there tells."""
    launches = [of_sizes[plan.problem] for plan, of_sizes in _of_kernels(wanted)]
    made = {
        (number, arch): compiled(cut.source, cut.kernel, arch)
        for number, (cut, there) in enumerate(zip(launches, _archs_of_each(wanted.layer, archs), strict=True))
        for arch in there
        if isinstance(cut, Cut)
    }
    for arch in archs:
        there = [each for (_, made_for), each in made.items() if made_for == arch]
        yield from (Build(arch, each.registers, each.spill_bytes) for each in there[:1])


def _of_kernels(wanted: _Wanted) -> list[tuple[Plan, Mapping[Problem, Cut | Built]]]:
    return list(zip(wanted.layer.variants.values(), wanted.launches, strict=True))


def runs_on_arch(layer: PlannedLayer, arch: str) -> bool:
    """Whether GPUs of that arch run a kernel that the file has for the layer."""
    return any(runs_on(plan.kernel.family, plan.problem, Gpu.h200(), arch) for plan in layer.variants.values())


def _archs_of_each(layer: PlannedLayer, archs: Sequence[str]) -> Iterator[list[str]]:
    """What each of the layer's kernels is compiled for: that which runs first on an arch for it, any other once."""
    gpu = Gpu.h200()
    runs = [
        [arch for arch in archs if runs_on(plan.kernel.family, plan.problem, gpu, arch)]
        for plan in layer.variants.values()
    ]
    taken: set[str] = set()
    for there in runs:
        first = [arch for arch in there if arch not in taken]
        taken |= set(first)
        yield first or there[:1]


def _candidate(launches: Mapping[Problem, Cut | Built], problem: Problem, run: _Runner) -> Candidate:
    """One of a layer's launches where it can run, for as many samples as rules take."""
    candidates = {each.batch: run.candidate(launches[each], each) for each in _batches(problem)}

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return candidates[x.shape[0]](x, weight, bias)

    return candidate


def _judge(candidate: Candidate, plan: Plan, problem: Problem, device: str, own: bool, awkward: bool) -> Verdict:
    """By all rules, or without the awkward inputs."""
    return check_layer(
        candidate,
        problem,
        as_stated(problem),
        device=device,
        draw_count=(_DRAWS if own else _FEW_DRAWS)[device],
        awkward=awkward,
        awkward_batch=1 if device == "cpu" else None,
        all_samples=False,
        reach=FAMILIES[plan.kernel.family].reach,
    )


def _emulated(cut: Cut, problem: Problem) -> Candidate:
    """The launch in the emulator, as a candidate."""
    how = launch_for_few(cut, problem, Gpu.h200().multiprocessors)

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        place = _Place(problem, x)
        tensors = *_as_launched(cut, x, weight, bias), as_buffer(place.y)
        run(cut.source, launches(cut.kernel, how, problem, *tensors, operands))
        return place.result()

    return candidate


def _placed(launch: Launch, problem: Problem) -> Candidate:
    """The launch of a built kernel, as a candidate."""

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        place = _Place(problem, x)
        launch(x, weight, bias, place.y, operands)
        return place.result()

    return candidate


class _Place:
    """Where a result goes: a tensor of its own, or some channels of one, neither the first nor the last."""

    def __init__(self, problem: Problem, x: Tensor) -> None:
        channels, own = problem.y_channels, problem.layer.out_channels
        self._first = (channels - own) // 2
        self._whole = x.new_empty((problem.batch, channels, *problem.output_shape[2:]))
        self.y = self._whole[:, self._first : self._first + own]
        for part in self._around:
            part.fill_(1)

    @property
    def _around(self) -> list[Tensor]:
        """The other channels. Of a tensor of its own there are none: to look at nothing, too, is work that is timed."""
        parts = self._whole[:, : self._first], self._whole[:, self._first + self.y.shape[1] :]
        return [part for part in parts if part.shape[1]]

    def result(self) -> Tensor:
        """What was written; nothing but NaN where something was written beside it."""
        alone = all(bool((part == 1).all()) for part in self._around)
        return self.y.contiguous() if alone else torch.full_like(self.y, math.nan).contiguous()


def _as_launched(cut: Cut, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the file hands to the launch: contiguous, and where copies are aligned, so."""
    x, weight = x.contiguous(), weight.contiguous()
    if cut.aligned:
        x, weight = aligned(x), aligned(weight)
    return x, weight, None if bias is None else bias.contiguous()


def _pytorch_error(problem: Problem, device: str) -> float:
    """The relative error of PyTorch's operator against float64, on one draw of as many samples as say enough."""
    problem = further_draws(problem)
    operands = draw(problem, torch.device(device), 0)
    result = conv_transpose(*operands, problem)
    comparison = Comparison(Tolerance.of(problem.layer, problem.layer.precision))
    comparison.add(result, result, operands, problem)
    return comparison.relative(comparison.baseline.exact)


@dataclass(frozen=True)
class _Launched:
    """As much of a tile as a launch asks for."""

    threads: int
    blocks: int = 1


def launch_on_gpu(cut: Cut, problem: Problem, compiled: Callable[[str, str, str], Compiled], gpu: Gpu) -> Candidate:
    """The launch as the library makes it, as a candidate."""
    device = torch.cuda.current_device()

    def ask(source: str, name: str, arguments: tuple[int, ...]) -> list[int]:
        cubin = compiled(source, cut.kernel, gpu.arch).cubin
        return written_by(cubin, name, device, len(LaunchNumbers._fields), arguments)

    how = launch_of(cut, problem, gpu.multiprocessors, ask)
    if how.too_far:
        return _in_slices(cut, problem, compiled, gpu)
    kernel_of_text = Kernel(cut.kernel, problem.layer, _Launched(how.threads))
    plan = Plan(problem, kernel_of_text, how.grid, how.shared_bytes, preparation=how.preparation, inputs=how.inputs)
    cubin = compiled(cut.source, cut.kernel, gpu.arch).cubin
    kernel, preparing, of_inputs = load_all(plan, cubin, device, cut.kernel)
    launch = Launcher(kernel, plan, device, preparing, of_inputs).enqueue

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        x, weight, bias = _as_launched(cut, x, weight, bias)
        place = _Place(problem, x)
        y = place.y
        addresses = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
        launch(_C._cuda_getCurrentRawStream(device), *addresses, *(operand.data_ptr() for operand in operands))
        return place.result()

    return candidate


def _in_slices(cut: Cut, problem: Problem, compiled: Callable[[str, str, str], Compiled], gpu: Gpu) -> Candidate:
    """The launches of parts of the batch, one after the other, as the file makes them where offsets do not reach."""
    samples = max(SLICED, problem.batch // 2 // SLICED * SLICED)
    if samples >= problem.batch:
        raise Trouble(f"{cut.kernel} does not run {problem.layer.describe()} on {problem.input_shape}: it is too large")
    sizes = [min(samples, problem.batch - first) for first in range(0, problem.batch, samples)]
    parts = {size: launch_on_gpu(cut, replace(problem, batch=size), compiled, gpu) for size in dict.fromkeys(sizes)}

    def candidate(x: Tensor, weight: Tensor, bias: Tensor | None, *operands: Tensor) -> Tensor:
        return torch.cat([parts[len(each)](each, weight, bias, *operands) for each in torch.split(x, samples)])

    return candidate


def _time(wanted: _Wanted, run: _Runner, gpu: Gpu) -> LayerTime:
    """The layer's own kernel and PyTorch's operator by turns."""
    from tconv.evaluation.stopwatch import CudaClock
    from tconv.evaluation.timing import STEADY, interleave

    problem = wanted.layer.plan.problem
    candidate = _candidate(wanted.launches[0], problem, run)
    release()
    operands = draw(problem, torch.device("cuda"), 0)
    calls = {"ours": partial(candidate, *operands), "pytorch": partial(conv_transpose, *operands, problem)}
    times = interleave(CudaClock(), calls, steady=STEADY)
    floor = floor_seconds(problem, gpu)
    ours, pytorch = times["ours"].series.median, times["pytorch"].series.median
    return LayerTime(ours, pytorch, None if floor is None else floor * 1e3)
