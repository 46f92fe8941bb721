"""Which transposed convolutions one forward pass of a model file runs, and on which sizes.

The file is somebody's program: it is loaded in a process of its own. It runs on fake tensors, which have shapes and no
memory, so that the full size costs nothing; a model that asks for values runs for real.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tconv.dispatch import passing_mode
from tconv.precision import allows_tf32
from tconv.problem import Problem
from tconv.sandbox.epilogues import Callees, Epilogues, KnownEpilogue, Place, parted
from tconv.sandbox.exchange import require_portable, tensors
from tconv.sandbox.model_file import MODEL, Interface, LoadedModel, ModelFileError, blamed, load
from tconv.sandbox.recording import Recorder
from tconv.sandbox.without_cuda import CudaMeansCpu
from tconv.sandbox.worker import Workshop

#: Loading, constructing and one forward pass.
TIMEOUT_SECONDS = 300.0
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FUNCTIONS = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
_NO_RESULT, _COMPLEX = "its result has no elements", "its numbers are complex"
#: What a process of torch maps before it computes anything.
_BASE_BYTES = 8 * 2**30


@dataclass(frozen=True)
class TracedLayer:
    """A transposed convolution that a forward pass runs.

    Args:
        name: the module's qualified name; for a call of a function, the module and the line that make it.
        problem: with the precision of its dtype.
        count: how often a forward pass runs it on this problem.
        called: it is a call of a function, not a module.
        line: of the model file, for a call of a function that stands there.
        epilogues: what is called behind it as the file is written, as `behind.Epilogues` notes it; "" where nothing is.
        in_evaluation: the same of the model in evaluation mode, where that is another one.
        empty: it ran on an empty batch, and `problem` has one sample.
        scripted: TorchScript runs it, in a module of that name.
        compiled: of the model file, lines that TorchScript has compiled there.
    """

    name: str
    problem: Problem
    count: int = 1
    called: bool = False
    line: int | None = None
    epilogues: tuple[str, ...] = ()
    in_evaluation: tuple[str, ...] = ()
    empty: bool = False
    scripted: bool = False
    compiled: tuple[int, ...] = ()

    @property
    def elsewhere(self) -> bool:
        """A call of a function in a file that the model file imports: out of the rewriter's reach."""
        return self.called and self.line is None and not self.scripted

    def with_program(self, problem: Problem, programs: Mapping[str, str]) -> Problem:
        """`problem` with the first program of the layer's epilogues; as it is where there is none.

        Args:
            programs: by what is called behind layers.
        """
        found = (programs.get(parted(noted)[0], "") for noted in self.epilogues)
        program = next(filter(None, found), "")
        return replace(problem, layer=replace(problem.layer, epilogue=program)) if program else problem


@dataclass(frozen=True)
class Trace:
    """What a forward pass runs.

    Args:
        layers: in the order of their first run.
        tf32: whether the model file leaves TF32 allowed.
        sites: what epilogues call, by the number of the call that hands them over.
        known: the epilogues by which the written file can know them.
        modules: the classes of modules that epilogues call, by their names in `torch.nn`.
        apart: why layers that are modules have no epilogues, by their names, where the model file does not show it.
        left: calls that PyTorch's operator must run, by the names that layers have, and why; not among `layers`.
    """

    layers: tuple[TracedLayer, ...]
    tf32: bool = True
    sites: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    known: tuple[KnownEpilogue, ...] = ()
    modules: tuple[str, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


def layers(
    model: str | Path | LoadedModel, *, timeout_s: float = TIMEOUT_SECONDS, workshop: Workshop | None = None
) -> list[TracedLayer]:
    """Every transposed convolution that one forward pass on ``get_inputs()`` runs.

    Raises:
        ModelFileError: the file does not load, or does not run.
        WorkerFailed: its process ended, or took too long.
    """
    return list(trace(model, timeout_s=timeout_s, workshop=workshop).layers)


def trace(
    model: str | Path | LoadedModel,
    interface: Interface = MODEL,
    *,
    timeout_s: float = TIMEOUT_SECONDS,
    workshop: Workshop | None = None,
    to_judge: bool = False,
) -> Trace:
    """The same with what else is known of the file. A `LoadedModel` runs in this process.

    Args:
        to_judge: the file will be judged: what its functions return must be such that other processes can have it.
        workshop: starts the file's process; one of its own if None.
    """
    if isinstance(model, LoadedModel):
        return decode_trace(_trace(model))
    with ExitStack() as stack:
        shop = workshop or stack.enter_context(Workshop(traces=True))
        path = str(Path(model).resolve())
        worker = stack.enter_context(shop.start(Tracer, timeout_s=timeout_s, path=path, interface=interface))
        found = decode_trace(worker.call("trace", timeout_s=timeout_s))
        if to_judge:
            worker.call("require_portable", timeout_s=timeout_s)
        return found


class Tracer:
    """A model file in its worker process."""

    def __init__(self, path: str, interface: Sequence[str]) -> None:
        # Also where there is a GPU: fake tensors of two devices do not meet, and sizes are the same everywhere.
        self._stack = ExitStack()
        self._stack.enter_context(CudaMeansCpu())
        self._path = path
        self._interface = Interface(*interface)
        self._model = load(path, self._interface)

    def trace(self) -> dict[str, Any]:
        return _trace(self._model)

    def require_portable(self) -> None:
        """See that judging can pass on what the file's functions return."""
        model = self._model
        require_portable(model, [model.init_args, model.init_kwargs], "get_init_inputs()")
        try:
            with _fake_tensors():
                inputs = model.make_inputs(0)
        except ModelFileError:  # it asks for values: who makes them for real sees them
            return
        require_portable(model, inputs, "get_inputs()", fake=True)

    def callees(self, source: str) -> list[tuple[Place, list[str]]]:
        """What the calls in the file's text call."""
        callees = Callees(source)
        _trace(load(self._path, self._interface, callees.tree, callees.names), evaluates=True)
        return callees.found()

    def fused(self, text: str, lines: list[int], runtime: str) -> dict[str, Any]:
        """The layers of a text that hands epilogues to them, with those; arguments as of `Epilogues`."""
        epilogues = Epilogues(runtime, lines)
        model = load(self._path, self._interface, text, epilogues.names)
        traced = _trace(model, epilogues, evaluates=True)
        sites = {str(number): sorted(calls) for number, calls in epilogues.sites.items()}
        known = [asdict(each) for each in epilogues.known.values() if each is not None]
        return {**traced, "sites": sites, "known": known, "modules": sorted(epilogues.modules), "apart": epilogues.ends}


def _trace(model: LoadedModel, epilogues: Epilogues | None = None, evaluates: bool = False) -> dict[str, Any]:
    try:
        with _fake_tensors():
            found = _recorded(model, epilogues, evaluates)
    except ModelFileError as unreal:
        try:
            with _limited_memory(), torch.no_grad():
                found = _recorded(model, epilogues, evaluates)
        except ModelFileError as error:
            if "allocate" not in str(error):
                raise
            raise ModelFileError(f"{error}. It was run for real, since with fake tensors: {unreal}") from None
    return {"layers": [asdict(layer) for layer in found.layers()], "tf32": allows_tf32(), "left": found.left}


def _fake_tensors() -> AbstractContextManager[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    stack = ExitStack()
    stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
    stack.enter_context(_Copies())
    return stack


class _Copies(TorchFunctionMode):
    """Copies of fake tensors are clones: PyTorch's own of those that are no parameters end the process."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, known = args
        if id(tensor) not in known:
            known[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return known[id(tensor)]


def record(model: LoadedModel, prepare: Callable[[nn.Module], None] | None = None) -> list[TracedLayer]:
    """The transposed convolutions that PyTorch runs in one forward pass, in this process.

    Args:
        prepare: is given the module before it runs.

    Raises:
        ModelFileError: the model does not run.
    """
    return _recorded(model, prepare=prepare).layers()


def _recorded(
    model: LoadedModel,
    epilogues: Epilogues | None = None,
    evaluates: bool = False,
    prepare: Callable[[nn.Module], None] | None = None,
) -> _NamedRecorder:
    """The recorder of one forward pass.

    Args:
        prepare: is given the module before it runs.
        epilogues: notes what the model hands to its layers.
        evaluates: a model in training mode runs in evaluation mode as well, to be seen there.
    """
    module = model.construct(0, *model.init_args, **model.init_kwargs)
    if not isinstance(module, nn.Module):
        raise ModelFileError(f"{model.model_class.__name__} in {model.path.name} is not a torch.nn.Module")
    if prepare is not None:
        prepare(module)
    inputs = model.make_inputs(0)
    recorder = _NamedRecorder(module, str(model.path), epilogues)
    if epilogues is not None:
        epilogues.take(module)
        epilogues.tell = recorder.note
    with torch.compiler.set_stance("force_eager"), recorder.watching(), recorder, blamed(model.path, "forward"):
        outputs = module(*inputs)
        if evaluates and any(each.training for each in module.modules()):
            recorder.evaluates = True
            module.eval()(*inputs)
    if not _has_tensor(outputs):
        kind = type(outputs).__name__
        raise ModelFileError(f"forward in {model.path.name} returns no tensor but {kind}: return one")
    return recorder


class _Calls(TorchFunctionMode):
    """While it is entered, knows of the transposed convolution that is called why PyTorch must compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _FUNCTIONS:
            return func(*args, **kwargs)
        is_complex = any(isinstance(each, torch.Tensor) and each.is_complex() for each in (*args, *kwargs.values()))
        self.why = _COMPLEX if is_complex else passing_mode() or ""
        try:
            return func(*args, **kwargs)
        finally:
            self.why = ""


class _NamedRecorder(Recorder):  # type: ignore[no-untyped-call]
    """Notes transposed convolutions by the module that runs them, or by the line that calls the function."""

    def __init__(self, model: nn.Module, path: str, epilogues: Epilogues | None) -> None:
        super().__init__()
        self._epilogues = epilogues
        self._names = {module: name for name, module in model.named_modules()}
        self._path = path
        self._inside: list[nn.Module] = []
        self._found: Counter[TracedLayer] = Counter()
        self._last: TracedLayer | None = None
        self._behind: dict[bool, dict[TracedLayer, Counter[str]]] = {False: {}, True: {}}
        #: The model runs once more, in evaluation mode.
        self.evaluates = False
        #: As `Trace.left`.
        self.left: dict[str, str] = {}
        self._calls = _Calls()

    def watching(self) -> ExitStack:
        """While it is entered, the recorder knows which modules are running."""
        stack = ExitStack()
        entered = nn.modules.module.register_module_forward_pre_hook(lambda module, _: self._inside.append(module))
        left = nn.modules.module.register_module_forward_hook(lambda *_: self._leave(), always_call=True)
        stack.callback(entered.remove)
        stack.callback(left.remove)
        stack.enter_context(self._calls)
        return stack

    def _leave(self) -> None:
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        while self.convolutions:  # taken out at once: they hold tensors
            call = self.convolutions.pop()
            why = _NO_RESULT if call.empty else self._calls.why
            if why:
                self._last = None
                self.left.setdefault(self._name(), why)
            elif call.problem is not None:
                self._last = found = self._layer(call.problem)
                self._found[found] += not self.evaluates
                self._behind[self.evaluates].setdefault(found, Counter())[""] += 1
        return result

    def note(self, calls: str) -> None:
        """What is called behind the layer that ran last."""
        if self._last is not None:
            behind = self._behind[self.evaluates][self._last]
            behind[calls] += 1
            behind[""] -= 1

    def layers(self) -> list[TracedLayer]:
        def epilogues(layer: TracedLayer, evaluates: bool) -> tuple[str, ...]:
            found = self._behind[evaluates].get(layer, Counter())
            return tuple(+found) if self._epilogues is not None else ()

        return [
            replace(layer, count=count, epilogues=epilogues(layer, False), in_evaluation=epilogues(layer, True))
            for layer, count in self._found.items()
            if count
        ]

    def _layer(self, problem: Problem) -> TracedLayer:
        module, empty = self._running(), problem.batch == 0
        problem = replace(problem, batch=max(1, problem.batch))
        layer = TracedLayer(self._name(), problem, empty=empty)
        if isinstance(module, torch.jit.ScriptModule):
            compiled = re.findall(rf"# {re.escape(self._path)}:(\d+):", str(module.inlined_graph))
            return replace(layer, called=True, scripted=True, compiled=tuple(sorted({*map(int, compiled)})))
        if isinstance(module, _TRANSPOSED):
            self._note_end(module)
            return layer
        file, line = self._caller()
        return replace(layer, called=True, line=line if file == self._path else None)

    def _running(self) -> nn.Module | None:
        return self._inside[-1] if self._inside else None

    def _name(self) -> str:
        """Of the module that runs, with the place of the call where that is none of the layer itself."""
        module = self._running()
        name = self._names.get(module, type(module).__name__) if module is not None else ""
        if isinstance(module, (torch.jit.ScriptModule, *_TRANSPOSED)):
            return name
        file, line = self._caller()
        here = file == self._path
        users = line if self._epilogues is None or not here else self._epilogues.lines[line - 1]
        where = f"line {users}" if here else f"{Path(file).name} line {line}"
        return f"{name}, {where}" if name else where

    def _note_end(self, layer: nn.Module) -> None:
        """Why the kernel of a layer does not take what follows the layer, where the model file does not show it."""
        if self._epilogues is None:
            return
        caller = next(iter(self._inside[-2:-1]), None)
        if isinstance(caller, nn.Sequential) and self._epilogues.is_sequence(caller):
            end = self._epilogues.end_in(caller, layer, self._names)
        else:
            file, line = self._caller()
            there = file != self._path and os.path.isfile(file)
            end = f"it is called in {Path(file).name}, line {line}, which stays as it is" if there else ""
        if end:
            self._epilogues.ends.setdefault(self._names.get(layer, ""), end)

    def _caller(self) -> tuple[str, int]:
        """File and line of the nearest code that is neither torch's nor ours."""
        frame = sys._getframe(1)
        ours = (os.path.dirname(torch.__file__), str(Path(__file__).parents[1]))
        while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
            frame = frame.f_back
        return frame.f_code.co_filename, frame.f_lineno


def _has_tensor(value: Any) -> bool:
    return next(tensors(value), None) is not None


def _limited_memory() -> ExitStack:
    """While it is entered, a model that asks for more memory than there is gets an error, and the machine lives on."""
    stack = ExitStack()
    available = _available_bytes()
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if used or available is None:  # CUDA maps more than there is
        return stack
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = available + _BASE_BYTES
    if before[0] == resource.RLIM_INFINITY or before[0] > limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_AS, before)
    return stack


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def decode_layer(fields: dict[str, Any]) -> TracedLayer:
    """The inverse of dataclasses.asdict, also after a passage through JSON."""
    behind = {name: tuple(fields[name]) for name in ("epilogues", "in_evaluation", "compiled")}
    return TracedLayer(**{**fields, **behind, "problem": Problem.from_dict(fields["problem"])})


def decode_trace(fields: dict[str, Any]) -> Trace:
    """The answer of `Tracer.trace` and `Tracer.fused`, after a passage through JSON."""
    sites = {int(number): tuple(calls) for number, calls in fields.get("sites", {}).items()}
    known = tuple(
        KnownEpilogue(calls=of["calls"], **{name: tuple(value) for name, value in of.items() if name != "calls"})
        for of in fields.get("known", ())
    )
    modules, apart = tuple(fields.get("modules", ())), fields.get("apart", {})
    return Trace(
        tuple(map(decode_layer, fields["layers"])), fields["tf32"], sites, known, modules, apart, fields["left"]
    )
