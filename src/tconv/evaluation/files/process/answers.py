"""A model file inside its worker process, which answers the judge: for `Model` and, in another process, `ModelNew`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.bits import fingerprint
from tconv.evaluation.files.process.by_samples import mapped
from tconv.evaluation.files.process.forward_pass import Options, Watched, prepared, run
from tconv.evaluation.files.process.input_addresses import ReusedMemory, into
from tconv.evaluation.files.process.lazy_layers import settled
from tconv.evaluation.files.process.module_copies import buffers_outside, deep_copy
from tconv.precision import allows_tf32
from tconv.sandbox.emulated import install
from tconv.sandbox.exchange import Exchange, Tree, refused, require_portable, tensor_bytes, tensors
from tconv.sandbox.model_file import Interface, ModelFileError, blamed, load, read_source
from tconv.sandbox.own_classes import restored_for
from tconv.sandbox.recording import OwnFunctions, OwnOperators, Recorder
from tconv.sandbox.source_scan import written_by_tconv
from tconv.sandbox.watch import Watch, flags, left_changed, modes
from tconv.sandbox.without_cuda import CudaMeansCpu

#: Results and states of more bytes are freed before the next call, as memory may not hold two of them.
KEPT_BYTES = 128 * 2**20
#: Results of calls before the last one are kept if they have at most this many bytes together.
_EARLIER_BYTES = 16 * 2**20
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Subject:
    """A loaded model file, the module built from it and the last inputs. Values pass through an `Exchange`.

    Args:
        path: the file.
        interface: the names that the file is used by, as in `Interface`.
        device: "cuda" or "cpu". On the CPU, "cuda" in the file means the CPU.
        directory, side, digests: arguments of the exchange.
        keeps: the number of earlier calls whose results are compared again after each call.
    """

    def __init__(
        self, path: str, interface: Sequence[str], device: str, directory: str, side: str, digests: bool, keeps: int
    ) -> None:
        self._device = torch.device(device)
        self._exchange = Exchange(directory, side, digests=digests)
        self._keeps = keeps
        self._stack = ExitStack()
        if self._device.type == "cpu":
            self._stack.enter_context(CudaMeansCpu())
        watch = Watch()
        self._rebound = watch.rebound
        self._file = load(path, Interface(*interface))
        if self._device.type == "cpu" and written_by_tconv(read_source(self._file.path)):
            install(self._file.namespace)
        self._module: Any = None
        self._build: Callable[[int], nn.Module] = lambda seed: self._module
        self._outside: dict[str, Tensor] = {}
        self._calls = 0
        self._reused: list[ReusedMemory] = []  # one for each input
        self._left: list[str] = []
        self._values: list[Any] = []
        self._state: dict[str, Tensor] | None = None
        self._returned: list[list[tuple[str, Tensor]]] = []  # one list for each call, the last call first
        self._example: list[Any] = []
        self._example_seed: int | None = None

    def signature(self) -> Tree:
        """The constructor's parameters by name, with the values of `get_init_inputs()` and the defaults.

        Empty if the constructor has parameters that no keyword can give.
        """
        args, kwargs = self._file.init_args, self._file.init_kwargs
        signature = inspect.signature(self._file.model_class)
        with blamed(self._file.path, f"{self._file.model_class.__name__}(...)"):
            bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = all(parameter.kind in _BY_KEYWORD for parameter in signature.parameters.values())
        return self._write(dict(bound.arguments) if named else {}, "an argument of the constructor")

    def allows_tf32(self) -> bool:
        """Whether TF32 is allowed in float32 convolutions after the file has run."""
        return allows_tf32()

    def arguments(self) -> Tree:
        """The result of `get_init_inputs()`: positional and keyword arguments."""
        arguments = [self._file.init_args, self._file.init_kwargs]
        require_portable(self._file, arguments, "get_init_inputs()")
        return self._exchange.write(arguments)

    def construct(self, seed: int, arguments: Tree) -> Tree:
        """Build the module; return its state_dict as seeded."""
        self._construct(seed, *self._restored(self._exchange.read(arguments)))
        return self._write(dict(self._module.state_dict()), "the state_dict")

    def _construct(self, seed: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._build = partial(self._built, args, kwargs)
        before = {**modes(), **flags()}
        self._module = self._build(seed)
        self._outside = buffers_outside(self._module)
        self._left = [f"{name} in the constructor" for name in left_changed(before, {**modes(), **flags()})]

    def _built(self, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> nn.Module:
        module = self._file.construct(seed, *args, **kwargs)
        if not isinstance(module, nn.Module):
            name = self._file.model_class.__name__
            raise ModelFileError(f"{name} in {self._file.path.name} is not a torch.nn.Module: derive it from that")
        return settled(module.to(self._device), self._file, seed, self._device)

    def parameters(self) -> list[tuple[str, bool, str]]:
        """The module's parameters in their order: name, whether it requires a gradient, and its first name."""
        if list(map(id, self._module.parameters())) != [id(each) for _, each in self._module.named_parameters()]:
            name = self._file.model_class.__name__
            raise ModelFileError(f"{name} in {self._file.path.name}: parameters() gives others than named_parameters()")
        first: dict[int, str] = {}
        named = self._module.named_parameters(remove_duplicate=False)
        return [(name, each.requires_grad, first.setdefault(id(each), name)) for name, each in named]

    def example(self, seed: int) -> list[list[int] | None]:
        """Build the module with the file's own arguments, make inputs, and keep them for `trace`.

        Returns the shapes of the inputs; None for an input that is no tensor.
        """
        self._construct(seed, self._file.init_args, self._file.init_kwargs)
        self._make(seed)
        return [list(value.shape) if isinstance(value, Tensor) else None for value in self._example]

    def inputs(self, seed: int, shapes: list[list[int] | None] | None = None, first: int = 0) -> Tree:
        """The result of `get_inputs()` after seeding. If `shapes` are given, tensors are cut down to them.

        `first` is the first sample that remains of a tensor that is cut.
        """
        self._make(seed)
        inputs = self._example
        if shapes is not None:
            inputs = [_cut(value, shape, first) for value, shape in zip(inputs, shapes, strict=True)]
        return self._exchange.write(inputs)

    def _make(self, seed: int) -> None:
        """Make inputs and keep them. The same seed makes them once, since they can be gigabytes."""
        if seed != self._example_seed:
            self._example, self._example_seed = [], None
            self._example, self._example_seed = self._file.make_inputs(seed), seed
            require_portable(self._file, self._example, "get_inputs()")

    def forward(self, inputs: Tree = None, state: Tree = None, **options: Any) -> dict[str, Any]:
        """Run the module, without gradients unless they are asked for.

        Args:
            inputs: the inputs; if None, those of the last call.
            state: the state to load before the call; if None, the module keeps its own.
            options: those of `Options`.

        Returns the outputs, with buffers and gradients if they are asked for, and the names of

        - changed: inputs and parameters that the call changed;
        - late: outputs that changed after the call had returned;
        - overwritten: outputs of earlier calls that this call changed;
        - marked: outputs that are no plain tensors;
        - shared: outputs in the memory of other tensors;
        - rebound: functions of PyTorch or Python that the file has replaced;
        - traces: modes, flags and random states that are not as before;

        also whether the call ran by samples, and the error of the backward pass (stopped).
        """
        how, path = Options(**options), self._file.path
        earlier = [(name, tensor, fingerprint(tensor)) for of_call in self._returned for name, tensor in of_call]
        if inputs is not None:
            values = self._restored(self._exchange.read(inputs, self._device))
            self._values = self._placed(values, how.replaced) if how.mode == "plain" else values
        weights = self._given_state(state, how.kept_state)
        module, values = prepared(self._module, self._values, weights, how, path, self._build, self._outside)
        watched = Watched(module, values, how)
        found = run(module, values, how, path, self._device)
        named = [(f"output{path}", tensor) for path, tensor in self._checked(found.outputs)]
        marked = [] if how.gradients else [f"{name} {words}" for name, tensor in named for words in _marks(tensor)]
        returned = [(name, tensor.detach()) for name, tensor in named]
        overwritten = [name for name, tensor, then in earlier if fingerprint(tensor) != then]
        self._keep(returned, found.taken)
        others = [*tensors(values, "input"), *module.named_parameters(), *module.named_buffers()]
        shared = _shared([*others, *(("an earlier output", tensor) for _, tensor, _ in earlier)], returned)
        if how.training is not None:
            found.back["buffers"] = _buffers(module)
        outputs = found.outputs
        if found.back:
            outputs = {"output": outputs, **found.back}
            returned += [(f"output{path}", tensor) for path, tensor in tensors(found.back)]
        # Written at once, so that a thread which still works on the result is too late.
        kept = [fingerprint(tensor) for _, tensor in returned]
        changed = [*watched.changed(), *found.changed]
        if watched.holds_others():
            changed.append("which tensors its inputs hold")
        tree = self._write(outputs, "the output")
        late = [name for (name, now), then in zip(returned, kept, strict=True) if fingerprint(now) != then]
        names = {"changed": list(dict.fromkeys(changed)), "late": late, "overwritten": overwritten, "marked": marked}
        names |= {"rebound": self._rebound(), "traces": [*self._left, *found.left], "shared": shared}
        return {"outputs": tree, **names, "by_samples": found.by_samples, "stopped": found.stopped}

    def _given_state(self, state: Tree, kept: bool) -> dict[str, Tensor] | None:
        """The state for this call; None if the module keeps its own."""
        if not kept:
            if state is None:
                return None
            self._state = None
            given: dict[str, Tensor] = self._exchange.read(state, self._device)
            if tensor_bytes(given) > KEPT_BYTES:
                return given
            self._state = given
        # A module may take these very tensors, and change them.
        return {name: tensor.clone() for name, tensor in (self._state or {}).items()}

    def _keep(self, returned: list[tuple[str, Tensor]], taken: list[tuple[str, Tensor]]) -> None:
        """Keep the results of a call for comparison after later calls, except views of inputs and of the state.

        Args:
            taken: the gradients, kept if there is room.
        """
        theirs = [tensor for _, tensor in tensors([self._values, dict(self._module.state_dict())])]
        known = {tensor.untyped_storage().data_ptr() for tensor in theirs}
        own = [(name, tensor) for name, tensor in returned if tensor.untyped_storage().data_ptr() not in known]
        last = next((each for each in ([*own, *taken], own) if tensor_bytes(each) <= KEPT_BYTES), [])
        kept, size = [last], 0
        for of_call in self._returned[: self._keeps - 1]:
            size += tensor_bytes(of_call)
            if size > _EARLIER_BYTES:
                break
            kept.append(of_call)
        self._returned = kept

    def _placed(self, values: list[Any], replaced: bool) -> list[Any]:
        """The inputs of a call that counts. Every other call gets them in the same tensors as the call before.

        So a result that depends on tensors instead of their values is found.
        """
        self._calls += 1
        if replaced:
            self._values = []  # other holders keep them
            self._reused += [ReusedMemory() for _ in values[len(self._reused) :]]
            return [memory.hold(value) for memory, value in zip(self._reused, values, strict=False)]
        if self._calls % 2 or len(values) != len(self._values):
            return values
        return [into(old, new) for old, new in zip(self._values, values, strict=True)]

    def _checked(self, outputs: Any) -> list[tuple[str, Tensor]]:
        """The tensors among the outputs of a forward. There must be one, and all must be plain."""
        name, returned = self._file.path.name, list(tensors(outputs))
        if not returned:
            raise ModelFileError(f"forward in {name} returns {type(outputs).__name__}, no tensor: return a tensor")
        for path, tensor in returned:
            if type(tensor) not in (Tensor, nn.Parameter):
                kind = type(tensor).__name__
                reason = f"forward in {name} returns a {kind} as output{path}, a subclass of Tensor"
                raise ModelFileError(f"{reason}, which may compute its values later: return a plain tensor")
        return returned

    def operators(self) -> list[str]:
        """Names of PyTorch's transposed convolutions that two more runs on the last inputs call.

        One run records calls from Python, the other PyTorch's dispatcher, since some files bypass one of them.
        """
        functions, dispatched = OwnFunctions(), OwnOperators()
        for recorder in (functions, dispatched):
            with torch.no_grad(), recorder, blamed(self._file.path, "forward"):
                self._module(*self._values)
        return sorted(dispatched.names or functions.names)

    def trace(self, inputs: Tree = None, shapes: list[list[int] | None] | None = None) -> dict[str, Any]:
        """The convolutions of one forward pass on the inputs, or on those of `example` if none are given.

        With `shapes`, the inputs only give dtypes, and the pass runs on meta tensors. Returns ``convolutions`` and
        ``whole``: whether the model is one transposed convolution of its only input and nothing else.
        """
        values = self._example if inputs is None else self._restored(self._exchange.read(inputs, self._device))
        # A copy runs on shapes: a module may cache tensors outside its state, which would have no values.
        module = self._module if shapes is None else _copied(self._module)
        state: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if shapes is None:
            # A copy, since a model may change its inputs.
            values = mapped(values, lambda tensor: tensor.to(self._device, copy=True))
        else:
            values = [_like(value, shape) for value, shape in zip(values, shapes, strict=True)]
            state = {name: tensor.to("meta") for name, tensor in state.items()}
        recorder = Recorder()
        with torch.no_grad(), recorder, blamed(self._file.path, "forward"):
            outputs = torch.func.functional_call(module, state, tuple(values))
        calls = recorder.convolutions
        described = [call.to_dict(state) for call in calls]
        whole = len(calls) == 1 and len(values) == 1 and not recorder.others
        whole = whole and values[0] is calls[0].x and outputs is calls[0].result and calls[0].problem is not None
        whole = whole and described[0]["weight"] is not None
        whole = whole and (calls[0].bias is None) == (described[0]["bias"] is None)
        return {"convolutions": described, "whole": whole}

    def _restored(self, value: Any) -> Any:
        return restored_for(self._file, value)

    def _write(self, value: Any, what: str) -> Tree:
        with refused(self._file, what):
            return self._exchange.write(value)


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of the module's state_dict."""
    state = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name in state}


def _marks(tensor: Tensor) -> list[str]:
    """The ways in which a result without gradients is no plain tensor."""
    asks, inference = tensor.requires_grad, tensor.is_inference()
    return ["asks for gradients"] * asks + ["is an inference tensor"] * inference


def _shared(others: Sequence[tuple[str, Tensor]], returned: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Names of outputs that lie in the memory of another tensor, each with the name of that tensor."""
    known = {tensor.untyped_storage().data_ptr(): name for name, tensor in reversed(others)}
    found = []
    for name, tensor in returned:
        memory = tensor.untyped_storage().data_ptr()
        if memory and memory in known:
            found.append(f"{name} lies in the memory of {known[memory]}")
        known.setdefault(memory, name)
    return found


def _copied(module: nn.Module) -> nn.Module:
    """A deep copy of the module; the module itself if it cannot be copied."""
    try:
        return deep_copy(module)
    except Exception:  # any error of its own __deepcopy__
        return module


def _cut(value: Any, shape: list[int] | None, first: int) -> Any:
    if shape is None or list(value.shape) == shape:
        return value
    return value[first:][tuple(slice(length) for length in shape)].contiguous()


def _like(value: Any, shape: list[int] | None) -> Any:
    if shape is None:
        return value
    return torch.empty(shape, dtype=value.dtype, device="meta")
