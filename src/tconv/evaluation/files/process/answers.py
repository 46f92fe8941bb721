"""A model file inside its worker process: what the judge asks of `Model` and, in another process, of `ModelNew`."""

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

#: Results and states of more bytes are not kept until the next call: there may be no memory for two of them.
KEPT_BYTES = 128 * 2**20
#: Of calls before the last one results are kept where all together have no more bytes.
_EARLIER_BYTES = 16 * 2**20
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Subject:
    """A loaded model file, the module built from it and the last inputs. Values pass through an `Exchange`.

    Args:
        path: the file.
        interface: by what it is used, as `Interface` has it.
        device: "cuda" or "cpu"; on the CPU, "cuda" in the file means the CPU.
        directory, side, digests: of the exchange.
        keeps: results of so many calls are looked at after each call.
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
        self._reused: list[ReusedMemory] = []  # of an input each
        self._left: list[str] = []
        self._values: list[Any] = []
        self._state: dict[str, Tensor] | None = None
        self._returned: list[list[tuple[str, Tensor]]] = []  # of a call each, the last one first
        self._example: list[Any] = []
        self._example_seed: int | None = None

    def signature(self) -> Tree:
        """The constructor's parameters by name, with the values of `get_init_inputs()` and the defaults.

        Empty where the constructor takes arguments that no keyword can give.
        """
        args, kwargs = self._file.init_args, self._file.init_kwargs
        signature = inspect.signature(self._file.model_class)
        with blamed(self._file.path, f"{self._file.model_class.__name__}(...)"):
            bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = all(parameter.kind in _BY_KEYWORD for parameter in signature.parameters.values())
        return self._write(dict(bound.arguments) if named else {}, "an argument of the constructor")

    def allows_tf32(self) -> bool:
        """Whether the file, now that it was run, leaves TF32 allowed in float32 convolutions."""
        return allows_tf32()

    def arguments(self) -> Tree:
        """What `get_init_inputs()` returned: positional and keyword arguments."""
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

        Returns the shapes of the inputs, None for what is no tensor.
        """
        self._construct(seed, self._file.init_args, self._file.init_kwargs)
        self._make(seed)
        return [list(value.shape) if isinstance(value, Tensor) else None for value in self._example]

    def inputs(self, seed: int, shapes: list[list[int] | None] | None = None, first: int = 0) -> Tree:
        """What `get_inputs()` returns after seeding; tensors cut down to `shapes` where those are given.

        `first` is the first sample that remains of what is cut.
        """
        self._make(seed)
        inputs = self._example
        if shapes is not None:
            inputs = [_cut(value, shape, first) for value, shape in zip(inputs, shapes, strict=True)]
        return self._exchange.write(inputs)

    def _make(self, seed: int) -> None:
        """Make inputs and keep them; they can be gigabytes, so the same seed makes them once."""
        if seed != self._example_seed:
            self._example, self._example_seed = [], None
            self._example, self._example_seed = self._file.make_inputs(seed), seed
            require_portable(self._file, self._example, "get_inputs()")

    def forward(self, inputs: Tree = None, state: Tree = None, **options: Any) -> dict[str, Any]:
        """Run the module, without gradients unless they are asked for.

        Args:
            inputs: those of the last call where there are none.
            state: what the module's state is set to before; it stays as it is where there is none.
            options: those of `Options`.

        Returns the outputs, with buffers and gradients if they are asked for, and the names of

        - changed: inputs and parameters that the call changed;
        - late: outputs that changed after it had returned;
        - overwritten: outputs of earlier calls that changed with this one;
        - marked: outputs that are not plain;
        - shared: outputs that lie in other tensors' memory;
        - rebound: what the file has patched;
        - traces: modes, flags and random states that are not as before;

        further whether it ran by samples, and what the way back raised (stopped).
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
        # At once: a thread that still works on the result shall not come in time.
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
        """The state for this call; None to leave the module's as it is."""
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
        """Keep what the call returned until after later ones, but for views of inputs and of the module's state.

        Args:
            taken: the gradients, kept where there is room.
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
        """The inputs of a call that counts, every other time in the very tensors of the call before.

        A result must follow the values and not the tensors that they come in.
        """
        self._calls += 1
        if replaced:
            self._values = []  # whoever else holds them has them to himself
            self._reused += [ReusedMemory() for _ in values[len(self._reused) :]]
            return [memory.hold(value) for memory, value in zip(self._reused, values, strict=False)]
        if self._calls % 2 or len(values) != len(self._values):
            return values
        return [into(old, new) for old, new in zip(self._values, values, strict=True)]

    def _checked(self, outputs: Any) -> list[tuple[str, Tensor]]:
        """The tensors of what a forward returned: there is one, and they are plain."""
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
        """Run twice more on the last inputs; PyTorch's own transposed convolutions that are seen, by name.

        Once where Python calls them, and once where PyTorch dispatches them, which some files do not do as usual.
        """
        functions, dispatched = OwnFunctions(), OwnOperators()
        for recorder in (functions, dispatched):
            with torch.no_grad(), recorder, blamed(self._file.path, "forward"):
                self._module(*self._values)
        return sorted(dispatched.names or functions.names)

    def trace(self, inputs: Tree = None, shapes: list[list[int] | None] | None = None) -> dict[str, Any]:
        """Which convolutions one forward pass runs on the inputs, those of `example` where none are given.

        With `shapes`, the inputs only give dtypes and the pass computes nothing (meta tensors). Returns
        ``convolutions`` and ``whole``: whether the model is one transposed convolution of its only input and nothing
        else.
        """
        values = self._example if inputs is None else self._restored(self._exchange.read(inputs, self._device))
        # What a module keeps outside its state, as a grid for each size, shall not come to be without values.
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
    """Those of the module's state."""
    state = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name in state}


def _marks(tensor: Tensor) -> list[str]:
    """What a result without gradients is beside a plain tensor."""
    asks, inference = tensor.requires_grad, tensor.is_inference()
    return ["asks for gradients"] * asks + ["is an inference tensor"] * inference


def _shared(others: Sequence[tuple[str, Tensor]], returned: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Which outputs lie in the memory of another tensor, and of which."""
    known = {tensor.untyped_storage().data_ptr(): name for name, tensor in reversed(others)}
    found = []
    for name, tensor in returned:
        memory = tensor.untyped_storage().data_ptr()
        if memory and memory in known:
            found.append(f"{name} lies in the memory of {known[memory]}")
        known.setdefault(memory, name)
    return found


def _copied(module: nn.Module) -> nn.Module:
    """A copy of the module; itself where it has none."""
    try:
        return deep_copy(module)
    except Exception:  # whatever its own __deepcopy__ raises
        return module


def _cut(value: Any, shape: list[int] | None, first: int) -> Any:
    if shape is None or list(value.shape) == shape:
        return value
    return value[first:][tuple(slice(length) for length in shape)].contiguous()


def _like(value: Any, shape: list[int] | None) -> Any:
    if shape is None:
        return value
    return torch.empty(shape, dtype=value.dtype, device="meta")
