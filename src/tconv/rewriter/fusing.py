"""The epilogues of a model file's layers, handed to their kernels: which text says so, and by which programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tconv.codegen.fuse import FusedSite, FusedSource, fuse
from tconv.codegen.planned import Epilogues
from tconv.codegen.runtime import epilogues_text
from tconv.errors import InvalidProgram
from tconv.pointwise.calls import program_of
from tconv.pointwise.program import SUM
from tconv.sandbox.epilogues import Place, parted
from tconv.sandbox.model_file import MODEL, Interface, ModelFileError, read_source
from tconv.sandbox.trace import TIMEOUT_SECONDS, Trace, Tracer, decode_trace
from tconv.sandbox.worker import WorkerFailed, Workshop


@dataclass(frozen=True)
class Fused:
    """A model file with epilogues.

    Args:
        trace: what the file runs.
        text: of the file that hands epilogues over; None for its own.
        programs: by what epilogues call; "" for an epilogue that calls nothing.
        apart: why other calls of layers have none, one clause each.
        before: what the file runs without epilogues; None where `trace` says it.
    """

    trace: Trace
    text: str | None = None
    programs: Mapping[str, str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    before: Trace | None = None

    @property
    def epilogues(self) -> Epilogues:
        """What the written file knows of them."""
        return Epilogues(self.trace.known, self.programs, self.trace.modules)

    @property
    def without(self) -> Fused:
        """The file without them."""
        return Fused(self.before or self.trace, apart=self.apart)


def with_epilogues(
    model: Path,
    found: Trace,
    workshop: Workshop,
    interface: Interface = MODEL,
    *,
    timeout_s: float = TIMEOUT_SECONDS,
) -> Fused:
    """The model file with epilogues for all layers that can have one.

    Args:
        found: what the file itself runs.

    Raises:
        ModelFileError: the file cannot be read.
    """
    source = interface.completed(read_source(model), model.name)
    try:
        path = str(model.resolve())
        with workshop.start(Tracer, timeout_s=timeout_s, path=path, interface=interface) as worker:
            seen = worker.call("callees", timeout_s=timeout_s, source=source)
            calls = {_place(place): called for place, called in seen}
            refused: dict[Place, str] = {}
            compiled = {line for layer in found.layers for line in layer.compiled}

            def run(fused: FusedSource) -> Trace:
                asked = {"text": fused.text, "lines": list(fused.lines), "runtime": epilogues_text()}
                return decode_trace(worker.call("fused", timeout_s=timeout_s, **asked))

            def broken(sites: Sequence[FusedSite], error: ModelFileError) -> dict[Place, str]:
                """Which epilogues the file does not run with, each by itself; all of them where none is it alone."""
                found: dict[Place, str] = {}
                for site in sites:
                    others = {other.layer for other in sites if other is not site}
                    try:
                        run(fuse(source, calls, {*refused, *others}, numbered=True, compiled=compiled))
                    except ModelFileError as own:
                        found[site.layer] = _does_not_run(own)
                return found or {site.layer: _does_not_run(error) for site in sites}

            while True:
                fused = fuse(source, calls, refused, numbered=True, compiled=compiled)
                try:
                    traced = run(fused)
                except ModelFileError as error:
                    if not fused.sites:
                        raise
                    refused |= broken(fused.sites, error)
                    continue
                programs, reasons = _programs(traced)
                wrong = _refused(fused, traced, programs, reasons)
                if not wrong:
                    break
                refused |= wrong
            final = fuse(source, calls, refused, _comments(fused, traced, programs), compiled=compiled)
            traced = run(final)
    except (ModelFileError, WorkerFailed) as error:
        return Fused(found, apart=(f"the file with epilogues does not run: {error}",))
    apart = [f"line {place[0]}: {reason}" for place, reason in sorted({**fused.apart, **refused}.items())]
    apart += _of_sequences(traced, reasons)
    return Fused(traced, final.text, programs, tuple(apart), found) if programs else Fused(found, apart=tuple(apart))


def _does_not_run(error: ModelFileError) -> str:
    """Without the place: lines are those of another text."""
    return f"the file does not run with its epilogue: {str(error).partition(': ')[2]}"


def _comments(fused: FusedSource, traced: Trace, programs: Mapping[str, str]) -> dict[Place, str]:
    """What each site's kernel computes, where that is one program."""
    found: dict[Place, str] = {}
    for number, site in enumerate(fused.sites):
        noted = [parted(each) for each in traced.sites.get(number, ())]
        said = {_in_words(programs[calls], into) for calls, into in noted if calls in programs}
        if len(said) == 1:
            found[site.layer] = said.pop()
    return found


def _in_words(program: str, into: int) -> str:
    place = "The kernel writes its part of the concatenation" if into else ""
    return ". ".join(filter(None, [f"In one kernel: {program}" if program else "", place]))


def _place(numbers: list[int]) -> Place:
    first, column, last, end = numbers
    return first, column, last, end


def _programs(traced: Trace) -> tuple[dict[str, str], dict[str, str]]:
    """The programs of all calls that have one, and why others have none."""
    programs: dict[str, str] = {}
    reasons: dict[str, str] = {}
    noted = {each for layer in traced.layers for each in (*layer.epilogues, *layer.in_evaluation)} - {""}
    known = {each.calls for each in traced.known}
    for calls in {parted(each)[0] for each in noted}:
        if calls not in known and "?" not in calls:
            reasons[calls] = "nothing that it reads tells what it calls"
            continue
        try:
            programs[calls] = "" if calls == SUM else program_of(calls).text
        except InvalidProgram as error:
            reasons[calls] = str(error)
    return programs, reasons


def _refused(
    fused: FusedSource, traced: Trace, programs: Mapping[str, str], reasons: Mapping[str, str]
) -> dict[Place, str]:
    """The sites whose kernels gain nothing: none of their epilogues has a program or a place, or none was reached."""
    unseen = "its epilogue is in training mode or hooked, or PyTorch runs the layer itself there"
    wrong: dict[Place, str] = {}
    for number, site in enumerate(fused.sites):
        found = [parted(each) for each in traced.sites.get(number, ())]
        if not any(calls in programs and (programs[calls] or into) for calls, into in found):
            why = (reasons[calls] for calls, _ in found if calls in reasons)
            wrong[site.layer] = next(why, "nothing is computed behind it" if found else unseen)
    return wrong


def _of_sequences(traced: Trace, reasons: Mapping[str, str]) -> list[str]:
    """Why the epilogues of layers in sequences, and in other files, is not handed to them, neither in training nor in
    evaluation."""
    found: dict[str, list[str]] = defaultdict(list)
    for layer in traced.layers:
        found[layer.name] += [parted(each)[0] for each in (*layer.epilogues, *layer.in_evaluation) if each]
    wrong = {name: calls for name, calls in found.items() if all(each in reasons for each in calls)}
    alone = {name: traced.apart[name] for name, calls in found.items() if not calls and name in traced.apart}
    return [
        *(f"{name}: {reason}" for name, reason in alone.items()),
        *(f"{name}: {reasons[each]}" for name, calls in wrong.items() for each in dict.fromkeys(calls)),
    ]
