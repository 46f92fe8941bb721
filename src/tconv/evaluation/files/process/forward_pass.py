"""One forward pass of a module for the judge: its options, its run, and the tensors that it must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tconv.evaluation.accumulation import Float32Accumulation, is_narrow
from tconv.evaluation.bits import fingerprint
from tconv.evaluation.files.process.backward import CutOff, frozen, gradients_enabled, moved, with_gradient
from tconv.evaluation.files.process.backward import gradients as found_gradients
from tconv.evaluation.files.process.by_samples import mapped, run_by_samples
from tconv.evaluation.files.process.in_float64 import in_float64
from tconv.evaluation.files.process.module_copies import deep_copy
from tconv.evaluation.files.process.rounded_to_tf32 import RoundedConvolutions
from tconv.evaluation.files.process.side_stream import on_side_stream
from tconv.evaluation.files.process.weight_changes import WEIGHT_CHANGES, WeightChange, taken
from tconv.evaluation.poison import poisoned
from tconv.evaluation.precision import arithmetic
from tconv.sandbox.exchange import tensors
from tconv.sandbox.model_file import ModelFileError, blamed, seed_everything
from tconv.sandbox.watch import left_changed, modes, traces


@dataclass(frozen=True)
class Options:
    """How a forward pass runs.

    Args:
        seed: for all random numbers.
        mode: "plain"; "fp32", without TF32 in convolutions; "float64", a copy in float64; or "rounded", with operands
            of transposed convolutions rounded to TF32.
        exempt: the numbers of convolutions whose operands are not rounded in the mode "rounded".
        output_bytes: bytes of memory that are poisoned before the pass.
        by_samples: large inputs run a few samples at a time, if samples turn out not to depend on each other.
        samples: the numbers of the samples that run, with `by_samples`; all if empty.
        training: training mode or evaluation mode; None for the module's own. If given, the pass returns the buffers.
        gradients: "parameters", or "parameters and inputs": their gradients are returned.
        move: a copy of module and inputs runs, with numbers moved by up to this share of themselves.
        move_seed: the seed of these moves.
        cut_off: no gradients flow through transposed convolutions.
        way: gradients of one output ("ends"), of a second backward() ("again"), with frozen parameters ("all"): see
            `backward`.
        weight_change: the way in which the state reaches the module, see `weight_changes`; None for
            ``load_state_dict``.
        expanded: the first sample of each floating-point input stands for all, as an expanded view.
        replaced: inputs are new tensors at the addresses of the last ones, if nobody holds those.
        kept_state: the state is the one that was given last.
        narrow: convolutions may run in 16 bits though no tensor has 16 bits, as under autocast.
        aside: the pass runs on a side stream of the GPU.
    """

    seed: int = 0
    mode: str = "plain"
    exempt: Sequence[int] = ()
    output_bytes: int = 0
    by_samples: bool = False
    samples: Sequence[int] = ()
    training: bool | None = None
    gradients: str = ""
    move: float = 0.0
    move_seed: int = 0
    cut_off: bool = False
    way: str = ""
    weight_change: WeightChange | None = None
    expanded: bool = False
    replaced: bool = False
    kept_state: bool = False
    narrow: bool = False
    aside: bool = False

    def numerics(self) -> AbstractContextManager[Any]:
        """The arithmetic of the mode."""
        if self.mode == "float64":
            return in_float64()
        if self.mode == "rounded":
            return RoundedConvolutions(self.exempt)
        return arithmetic("fp32" if self.mode == "fp32" else "tf32")


class Watched:
    """The tensors that a call must not change: its inputs and the module's parameters."""

    def __init__(self, module: nn.Module, values: Sequence[Any], options: Options) -> None:
        self._values = values
        named = [*tensors(values, "input"), *((name, value.data) for name, value in module.named_parameters())]
        if options.mode in ("float64", "rounded"):  # only `Model` runs so, and parameters may be many
            named = []
        self._named = named
        self._before = [fingerprint(tensor) for _, tensor in named]
        self._held = self._ids()
        # Other tensors on the same memory, as the model may give its tensors new memory.
        self._same = [tensor.detach() for _, tensor in named]

    def changed(self) -> list[str]:
        """The names of tensors that have changed."""
        all_of_it = list(zip(self._named, self._same, self._before, strict=True))
        found = [name for (name, now), _, then in all_of_it if fingerprint(now) != then]
        moved_away = [each for each in all_of_it if each[0][1].data_ptr() != each[1].data_ptr()]
        return found + [name for (name, _), same, then in moved_away if fingerprint(same) != then]

    def holds_others(self) -> bool:
        """Whether its inputs hold other tensors than before."""
        return self._held != self._ids()

    def _ids(self) -> list[tuple[str, int]]:
        return [(path, id(tensor)) for path, tensor in tensors(self._values, "input")]


@dataclass
class Pass:
    """The result of a forward pass.

    Args:
        outputs: the module's outputs.
        by_samples: whether it ran a few samples at a time.
        back: the gradients that were asked for, by name.
        stopped: the error of the backward pass.
        changed: the names of tensors that the backward pass changed.
        taken: the tensors that the backward pass returned.
        left: modes, flags and random states that are not as before.
    """

    outputs: Any
    by_samples: bool
    back: dict[str, Any] = field(default_factory=dict)
    stopped: str = ""
    changed: list[str] = field(default_factory=list)
    taken: list[tuple[str, Tensor]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def prepared(
    module: nn.Module,
    values: list[Any],
    weights: dict[str, Tensor] | None,
    options: Options,
    path: Path,
    build: Callable[[int], nn.Module],
    outside: dict[str, Tensor],
) -> tuple[nn.Module, list[Any]]:
    """The module with its weights, in the mode of the pass, and its inputs; copies of both if they change."""
    if options.expanded:
        values = [_expanded(value) for value in values]
    if options.weight_change is not None:
        with blamed(path, WEIGHT_CHANGES[options.weight_change]):
            module = taken(options.weight_change, module, weights, lambda: build(options.seed + 1), outside)
    elif weights is not None:
        with blamed(path, "load_state_dict"):
            module.load_state_dict(weights)
    if options.training is not None:
        with blamed(path, f"train({options.training})"):
            module.train(options.training)
    with blamed(path, "copy.deepcopy"):
        if options.mode == "float64":
            module = deep_copy(module).double()
        if options.gradients and options.mode == "float64":
            values = mapped(list(values), _wide)
        if options.move:
            values = mapped(list(values), Tensor.clone)
            module = moved(module, values, options.move, options.move_seed)
    return module, values


def run(module: nn.Module, values: Sequence[Any], options: Options, path: Path, device: torch.device) -> Pass:
    """Seed, run the module on the inputs and, if gradients are asked for, run the backward pass."""
    seed_everything(options.seed)

    def called(module: nn.Module, values: Sequence[Any]) -> Any:
        if options.mode == "float64":
            values = mapped(list(values), _wide)
        with options.numerics():
            return module(*values)

    with (
        frozen(module, options.way),
        gradients_enabled(module, values, options.gradients) as of,
        with_gradient(None if options.gradients else module) as thrown_away,
        poisoned(device, options.output_bytes),
        Float32Accumulation() if options.narrow or _has_narrow(module, values) else nullcontext(),
    ):
        modes_before, traces_before = modes(), traces()
        with (
            blamed(path, "forward"),
            CutOff() if options.cut_off else nullcontext(),
            on_side_stream(values) if options.aside else nullcontext(),
        ):
            apart = run_by_samples(called, module, values, options.samples) if options.by_samples else None
            if apart is None and options.samples:
                raise ModelFileError(f"forward in {path.name}: samples hang on each other")
            found = Pass(called(module, values) if apart is None else apart, apart is not None)
        if options.gradients:
            if options.way:
                with blamed(path, "forward"):
                    called(module, mapped(list(values), _rolled))
            with options.numerics():
                gradients = found_gradients(found.outputs, of, options.seed, path, options.way)
            found.back["gradients"], found.stopped = gradients.gradients, gradients.stopped
            found.changed = ["what goes back from an output"] if gradients.changed else []
            found.taken = [("a gradient", tensor.detach()) for tensor in gradients.taken]
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.left = [*left_changed(modes_before, modes()), *left_changed(traces_before, traces())]
    # Known when the contexts are left.
    found.changed += thrown_away
    return found


def _has_narrow(module: nn.Module, values: Sequence[Any]) -> bool:
    """Whether a tensor of the module or an input has 16 bits, on a CPU."""
    own = (*module.parameters(), *module.buffers(), *(tensor for _, tensor in tensors(list(values))))
    return any(map(is_narrow, own))


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _rolled(tensor: Tensor) -> Tensor:
    """Other values of the same kind, without a gradient."""
    return tensor.detach().flatten().roll(1).reshape(tensor.shape)


def _expanded(value: Any) -> Any:
    """The first sample of a floating-point tensor, expanded over the batch."""
    floats = isinstance(value, Tensor) and value.is_floating_point() and value.dim()
    return value[:1].expand_as(value) if floats else value
