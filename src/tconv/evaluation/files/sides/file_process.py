"""The judge's view of a process that runs one file, which has `Model` or `ModelNew`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tconv.errors import OutOfMemory, Trouble
from tconv.evaluation.files.levels import DIGESTS, EIGHT_CALLS, STRAYS
from tconv.evaluation.files.process.answers import KEPT_BYTES, Subject
from tconv.evaluation.verdict import Level, one_line
from tconv.problem import Problem
from tconv.sandbox.exchange import Exchange, Malformed, Tree, Unchanged, tensor_bytes
from tconv.sandbox.gpu_memory import place_for, release
from tconv.sandbox.model_file import Interface, ModelFileError
from tconv.sandbox.worker import RemoteError, WorkerFailed, Workshop

#: A constructor's positional and keyword arguments.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: The shapes of the inputs; None for an input that is no tensor.
Shapes = Sequence[tuple[int, ...] | None]

#: Results are compared again after the next call and after this many calls.
_KEPT_CALLS = 9

#: The fields of `Outcome` that are sets of names.
_NAMES = ("changed", "late", "rebound", "overwritten", "marked", "traces", "shared")


class CannotJudge(ModelFileError):
    """`Model` runs, but nothing can be compared with its results."""


class CandidateFailed(Exception):
    """The candidate raised, crashed, hung or exited. The message is one line."""


class CandidateRaised(CandidateFailed):
    """The candidate's code raised; its process goes on."""


class Parameter(NamedTuple):
    """A parameter under one of its names. `first` is its first name, which differs where parameters are tied."""

    name: str
    requires_grad: bool
    first: str


@dataclass(frozen=True)
class OneLayer:
    """A model that is one transposed convolution of its only input. Weight and bias are names in its state_dict."""

    problem: Problem
    weight: str
    bias: str | None


@dataclass(frozen=True)
class Traced:
    """The convolutions of one forward pass of the model.

    Args:
        problems: the problems of its convolutions in order; None for a convolution that is not transposed.
        multiply_adds: of all convolutions together.
        products: the products that one output sums up, added over the convolutions.
        layer: set where the model is one transposed convolution and nothing else.
        largest: elements of the largest result of a convolution.
    """

    problems: tuple[Problem | None, ...]
    multiply_adds: int
    products: int
    layer: OneLayer | None
    largest: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outputs of a forward pass, and the names of its side effects.

    Args:
        changed: inputs and parameters that the call changed.
        late: outputs that changed after the call had returned.
        rebound: functions of PyTorch or Python that the file has replaced; see `watch`.
        by_samples: whether the outputs were computed a few samples at a time.
        overwritten: outputs and gradients of earlier calls that this call changed.
        marked: outputs of a call without gradients that are not plain tensors, and their kind.
        traces: modes, flags and random states that are not as before.
        shared: outputs in the memory of inputs, parameters or other outputs, and the name of that tensor.
        stopped: the error of the backward pass.
    """

    outputs: Any
    changed: tuple[str, ...]
    late: tuple[str, ...]
    rebound: tuple[str, ...]
    by_samples: bool = False
    overwritten: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    stopped: str = ""


class Side:
    """A `Subject` in a worker of its own. A context manager; the process ends with it.

    Args:
        limit_bytes: the most bytes that one tensor of an answer may span, so that comparisons fit into memory.
        level: the level of the checks.
        failure: the exception for faults of the file: `ModelFileError` or `CandidateFailed`.
    """

    def __init__(
        self,
        workshop: Workshop,
        path: Path,
        interface: Interface,
        *,
        device: torch.device,
        timeout_s: float,
        memory_bytes: int | None,
        limit_bytes: int | None = None,
        level: Level = "strict",
        failure: type[Exception],
    ) -> None:
        self._path = path
        self._device = device
        self._timeout_s = timeout_s
        self._failure = failure
        #: Whether convolutions run in 16 bits on a CPU, perhaps without a tensor that says so, as under autocast.
        self.narrow = False
        #: What was traced of shapes alone, with the arguments that the module was built with last.
        self._traced: dict[tuple[Any, ...], Traced] = {}
        self._arguments: str = ""
        #: The state that the process was given last, and keeps.
        self._sent: Unchanged | None = None
        #: Large inputs that it was given last, and has not changed as far as it tells.
        self._given: Unchanged | None = None
        #: Of the example: its seed and shapes, the file that others are given it from, and what was read from that here
        #: if it is large.
        self._example: tuple[int, Shapes] = 0, ()
        self._file_of_example: Tree = None
        self._read_here: Unchanged | None = None
        #: The side that the example came from: its file is read, rather than another one written.
        self.beside: Side | None = None
        self._sends_again = level == "strict"
        #: Whether large inputs in float64 were run a few samples at a time, and rightly: each is computed alone.
        self.samples_apart = False
        name = workshop.unused_name()
        digests = DIGESTS.within(level)
        self._exchange = Exchange(workshop.directory, f"{name}-judge", limit_bytes, digests=digests)
        with self._faults("loading it"):
            self._worker = workshop.start(
                Subject,
                timeout_s=timeout_s,
                memory_bytes=memory_bytes,
                path=str(path),
                interface=interface,
                device=str(device),
                directory=str(workshop.directory),
                side=name,
                digests=digests,
                keeps=_KEPT_CALLS if EIGHT_CALLS.within(level) else 1,
            )
        self._worker.ends_strays = STRAYS.within(level)

    def allows_tf32(self) -> bool:
        """Whether the file leaves TF32 allowed in float32 convolutions."""
        return bool(self._call("allows_tf32", "reading its flags"))

    def arguments(self) -> Arguments:
        """The result of the file's `get_init_inputs()`."""
        args, kwargs = self._read(self._call("arguments", "get_init_inputs()"))
        self._arguments = self._arguments or repr((args, kwargs))
        return args, kwargs

    def signature(self) -> dict[str, Any]:
        """The constructor's parameters by name, with the values of `arguments` and the defaults."""
        return self._read(self._call("signature", "the constructor's signature"))

    def construct(self, seed: int, arguments: Arguments) -> dict[str, Tensor]:
        """Build the module after seeding; returns its state_dict."""
        tree = self._exchange.write(list(arguments))
        if repr(arguments) != self._arguments:
            self._traced, self._arguments = {}, repr(arguments)
        state = self._read(self._call("construct", "the constructor", seed=seed, arguments=tree))
        failure = CannotJudge if self._failure is ModelFileError else self._failure
        if not isinstance(state, dict):
            raise failure(f"{self._path.name}: its state_dict() is no dict")
        if others := [str(name) for name, value in state.items() if not isinstance(value, Tensor)]:
            what = f"in its state_dict() {', '.join(others)} is no tensor: such a state cannot be compared"
            raise failure(f"{self._path.name}: {what}; keep it in a buffer")
        return {str(name): tensor for name, tensor in state.items()}

    def parameters(self) -> tuple[Parameter, ...]:
        """The module's parameters in their order."""
        found = self._call("parameters", "the parameters")
        try:
            return tuple(Parameter(str(name), bool(trained), str(first)) for name, trained, first in found)
        except (TypeError, ValueError):
            raise self._failure(f"{self._path.name}: its parameters have no names") from None

    def begin_example(self, seed: int) -> None:
        """Have the module built with the file's own arguments, and inputs made and kept in the process for `trace`.

        `example` waits for that, and is the next call.
        """
        self._example = seed, ()
        with self._faults("the constructor or get_inputs()"):
            self._worker.begin("example", timeout_s=self._timeout_s, seed=seed)

    def example(self) -> Shapes:
        """The shapes of the inputs that were begun."""
        with self._faults("the constructor or get_inputs()"):
            found = self._worker.finish()
        shapes = [None if shape is None else tuple(shape) for shape in found]
        self._example = self._example[0], shapes
        return shapes

    def inputs(self, seed: int, shapes: Shapes | None = None, first: int = 0) -> list[Any]:
        """The result of `get_inputs()` after seeding, cut to `shapes`; its samples begin with `first`."""
        size = 4 * sum(math.prod(shape) for shape in shapes or () if shape)
        place = place_for(size, self._device)
        if self._sends_again or first or (seed, list(shapes or ())) != self._example:
            return self._read(self._call("inputs", "get_inputs()", seed=seed, shapes=shapes, first=first), place)
        values = self._read(self.example_for_another(), place)
        self._read_here = _large(values)
        return values

    def example_for_another(self) -> Tree:
        """The example's inputs for another process of the workshop, which reads them from the exchange once.

        They are written once, as a write of gigabytes takes a second. At the strict level they are written each time,
        as no file may lie there while candidates run.
        """
        if self._sends_again:
            return self._call("inputs", "get_inputs()", seed=self._example[0])
        if self._file_of_example is None:
            self._file_of_example = self._call("inputs", "get_inputs()", seed=self._example[0])
        return self._exchange.again(self._file_of_example)

    def forget_example(self) -> None:
        """Free the copy of the example in this process, which may be gigabytes."""
        self._read_here = None

    def forward(
        self,
        inputs: Sequence[Any] | None,
        state: dict[str, Tensor] | None = None,
        *,
        on: torch.device | None = None,
        **options: Any,
    ) -> Outcome:
        """Run the module. Without `inputs` it runs on the last ones. `options` are those of `Subject.forward`.

        Outputs are read to the device `on`, by default the judge's.
        """
        given = None if inputs is None or self._has(inputs) else list(inputs)
        sent, now = self._sent, None if state is None else Unchanged(state)
        kept = now is not None and now == sent
        trees = {"inputs": self._tree_of(given), "state": None if kept else self._exchange.write(state)}
        release(some=True)  # the process needs memory, too
        self._sent, last, self._given = None, self._given, None
        found = self._call("forward", "forward", **trees, kept_state=kept, narrow=self.narrow, **options)
        self._sent = sent if state is None else now if tensor_bytes(state) <= KEPT_BYTES else None
        try:
            names = {key: tuple(map(str, found[key])) for key in _NAMES}
            tree = found["outputs"]
        except (LookupError, TypeError):
            raise self._failure(f"{self._path.name}: forward wrote an answer of its own to its socket") from None
        if not any(name.startswith("input") for name in names["changed"]):
            self._given = last if given is None else _large(given)
        by_samples, stopped = bool(found.get("by_samples")), one_line(str(found.get("stopped", "")))
        return Outcome(self._read(tree, on), **names, by_samples=by_samples, stopped=stopped)

    def _has(self, inputs: Sequence[Any]) -> bool:
        """Whether the process has these inputs from the last call; to send gigabytes again takes seconds."""
        return self._given is not None and not self._sends_again and _large(inputs) == self._given

    def _tree_of(self, inputs: list[Any] | None) -> Tree:
        """Inputs for the process. Large unchanged inputs are named by the file that they were read from."""
        source = self.beside or self
        if inputs is not None and source._read_here is not None and source._read_here == _large(inputs):
            return self._exchange.again(source._file_of_example)
        return self._exchange.write(inputs)

    def operators(self) -> tuple[str, ...]:
        """PyTorch's transposed convolutions that the module calls in another run on the last inputs."""
        found = self._call("operators", "forward")
        return tuple(one_line(str(name)) for name in found) if isinstance(found, list) else ()

    def trace(self, inputs: Sequence[Any] | None = None, shapes: Shapes | None = None) -> Traced:
        """Record the convolutions of a run on `inputs`, or on the example. With `shapes`, only shapes are computed."""
        key = tuple(shapes or ())
        if shapes is not None and inputs is None and key in self._traced:
            return self._traced[key]
        tree = None if inputs is None else self._exchange.write(list(inputs))
        found = self._call("trace", "forward", inputs=tree, shapes=shapes)
        calls = found["convolutions"]
        problems = tuple(None if call["problem"] is None else Problem.from_dict(call["problem"]) for call in calls)
        products = sum(
            call["multiply_adds"] // max(1, call["outputs"]) if problem is None else problem.layer.products_per_output
            for call, problem in zip(calls, problems, strict=True)
        )
        multiply_adds = sum(call["multiply_adds"] for call in calls)
        layer = None
        if found["whole"] and problems[0] is not None:
            layer = OneLayer(problems[0], calls[0]["weight"], calls[0]["bias"])
        traced = Traced(problems, multiply_adds, products, layer, max((call["outputs"] for call in calls), default=0))
        if shapes is not None and inputs is None:
            self._traced[key] = traced
        return traced

    def _read(self, tree: Any, device: torch.device | None = None) -> Any:
        try:
            return self._exchange.read(tree, device or self._device)
        except Malformed as malformed:
            raise self._failure(f"{self._path.name}: its process {malformed}") from None
        except Trouble as trouble:
            raise self._of_candidate(trouble) from None

    def _call(self, method: str, doing: str, **arguments: Any) -> Any:
        with self._faults(doing):
            return self._worker.call(method, timeout_s=self._timeout_s, **arguments)

    @contextlib.contextmanager
    def _faults(self, doing: str) -> Any:
        """Turn errors of the process into this side's failure, in one line."""
        try:
            yield
        except ModelFileError as error:
            raised = CandidateRaised if self._failure is CandidateFailed else self._failure
            raise raised(str(error)) from None
        except OutOfMemory:
            raise
        except Trouble as error:
            raise self._of_candidate(error) from None
        except WorkerFailed as error:
            raise self._failure(f"{self._path.name}: {doing} {error}{self._last_words()}") from None
        except RemoteError as error:
            if self._failure is not CandidateFailed:
                raise
            # Our own code runs beside the candidate's and suffers from what that does to its process.
            last = str(error).strip().splitlines()[-1]
            raise CandidateFailed(f"{self._path.name}: {doing} failed: {last}") from error

    def _of_candidate(self, trouble: Trouble) -> Exception:
        """Trouble of the machine in the candidate's process counts as the candidate's failure: it may be its cause."""
        return CandidateFailed(f"{self._path.name}: {trouble}") if self._failure is CandidateFailed else trouble

    def _last_words(self) -> str:
        worker = getattr(self, "_worker", None)
        lines = worker.output().strip().splitlines() if worker is not None else []
        return f"; its last line: {lines[-1][:200]}" if lines else ""

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()


def _large(inputs: Sequence[Any]) -> Unchanged | None:
    """A record of inputs that are all tensors and too large to be sent twice; None for other inputs."""
    alone = all(isinstance(value, Tensor) for value in inputs)
    return Unchanged(list(inputs)) if alone and tensor_bytes(list(inputs)) > KEPT_BYTES else None
