"""PyTorch's elementwise functions in the language: each is built of its operations, by PyTorch's own formula.

A function takes `Value`s and numbers, in the order and by the names of `torch` or `torch.nn.functional`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tconv.errors import InvalidProgram
from tconv.pointwise.program import Builder, Program

#: Of GELU by tanh.
CUBIC = 0.044715
#: Of SELU: alpha and scale.
SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
#: Beyond this, the factor of Mish is 1 in float64 as well, and the square of an exponential still a number.
_MISH_IS_LINEAR = 20.0


@dataclass(frozen=True)
class Value:
    """A value of a program that is being built; arithmetic and comparisons with others, and with numbers."""

    builder: Builder
    place: int

    def call(self, name: str, *others: Value | float) -> Value:
        """An operation on this value and others."""
        places = [self.place, *(self.beside(other).place for other in others)]
        return Value(self.builder, self.builder.call(name, *places))

    def beside(self, other: Value | float) -> Value:
        """A number as a value of the same program."""
        return other if isinstance(other, Value) else Value(self.builder, self.builder.constant(other))

    def program(self) -> Program:
        """The program whose result this is."""
        return self.builder.program(self.place)

    def __add__(self, other: Value | float) -> Value:
        return self.call("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self.call("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self.call("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.call("div", other)

    def __rtruediv__(self, other: float) -> Value:
        return self.beside(other) / self

    def __radd__(self, other: float) -> Value:
        return self.beside(other) + self

    def __rsub__(self, other: float) -> Value:
        return self.beside(other) - self

    def __rmul__(self, other: float) -> Value:
        return self.beside(other) * self

    def __neg__(self) -> Value:
        return self.call("neg")

    def __gt__(self, other: Value | float) -> Value:
        return self.call("gt", other)

    def __ge__(self, other: Value | float) -> Value:
        return self.call("ge", other)

    def __lt__(self, other: Value | float) -> Value:
        return self.call("lt", other)

    def __le__(self, other: Value | float) -> Value:
        return self.call("le", other)


def where(condition: Value, input: Value | float, other: Value | float) -> Value:
    return condition.call("where", input, other)


def maximum(input: Value, other: Value | float) -> Value:
    return input.call("max", other)


def minimum(input: Value, other: Value | float) -> Value:
    return input.call("min", other)


def clamp(input: Value, min: Value | float | None = None, max: Value | float | None = None) -> Value:
    above = input if min is None else maximum(input, min)
    return above if max is None else minimum(above, max)


def relu(input: Value) -> Value:
    return maximum(input, 0)


def leaky_relu(input: Value, negative_slope: float = 0.01) -> Value:
    return where(input > 0, input, input * negative_slope)


def prelu(input: Value, weight: Value | float) -> Value:
    return where(input > 0, input, weight * input)


def elu(input: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    positive = input if scale == 1 else input * scale
    negative = (input if input_scale == 1 else input * input_scale).call("expm1")
    return where(input > 0, positive, negative if alpha * scale == 1 else negative * (alpha * scale))


def celu(input: Value, alpha: float = 1.0) -> Value:
    return elu(input, alpha, input_scale=1 / alpha)


def selu(input: Value) -> Value:
    return elu(input, *SELU)


def gelu(input: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return input * 0.5 * (1 + (input * math.sqrt(0.5)).call("erf"))
    if approximate != "tanh":
        raise InvalidProgram(f"got gelu of approximate={approximate!r}; allowed are 'none' and 'tanh'")
    inner = math.sqrt(2 / math.pi) * (input + CUBIC * (input * input * input))
    return 0.5 * input * (1 + inner.call("tanh"))


def silu(input: Value) -> Value:
    return input * input.call("sigmoid")


def mish(input: Value) -> Value:
    return input * _tanh_of_softplus(input)


def tanh(input: Value) -> Value:
    """That of a softplus is Mish's factor, also where it was taken apart."""
    of = _softplus_of(input)
    return input.call("tanh") if of is None else _tanh_of_softplus(of)


def _tanh_of_softplus(input: Value) -> Value:
    """tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2)."""
    _, _, both = exponentials_of_mish(input)
    return both / (both + 2)


def exponentials_of_mish(input: Value) -> tuple[Value, Value, Value]:
    """The input, or what is large enough; its exponential e, and e (e + 2)."""
    limited = minimum(input, _MISH_IS_LINEAR)
    exponential = limited.call("exp")
    return limited, exponential, exponential * (exponential + 2)


def _softplus_of(value: Value) -> Value | None:
    """What a value is the softplus of, as `softplus` and PyTorch's decompositions write it; None if of nothing."""
    node = value.builder.node(value.place)
    if node.what == "where":
        test, linear, curved = node.arguments
        of = _softplus_of(Value(value.builder, curved))
        compared = value.builder.node(test)
        if of is None or of.place != linear or compared.what != "gt" or compared.arguments[0] != linear:
            return None
        limit = value.builder.node(compared.arguments[1]).what
        return of if isinstance(limit, float) and limit >= _MISH_IS_LINEAR else None
    if node.what != "log1p":
        return None
    exponential = value.builder.node(node.arguments[0])
    return Value(value.builder, exponential.arguments[0]) if exponential.what == "exp" else None


def softplus(input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = input if beta == 1 else input * beta
    curved = scaled.call("exp").call("log1p")
    return where(scaled > threshold, input, curved if beta == 1 else curved / beta)


def hardtanh(input: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    return clamp(input, min_val, max_val)


def relu6(input: Value) -> Value:
    return clamp(input, 0, 6)


def hardsigmoid(input: Value) -> Value:
    return clamp(input + 3, 0, 6) * (1 / 6)


def hardswish(input: Value) -> Value:
    return input * clamp(input + 3, 0, 6) * (1 / 6)


def softsign(input: Value) -> Value:
    return input / (1 + input.call("abs"))


def tanhshrink(input: Value) -> Value:
    return input - input.call("tanh")


def logsigmoid(input: Value) -> Value:
    return minimum(input, 0) - (-input.call("abs")).call("exp").call("log1p")


def threshold(input: Value, threshold: float, value: float) -> Value:
    return where(input <= threshold, value, input)


def add(input: Value | float, other: Value | float, alpha: float = 1) -> Value:
    first, second = _together(input, other)
    return first + (second if alpha == 1 else second * alpha)


def sub(input: Value | float, other: Value | float, alpha: float = 1) -> Value:
    first, second = _together(input, other)
    return first - (second if alpha == 1 else second * alpha)


def rsub(input: Value | float, other: Value | float, alpha: float = 1) -> Value:
    return sub(other, input, alpha)


def div(input: Value | float, other: Value | float, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise InvalidProgram(f"got div of rounding_mode={rounding_mode!r}; allowed is None")
    first, second = _together(input, other)
    return first / second


def square(input: Value) -> Value:
    return input * input


def pow(input: Value, exponent: Value | float) -> Value:
    """Powers that PyTorch takes by other functions are those."""
    by_others: Mapping[float, Callable[[], Value]] = {
        0.5: lambda: input.call("sqrt"),
        1.0: lambda: input,
        2.0: lambda: input * input,
        3.0: lambda: input * input * input,
        -0.5: lambda: input.call("rsqrt"),
        -1.0: lambda: input.call("reciprocal"),
        -2.0: lambda: (input * input).call("reciprocal"),
    }
    other = None if isinstance(exponent, Value) else by_others.get(exponent)
    return input.call("pow", exponent) if other is None else other()


def addcmul(input: Value, tensor1: Value, tensor2: Value, value: float = 1) -> Value:
    product = tensor1 * tensor2
    return input + (product if value == 1 else product * value)


def addcdiv(input: Value, tensor1: Value, tensor2: Value, value: float = 1) -> Value:
    quotient = tensor1 / tensor2
    return input + (quotient if value == 1 else quotient * value)


def _operation(name: str) -> Callable[..., Value]:
    def operation(*arguments: Value | float) -> Value:
        first, *others = _together(*arguments)
        return first.call(name, *others)

    return operation


def _together(*arguments: Value | float) -> list[Value]:
    """All as values; at least one is."""
    value = next((argument for argument in arguments if isinstance(argument, Value)), None)
    if value is None:
        raise InvalidProgram("got numbers alone; a function of the language takes a tensor")
    return [value.beside(argument) for argument in arguments]


_BY_NAME = (
    *("abs", "cos", "erf", "exp", "expm1", "log", "log1p", "mul", "neg", "reciprocal", "rsqrt", "sigmoid", "sin"),
    "sqrt",
)
_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
_BUILT = (
    *(add, addcdiv, addcmul, celu, clamp, div, elu, gelu, hardsigmoid, hardswish, hardtanh, leaky_relu, logsigmoid),
    *(maximum, minimum, mish, pow, prelu, relu, relu6, rsub, selu, silu, softplus, softsign, square, sub),
    *(tanh, tanhshrink, threshold, where),
)
#: By PyTorch's names.
FUNCTIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        **{name: _operation(name) for name in (*_BY_NAME, *_COMPARISONS)},
        **{function.__name__: function for function in _BUILT},
        "clamp_min": lambda input, min: clamp(input, min=min),
        "clamp_max": lambda input, max: clamp(input, max=max),
    }
)
