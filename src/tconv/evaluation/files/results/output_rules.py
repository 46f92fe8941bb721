"""The rules for models of several layers: outputs are compared with float64 and with PyTorch's outputs.

No sum of magnitudes bounds the error of an element of such an output. PyTorch's own error takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tconv.evaluation.comparison import Worst, further, square, worst
from tconv.evaluation.files.results.output_parts import Part, further_out
from tconv.evaluation.rules import same_form, within
from tconv.evaluation.tolerance import CLOSE, POOLED_SLACK, TF32_OPERANDS, half_ulp, pooled_summation
from tconv.evaluation.verdict import Check
from tconv.problem import DTYPE_OF, Precision
from tconv.sandbox.own_classes import Record

#: An element may be this many times as far from float64 as the worst element of PyTorch or of rounded operands.
_WORST_ELEMENTS = 2.0
#: Standard deviations by which chance may raise the pooled error of few elements.
_CHANCE = 4.0
#: Elements that are compared at once.
_PIECE = 2**22
#: From this pooled error on, PyTorch's result says nothing.
_NOISE = 1e-2
#: Error that summation may add to a part, in units of sqrt(products) times epsilon times an element's size.
_PART_SUMMATION = 4.0
#: A candidate with more than this many times PyTorch's pooled error runs a coarser arithmetic.
_COARSER = 2.0


@dataclass(frozen=True)
class Results:
    """One output of one draw: the candidate's, PyTorch's, and the true one as far as it is known.

    Args:
        exact: the model's in float64; None if the model cannot run in float64.
        rounded: the model's with operands of transposed convolutions rounded to TF32; None if TF32 is not allowed.
    """

    got: Tensor
    pytorch: Tensor
    exact: Tensor | None
    rounded: Tensor | None

    def pieces(self, device: torch.device) -> Iterator[_Piece]:
        """The output in pieces of a few rows of the first axis, in float64 on this device."""
        exact = self.pytorch if self.exact is None else self.exact
        rounded = exact if self.rounded is None else self.rounded
        parts = (_rows(tensor, device) for tensor in (self.got, self.pytorch, exact, rounded))
        for found in zip(*parts, strict=True):
            yield _Piece(found[0][0], *(rows for _, rows in found))


@dataclass(frozen=True)
class _Piece:
    """Some rows of `Results`, from the row `first` on. Where a result is missing, PyTorch's stands for it."""

    first: int
    got: Tensor
    pytorch: Tensor
    exact: Tensor
    rounded: Tensor


def _same(piece: _Piece) -> Tensor:
    """True where the candidate has the same infinity as PyTorch, or NaN as PyTorch."""
    both_nan = piece.got.isnan() & piece.pytorch.isnan()
    return ~piece.pytorch.isfinite() & ((piece.got == piece.pytorch) | both_nan)


def _is_number(piece: _Piece) -> Tensor:
    """True where the candidate and the true result are finite, also where PyTorch's type overflowed."""
    return piece.got.isfinite() & (piece.pytorch.isfinite() | piece.exact.isfinite())


def _otherwise_not_finite(piece: _Piece) -> Tensor:
    """True where the candidate and PyTorch differ in an infinity or NaN."""
    return ~(_same(piece) | _is_number(piece))


def _measurable(piece: _Piece) -> _Piece:
    """The piece with equal numbers at all places that cannot be compared as numbers."""
    numbers = _is_number(piece)
    exact = torch.where(piece.exact.isfinite(), piece.exact, piece.pytorch)
    pytorch = torch.where(piece.pytorch.isfinite(), piece.pytorch, exact)
    rounded = torch.where(piece.rounded.isfinite(), piece.rounded, exact)
    of = (torch.where(numbers, tensor, 0.0) for tensor in (piece.got, pytorch, exact, rounded))
    return _Piece(piece.first, *of)


def _rows(tensor: Tensor, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Pieces of some rows of the first axis in float64, each with the number of its first row."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dim() == 0:
        yield 0, tensor.to(device, torch.float64)
        return
    step = max(1, _PIECE // max(1, tensor[:1].numel()))
    for first in range(0, len(tensor), step):
        yield first, tensor[first : first + step].to(device).double()


def distance(one: Tensor, other: Tensor) -> float:
    """The relative distance from `other`, pooled over all elements; 0 for empty tensors, NaN if an element is NaN."""
    apart = size = 0.0
    for (_, ours), (_, theirs) in zip(_rows(one, one.device), _rows(other, one.device), strict=True):
        apart, size = apart + square(ours - theirs), size + square(theirs)
    return math.sqrt(apart / size) if size else math.sqrt(apart)


#: Called with rows of the candidate, true rows, further rows of `Model`, the allowed distance and the first row's
#: number. Gives the candidate's rows, with true numbers where the result depends on rounding.
Settled = Callable[[Tensor, Tensor, Sequence[Tensor], Tensor, int], Tensor]


@dataclass
class OutputComparison:
    """The errors of one output of a model, added up over draws: sums of squared differences from float64.

    Args:
        device: the device that compares pieces.
        in_parts: whether each part is compared by itself, too.
    """

    dtype: torch.dtype
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    in_parts: bool = True
    candidate: float = 0.0
    pytorch: float = 0.0
    rounded: float = 0.0
    exact: float = 0.0
    half_ulp: float = 0.0
    elements: int = 0
    from_exact: Worst = field(default_factory=Worst)
    from_pytorch: Worst = field(default_factory=Worst)
    parts: list[Part] = field(default_factory=list)
    not_finite: tuple[int, ...] | None = None
    not_finite_values: tuple[float, float] = (0.0, 0.0)

    def add(self, results: Results, settled: Settled | None = None) -> None:
        """Add one draw. All tensors have the same shape.

        Args:
            settled: puts true numbers into the candidate's rows where they depend on rounding.
        """
        total = theirs = coarsest = 0.0
        self.elements += results.got.numel()
        for piece in map(_measurable, results.pieces(self.device)):
            total += square(piece.exact)
            theirs = max(theirs, _WORST_ELEMENTS * _largest(piece.pytorch - piece.exact))
            coarsest = max(coarsest, _WORST_ELEMENTS * _largest(piece.rounded - piece.exact))
        size = math.sqrt(total / max(1, results.got.numel()))
        # Without float64, TF32 cannot be told from an error: its allowance then holds against PyTorch's result, too.
        beside = theirs if results.exact is not None else coarsest
        for piece in results.pieces(self.device):
            self._find_not_finite(piece)
            piece = _measurable(piece)
            got, pytorch, exact, first = piece.got, piece.pytorch, piece.exact, piece.first
            close = self.close * exact.abs() + self.close * max(1.0, size)
            if settled is not None:
                floats = results.got.is_floating_point() or results.got.is_complex()
                allowed = close + max(theirs, coarsest) if floats else torch.zeros_like(close)
                got = settled(got, exact, (pytorch, piece.rounded), allowed, first)
            largest = worst(got, exact, close + max(theirs, coarsest), first=first)
            self.from_exact = further(self.from_exact, largest)
            self.from_pytorch = further(self.from_pytorch, worst(got, pytorch, close + beside, first=first))
            self.candidate += square(got - exact)
            self.pytorch += square(pytorch - exact)
            self.rounded += square(piece.rounded - exact)
            self.exact += square(exact)
            rounding = half_ulp(exact, self.dtype)
            self.half_ulp += square(rounding)
            if (
                self.in_parts
                and results.exact is not None
                and (results.got.is_floating_point() or results.got.is_complex())
            ):
                self.parts += further_out(got, exact, (pytorch, piece.rounded), rounding, first)

    def _find_not_finite(self, piece: _Piece) -> None:
        places = _otherwise_not_finite(piece).nonzero()
        if self.not_finite is None and len(places):
            index = tuple(int(i) for i in places[0])
            self.not_finite = (index[0] + piece.first, *index[1:]) if index else ()
            self.not_finite_values = float(piece.got[index]), float(piece.pytorch[index])

    @property
    def close(self) -> float:
        """Relative and absolute tolerance of outputs of this dtype."""
        return CLOSE[_precision_of(self.dtype)]

    @property
    def coarser(self) -> bool:
        """Whether the candidate ran TF32, as it may, where PyTorch did not on this device."""
        return self.rounded > 0 and self.candidate > _COARSER**2 * self.pytorch

    @property
    def is_noise(self) -> bool:
        """Whether PyTorch's result is hardly more than the rounding error of terms that cancel."""
        return self._relative(self.pytorch) > _NOISE

    def checks(self, where: str, products: int, in_float64: bool) -> list[Check]:
        """The checks of this output. `where` names it; `products` counts the products in one element."""
        finite = self.not_finite is None
        got, theirs = self.not_finite_values
        reason = (
            "" if finite else f"the element at {list(self.not_finite or ())} is {got:.6g}, PyTorch's is {theirs:.6g}"
        )
        checks = [Check(f"every element finite{where}", finite, reason=reason)]
        if in_float64:
            checks.append(_element(f"every element{where}", self.from_exact))
            checks.append(self._pooled(f"pooled error{where}", products))
            checks.append(self._parts(f"parts{where}", products))
        else:
            reason = "not checked: Model does not run in float64"
            names = "every element", "pooled error", "parts"
            checks += [Check(f"{name}{where}", None, reason=reason) for name in names]
        beside = _element(f"close to PyTorch{where}", self.from_pytorch)
        if in_float64 and self.coarser:
            reason = f"not comparable: a coarser arithmetic than PyTorch's here, as TF32 may be; {beside.reason}"
            beside = replace(beside, passed=None, reason=reason)
        return [*checks, beside]

    @property
    def _epsilon(self) -> float:
        return 2.0**-53 if self.dtype == torch.float64 else 2.0**-24

    def _parts(self, name: str, products: int) -> Check:
        summed = _PART_SUMMATION * math.sqrt(products) * self._epsilon
        allowed = {part: part.allowed + summed * part.size for part in self.parts}
        worst = max(allowed, key=lambda part: part.got / allowed[part] if allowed[part] else math.inf, default=None)
        if worst is None:
            return Check(name, True)
        reason = f"{worst.name}: error {worst.got:.3g}, allowed {allowed[worst]:.3g}"
        return Check(name, worst.got <= allowed[worst], worst.got, allowed[worst], reason)

    def _pooled(self, name: str, products: int) -> Check:
        theirs = self._relative(self.pytorch)
        # Chance is larger for few elements: the log of a ratio of two such errors spreads by one over the root.
        slack = max(POOLED_SLACK, math.exp(_CHANCE / math.sqrt(max(1, self.elements))))
        allowances = {
            f"{slack:.3g} × PyTorch's": slack * theirs,
            f"{slack:.3g} × that of rounded operands": slack * self._relative(self.rounded),
            "of any summation order": pooled_summation(products, self._epsilon),
            "of the output's rounding": self._relative(self.half_ulp),
        }
        return within(name, self._relative(self.candidate), theirs, allowances)

    def _relative(self, total: float) -> float:
        if self.exact == 0.0:
            return 0.0 if total == 0.0 else math.inf
        return math.sqrt(total / self.exact)


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _element(name: str, found: Worst) -> Check:
    return Check(name, found.ratio <= 1, abs(found.got - found.expected), found.allowed, found.describe())


def _precision_of(dtype: torch.dtype) -> Precision:
    return next((name for name, torch_name in DTYPE_OF.items() if getattr(torch, torch_name) == dtype), "fp32")


def same_outputs(
    got: object, expected: object, path: str = "", numbers: float = TF32_OPERANDS, dtypes: bool = True
) -> Check:
    """Whether containers, shapes, dtypes and memory formats are the same, and values that are no tensors equal.

    Args:
        numbers: the allowed relative distance of Python floats, which may have been computed from results.
        dtypes: if False, only the shapes of tensors are compared.
    """
    name = "shape, dtype, memory format"
    place = f"output{path}"

    def differs(ours: str, theirs: str) -> Check:
        return Check(name, False, ours, theirs, f"{place} is {ours}, Model's is {theirs}")

    pairs: list[tuple[str, object, object]]
    if isinstance(expected, Tensor):
        if not dtypes and isinstance(got, Tensor):
            shapes = tuple(got.shape), tuple(expected.shape)
            return Check(name, True) if shapes[0] == shapes[1] else differs(*map(str, shapes))
        form = same_form(got, expected)
        return form if form.passed else replace(form, reason=f"{place}: {form.reason}" if path else form.reason)
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return differs(_form(got), _form(expected))
        pairs = [(f"[{i}]", ours, theirs) for i, (ours, theirs) in enumerate(zip(got, expected, strict=True))]
    elif isinstance(expected, dict):
        if not isinstance(got, dict) or list(got) != list(expected) or _name(got) != _name(expected):
            return differs(_form(got), _form(expected))
        pairs = [(f"[{key!r}]", got[key], theirs) for key, theirs in expected.items()]
    elif isinstance(expected, float) and isinstance(got, float):
        alike = math.isclose(got, expected, rel_tol=numbers) or (math.isnan(got) and math.isnan(expected))
        return Check(name, True) if alike else differs(repr(got), repr(expected))
    else:
        return Check(name, True) if got == expected else differs(repr(got), repr(expected))
    parts = (same_outputs(ours, theirs, path + step, numbers, dtypes) for step, ours, theirs in pairs)
    return next((part for part in parts if not part.passed), Check(name, True))


def _name(value: dict[object, object]) -> str:
    # A subclass of dict is as good as a dict.
    return value.name if isinstance(value, Record) and value.attributes is None else "dict"


def _form(value: object) -> str:
    if isinstance(value, dict):
        return f"a {_name(value)} with {', '.join(map(repr, value))}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
