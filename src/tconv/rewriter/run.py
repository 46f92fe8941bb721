"""The whole job of `tconv optimize`, without a word on the terminal: trace, generate, check, time, write."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from tconv.codegen.generate import builtins_needed
from tconv.codegen.planned import PlannedLayer
from tconv.errors import Trouble
from tconv.evaluation.files import judge as judging
from tconv.evaluation.files.control import excuses
from tconv.evaluation.files.levels import COPIED
from tconv.evaluation.files.sides.file_process import CannotJudge
from tconv.evaluation.precision import Wanted, resolve, understood
from tconv.evaluation.report import Report
from tconv.evaluation.steps import Steps
from tconv.evaluation.stopwatch import load_libraries
from tconv.jit.tuned import answers
from tconv.planner import FAMILIES, Gpu, floor_seconds
from tconv.planner.tuned import Answers
from tconv.problem import DTYPE_OF, PRECISIONS, Precision, Problem
from tconv.rewriter.built import Extensions
from tconv.rewriter.check import Compiler, LayerCheck, check_layers, check_other_sizes, runs_on_arch
from tconv.rewriter.findings import with_findings
from tconv.rewriter.fusing import Fused, with_epilogues
from tconv.rewriter.outcome import Outcome, Request
from tconv.rewriter.output import Draft, check_neighbours, check_output, draft
from tconv.rewriter.pipeline import build, leave, settle
from tconv.rewriter.planning import Basis, plan_layers
from tconv.rewriter.search import Searched, gpu_is_shared, search
from tconv.sandbox.cut import Replaced, WrittenFile
from tconv.sandbox.gpu_memory import naming_shortage
from tconv.sandbox.model_file import ModelFileError, read_source
from tconv.sandbox.trace import Trace, trace
from tconv.sandbox.worker import WorkerFailed, Workshop
from tconv.tuning.compilers import compilers, threads

#: Those whose arithmetic is the plainest.
_PLAINEST = tuple(name for name, family in FAMILIES.items() if not family.on_tensor_cores)
_NOT_FASTER = "slower than PyTorch here"
_OWN_FORWARD = (
    "computed by its class's own forward, which does not call torch's: if it stands in another file, move it into the "
    "model file"
)
_OWN_CALL = "called in a way that is not seen in the text: write torch.nn.functional's name where it is called"


def optimize(
    request: Request,
    say: Callable[[str], None] = lambda step: None,
    workshop: Workshop | None = None,
    began: float | None = None,
) -> Outcome:
    """Write the generated file, unless its kernels turn out wrong.

    Args:
        say: is told in a few words what begins.
        workshop: starts the processes; one of its own if None.
        began: when the program did, by `time.perf_counter`, if that is to be a step.

    Raises:
        Trouble: of the model file, the output's place or this machine.
    """
    check_output(request.output, request.model, request.force)
    check_neighbours(request.output, request.model, read_source(request.model))
    if request.only_faster and not (torch.cuda.is_available() and request.bench):
        raise Trouble("--only-faster compares times: it needs a GPU, and no --no-bench")
    if request.compile and not (torch.cuda.is_available() and request.bench):
        raise Trouble("--compile is timed: it needs a GPU, and no --no-bench")
    if not torch.cuda.is_available() and shutil.which("g++") is None:
        raise Trouble("g++ not found: without a GPU the kernels run in the emulator, which takes it: apt install g++")
    steps = Steps(say, began=began)
    with naming_shortage(lambda: steps.step), ExitStack() as stack:
        shop = workshop or stack.enter_context(Workshop(traces=True))
        try:
            outcome = _Job(request, shop, steps).run()
            return replace(outcome, seconds=steps.seconds())
        except WorkerFailed as failure:
            raise ModelFileError(f"{request.model.name} {failure}: it was loaded and run once on its inputs") from None


@dataclass
class _Job:
    request: Request
    workshop: Workshop
    say: Callable[[str], None]
    on_gpu: bool = field(default_factory=torch.cuda.is_available)
    compiled: Compiler = field(default_factory=Compiler)
    pool: Executor = field(default_factory=ThreadPoolExecutor)
    extensions: Extensions | None = None
    shared: bool = False
    empty: tuple[str, ...] = ()
    #: The model file's process; None where nothing can build what is written, which is not judged as a whole then.
    model: judging.Begun | None = None

    def run(self) -> Outcome:
        """Three ways down and back: what the file runs, its new text for that, and what becomes of that text."""
        with ExitStack() as stack:
            # Processes load while the file is traced. The emulator runs kernels while threads compile them.
            self.pool = pool = stack.enter_context(compilers() if self.on_gpu else threads())
            self.compiled = Compiler(pool)
            model = self.request.model
            # While the file is traced, by a process that loads torch first.
            loaded = stack.enter_context(threads()).submit(load_libraries) if self.on_gpu else None
            self.say(f"tracing {model.name}")
            interface, timeout_s = self.request.interface, self.request.timeout_s
            found = trace(model, interface, timeout_s=timeout_s, workshop=self.workshop, to_judge=True)
            names = ", ".join(layer.name for layer in found.layers if layer.empty)
            self.empty = (f"{names} in the model: get_inputs() gives an empty batch",) if names else ()
            fused = self._with_epilogues(found)
            gpu = self._gpu()
            searched = Searched()
            if loaded is not None:
                loaded.result()
            self.shared = self.on_gpu and self.request.bench and gpu_is_shared()
            if self.on_gpu and self._searches():
                self.say("measuring the leading kernels")
                known, alone = self._tuned(gpu), not self.shared
                wanted = self.request.precision
                searched = search(fused.trace, gpu, pool, wanted, self._resolve, known, alone, fused.programs)
            # It makes its inputs while kernels are planned, built and checked.
            self.model = self._model_begun(understood(self.request.precision, found.tf32), stack)
            written = self._written(fused, gpu, searched)
            return replace(written, searched=searched, apart=fused.apart, left=found.left)

    def _with_epilogues(self, found: Trace) -> Fused:
        request = self.request
        if not request.fuse:
            return Fused(found)
        self.say("looking at the epilogues of layers")
        return with_epilogues(request.model, found, self.workshop, request.interface, timeout_s=request.timeout_s)

    def _searches(self) -> bool:
        return self.request.search and self.request.bench

    def _written(self, fused: Fused, gpu: Gpu, searched: Searched) -> Outcome:
        wanted = understood(self.request.precision, fused.trace.tf32)
        outcome, fused = self._first_attempt(fused, gpu, wanted, searched)
        if outcome.written or not outcome.equal or len(outcome.slower) == len(outcome.replaced):
            return outcome
        layers = leave([check.layer for check in outcome.layers], outcome.slower, _NOT_FASTER)
        attempt = self._attempt(fused, layers, gpu, wanted, takes_slower=True)
        return replace(attempt, mistakes=outcome.mistakes)

    def _first_attempt(self, fused: Fused, gpu: Gpu, wanted: Wanted, searched: Searched) -> tuple[Outcome, Fused]:
        """With every family; where they are not equal, with the one of the plainest arithmetic, and no epilogues."""
        mistakes: tuple[str, ...] = ()
        tuned = {**self._tuned(gpu), **searched.tuned}
        for families, with_them in ((tuple(FAMILIES), fused), (_PLAINEST, fused.without)):
            self.say("planning")
            basis = Basis(gpu, families, tuned, searched.measured, with_them.programs, self.request.types)
            layers = plan_layers(with_them.trace, self.request.model, basis, wanted, self._resolve)
            outcome = self._attempt(with_them, layers, gpu, wanted, takes_slower=not self.request.only_faster)
            plainest = all(layer.plan.kernel.family in _PLAINEST and not layer.kernel_epilogues for layer in layers)
            if outcome.equal or plainest:
                break
            mistakes = outcome.reasons
        # What the plainest do not get equal, either, may be the model's own doing.
        return replace(outcome, mistakes=mistakes if outcome.equal else ()), with_them

    def _attempt(
        self, fused: Fused, layers: Sequence[PlannedLayer], gpu: Gpu, wanted: Wanted, takes_slower: bool
    ) -> Outcome:
        """Generate and check; write if everything is equal and, unless they are taken, no layer is slower."""
        request = self.request
        while True:
            settled = settle(layers, gpu, (*self._archs(gpu), gpu.arch), self.pool)
            if not self.on_gpu:  # nothing is built meanwhile
                layers = settled()
            left = fused.trace.left
            text = build(request.model, layers, fused.text, fused.epilogues, request.interface, left, request.elsewhere)
            with draft(request.output, text) as written:
                needed = builtins_needed(text)
                with WrittenFile(written.path, self.workshop, needed, timeout_s=request.timeout_s) as file:
                    self.say("looking for what is left to PyTorch")
                    replaced = file.replaced()
                    for reason in () if replaced is None else replaced.elsewhere:
                        raise Trouble(f"a bug in tconv: PyTorch would run a layer of {request.model.name}: {reason}")
                    out_of_reach = self._out_of_reach(replaced, layers)
                    written_layers = layers
                    if not out_of_reach:
                        # Built while it is seen whether registers suffice, as they nearly always do.
                        self._begin_builds(replaced)
                        self.say("planning")
                        layers = settled()
                    final = not out_of_reach and layers == written_layers
                    if final:
                        check_other_sizes(file, layers)
                        checks = self._check(file, layers, gpu)
                if final:
                    return self._conclude(written, text, checks, gpu, takes_slower)
            for reason, names in out_of_reach.items():
                layers = leave(layers, names, reason)

    def _conclude(
        self,
        written: Draft,
        text: str,
        checks: tuple[LayerCheck, ...],
        gpu: Gpu,
        takes_slower: bool,
    ) -> Outcome:
        """The judgement of the whole draft, which goes to its place with what was found if it is as good as asked."""
        report, unjudged = self._judge(written.path, gpu)
        notes = (*self.empty, *self._not_checked(checks), *([f"the whole file: {unjudged}"] if unjudged else []))
        notes += () if report is None else excuses(report.verdict.checks)
        outcome = Outcome(
            self.request,
            gpu,
            self.on_gpu,
            checks,
            report,
            self._load_inline(),
            notes,
            shared_gpu=self.shared,
            unjudged=unjudged,
        )
        if outcome.equal and (takes_slower or not outcome.slower):
            written.rewrite(with_findings(text, outcome))
            written.publish()
            outcome = replace(outcome, written=True)
        return outcome

    def _gpu(self) -> Gpu:
        if not self.on_gpu:
            return Gpu.h200() if set(self.request.archs) == {"sm_90a"} else Gpu.any_with_tensor_cores()
        from tconv.jit.loader import gpu_of

        return gpu_of(torch.cuda.current_device())

    def _archs(self, gpu: Gpu) -> tuple[str, ...]:
        """What is compiled for: asked for, or the arch of what was planned for."""
        return self.request.archs or (gpu.arch,)

    def _tuned(self, gpu: Gpu) -> Answers:
        return answers(gpu.name) if self.on_gpu else {}

    def _resolve(self, problem: Problem, wanted: Wanted) -> Precision:
        return resolve(problem, wanted, device=torch.device("cuda" if self.on_gpu else "cpu"))

    def _begin_builds(self, replaced: Replaced | None) -> None:
        """What the judge's processes build is built while layers are checked: they find it in load_inline's folder."""
        if replaced is not None and self.on_gpu and not self.request.missing:
            self.extensions = self.extensions or Extensions(self.pool)
            for options in replaced.extensions:
                self.extensions.begin(options)

    def _await_others(self) -> None:
        """Compilers, and a model file that draws, take processors from whoever is timed."""
        if self.extensions is not None:
            self.say("building the file's kernels")
            self.extensions.wait()
        self._await_model()

    def _await_model(self) -> None:
        if self.model is not None:
            self.say(f"running {self.request.model.name}")
            self.model.ready()

    def _out_of_reach(self, replaced: Replaced | None, layers: Sequence[PlannedLayer]) -> dict[str, list[str]]:
        """The names of layers that the file was to replace and that PyTorch runs all the same, by the reason."""
        remaining = replaced.remaining if replaced else ()
        wanted = [layer for layer in layers if not layer.left]
        modules = {layer.name for layer in remaining}
        # Calls stand at other lines there. They are known by what they compute, and by how often.
        calls = Counter({_size(layer.problem): layer.count for layer in remaining if layer.called})
        calls.subtract({_size(layer.plan.problem): layer.count for layer in layers if layer.left and layer.called})
        found = {
            _OWN_FORWARD: [layer.name for layer in wanted if not layer.called and layer.name in modules],
            _OWN_CALL: [layer.name for layer in wanted if layer.called and calls[_size(layer.plan.problem)] > 0],
        }
        found = {reason: names for reason, names in found.items() if names}
        if sum(map(len, found.values())) == len(wanted):
            reason, names = next(iter(found.items()))
            raise ModelFileError(f"{self.request.model.name}: nothing can be replaced: {names[0]} is {reason}")
        return found

    def _check(self, file: WrittenFile, layers: Sequence[PlannedLayer], gpu: Gpu) -> tuple[LayerCheck, ...]:
        checks = check_layers(
            file,
            layers,
            self._archs(gpu),
            self.compiled,
            gpu=gpu if self.on_gpu else None,
            extensions=self.extensions,
            bench=self.request.bench,
            begins=self.say,
            quiet=self._await_others,
        )
        return tuple(checks)

    def _model_begun(self, wanted: Wanted, stack: ExitStack) -> judging.Begun | None:
        """The model file in a process of its own, for the judgement of the written one.

        On a GPU that is built by load_inline; without one the emulator runs it.
        """
        request = self.request
        if self.on_gpu and request.missing:
            return None
        begun = judging.begun(
            request.model,
            interface=request.interface,
            device="cuda" if self.on_gpu else "cpu",
            emulated=not self.on_gpu,
            precision=wanted,
            further=(COPIED,),
            timeout_s=request.timeout_s,
            workshop=self.workshop,
        )
        return stack.enter_context(begun)

    def _judge(self, written: Path, gpu: Gpu) -> tuple[Report | None, str]:
        """What was judged, and why not, where the whole file cannot be judged beside its own class."""
        if self.model is None:
            return None, ""
        self._await_model()
        try:
            report = self.model.beside(written).report(
                training=True,
                bench=self.on_gpu and self.request.bench,
                compile=self.request.compile,
                floor_seconds=lambda problem: floor_seconds(problem, gpu),
                say=self.say,
            )
        except CannotJudge as error:
            return None, str(error)
        return report, ""

    def _load_inline(self) -> str:
        if not self.on_gpu:
            return "not tried"
        return "not built" if self.request.missing else "built"

    def _not_checked(self, checks: Sequence[LayerCheck]) -> tuple[str, ...]:
        lacking = tuple(
            f"{check.layer.name} on {arch}: no kernel of the file runs there, PyTorch does"
            for check in checks
            for arch in self.request.archs
            if not check.layer.left and not runs_on_arch(check.layer, arch)
        )
        return (*lacking, *self._not_checked_here(checks))

    def _not_checked_here(self, checks: Sequence[LayerCheck]) -> tuple[str, ...]:
        if self.on_gpu:
            if self.request.missing:
                return ("the whole file, which load_inline would build",)
            if self.shared:
                return ("how fast it is: other programs use this GPU, and the times hold their work, too",)
            return () if self.request.bench else ("times: --no-bench",)
        shrunk = "; ".join(f"{check.layer.name}: {check.shrunk}" for check in checks if check.shrunk)
        full = (f"the full size, for the emulator ({shrunk})",) if shrunk else ()
        autocast = judging.autocast_not_checked(read_source(self.request.model))
        return ("the link of load_inline", *full, *autocast, "times")


def _size(problem: Problem) -> Problem:
    """The problem, whatever its arithmetic: that of its dtype stands for all."""
    layer = problem.layer
    same = next(precision for precision in PRECISIONS if DTYPE_OF[precision] == layer.dtype)
    return replace(problem, layer=replace(layer, precision=same))
