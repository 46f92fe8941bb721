"""From calls of PyTorch's functions, as they are noted, to a program.

The lines behind a layer run on something that stands for the result, and what they call is noted
(`sandbox/notes.py`): ``t0 = batch_norm(y, channel0, channel1, channel2, channel3, False, 0.1, 1e-05); relu(t0)``.
Names are those of PyTorch's functions and methods, arguments as they are given there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tconv.errors import InvalidProgram
from tconv.pointwise.derivative import Followed, Gradient, Tape
from tconv.pointwise.functions import FUNCTIONS, Value
from tconv.pointwise.functions import where as where_value
from tconv.pointwise.program import KINDS, SUM, Program

#: What gives the values that it takes.
_SAME = ("clone", "contiguous", "detach")


def program_of(calls: str) -> Program:
    """The program that such calls compute; a question mark stands for what none can take.

    Raises:
        InvalidProgram: the language does not have one of them, or not on these arguments; the message names it.
    """
    if "?" in calls:
        what = "something else than numbers and tensors of the result's type and device"
        raise InvalidProgram(
            f"it takes {what}, or a tensor that has not one value for each output, each sample and channel, or all"
        )
    return _Calls().result(ast.parse(calls).body).program()


def gradient_of(calls: str) -> Gradient:
    """The gradient of what calls with a program give, by that of their result.

    Raises:
        InvalidProgram: the language has none, or it would be too large.
    """
    of_calls = _Calls()
    return of_calls.tape.gradient(of_calls.result(ast.parse(calls).body))


@lru_cache(maxsize=256)
def known_gradient(calls: str) -> Gradient | None:
    """The same; None where the language has none."""
    try:
        return gradient_of(calls)
    except InvalidProgram:
        return None


def known_calls() -> frozenset[str]:
    """The names of functions, of ``torch``, ``torch.nn.functional`` and ``torch.Tensor``, that a program may have."""
    return frozenset((*_table(FUNCTIONS), *_SAME))


class _Calls:
    def __init__(self) -> None:
        self.tape = Tape()
        self._builder, self._functions = self.tape.builder, _table(self.tape.functions)
        self._values: dict[str, Value] = {SUM: self.tape.value(self._builder.sum())}

    def result(self, lines: list[ast.stmt]) -> Value:
        for line in lines[:-1]:
            assert isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
            self._values[line.targets[0].id] = self._call(line.value)
        last = lines[-1]
        assert isinstance(last, ast.Expr)
        return self._number(self._call(last.value))

    def _call(self, tree: ast.expr) -> Value:
        if not isinstance(tree, ast.Call):
            value = self._argument(tree)
            if not isinstance(value, Value):
                raise InvalidProgram(f"it gives a number, {value!r}, and no tensor")
            return value
        assert isinstance(tree.func, ast.Name)
        name = tree.func.id
        arguments = [self._argument(argument) for argument in tree.args]
        options = {str(option.arg): self._argument(option.value) for option in tree.keywords}
        if name in _SAME:
            value = self._number(arguments[0])
            return self.tape.detached(value) if name == "detach" else value
        function = self._functions.get(name)
        if function is None:
            raise InvalidProgram(f"{name} is none of the language's functions")
        if name != "where":
            arguments = [self._number(a) if isinstance(a, Value) else a for a in arguments]
        try:
            return function(*arguments, **options)
        except TypeError as error:
            raise InvalidProgram(f"{name} is called in a way that the language does not have: {error}") from None

    def _argument(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Call):  # the tensor of a number
            return self.tape.value(self._builder.constant(self._argument(tree.args[0])))
        if isinstance(tree, ast.UnaryOp):
            return -self._argument(tree.operand)
        if not isinstance(tree, ast.Name) or tree.id in ("inf", "nan"):
            return float(tree.id) if isinstance(tree, ast.Name) else ast.literal_eval(tree)
        if tree.id not in self._values:
            kind = next(kind for kind in KINDS if tree.id.startswith(kind))
            operand = self._builder.operand(kind, int(tree.id.removeprefix(kind)))
            self._values[tree.id] = self.tape.value(operand)
        return self._values[tree.id]

    def _number(self, value: Value) -> Value:
        """A comparison, where PyTorch takes it for a number."""
        return where_value(value, 1, 0) if self._builder.tests(value.place) else value


def _batch_norm(
    input: Value,
    running_mean: Followed | None,
    running_var: Followed | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Value:
    if training or running_mean is None or running_var is None:
        raise InvalidProgram("batch_norm takes the statistics of the batch; in evaluation it takes the running ones")
    # PyTorch has no gradient of statistics.
    running_mean, running_var = (each.tape.detached(each) for each in (running_mean, running_var))
    inverse = (running_var + eps).call("rsqrt")
    normal = (input - running_mean) * (inverse if weight is None else weight * inverse)
    return normal if bias is None else normal + bias


def _dropout(input: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training and p > 0:
        raise InvalidProgram("dropout draws numbers; in evaluation it does nothing")
    return input


def _extreme(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    def of_two(input: Value, other: Any = None, **options: Any) -> Value:
        if options or not isinstance(other, Value):
            raise InvalidProgram(f"{name} along an axis is none of the language's functions; of two tensors it is")
        return function(input, other)

    return of_two


def _reversed_div(input: Value, other: Any) -> Value:
    return FUNCTIONS["div"](other, input)


def _activation(function: Callable[..., Value]) -> Callable[..., Value]:
    """A function of torch.nn.functional whose last parameter may be ``inplace``, given by its place."""

    def called(input: Value, *arguments: Any, **options: Any) -> Value:
        options.pop("inplace", None)
        if arguments and isinstance(arguments[-1], bool):
            arguments = arguments[:-1]
        return function(input, *arguments, **options)

    return called


def _where(condition: Value, input: Any, other: Any) -> Value:
    if not condition.builder.tests(condition.place):
        condition = condition.call("ne", 0)
    return where_value(condition, input, other)


_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ACTIVATIONS = (
    *("celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu", "relu6", "selu", "silu"),
    "threshold",
)
ALSO_CALLED = {
    **{"radd": "add", "rmul": "mul"},
    **{"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub"},
    **{"negative": "neg", "absolute": "abs", "clip": "clamp", "special_expm1": "expm1", "special_log1p": "log1p"},
    **{"_prelu_kernel": "prelu", "log_sigmoid": "logsigmoid", "special_expit": "sigmoid", "special_erf": "erf"},
}


def _table(functions: Mapping[str, Callable[..., Value]]) -> Mapping[str, Callable[..., Value]]:
    """All that may be called by its name, made of the language's functions."""
    return MappingProxyType(
        {
            **functions,
            **{name: _activation(functions[name]) for name in ACTIVATIONS},
            **{name: functions[function] for name, function in ALSO_CALLED.items()},
            **dict.fromkeys(_DROPOUTS, _dropout),
            **{name: _extreme(name, functions[f"{name}imum"]) for name in ("min", "max")},
            "rtruediv": _reversed_div,
            "batch_norm": _batch_norm,
            "where": _where,
        }
    )
