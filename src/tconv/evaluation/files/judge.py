"""Judges a candidate file: whether its `ModelNew` is equal to `Model`, and how fast it is.

`Model` and `ModelNew` run in processes of their own. This process runs neither file. It makes weights, inputs and all
comparisons, so nothing that a candidate returns, patches or caches reaches the arithmetic of its verdict.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tconv.errors import Trouble
from tconv.evaluation.files.control import excused, require_results
from tconv.evaluation.files.levels import DIGESTS, EACH_ROUTE, Look
from tconv.evaluation.files.process.weight_changes import COMPILED_TYPES, TYPES
from tconv.evaluation.files.replacement.checks import ONE_BY_ONE, check_parts, check_replacement, parts_of
from tconv.evaluation.files.results.one_layer import layer_alone
from tconv.evaluation.files.results.stages import Results, check_results
from tconv.evaluation.files.sides.file_process import Arguments, CandidateFailed, CannotJudge, Shapes, Side, Traced
from tconv.evaluation.files.sides.inputs import BUILT_DRAWS, MODEL_DRAWS, SEED, Case
from tconv.evaluation.files.sides.model_and_candidate import Pair, Reference
from tconv.evaluation.files.sides.other_arguments import variations, varied_shape
from tconv.evaluation.files.sides.smaller_inputs import cut_down, fewer_samples
from tconv.evaluation.files.timing.timed_results import check_timed
from tconv.evaluation.files.timing.timing_process import Place, TimedSide
from tconv.evaluation.files.timing.two_files import Timer
from tconv.evaluation.precision import Wanted, resolve, understood
from tconv.evaluation.report import Report, Variation
from tconv.evaluation.verdict import Check, Level, Timing, Verdict, one_line
from tconv.problem import Problem
from tconv.sandbox.gpu_memory import place_for
from tconv.sandbox.model_file import CANDIDATE, MODEL, Interface, ModelFileError, read_source
from tconv.sandbox.source_scan import builds_cuda, cuda_autocast, gpu_conditions, written_by_tconv
from tconv.sandbox.worker import Workshop

#: Multiply-adds of one forward pass on the CPU: in PyTorch's operators, and in the emulator.
_CPU_WORK = 10**8
_EMULATOR_WORK = 10**7
#: Draws in other states take one part in this many of that work.
_FURTHER_SHARE = 10
#: Inputs of more bytes are drawn once. Later draws are other samples of them.
_FURTHER_BYTES = 128 * 2**20
#: Draws in other states are cut down to this many bytes of inputs and results, as each of many calls writes files.
_SMALL_BYTES = 32 * 2**20
#: One tensor of an answer may take one part in this many of the memory: its comparison needs several times as much.
_ANSWER_SHARE = 4
#: Processes that time `Model` without `torch.compile`, and the bytes of inputs that they may hold while others run.
_OF_MODEL, _LARGE_BYTES = 2, 256 * 2**20
_LONGEST_SECONDS = 10**6
#: The report quotes at most this many lines that ask for a GPU, each up to this many characters.
_ASKED, _ASKED_LENGTH = 3, 60


def judge(
    model: str | Path,
    candidate: str | Path,
    *,
    interface: Interface = MODEL,
    device: str = "auto",
    vary_arguments: bool = False,
    precision: Wanted = "match",
    training: bool = False,
    bench: bool = False,
    compile: bool = False,
    level: Level = "default",
    further: tuple[Look, ...] = (),
    timeout_s: float = 300.0,
    workshop: Workshop | None = None,
    floor_seconds: Callable[[Problem], float | None] | None = None,
    say: Callable[[str], None] = lambda step: None,
) -> Report:
    """Compare `ModelNew` of the candidate file with `Model` of the model file, and time both where `bench` is set.

    Args:
        interface: the names that the model file is used by.
        device: "auto" (a GPU where there is one), "cuda" or "cpu".
        vary_arguments: also run both at other sizes, and build both with other constructor arguments.
        precision: the arithmetic that float32 convolutions may use: PyTorch's own on the layer, "tf32" or "fp32".
        training: a candidate that lacks gradients of `Model` fails. Else the report only says so.
        compile: with `bench`, time both under `torch.compile` as well.
        level: the level of the checks.
        further: looks of the strict level to add to the default level, such as `levels.COPIED`.
        timeout_s: the limit of each step in the candidate's or the model's process, builds of CUDA code included.
        workshop: starts the processes; if None, a new one.
        floor_seconds: the roofline bound of a problem on this GPU, for the timing.
        say: called with a few words when a step begins.

    Raises:
        ModelFileError: the model file is at fault. The candidate's faults are in the report.
        CannotJudge: a ModelFileError: the model file runs, but nothing can be compared with its results.
        Trouble: this machine cannot judge the candidate.
    """
    with opened(
        model,
        candidate,
        interface=interface,
        device=device,
        precision=precision,
        bench=bench,
        level=level,
        further=further,
        timeout_s=timeout_s,
        workshop=workshop,
        say=say,
    ) as judgement:
        return judgement.report(
            training=training,
            bench=bench,
            vary_arguments=vary_arguments,
            compile=compile,
            floor_seconds=floor_seconds,
            say=say,
        )


@contextmanager
def opened(
    model: str | Path,
    candidate: str | Path,
    *,
    device: str = "auto",
    bench: bool = False,
    say: Callable[[str], None] = lambda step: None,
    **options: Any,
) -> Iterator[Judgement]:
    """The part of `judge` before the candidate runs, with its arguments and errors.

    Args:
        bench: whether times will be taken.
        options: those of `begun`.
    """
    source = read_source(Path(candidate).resolve())
    emulated = _check_runs_here(source, choose_device(device), bench)
    say(f"running {Path(model).name}")
    with begun(model, device=device, emulated=emulated, **options) as its_model:
        yield its_model.beside(candidate)


@contextmanager
def begun(
    model: str | Path,
    *,
    interface: Interface = MODEL,
    device: str = "auto",
    emulated: bool = False,
    precision: Wanted = "match",
    level: Level = "default",
    further: tuple[Look, ...] = (),
    timeout_s: float = 300.0,
    workshop: Workshop | None = None,
) -> Iterator[Begun]:
    """A process that builds `Model` and makes its inputs, for judgements of one candidate or several.

    The arguments and errors are those of `judge`.

    Args:
        emulated: whether the emulator will run candidates.
    """
    if not 0 < timeout_s <= _LONGEST_SECONDS:
        raise Trouble(f"got a timeout of {timeout_s:g} s; allowed is more than 0 and at most {_LONGEST_SECONDS}")
    model = Path(model).resolve()
    with ExitStack() as stack:
        shop = workshop or stack.enter_context(Workshop())
        work = _EMULATOR_WORK if emulated else _CPU_WORK
        court = _Court(shop, (model, interface), choose_device(device), precision, timeout_s, work, level, further)
        stack.enter_context(court.model)
        court.model.begin_example(SEED)
        yield Begun(court, model.name, level, precision)


@dataclass(frozen=True)
class Begun:
    """A process of `Model`, as `begun` gives it."""

    _court: _Court
    _name: str
    _level: Level
    _precision: Wanted

    def ready(self) -> None:
        """Wait until the model file has run on its inputs. Nothing of it runs after that."""
        self._court.own_case  # noqa: B018

    def beside(self, candidate: str | Path) -> Judgement:
        """The judgement of a candidate. The candidate does not run yet."""
        candidate = Path(candidate).resolve()
        self._court.candidate = candidate
        source = read_source(candidate)
        emulated = _check_runs_here(source, self._court.device, bench=False)
        return Judgement(self._court, (self._name, candidate.name), source, emulated, self._level, self._precision)


@dataclass(frozen=True)
class Judgement:
    """The judgement of one candidate, as `opened` gives it before the candidate runs."""

    _court: _Court
    _names: tuple[str, str]
    _source: str
    _emulated: bool
    _level: Level
    _precision: Wanted

    def report(
        self,
        *,
        training: bool = False,
        bench: bool = False,
        vary_arguments: bool = False,
        compile: bool = False,
        floor_seconds: Callable[[Problem], float | None] | None = None,
        say: Callable[[str], None] = lambda step: None,
    ) -> Report:
        """The rest of what `judge` does, with its arguments and errors."""
        court, source, emulated = self._court, self._source, self._emulated
        case, not_checked = court.own_case
        say("building and comparing the whole file")
        options = {"training": training, "types": _types(source, emulated), "emulated": emulated}
        with court.timing_begun(case, bench) as begun:
            try:
                verdict = court.check_whole(case, lambda: say("changing weights and taking gradients"), **options)
            except ModelFileError as error:  # it has run: on its own inputs, as it was built
                raise CannotJudge(str(error)) from None
            if vary_arguments:
                say("comparing with other arguments")
            varied = tuple(court.varied()) if vary_arguments else ()
            timing = None
            if bench and verdict.equal:
                say("timing the whole file")
                check, timing = court.time(case, begun, floor_seconds, compile)
                verdict = replace(verdict, checks=(*verdict.checks, check))
        if vary_arguments and not any(variation.changes for variation in varied):
            not_checked += ("other arguments: Model's constructor takes none of those that could be varied",)
        device = court.device.type
        if emulated:
            not_checked += ("how a GPU builds and runs the file: without one, its kernels ran in the emulator",)
        elif device == "cpu" and (conditions := gpu_conditions(source)):
            asked = ", ".join(f"line {line} ({one_line(text)[:_ASKED_LENGTH]})" for line, text in conditions[:_ASKED])
            more = ", and others" if len(conditions) > _ASKED else ""
            not_checked += (f"what the candidate does on a GPU alone: it asks for one in {asked}{more}",)
        if device == "cpu":
            not_checked += autocast_not_checked(source)
        return Report(*self._names, device, self._precision, verdict, varied, not_checked, timing, self._level)


def autocast_not_checked(source: str) -> tuple[str, ...]:
    """A line about a file that uses CUDA's autocast and is judged without a GPU; empty for other files."""
    lines = ", ".join(map(str, cuda_autocast(source)))
    return (f"types that CUDA's autocast takes, which is off without a GPU: line {lines}",) if lines else ()


def choose_device(wanted: str) -> torch.device:
    """The device for "auto", "cuda" or "cpu".

    Raises:
        Trouble: "cuda" without a GPU, or another word.
    """
    if wanted not in ("auto", "cuda", "cpu"):
        raise Trouble(f"got device {wanted!r}; allowed are auto, cuda and cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Trouble("device cuda: PyTorch finds no GPU here; use --device cpu, or see `tconv doctor`")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def _check_runs_here(source: str, device: torch.device, bench: bool) -> bool:
    """Whether the emulator runs the candidate. Raises Trouble if the candidate needs a GPU and there is none."""
    if device.type == "cuda":
        return False
    if bench:
        raise Trouble("timing needs a GPU: `tconv verify` compares results without one")
    if written_by_tconv(source):
        return True
    if builds_cuda(source):
        raise Trouble("candidate builds CUDA: needs a GPU")
    return False


def _types(source: str, emulated: bool) -> tuple[torch.dtype, ...]:
    """The types that a candidate is cast to, besides its own. They are fewer if it compiles kernels for each type."""
    if emulated:
        return ()
    return COMPILED_TYPES if written_by_tconv(source) or builds_cuda(source) else TYPES


class _Court:
    """Both files of a judgement: `Model` in one process for all cases, `ModelNew` in a new process for each case."""

    def __init__(
        self,
        workshop: Workshop,
        model: tuple[Path, Interface],
        device: torch.device,
        wanted: Wanted,
        timeout_s: float,
        cpu_work: int,
        level: Level,
        further: tuple[Look, ...],
    ) -> None:
        self.workshop, self._model = workshop, model
        #: The file of `ModelNew`.
        self.candidate = Path()
        self.device, self.wanted, self.timeout_s = device, wanted, timeout_s
        self._cpu_work, self._level, self._further = cpu_work, level, further
        self.model = self._open(*model, ModelFileError)
        self._arguments: Arguments = ((), {})

    def _open(self, path: Path, interface: Interface, failure: type[Exception]) -> Side:
        return Side(
            self.workshop,
            path,
            interface,
            device=self.device,
            timeout_s=self.timeout_s,
            memory_bytes=_memory() if self.device.type == "cpu" else None,
            limit_bytes=_memory() // _ANSWER_SHARE,
            level=self._level,
            failure=failure,
        )

    def check(self, case: Case) -> Verdict:
        """The verdict on one case, in a new process of the candidate.

        Raises:
            CannotJudge: nothing can be compared with what `Model` gives.
        """
        return self._check_results(self._reference(case)).verdict

    def check_whole(self, case: Case, begins: Callable[[], None], **options: Any) -> Verdict:
        """The verdict on one case. If results are equal, it has the checks of `replacement`, too.

        These run in the same process of the candidate; at the strict level, in a new one.

        Args:
            begins: called when these checks begin.
            options: those of `check_replacement`.
        """
        reference = self._reference(case)
        of_pair = {name: options[name] for name in ("types", "emulated")}

        then = partial(check_parts, training=options["training"])

        def first(pair: Pair) -> dict[str, list[Check]]:
            begins()
            return then(pair)

        def control(parts: Collection[str]) -> Mapping[str, list[Check]]:
            """The control's checks, in a process that has run the same calls before."""
            if epilogue_results:
                return check_results(reference, self._open_control, then=partial(then, parts=parts), **of_pair).parts
            return check_replacement(reference, self._open_control, **options, parts=parts)

        one_process = not reference.looks_at(EACH_ROUTE)
        found = self._check_results(reference, **({"then": first, **of_pair} if one_process else {}))
        if not found.verdict.equal:
            return found.verdict
        parts, epilogue_results = dict(found.parts), bool(found.parts)
        if not epilogue_results:  # also if failures were excused
            begins()
            parts = check_replacement(reference, self._open_candidate, **options)
        checks = (*found.verdict.checks, *self._without_models_own(reference, parts, control))
        return replace(found.verdict, checks=checks)

    def _check_results(self, reference: Reference, **options: Any) -> Results:
        found = check_results(reference, self._open_candidate, **options)
        if found.verdict.equal:
            require_results(found.verdict.checks)
        if found.verdict.equal or not self._has_control():
            return found
        control = check_results(reference, self._open_control, found.stage)
        checks = excused(found.verdict.checks, control.verdict.checks)
        require_results(checks)
        return replace(found, verdict=replace(found.verdict, checks=tuple(checks)))

    def _without_models_own(
        self,
        reference: Reference,
        found: dict[str, list[Check]],
        control: Callable[[Collection[str]], Mapping[str, list[Check]]],
    ) -> list[Check]:
        """The checks of all parts. Checks that the control fails, too, do not count.

        Args:
            control: gives the control's checks of some parts.
        """
        failing = [part for part, checks in found.items() if any(check.passed is False for check in checks)]
        if failing and self._has_control():
            # A part may depend on state that earlier parts left, and the checks of all calls on every part.
            parts = parts_of(reference)
            last = len(parts) if "" in failing else parts.index(failing[-1]) + 1
            models_own = control(parts[:last])
            for part in failing:
                found[part] = excused(found[part], models_own.get(part, ()), each=part in ONE_BY_ONE)
        return [check for checks in found.values() for check in checks]

    def _reference(self, case: Case) -> Reference:
        self.model.narrow = case.narrow and self.device.type == "cpu"
        return Reference(case, self.model, self.wanted, self.device, self._level, self._further)

    def _open_candidate(self) -> Side:
        candidate = self._open(self.candidate, CANDIDATE, CandidateFailed)
        candidate.narrow, candidate.beside = self.model.narrow, self.model
        return candidate

    def _has_control(self) -> bool:
        """Whether the control can run: the candidate may have removed the folder through which values pass."""
        return self.workshop.directory.is_dir()

    def _open_control(self) -> Side:
        """`Model` in a candidate's place."""
        control = self._open(*self._model, CandidateFailed)
        control.narrow, control.beside = self.model.narrow, self.model
        return control

    @cached_property
    def own_case(self) -> tuple[Case, tuple[str, ...]]:
        """The model file's arguments and inputs, smaller on the CPU; and lines about what stays unchecked by that."""
        shapes = self.model.example()
        self.wanted = understood(self.wanted, self.model.allows_tf32())
        self._arguments = arguments = self.model.arguments()
        if self.device.type == "cuda":
            traced = self.model.trace()
            fewer = fewer_samples(shapes, _FURTHER_BYTES, MODEL_DRAWS)
            fewer = shapes if self._work(fewer) is None else fewer
            small = cut_down(fewer, self._bytes, _SMALL_BYTES)
            return Case(arguments, self._drawn(shapes, shapes, fewer, small), traced, traced), ()
        sizes = cut_down(shapes, self._work, self._cpu_work)
        small = cut_down(sizes, self._work, self._cpu_work // _FURTHER_SHARE)
        inputs = self._drawn(shapes, sizes, sizes, small)
        if sizes == shapes:
            traced = self.model.trace()
            return Case(arguments, inputs, traced, traced), ()
        note = f"the full size: judged at {_show(sizes)} instead of {_show(shapes)}, for want of a GPU"
        full, traced = self.model.trace(shapes=shapes), self.model.trace(shapes=sizes)
        return Case(arguments, inputs, traced, full), (note,)

    def _drawn(self, shapes: Shapes, first: Shapes, fewer: Shapes, small: Shapes) -> Callable[[int], list[Any]]:
        """A function that makes the inputs for a seed. Large inputs are drawn once; later seeds take other samples.

        Args:
            shapes: the shapes of the model file's own inputs.
            first, fewer: the shapes of the first draw and of further draws.
            small: the shapes of draws in other states.
        """
        batch, samples = (next((shape[0] for shape in each if shape), 0) for each in (shapes, fewer))
        large = 4 * sum(math.prod(shape) for shape in shapes if shape) > _FURTHER_BYTES
        once = large and samples * MODEL_DRAWS <= batch

        def inputs(seed: int) -> list[Any]:
            cut = first if seed == SEED else fewer if seed < SEED + BUILT_DRAWS else small
            return self.model.inputs(SEED, cut, (seed - SEED) * samples) if once else self.model.inputs(seed, cut)

        return inputs

    def _bytes(self, shapes: Shapes) -> int | None:
        """Bytes of the inputs in float32 and of the largest result inside; None if the model rejects these shapes."""
        traced = self._traced(shapes)
        inputs = sum(math.prod(shape) for shape in shapes if shape)
        return None if traced is None else 4 * (inputs + traced.largest)

    def _work(self, shapes: Shapes) -> int | None:
        traced = self._traced(shapes)
        return None if traced is None else traced.multiply_adds

    def _traced(self, shapes: Shapes) -> Traced | None:
        """The convolutions that `Model` runs on inputs of these shapes; None if it rejects them."""
        try:
            return self.model.trace(shapes=shapes)
        except ModelFileError:
            return None

    def varied(self) -> list[Variation]:
        """The verdicts with other sizes and other constructor arguments. Arguments that `Model` rejects, or with which
        nothing can be judged, are left out."""
        values = self.model.signature()
        example = self.model.inputs(SEED)
        found = []
        for changes in ({}, *variations(values)):
            arguments: Arguments = ((), {**values, **changes}) if changes else self.model.arguments()

            def inputs(seed: int, changes: dict[str, Any] = changes) -> list[Any]:
                return [_redrawn(value, values, changes, seed) for value in example]

            try:
                self.model.construct(SEED, arguments)
                traced = self.model.trace(inputs(SEED))
                verdict = self.check(Case(arguments, inputs, traced, traced, thorough=False))
            except ModelFileError:
                continue
            found.append(Variation(changes, verdict))
        return found

    def _place(self, device: torch.device) -> Place:
        """The place of processes that time. Their outputs are read to this device."""
        limit, digests = _memory() // _ANSWER_SHARE, DIGESTS.within(self._level)
        return Place(self.workshop, self.timeout_s, device, limit, digests)

    @contextmanager
    def timing_begun(self, case: Case, bench: bool) -> Iterator[list[TimedSide]]:
        """Processes that will time `Model`. With `bench` at the default level, they start during the comparison.

        Each holds a copy of the inputs. If inputs are large, no process starts early, unless the GPU has room for many.
        """
        problems = [problem for problem in case.full.problems if problem is not None]
        size = sum(math.prod(problem.input_shape) * problem.layer.item_bytes for problem in problems)
        begun: list[TimedSide] = []
        try:
            on_gpu = place_for(size, self.device) == self.device
            if bench and self._level == "default" and (size <= _LARGE_BYTES or on_gpu):
                for _ in range(_OF_MODEL):
                    begun.append(
                        TimedSide(
                            self._place(self.device), *self._model, case.arguments, self.model.example_for_another
                        )
                    )
            yield begun
        finally:
            for side in begun:
                side.close()

    def time(
        self, case: Case, begun: list[TimedSide], floor_seconds: Callable[[Problem], float | None] | None, compile: bool
    ) -> tuple[Check, Timing | None]:
        """The times of both files, and the check of results of timed calls. If the check fails, there are no times.

        Args:
            begun: the processes of `timing_begun`.
        """
        floor = None
        if floor_seconds is not None and case.full.layer is not None:
            problem = case.full.layer.problem
            precision = resolve(problem, self.wanted, device=self.device)
            floor = floor_seconds(replace(problem, layer=replace(problem.layer, precision=precision)))
        self.model.forget_example()
        computed = layer_alone(case, self.model.construct(SEED, case.arguments)) is not None
        # Results of one layer are computed on the device that has them. Results of models are compared in pieces.
        device = self.device if computed else torch.device("cpu")
        timer = Timer(
            self._place(device),
            self._model,
            self.candidate,
            case.arguments,
            self.model.example_for_another,
            by_samples=computed or self.model.samples_apart,
            computed=computed,
            begun=begun,
        )
        try:
            timed = timer.time(None if floor is None else floor * 1e3, compile)
        except CandidateFailed as failure:
            return Check("runs while it is timed", False, reason=str(failure)), None
        # Each call is computed in float64 again; which calls are kept was drawn at random.
        *as_called, inference = timed.kept
        as_called = as_called if self._level == "strict" else [each.first() for each in as_called]
        check, timing = check_timed(self._reference(case), *as_called, inference), timed.timing
        if check.passed is not False and timed.compiled is not None:
            of_compiled = check_timed(self._reference(case), timed.compiled)
            timing = timing if of_compiled.passed is not False else timing.without_compiled(of_compiled.reason)
        return check, None if check.passed is False else timing


def _redrawn(value: Any, values: dict[str, Any], changes: dict[str, Any], seed: int) -> Any:
    """For a floating-point tensor, a small normal one that fits the changed arguments; other values stay."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    shape = varied_shape(tuple(value.shape), values, changes)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(value.device, value.dtype)


def _memory() -> int:
    """Bytes of memory of this machine, or of the container that this runs in."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return physical


def _show(shapes: Shapes) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes if shape is not None)
