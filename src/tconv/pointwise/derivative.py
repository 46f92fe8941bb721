"""The gradient of a layer's epilogue, as a program of the same language.

Reverse-mode differentiation, function by function, by PyTorch's own formulas (its ``derivatives.yaml`` and
``FunctionsManual.cpp``): of functions with equal values the slopes may differ at kinks. That of ``relu(y)`` is 0 at 0,
that of ``maximum(y, 0)`` 1/2, and that of ``clamp(y, min=0)`` 1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from tconv.errors import InvalidProgram
from tconv.pointwise.functions import CUBIC, FUNCTIONS, SELU, Value, exponentials_of_mish, pow, where
from tconv.pointwise.operations import OPERATIONS
from tconv.pointwise.program import SUM, Builder, Operand, Program


class Computed(NamedTuple):
    """A gradient that a program gives, of another one's sum y and operands and of the gradient of its result.

    Args:
        program: the last of its operands is the gradient of the result.
        reads: which of the other one's operands it reads, in this order, before that last one.
    """

    program: Program
    reads: tuple[int, ...]


#: Of what an operand's gradient is the sum: of so many times the gradient of the layer's result, or of that of what
#: stands behind it; or of what a program gives.
Source = tuple[Literal["layer", "given"], float] | Computed
#: Functions that PyTorch differentiates by their results, so that it keeps these: its operators for that, of the
#: gradient of the result, the result, and these numbers.
BY_RESULT: Mapping[str, tuple[str, tuple[int, ...]]] = MappingProxyType(
    {"relu": ("threshold_backward", (0,)), "tanh": ("tanh_backward", ()), "sigmoid": ("sigmoid_backward", ())}
)
#: Multiples of the layer's gradient that its rounding to 16 bits leaves right.
_NEAR = 16.0


class Gradient(NamedTuple):
    """Gradients of a program's sum y and of its operands, where the gradient of its result is known.

    Args:
        of_sum: that of y.
        sources: for each operand, of what its gradient is the sum; None where no gradient reaches the operand.
        function: the last function, where y's gradient follows from the result by PyTorch's formula of this function
            and a factor; "" where it is the factor times the gradient of the result; else None.
        factor: of `function`.
    """

    of_sum: Computed
    sources: tuple[Source | None, ...]
    function: str | None
    factor: float

    def programs(self, learns: Sequence[bool]) -> tuple[str, ...]:
        """The texts of all that it takes for y and for those operands."""
        of_sum = (self.of_sum,) if self.function is None else ()
        own = (each for each, asked in zip(self.sources, learns, strict=True) if asked)
        computed = (*of_sum, *(each for each in own if isinstance(each, Computed)))
        return tuple(dict.fromkeys(each.program.text for each in computed))


class _Step(NamedTuple):
    """A function that was called; how the gradients of its arguments follow from that of its result; and this."""

    name: str
    gradients: Callable[[Value, Value], Sequence[Value | None]]
    arguments: Sequence[Followed]
    result: Value


@dataclass(frozen=True)
class Followed(Value):
    """A value whose operations are written on a tape.

    Args:
        step: which step of the tape gave it; None for the sum, operands and numbers. Steps of equal values are not one:
            their gradients may differ.
        detached: no gradient goes through it.
    """

    tape: Tape
    step: int | None = None
    detached: bool = False

    def call(self, name: str, *others: Value | float) -> Followed:
        """An operation on this value and others."""
        arguments = [self, *map(self.tape.followed, others)]
        places = [each.place for each in arguments]
        result = Value(self.builder, self.builder.call(name, *places))
        if OPERATIONS[name].tests:
            return self.tape.value(result.place)
        plain = [Value(self.builder, place) for place in places]
        return self.tape.wrote(_Step(name, lambda g, r: _OPERATIONS[name](g, r, *plain), arguments, result))

    def beside(self, other: Value | float) -> Followed:
        """A number as a value of the same program."""
        return self.tape.followed(other)


class Tape:
    """What a program calls, in order; `functions` are those of the language on values of a tape."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.steps: list[_Step] = []
        rules = {name: self._ruled(name) for name in _FUNCTIONS}
        self.functions: Mapping[str, Callable[..., Value]] = MappingProxyType({**FUNCTIONS, **rules})

    def value(self, place: int) -> Followed:
        return Followed(self.builder, place, self)

    def followed(self, value: Value | float) -> Followed:
        """A value, or a number, as one of this tape."""
        if isinstance(value, Followed):
            return value
        return self.value(value.place if isinstance(value, Value) else self.builder.constant(value))

    def detached(self, value: Value) -> Followed:
        """The same value, through which no gradient goes."""
        return Followed(self.builder, value.place, self, detached=True)

    def wrote(self, step: _Step) -> Followed:
        """The result of a step, which is on the tape then."""
        self.steps.append(step)
        return Followed(self.builder, step.result.place, self, len(self.steps) - 1)

    def gradient(self, result: Value) -> Gradient:
        """The gradients of the program that gives this value.

        Raises:
            InvalidProgram: an operation has no derivative in the language, or the program would be too large.
        """
        operands = self.builder.program(result.place).operands
        given = Value(self.builder, self.builder.operand("output", len(operands)))
        last = self.followed(result)
        of_steps: dict[int | None, Value] = {last.step: given}
        found = {} if last.step is not None or last.detached else {last.place: given}  # of the sum and the operands
        name, behind = "", given  # the last function, and the gradient of what it takes
        for number in reversed(range(len(self.steps))):
            step, known = self.steps[number], of_steps.get(number)
            if known is None:
                continue
            parts = step.gradients(known, step.result)
            for argument, part in zip(step.arguments, parts, strict=True):
                if part is None or argument.detached or isinstance(self.builder.node(argument.place).what, float):
                    continue
                of_any: dict[Any, Value] = found if argument.step is None else of_steps
                key = argument.place if argument.step is None else argument.step
                of_any[key] = of_any[key] + part if key in of_any else part
            if number == last.step and step.name in BY_RESULT and parts[0] is not None:
                name, behind = step.name, parts[0]
        of_sum = found.get(self.builder.sum())
        if of_sum is None:
            raise InvalidProgram("no gradient reaches the layer's result")
        factor = self._ratio(of_sum, behind)
        of_operands = [found.get(self.builder.operand(*each)) for each in operands]
        sources = tuple(None if each is None else self._source(each, of_sum, given) for each in of_operands)
        function = None if factor is None else name
        return Gradient(self._computed(of_sum, given), sources, function, 1.0 if factor is None else factor)

    def _ruled(self, name: str) -> Callable[..., Value]:
        """A function that has a rule of its own, instead of those of its operations."""
        function, rule = FUNCTIONS[name], _FUNCTIONS[name]
        signature = inspect.signature(function)

        def called(*arguments: Any, **options: Any) -> Value:
            given = signature.bind(*arguments, **options)
            given.apply_defaults()
            plain = [Value(v.builder, v.place) if isinstance(v, Value) else v for v in given.args]
            taken = [number for number, value in enumerate(given.args) if isinstance(value, Value)]

            def gradients(g: Value, r: Value) -> list[Value | None]:
                parts = dict(enumerate(rule(g, r, *plain)))
                return [parts.get(number) for number in taken]

            values = [self.followed(given.args[number]) for number in taken]
            return self.wrote(_Step(name, gradients, values, function(*plain)))

        return called

    def _source(self, value: Value, of_sum: Value, given: Value) -> Source:
        of_given, of_layer = self._ratio(value, given), self._ratio(value, of_sum)
        if of_given is not None:
            return "given", of_given
        # Where 16 bits hold the layer's only, they hold nothing of a much larger one.
        near = of_layer is not None and 1 / _NEAR <= abs(of_layer) <= _NEAR
        return ("layer", of_layer) if of_layer is not None and near else self._computed(value, given)

    def _ratio(self, value: Value, other: Value) -> float | None:
        """What `other` is multiplied by to give `value`, where both are multiples of one value."""
        (one, factor), (another, divisor) = map(self._multiple, (value, other))
        return factor / divisor if one == another and divisor and math.isfinite(factor / divisor) else None

    def _multiple(self, value: Value) -> tuple[int, float]:
        """The place of a value, and what it is multiplied by."""
        place, factor = value.place, 1.0
        while True:
            node = self.builder.node(place)
            last = self.builder.node(node.arguments[-1]).what if node.arguments else None
            if node.what == "neg":
                factor = -factor
            elif node.what == "mul" and isinstance(last, float):
                factor *= last
            elif node.what == "div" and isinstance(last, float) and last:
                factor /= last
            else:
                return place, factor
            place = node.arguments[0]

    def _computed(self, result: Value, given: Value) -> Computed:
        """A value by a program of its own, whose operands are numbered from 0 on; `given` is the last of all."""
        wanted, pending = set[int](), [result.place]
        while pending:
            place = pending.pop()
            if place not in wanted:
                wanted.add(place)
                pending += self.builder.node(place).arguments
        nodes = [self.builder.node(place) for place in sorted(wanted)]
        read = sorted({node.what.number for node in nodes if isinstance(node.what, Operand)})
        own, copies = Builder(), dict[int, int]()
        for place, node in zip(sorted(wanted), nodes, strict=True):
            if isinstance(node.what, float):
                copies[place] = own.constant(node.what)
            elif isinstance(node.what, Operand):
                copies[place] = own.operand(node.what.kind, read.index(node.what.number))
            elif node.what == SUM:
                copies[place] = own.sum()
            else:
                copies[place] = own.call(node.what, *(copies[argument] for argument in node.arguments))
        last = self.builder.node(given.place).what
        assert isinstance(last, Operand) and read[-1:] == [last.number], "a gradient hangs on that of the result"
        return Computed(own.program(copies[result.place]), tuple(read[:-1]))


def _times(value: Value, factor: float) -> Value:
    return value if factor == 1 else value * factor


def _of_extreme(beyond: str) -> Callable[..., Sequence[Value | None]]:
    """Of a maximum or a minimum: all goes to the argument that is one, half to each of equal ones."""

    def gradients(g: Value, r: Value, a: Value, b: Value) -> Sequence[Value | None]:
        of_equal = where(a.call("eq", b), g * 0.5, g)
        return where(b.call(beyond, a), 0, of_equal), where(a.call(beyond, b), 0, of_equal)

    return gradients


def _of_division(g: Value, r: Value, a: Value, b: Value) -> Sequence[Value | None]:
    return g / b, -g * (r / b)


#: Of each operation but comparisons, the gradients of its arguments, where g is that of its result r. `pow` has a rule
#: among the functions.
_OPERATIONS: Mapping[str, Callable[..., Sequence[Value | None]]] = MappingProxyType(
    {
        "add": lambda g, r, a, b: (g, g),
        "sub": lambda g, r, a, b: (g, -g),
        "mul": lambda g, r, a, b: (g * b, g * a),
        "div": _of_division,
        "neg": lambda g, r, a: (-g,),
        "min": _of_extreme("lt"),
        "max": _of_extreme("gt"),
        "where": lambda g, r, test, a, b: (None, where(test, g, 0), where(test, 0, g)),
        "abs": lambda g, r, a: (g * where(a > 0, 1, where(a < 0, -1, 0)),),
        "exp": lambda g, r, a: (g * r,),
        "expm1": lambda g, r, a: (g * (r + 1),),
        "log": lambda g, r, a: (g / a,),
        "log1p": lambda g, r, a: (g / (a + 1),),
        "sqrt": lambda g, r, a: (g / (r * 2),),
        "rsqrt": lambda g, r, a: (g * -0.5 * (r * r * r),),
        "sin": lambda g, r, a: (g * a.call("cos"),),
        "cos": lambda g, r, a: (g * -a.call("sin"),),
        "erf": lambda g, r, a: (g * ((-(a * a)).call("exp") * (2 / math.sqrt(math.pi))),),
        "tanh": lambda g, r, a: (g * (1 - r * r),),
        "reciprocal": lambda g, r, a: (-g * (r * r),),
        "sigmoid": lambda g, r, a: (g * ((1 - r) * r),),
        "float16": lambda g, r, a: (g.call("float16"),),
        "bfloat16": lambda g, r, a: (g.call("bfloat16"),),
    }
)


def _relu(g: Value, r: Value, input: Value) -> Sequence[Value | None]:
    return (where(r <= 0, 0, g),)


def _leaky_relu(g: Value, r: Value, input: Value, slope: float) -> Sequence[Value | None]:
    return (where(input > 0, g, g * slope),)


def _prelu(g: Value, r: Value, input: Value, weight: Value | float) -> Sequence[Value | None]:
    return where(input > 0, g, g * weight), where(input > 0, 0, g * input)


def _elu(
    g: Value, r: Value, input: Value, alpha: float, scale: float = 1.0, input_scale: float = 1.0
) -> Sequence[Value | None]:
    exponential = _times(input, input_scale).call("exp")
    negative = _times(g * exponential, alpha * scale * input_scale)
    return (where(input <= 0, negative, _times(g, scale)),)


def _clamp(
    g: Value, r: Value, input: Value, min: Value | float | None, max: Value | float | None
) -> Sequence[Value | None]:
    """1 at the limits; of limits that are tensors the larger one counts where they are the wrong way round."""
    of_input, of_min, of_max = g, None, None
    if min is not None:
        of_input = where(input >= min, of_input, 0)
        of_min = where(input < min, g, 0)
    if max is not None:
        of_input = where(input <= max, of_input, 0)
        of_max = where(input > max, g, 0)
    if of_min is not None and of_max is not None and min is not None and max is not None:
        of_min = where(input.beside(min) < max, of_min, 0)
        of_max = where(input.beside(max) < min, g, of_max)
    return of_input, of_min, of_max


def _hardtanh(g: Value, r: Value, input: Value, low: float, high: float) -> Sequence[Value | None]:
    return (_between(g, input, low, high),)


def _between(g: Value, input: Value, low: float, high: float) -> Value:
    """0 at the limits, too."""
    return where(input <= low, 0, where(input >= high, 0, g))


def _hardswish(g: Value, r: Value, input: Value) -> Sequence[Value | None]:
    between = g * (input * (1 / 3) + 0.5)
    return (where(input <= -3, 0, where(input < 3, between, g)),)


def _softplus(g: Value, r: Value, input: Value, beta: float, threshold: float) -> Sequence[Value | None]:
    scaled = _times(input, beta)
    return (where(scaled > threshold, g, g * scaled.call("sigmoid")),)


def _gelu(g: Value, r: Value, input: Value, approximate: str) -> Sequence[Value | None]:
    if approximate == "none":
        below = 0.5 * (1 + (input * math.sqrt(0.5)).call("erf"))
        density = (input * input * -0.5).call("exp") * (1 / math.sqrt(2 * math.pi))
        return (g * (below + input * density),)
    slope, square = math.sqrt(2 / math.pi), input * input
    tanh = (slope * (input + CUBIC * (input * square))).call("tanh")
    rising = 0.5 * input * (1 - tanh * tanh) * (slope * (1 + 3 * CUBIC * square))
    return (g * (0.5 * (1 + tanh) + rising),)


def _pow(g: Value, r: Value, input: Value, exponent: Value | float) -> Sequence[Value | None]:
    number = input.builder.node(exponent.place).what if isinstance(exponent, Value) else exponent
    assert isinstance(number, float | int)
    return (g * 0 if number == 0 else g if number == 1 else g * (number * pow(input, number - 1)),)


def _silu(g: Value, r: Value, input: Value) -> Sequence[Value | None]:
    sigmoid = input.call("sigmoid")
    return (g * (sigmoid * (1 + input * (1 - sigmoid))),)


def _mish(g: Value, r: Value, input: Value) -> Sequence[Value | None]:
    """With e = e^x and n = e (e + 2) the factor is n / (n + 2), and its slope 4 e (e + 1) / (n + 2)^2."""
    limited, exponential, both = exponentials_of_mish(input)
    inverse = 1 / (both + 2)
    slope = 4 * exponential * inverse * ((exponential + 1) * inverse)
    return (g * (both * inverse + limited * slope),)


#: Of functions whose gradients do not follow from those of their operations: at kinks, or where these overflow. They
#: take all of the function's arguments, and give the gradients of the first ones, which are tensors.
_FUNCTIONS: Mapping[str, Callable[..., Sequence[Value | None]]] = MappingProxyType(
    {
        "relu": _relu,
        "relu6": lambda g, r, input: (_between(g, input, 0, 6),),
        "leaky_relu": _leaky_relu,
        "prelu": _prelu,
        "elu": _elu,
        "celu": lambda g, r, input, alpha: _elu(g, r, input, alpha, 1.0, 1 / alpha),
        "selu": lambda g, r, input: _elu(g, r, input, *SELU),
        "clamp": _clamp,
        "clamp_min": lambda g, r, input, min: _clamp(g, r, input, min, None),
        "clamp_max": lambda g, r, input, max: _clamp(g, r, input, None, max)[::2],
        "hardtanh": _hardtanh,
        "hardsigmoid": lambda g, r, input: (where(input > -3, where(input < 3, g * (1 / 6), 0), 0),),
        "hardswish": _hardswish,
        "softplus": _softplus,
        "logsigmoid": lambda g, r, input: (g * (-input).call("sigmoid"),),
        "gelu": _gelu,
        "pow": _pow,
        "silu": _silu,
        "mish": _mish,
        "tanh": _OPERATIONS["tanh"],  # that of a softplus is written otherwise
    }
)
