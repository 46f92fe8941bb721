"""What `tconv optimize` is asked for and what it found out, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tconv.codegen.planned import types_of
from tconv.evaluation.precision import Wanted
from tconv.evaluation.report import Report
from tconv.evaluation.verdict import Timing
from tconv.planner import Gpu, Plan
from tconv.planner.plan import tile_fields
from tconv.rewriter.check import LayerCheck
from tconv.rewriter.search import Searched
from tconv.sandbox.model_file import MODEL, Interface
from tconv.sandbox.trace import TIMEOUT_SECONDS
from tconv.tuning.measure import Answer


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Args:
        archs: to compile for; empty for the GPU's own, or without one for sm_80. Without a GPU, sm_90a alone plans for
            Hopper.
        types: element types that layers get kernels for beside those in which the model calls them.
        elsewhere: what the file does with calls that none of its kernels runs: "pytorch" or "error".
        search: on a GPU, measure the leading kernels of each layer, unless nothing is timed.
        fuse: hand the epilogues of layers to their kernels.
        missing: what load_inline lacks on this machine, one clause each with the line that gets it.
        interface: by what the model file is used.
        compile: time both sides under `torch.compile` as well.
    """

    model: Path
    output: Path
    force: bool = False
    archs: tuple[str, ...] = ()
    precision: Wanted = "match"
    only_faster: bool = False
    bench: bool = True
    search: bool = True
    fuse: bool = True
    missing: tuple[str, ...] = ()
    interface: Interface = MODEL
    timeout_s: float = TIMEOUT_SECONDS
    types: tuple[str, ...] = ()
    elsewhere: str = "pytorch"
    compile: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was made and found out.

    Args:
        gpu: what was planned for.
        on_gpu: a GPU ran the kernels.
        layers: one for each transposed convolution.
        report: the judgement of the whole file; None where it could not be made.
        load_inline: "built", "not built", or "not tried" on a machine without a GPU.
        written: the output file is there.
        seconds: of each step.
        mistakes: why kernels that were chosen first were not equal, where the plainest ones took their places.
        searched: what the search found.
        shared_gpu: other programs used the GPU while times were taken.
        apart: why calls of layers have nothing handed to their kernels, one clause each.
        left: calls that PyTorch's operator must run, by their names, and why; not among `layers`.
        unjudged: why the whole file cannot be judged, where the model file is such.
    """

    request: Request
    gpu: Gpu
    on_gpu: bool
    layers: tuple[LayerCheck, ...]
    report: Report | None
    load_inline: str
    not_checked: tuple[str, ...] = ()
    written: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()
    searched: Searched = field(default_factory=Searched)
    shared_gpu: bool = False
    apart: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    unjudged: str = ""

    @property
    def replaced(self) -> tuple[LayerCheck, ...]:
        return tuple(check for check in self.layers if not check.layer.left)

    @property
    def types(self) -> list[str]:
        """The element types that the file has kernels for, by torch's names."""
        return types_of([check.layer for check in self.layers])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every failed check in one line."""
        judged = (item for check in self.replaced for item in check.verdicts.items())
        of_layers = tuple(f"{name}: {reason}" for name, verdict in judged for reason in verdict.reasons)
        return of_layers + (self.report.reasons if self.report else ())

    @property
    def equal(self) -> bool:
        return all(check.equal for check in self.replaced) and (self.report is None or self.report.equal)

    @property
    def slower(self) -> tuple[str, ...]:
        """Replaced layers that PyTorch runs faster, in inference: what the host does is the whole file's affair."""
        return tuple(check.layer.name for check in self.replaced if check.time and check.time.speedup < 1)

    @property
    def timing(self) -> Timing | None:
        """Of the whole file; None where it was not timed."""
        return None if self.report is None else self.report.timing

    @property
    def speedup(self) -> float | None:
        """In inference, of the whole model where it was timed, else of its replaced layers together."""
        if self.timing is not None:
            return self.timing.speedup
        times = [(check.layer.count, check.time) for check in self.replaced if check.time is not None]
        if not times or len(times) < len(self.replaced):
            return None
        return sum(n * time.pytorch for n, time in times) / sum(n * time.ours for n, time in times)


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """JSON-able: everything that was found out."""
    request = outcome.request
    return {
        "model": request.model.name,
        "output": request.output.name,
        "written": outcome.written,
        "equal": outcome.equal,
        "unjudged": outcome.unjudged,
        "reasons": list(outcome.reasons),
        "speedup": outcome.speedup,
        "precision": request.precision,
        "planned_for": outcome.gpu.name,
        "on_gpu": outcome.on_gpu,
        "load_inline": outcome.load_inline,
        "missing": list(request.missing),
        "not_checked": list(outcome.not_checked),
        "mistakes": list(outcome.mistakes),
        "search": [_answer_to_dict(answer) for answer in outcome.searched.answers],
        "search_mistakes": list(outcome.searched.mistakes),
        "search_kept": outcome.searched.kept,
        "apart": list(outcome.apart),
        "left": dict(outcome.left),
        "layers": [_layer_to_dict(check) for check in outcome.layers],
        "whole_file": None if outcome.report is None else outcome.report.to_dict(),
        "seconds": {step: round(taken, 3) for step, taken in outcome.seconds.items()},
    }


def _answer_to_dict(answer: Answer) -> dict[str, Any]:
    tuned = answer.tuned
    return {
        "name": answer.job.name,
        "problem": answer.question.problem.layer.describe(),
        "first_ms": answer.first_ms,
        "best_ms": None if tuned is None else tuned.milliseconds,
        "pytorch_ms": answer.pytorch_ms,
        "tried": 0 if tuned is None else tuned.tried,
        "measured": [
            {"family": each.family, "tile": dict(tile_fields(each.tile)), "ms": each.milliseconds}
            for each in answer.measured
        ],
    }


def _layer_to_dict(check: LayerCheck) -> dict[str, Any]:
    layer, plan = check.layer, check.layer.plan
    return {
        "name": layer.name,
        "problem": plan.problem.layer.describe(),
        "input_shape": list(plan.problem.input_shape),
        "output_shape": list(plan.problem.output_shape),
        "count": layer.count,
        "left": layer.reason if layer.left else None,
        "plan": _plan_to_dict(plan),
        "epilogues": [each._asdict() for each in layer.kernel_epilogues],
        "other_plans": {use: _plan_to_dict(other) for use, other in layer.variants.items() if use},
        "builds": [vars(made) for made in check.builds],
        "judged_at": None if check.judged_at is None else list(check.judged_at.input_shape),
        "pytorch_error": check.pytorch_error,
        "verdict": None if check.verdict is None else check.verdict.to_dict(),
        "other_verdicts": {use: verdict.to_dict() for use, verdict in check.others.items()},
        "epilogue_verdicts": {use: verdict.to_dict() for use, verdict in check.of_epilogue.items()},
        "time_ms": None if check.time is None else {**vars(check.time), "speedup": check.time.speedup},
    }


def _plan_to_dict(plan: Plan) -> dict[str, Any]:
    if plan.kernel.tile is None:  # its text says the rest
        return {"family": plan.kernel.family}
    return {
        "family": plan.kernel.family,
        "tile": dict(tile_fields(plan.kernel.tile)),
        "grid": plan.grid,
        "threads": plan.kernel.threads,
        "shared_bytes": plan.shared_bytes,
        "reasons": list(plan.reasons),
    }
