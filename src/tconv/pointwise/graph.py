"""From a graph of PyTorch's operators to a program: what is computed of one node until another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from tconv.errors import InvalidProgram
from tconv.pointwise.functions import FUNCTIONS, Value
from tconv.pointwise.functions import where as where_value
from tconv.pointwise.program import Builder, Program

#: Operators that give what they take, but for its type: all is computed in the type of the sums, and rounded once.
_SAME = ("_to_copy", "convert_element_type", "clone", "alias", "detach", "lift_fresh_copy", "contiguous")
#: Operators whose names are not those of PyTorch's functions.
_NAMES: Mapping[str, str] = MappingProxyType({"_prelu_kernel": "prelu", "log_sigmoid_forward": "logsigmoid"})
#: Operators that make a tensor of one number, and the place of that number among their arguments.
_CONSTANTS: Mapping[str, int] = MappingProxyType({"scalar_tensor": 0, "full": 1, "full_like": 1})


class Reader:
    """Reads operators, in the order in which they run, as steps of one program.

    Args:
        y: what the program is of.
        operand: the number and the kind of a tensor that does not depend on `y`, as `Builder.operand` takes them; it
            raises `InvalidProgram` where the program cannot read that.
    """

    def __init__(self, y: Node, operand: Callable[[Builder, Node], int]) -> None:
        self._builder = Builder()
        self._operand = operand
        self._shape = y.meta["val"].shape
        self._values: dict[Node, Value] = {y: Value(self._builder, self._builder.sum())}

    def knows(self, node: Node) -> bool:
        """Whether it was read before, or is `y`."""
        return node in self._values

    def read(self, node: Node) -> None:
        """The next operator, which takes something that was read.

        Raises:
            InvalidProgram: it is none of the language, or its result has another shape.
        """
        name = name_of(node)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.shape != self._shape:
            raise InvalidProgram(f"{node.target} changes the shape {tuple(self._shape)} to {tuple(value.shape)}")
        if name == "getitem":
            source, place = node.args
            if place != 0 or not isinstance(source, Node):
                raise InvalidProgram(f"result {place} of {source} is none of the language")
            self._values[node] = self._values[source]
            return
        arguments = [self._argument(argument) for argument in node.args]
        options = {key: self._argument(argument) for key, argument in node.kwargs.items()}
        if name in _SAME:
            source_value = arguments[0]
            assert isinstance(source_value, Value)
            self._values[node] = self._number(source_value, node)
            return
        function = FUNCTIONS.get(name)
        if function is None:
            raise InvalidProgram(f"{node.target} is none of the language's functions")
        try:
            if name == "where":
                result = where_value(*self._together(arguments))
            else:
                numbers = [self._number(a, node) if isinstance(a, Value) else a for a in arguments]
                result = function(*numbers, **options)
        except TypeError as error:
            raise InvalidProgram(f"{node.target} is called in a way that the language does not have: {error}") from None
        self._values[node] = result

    def program(self, result: Node) -> Program:
        """The program whose result is this node."""
        return self._values[result].program()

    def _argument(self, argument: Any) -> Any:
        if not isinstance(argument, Node):
            return argument
        if argument in self._values:
            return self._values[argument]
        constant = constant_of(argument)
        if constant is not None:
            return Value(self._builder, self._builder.constant(constant))
        return Value(self._builder, self._operand(self._builder, argument))

    def _together(self, arguments: list[Any]) -> list[Any]:
        condition, *others = arguments
        if not self._builder.tests(condition.place):
            condition = condition.call("ne", 0)
        return [condition, *others]

    def _number(self, value: Value, node: Node) -> Value:
        """A comparison, where PyTorch takes it for a number."""
        return where_value(value, 1, 0) if self._builder.tests(value.place) else value


def name_of(node: Node) -> str:
    """The name of the function that an operator's node calls, as `FUNCTIONS` has it; else the node's own."""
    if node.op != "call_function":
        return node.op
    schema = getattr(node.target, "_schema", None)
    name = getattr(node.target, "__name__", "") if schema is None else schema.name.partition("::")[2]
    return _NAMES.get(name, name)


def constant_of(node: Node) -> float | None:
    """The number that all elements of a node's tensor are, where it is known."""
    place = _CONSTANTS.get(name_of(node))
    number = None if place is None else node.args[place]
    return float(number) if isinstance(number, (int, float)) else None
