"""What the lines behind a layer call, as text, of something that stands for the layer's result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tconv.pointwise.evaluate import kind_of

_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")
_OPERATORS = "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv pow neg gt ge lt le eq ne"
#: Their tensors have one value for each channel, and one axis.
_BY_CHANNEL = ("batch_norm", "prelu")


class Notes(TorchFunctionMode):
    """Notes calls: ``t0 = add(y, channel0); t1 = min(t0, tensor(0.5)); t1``.

    Tensors are called by what they have one value for: each output, each sample and channel, each channel, or all.
    Where ``torch.tensor`` is given a number, none is made, as that would wait for the GPU: the number is in the text.
    A question mark stands for what no program can take.

    Args:
        like: the result that is stood for.
        dtype: as if that, and the tensors beside it, had this type.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.shape, self.dtype, self.device = like.shape, dtype or like.dtype, like.device
        #: The tensors that were met, by their numbers.
        self.operands: list[Tensor] = []
        #: Of these, after `of`, those that promote the epilogue's result: with axes and in float32, they make it
        #: float32 where the layer's is of 16 bits.
        self.promoting: frozenset[int] = frozenset()
        self._given, self._calls, self._promotes = like.dtype, list[str](), True

    def of(self, epilogue: Callable[[Any], Any]) -> str:
        """All that the epilogue calls, and at last what it gives."""
        with self:
            last = epilogue(Result(self, "y", typed=True))
        typed = not isinstance(last, Result) or last._typed
        self.promoting = self._promoted_by(last) if self._promotes else frozenset()
        return "; ".join([*self._calls, self._said(last) if typed else "?"])

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        of_number = function is torch.tensor and len(args) == 1 and type(args[0]) in (bool, int, float)
        if of_number and kwargs.keys() <= {"dtype", "device"} and self._reaches(kwargs.get("device")):
            return self._number(args[0], kwargs.get("dtype"))
        return function(*args, **kwargs)

    def _reaches(self, device: Any) -> bool:
        """Whether a tensor without axes that is made there can stand beside the result."""
        return device == self.device or torch.empty(0, device=device).device in (self.device, torch.device("cpu"))

    def _number(self, value: float, dtype: torch.dtype | None) -> Result:
        """Stands for the tensor of a number, as PyTorch takes it beside the result: rounded to both types."""
        dtype = dtype or {bool: torch.bool, int: torch.int64}.get(type(value), torch.get_default_dtype())
        if not dtype == self.dtype == torch.float32:  # to which the kernel rounds by itself
            value = torch.tensor(value, dtype=dtype, device="cpu").to(self.dtype).item()
        return Result(self, f"tensor({value!r})", cast=dtype != self.dtype)

    def call(self, called: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
        """Notes a call of a function, a method or an operator by that name."""
        name, result = called.strip("_"), f"t{len(self._calls)}"
        in_place = bool(kwargs.get("inplace", False)) or (called.endswith("_") and not called.startswith("__"))
        if called.startswith("__i"):
            name, in_place = name[1:], True
        by_channel = name in _BY_CHANNEL
        said = [self._said(value, by_channel) for value in args]
        said += [f"{key}={self._said(value, by_channel)}" for key, value in kwargs.items()]
        values = (*args, *kwargs.values())
        typed = any(map(self._is_typed, values))
        if not typed and name not in _COMPARISONS and any(map(self._is_float, values)):
            # Of bits and such numbers, the type that is set for these.
            typed = self.dtype == torch.float32 == torch.get_default_dtype() and not any(map(self._is_cast, values))
            said = said if typed else ["?"]
        self._calls.append(f"{result} = {name}({', '.join(said)})")
        if in_place and isinstance(args[0], Result):  # it keeps its type, whatever the others' are
            args[0]._name = result
            return args[0]
        compares = name in _COMPARISONS
        # A condition says nothing of the type, and normalisation gives its input's.
        deciding = args[:1] if by_channel else args[1:] if name == "where" else () if compares else values
        promoted_by = frozenset[int]().union(*map(self._promoted_by, deciding))
        self._promotes &= name != "prelu"  # autocast casts what it takes to 16 bits; else its types must be equal
        return Result(self, result, typed and not compares, promoted_by)

    def _promoted_by(self, value: Any) -> frozenset[int]:
        if isinstance(value, Result):
            return value._promoted_by
        return frozenset(number for number, operand in enumerate(self.operands) if operand is value)

    def _is_typed(self, value: Any) -> bool:
        return value._typed if isinstance(value, Result) else getattr(value, "dtype", None) == self._given

    def _is_cast(self, value: Any) -> bool:
        return isinstance(value, Result) and value._cast

    def _is_float(self, value: Any) -> bool:
        return type(value) is float or (isinstance(value, Result) and value._name.startswith("tensor("))

    def _said(self, value: Any, by_channel: bool = False) -> str:
        if isinstance(value, Result):
            return value._name
        if not isinstance(value, Tensor):
            return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "?"
        if by_channel:
            kind = {1: "scalar", self.shape[1]: "channel"}.get(value.numel())
        else:
            kind = kind_of(value.shape, self.shape, len(self.shape) - 2)
        if kind is None or value.dtype != self._given or value.device != self.device:
            return "?"
        number = next((n for n, operand in enumerate(self.operands) if operand is value), len(self.operands))
        self.operands[number:] = self.operands[number:] or [value]
        return f"{kind}{number}"


class Result:
    """Stands for a layer's result in the lines behind it, for what they make of that, and for tensors of a number.

    Args:
        name: what it is called in what is noted.
        typed: it is of the result's type, and has axes. Of a comparison and numbers alone the numbers' types decide.
        promoted_by: the numbers of the tensors that promote it.
        cast: it is a number of another type, which is cast to the result's.
    """

    def __init__(
        self,
        notes: Notes,
        name: str,
        typed: bool = False,
        promoted_by: frozenset[int] = frozenset(),
        cast: bool = False,
    ) -> None:
        self._notes, self._name, self._typed, self._promoted_by, self._cast = notes, name, typed, promoted_by, cast

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Result:
        kwargs = kwargs or {}
        noted = next(value for value in (*args, *kwargs.values()) if isinstance(value, Result))
        return noted._notes.call(function.__name__, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(Tensor, name, None)):
            return functools.partial(self._call, name)
        return getattr(self._notes, name)  # shape, dtype, device

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Result:
        return self._notes.call(method, (self, *args), kwargs)

    def dim(self) -> int:
        return len(self._notes.shape)


for _name in _OPERATORS.split():
    setattr(Result, f"__{_name}__", functools.partialmethod(Result._call, f"__{_name}__"))
