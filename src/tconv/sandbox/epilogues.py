"""The epilogues of the transposed convolutions of a model file: what its lines call, as a forward pass shows it.

Seen twice: in the file as it is, what each call in its text calls (`Callees`); and in the file with epilogues handed to
its layers, what these call, and by what the written file will know them (`Epilogues`).
"""

from __future__ import annotations

import ast
import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tconv.dispatch import passing_mode
from tconv.sandbox.notes import Notes

#: The function of written files that calls a layer with its epilogue.
FUSED = "cuda_fused"
#: Where a call stands: first line and column, last line and column, as `ast` counts.
Place = tuple[int, int, int, int]
#: What a call was seen to call: a transposed convolution, or one of these modules, by their names in `torch.nn`, which
#: compute each element of its own.
LAYER = "transposed convolution"
FORWARD = "the forward of a transposed convolution"
_NORM = ("training track_running_stats momentum eps", "running_mean running_var weight bias")
_DROPOUT = ("training p", "")
#: With the attributes that say what they compute: numbers and such, and tensors in the order in which they are read.
POINTWISE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **{name: _NORM for name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")},
        **{name: _DROPOUT for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")},
        **{name: ("alpha", "") for name in ("CELU", "ELU")},
        **{name: ("min_val max_val", "") for name in ("Hardtanh", "ReLU6")},
        **{"GELU": ("approximate", ""), "LeakyReLU": ("negative_slope", ""), "PReLU": ("", "weight")},
        **{"Softplus": ("beta threshold", ""), "Threshold": ("threshold value", "")},
        **{name: ("", "") for name in ("Hardsigmoid", "Hardswish", "Identity", "LogSigmoid", "Mish", "ReLU", "SELU")},
        **{name: ("", "") for name in ("SiLU", "Sigmoid", "Softsign", "Tanh", "Tanhshrink")},
    }
)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FUNCTIONS = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
_PROBE = "__tconv_called__"
#: These look at the frame that calls them.
_LEFT_ALONE = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
#: Between what an epilogue calls and how many channels the tensor has that its result is concatenated in.
_INTO = " into "
#: Of a layer's result, for which what its epilogue calls may be the same.
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: By their classes.
_POINTWISE = {getattr(nn, name): name for name in sorted(POINTWISE)}


@dataclass(frozen=True)
class KnownEpilogue:
    """An epilogue by what it reads: where all of that is so, it makes these calls.

    Args:
        said: the number of the call that hands it over, None for modules in a row; then modules with their numbers,
            numbers, and what tensors have one value for, as the written file says them.
        calls: what it calls, as `notes.Notes` has it.
        operands: which of the tensors that it reads these take, in their order.
        types: of results for which it calls the same.
        learns: of each operand, whether it asked for a gradient.
        promotes: those of `operands`, by their places there, that promote the result: `notes.Notes.promoting`.
    """

    said: tuple[int | str | None, ...]
    calls: str
    operands: tuple[int, ...]
    types: tuple[str, ...]
    learns: tuple[bool, ...]
    promotes: tuple[int, ...] = ()

    def beside(self, other: KnownEpilogue | None) -> KnownEpilogue | None:
        """What is known by both; None where they are not the same."""
        if other is None or replace(other, learns=self.learns) != self:
            return None
        return replace(self, learns=tuple(map(operator.or_, self.learns, other.learns)))


def parted(noted: str) -> tuple[str, int]:
    """What an epilogue calls, and of how many channels its result becomes a slice; 0 where it is no slice."""
    calls, _, into = noted.partition(_INTO)
    return calls, int(into or 0)


def place_of(node: ast.expr) -> Place:
    """Where an expression stands."""
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


class Callees:
    """A file's text with probes in it, which note what is called."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self._places: list[Place] = []
        self._seen: dict[int, set[str]] = defaultdict(set)
        self._layers: dict[int, set[int]] = defaultdict(set)
        for node in [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]:
            for statement in node.body:
                self._instrument(statement)
        ast.fix_missing_locations(self.tree)

    @property
    def names(self) -> dict[str, Any]:
        """What the text needs beside its own."""
        return {_PROBE: self._probe}

    def found(self) -> list[tuple[Place, list[str]]]:
        """Of each call that ran, what it called: a layer, a pointwise module by its class's name, or something else."""
        return [(self._places[number], sorted(seen)) for number, seen in self._seen.items()]

    def _instrument(self, statement: ast.stmt) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and not getattr(node, "probed", False):
                if isinstance(node.func, ast.Name) and node.func.id in _LEFT_ALONE:
                    continue
                number = ast.Constant(len(self._places))
                self._places.append(place_of(node))
                probe = ast.Call(ast.Name(_PROBE, ast.Load()), [number, node.func], [])
                node.func = ast.copy_location(probe, node.func)
                node.probed = probe.probed = True  # type: ignore[attr-defined]

    def _probe(self, number: int, called: Any) -> Any:
        self._seen[number].add(_kind(called))
        return called


def _kind(called: Any) -> str:
    if any(called is function for function in _FUNCTIONS):
        return LAYER
    if any(getattr(called, "__func__", called) is theirs.forward for theirs in _TRANSPOSED):
        return FORWARD
    if isinstance(called, _TRANSPOSED):
        theirs = any(type(called).forward is theirs.forward for theirs in _TRANSPOSED)
        theirs = theirs and type(called).__call__ is nn.Module.__call__ and "forward" not in vars(called)
        return LAYER if theirs else "a layer of its own class"
    return _POINTWISE.get(type(called), type(called).__name__)


class Epilogues:
    """Notes what the epilogues of layers compute, while a file that hands them over runs.

    Args:
        runtime: how written files do that: the definitions of `_Epilogue`, `_is_plain` and `CudaSequential`.
        lines: of each line of the file's text, the user's.
    """

    def __init__(self, runtime: str, lines: Sequence[int]) -> None:
        self.lines = lines
        self.sites: dict[int, set[str]] = defaultdict(set)
        self.modules: set[str] = set()
        #: What each was seen to be, by `KnownEpilogue.said`; None where it was now this and now that.
        self.known: dict[Any, KnownEpilogue | None] = {}
        #: Why a layer's kernel does not take what follows it, by the layer's name, where the text does not show it.
        self.ends: dict[str, str] = {}
        self._runtime: dict[str, Any] = {
            "functools": functools,
            "nn": nn,
            "torch": torch,
            "_CudaForward": _TRANSPOSED,
            "_POINTWISE": {kind: tuple(map(str.split, POINTWISE[name])) for kind, name in _POINTWISE.items()},
        }
        exec(runtime, self._runtime)
        self._runtime[FUSED] = self._fused
        #: Told of the calls behind the layer that ran last.
        self.tell: Callable[[str], None] = lambda calls: None

    @property
    def names(self) -> dict[str, Any]:
        """What the file's text needs beside its own."""
        return {FUSED: self._fused}

    def take(self, model: nn.Module) -> None:
        """Of modules in a `nn.Sequential`, those behind a layer are its epilogue from now on."""
        forward = self._runtime["CudaSequential"].forward
        for module in model.modules():
            if type(module) is nn.Sequential and "forward" not in vars(module):
                # Not by another class: the model's own lines may ask for that.
                vars(module)["forward"] = MethodType(forward, module)

    def is_sequence(self, module: nn.Module) -> bool:
        """Whether the module calls those in it in a row, by no lines of its own."""
        return type(module).forward is nn.Sequential.forward

    def end_in(self, sequence: nn.Sequential, layer: nn.Module, names: Mapping[nn.Module, str]) -> str:
        """Why a layer's epilogue in the sequence that calls it is not its epilogue; "" where nothing is to say."""
        behind = dict(pairwise(sequence)).get(layer)
        if behind is None or _kind(layer) != LAYER:
            return ""
        if type(behind) not in _POINTWISE:
            return f"behind it stands {names[behind]}, a {type(behind).__name__}"
        kind = type(sequence)
        return "" if kind is nn.Sequential else f"it is called by {kind.__name__}, a subclass of nn.Sequential"

    def _fused(
        self,
        layer: Callable[..., Tensor],
        *inputs: Any,
        epilogue: Callable[[Any], Any] | None = None,
        modules: Sequence[nn.Module] = (),
        before: Sequence[Tensor] = (),
        after: Sequence[Tensor] = (),
        reads: Sequence[Any] = (),
        site: int | None = None,
        **options: Any,
    ) -> Tensor:
        run = self._runtime["_Epilogue"](epilogue, modules, before, after, reads, site)
        result = layer(*inputs, **options)
        given = dict(zip(("input", "weight"), inputs, strict=False)) | options
        ours = _kind(layer) == LAYER and not (isinstance(layer, nn.Module) and self._runtime["_is_hooked"](layer))
        ours = ours and result.dim() == _batched_dims(layer, given) and not result.is_complex()
        if ours and passing_mode() is None and all(map(self._runtime["_is_plain"], modules)):
            calls = self._noted(run, result)
            if before or after:
                fits = run.fits(tuple(result.shape), given["input"])
                calls += f"{_INTO}{sum(part.shape[1] for part in (*before, result, *after)) if fits else 0}"
            self.tell(calls)
            self.modules.update(_POINTWISE[type(module)] for module in modules)
            if site is not None:
                self.sites[site].add(calls)
        joined: Tensor = run.joined(run(result))
        return joined

    def _noted(self, run: Any, result: Tensor) -> str:
        """What an epilogue calls; and by what the written file knows it, where it can."""
        notes = Notes(result)
        calls = notes.of(run)
        said, tensors = run.read(tuple(result.shape), result)
        places = {_memory(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
        if said is not None and all(_memory(operand) in places for operand in notes.operands):
            types = [dtype for dtype in _TYPES if Notes(result, dtype).of(run) == calls]
            if result.dtype in types:  # else what it reads is another thing each time
                operands = tuple(places[_memory(operand)] for operand in notes.operands)
                learns = tuple(operand.requires_grad for operand in notes.operands)
                named, promotes = tuple(str(dtype)[6:] for dtype in types), tuple(sorted(notes.promoting))
                found = KnownEpilogue(said, calls, operands, named, learns, promotes)
                self.known[said] = found.beside(self.known.get(said, found))
        return calls


def _memory(tensor: Tensor) -> Any:
    """What tells of two tensors, one of which the epilogue may have made anew, that they are one: views are."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def _batched_dims(layer: Any, given: Mapping[str, Any]) -> int:
    return len(layer.kernel_size) + 2 if isinstance(layer, _TRANSPOSED) else given["weight"].dim()
