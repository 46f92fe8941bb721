"""From a graph of PyTorch's operators to a program: what is computed of one node until another one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from tconv.errors import InvalidProgram
from tconv.pointwise.derivative import Gradient, Tape
from tconv.pointwise.evaluate import kind_of
from tconv.pointwise.functions import Value
from tconv.pointwise.functions import where as where_value
from tconv.pointwise.program import Kind, Program

#: Operators that give what they take, but for its type: all is computed in the type of the sums, and rounded once.
_SAME = ("_to_copy", "convert_element_type", "clone", "alias", "detach", "lift_fresh_copy", "contiguous")
#: Operators whose names are not those of PyTorch's functions.
_NAMES: Mapping[str, str] = MappingProxyType({"_prelu_kernel": "prelu", "log_sigmoid_forward": "logsigmoid"})
#: Operators that make a tensor of one number, and the place of that number among their arguments.
_CONSTANTS: Mapping[str, int] = MappingProxyType({"scalar_tensor": 0, "full": 1, "full_like": 1})


class Reader:
    """Reads operators, in the order in which they run, as steps of one program.

    Args:
        y: what the program is of, a result (N, C, ...), or (C, ...).
        spatial_dims: how many axes lie behind the channels.
        promoted: the program's result is float32 where `y` has 16 bits. What it reads may be of both types.
    """

    def __init__(self, y: Node, spatial_dims: int, promoted: bool = False) -> None:
        self._tape = Tape()
        self._builder = self._tape.builder
        self._dims, self._y = spatial_dims, y.meta["val"]
        self._types = (self._y.dtype, torch.float32) if promoted else (self._y.dtype,)
        self._values: dict[Node, Value] = {y: self._tape.value(self._builder.sum())}
        #: What does not depend on `y`, in the order in which the program takes it.
        self.operands: list[Node] = []

    def is_next(self, node: Node) -> bool:
        """Whether it takes something that was read, or `y`."""
        return any(source in self._values for source in node.all_input_nodes)

    def is_closed(self, result: Node) -> bool:
        """Whether nothing else takes what was read, but for this result."""
        return all(user in self._values for node in self._values if node is not result for user in node.users)

    def read(self, node: Node) -> None:
        """The next operator.

        Raises:
            InvalidProgram: it is none of the language, its result has another shape, or a program cannot read a tensor
                that it takes.
        """
        name = name_of(node)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.shape != self._y.shape:
            raise InvalidProgram(f"{node.target} changes the shape {tuple(self._y.shape)} to {tuple(value.shape)}")
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
            number = self._number(source_value)
            self._values[node] = self._tape.detached(number) if name == "detach" else number
            return
        function = self._tape.functions.get(name)
        if function is None:
            raise InvalidProgram(f"{node.target} is none of the language's functions")
        try:
            if name == "where":
                result = where_value(*self._together(arguments))
            else:
                numbers = [self._number(a) if isinstance(a, Value) else a for a in arguments]
                result = function(*numbers, **options)
        except TypeError as error:
            raise InvalidProgram(f"{node.target} is called in a way that the language does not have: {error}") from None
        self._values[node] = result

    def program(self, result: Node) -> Program:
        """The program whose result is this node."""
        return self._values[result].program()

    def gradient(self, result: Node) -> Gradient | None:
        """The gradient of that program; None where the language has none."""
        try:
            return self._tape.gradient(self._values[result])
        except InvalidProgram:
            return None

    def _argument(self, argument: Any) -> Any:
        if not isinstance(argument, Node):
            return argument
        if argument in self._values:
            return self._values[argument]
        constant = constant_of(argument)
        if constant is not None:
            return self._tape.value(self._builder.constant(constant))
        kind = self._kind_of(argument)
        if argument not in self.operands:
            self.operands.append(argument)
        return self._tape.value(self._builder.operand(kind, self.operands.index(argument)))

    def _kind_of(self, node: Node) -> Kind:
        value, y = node.meta.get("val"), self._y
        if not isinstance(value, torch.Tensor):
            raise InvalidProgram(f"{node} is no tensor")
        if value.dtype not in self._types:
            raise InvalidProgram(f"{node} is {value.dtype}, and the layer's result {y.dtype}; cast one of them")
        if value.device != y.device and value.dim() > 0:
            raise InvalidProgram(f"{node} is on {value.device}, and the layer's result on {y.device}; move one of them")
        kind = kind_of(value.shape, y.shape, self._dims)
        if kind is None:
            raise InvalidProgram(
                f"{node} has the shape {tuple(value.shape)}; allowed are the result's, {tuple(y.shape)}, or one value "
                "for each sample and channel, for each channel, or for all: expand it"
            )
        return kind

    def _together(self, arguments: list[Any]) -> list[Any]:
        condition, *others = arguments
        if not self._builder.tests(condition.place):
            condition = condition.call("ne", 0)
        return [condition, *others]

    def _number(self, value: Value) -> Value:
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
