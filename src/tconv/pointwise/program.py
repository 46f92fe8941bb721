"""A program of the pointwise language: what is computed of each sum of a transposed convolution before it is stored.

A program is an expression over the sum, constants and further tensors, its *operands*. Its text is its identity, and
reads as mathematics: ``max(y * channel0 + channel1, 0) + output2``. What is used more than once has a name:
``t0 = y + 1; t0 * sigmoid(t0)``. Pure Python: nothing here needs torch or a GPU.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, get_args

from tconv.errors import InvalidProgram
from tconv.pointwise.operations import OPERATIONS, Operation

#: What an operand has one value for: each element of the output, each sample and channel, each channel, or all.
Kind = Literal["output", "sample", "channel", "scalar"]

KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_OPERATIONS, MOST_OPERANDS = 64, 8
#: How the sum is called in the text, the bias added.
SUM = "y"
_OPERAND = re.compile(rf"({'|'.join(KINDS)})(\d+)")
_NAMED = re.compile(r"t\d+")
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_BY_AST: dict[type, str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.USub: "neg"},
    **{ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"},
}


class Operand(NamedTuple):
    """A tensor that is read beside the sum: its kind, and its place among the operands."""

    kind: Kind
    number: int

    @property
    def name(self) -> str:
        """In texts."""
        return f"{self.kind}{self.number}"


class Node(NamedTuple):
    """One value of a program.

    Args:
        what: a constant, an operand, `SUM`, or the name of an operation.
        arguments: places of earlier values, for an operation.
    """

    what: float | Operand | str
    arguments: tuple[int, ...] = ()

    @property
    def operation(self) -> Operation | None:
        """None for what is read or known."""
        return OPERATIONS[self.what] if isinstance(self.what, str) and self.what != SUM else None


@dataclass(frozen=True, eq=False)
class Program:
    """An expression; those of equal texts are equal.

    Args:
        nodes: in the order in which they are computed; the last one is the result. `Builder` and `parse` make them.
    """

    nodes: tuple[Node, ...]

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """In the order in which a launch takes them."""
        return tuple(sorted({n.what for n in self.nodes if isinstance(n.what, Operand)}, key=lambda each: each.number))

    @cached_property
    def text(self) -> str:
        """The identity; `parse` reads it."""
        lines = written(self.nodes, _leaf, _call)
        return "; ".join(f"{name} = {text}" if name else text for _, name, text in lines)

    @property
    def operations(self) -> int:
        """How many there are."""
        return sum(node.operation is not None for node in self.nodes)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Program) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)


class Builder:
    """Makes a program, value by value; values that are computed alike are one.

    Methods give the places of values. Raises `InvalidProgram` for what no program can be.
    """

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._places: dict[tuple[str, Node], int] = {}

    def sum(self) -> int:
        """What the transposed convolution gives, the bias added."""
        return self._place(Node(SUM))

    def constant(self, value: float) -> int:
        """A number that is compiled in."""
        return self._place(Node(math.nan if math.isnan(value) else float(value)))

    def operand(self, kind: Kind, number: int) -> int:
        """The tensor `number` of a launch."""
        return self._place(Node(Operand(kind, number)))

    def call(self, name: str, *arguments: int) -> int:
        """An operation on earlier values."""
        operation = OPERATIONS.get(name)
        if operation is None:
            raise InvalidProgram(f"got the operation {name!r}; allowed are {', '.join(OPERATIONS)}")
        if len(arguments) != operation.arity:
            raise InvalidProgram(f"got {len(arguments)} arguments of {name}; it takes {operation.arity}")
        for number, argument in enumerate(arguments):
            wanted = operation.chooses and number == 0
            if self.tests(argument) != wanted:
                kinds = ("a number", "a comparison")
                raise InvalidProgram(
                    f"got {kinds[not wanted]} as argument {number} of {name}; it takes {kinds[wanted]}"
                )
        if name == "pow" and not isinstance(self._nodes[arguments[1]].what, float):
            raise InvalidProgram("got an exponent that is computed; pow takes a constant")
        if name == "neg" and isinstance(known := self._nodes[arguments[0]].what, float):
            return self.constant(-known)  # as the text says it
        return self._place(Node(name, arguments))

    def node(self, place: int) -> Node:
        """The value there."""
        return self._nodes[place]

    def program(self, result: int) -> Program:
        """The program that gives this value, without what it does not need."""
        if self.tests(result):
            raise InvalidProgram("the result is a comparison; it must be a number")
        order: dict[int, int] = {}
        self._visit(result, order)
        nodes = tuple(
            Node(self._nodes[place].what, tuple(order[argument] for argument in self._nodes[place].arguments))
            for place in order
        )
        found = Program(nodes)
        if found.operations > MOST_OPERATIONS:
            raise InvalidProgram(f"got {found.operations} operations; allowed are {MOST_OPERATIONS}")
        if len(found.operands) > MOST_OPERANDS:
            raise InvalidProgram(f"got {len(found.operands)} operands; allowed are {MOST_OPERANDS}")
        if [operand.number for operand in found.operands] != list(range(len(found.operands))):
            names = ", ".join(operand.name for operand in found.operands)
            raise InvalidProgram(f"got the operands {names}; each of the numbers from 0 on must stand for one")
        return found

    def _place(self, node: Node) -> int:
        key = (repr(node.what), node)  # 0.0 and -0.0 are equal numbers
        place = self._places.setdefault(key, len(self._nodes))
        if place == len(self._nodes):
            self._nodes.append(node)
        return place

    def tests(self, place: int) -> bool:
        """Whether a value is a comparison."""
        operation = self._nodes[place].operation
        return operation is not None and operation.tests

    def _visit(self, result: int, order: dict[int, int]) -> None:
        """Numbers what a value needs, and then itself, in the order in which the text names it first."""
        pending = [result]
        while pending:
            place = pending[-1]
            missing = [argument for argument in self._nodes[place].arguments if argument not in order]
            if place in order or not missing:
                pending.pop()
                order.setdefault(place, len(order))
            else:
                pending.append(missing[0])


@lru_cache(maxsize=1024)
def parse(text: str) -> Program:
    """The program of a text, which may be written otherwise than `Program.text` writes it.

    Raises:
        InvalidProgram: it is none; the message says what is wrong with it.
    """
    try:
        return _Parser().program(ast.parse(text, mode="exec").body)
    except (SyntaxError, RecursionError, OverflowError) as error:
        raise InvalidProgram(f"got the program {text!r}, which cannot be read: {error}") from None


class _Parser:
    def __init__(self) -> None:
        self.builder = Builder()
        self.named: dict[str, int] = {}

    def program(self, lines: Sequence[ast.stmt]) -> Program:
        for line in lines[:-1]:
            target = line.targets[0] if isinstance(line, ast.Assign) and len(line.targets) == 1 else None
            if not (isinstance(target, ast.Name) and isinstance(line, ast.Assign) and _NAMED.fullmatch(target.id)):
                raise InvalidProgram(f"got {ast.unparse(line)!r} in a program; allowed are lines such as t0 = y + 1")
            self.named[target.id] = self.value(line.value)
        if not lines or not isinstance(lines[-1], ast.Expr):
            raise InvalidProgram("got a program whose last part is no expression; the result must stand there")
        return self.builder.program(self.value(lines[-1].value))

    def value(self, tree: ast.expr) -> int:
        if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
            return self.builder.constant(tree.value)  # type: ignore[arg-type]
        if isinstance(tree, ast.Name):
            return self._name(tree.id)
        if isinstance(tree, ast.UnaryOp) and type(tree.op) in _BY_AST:
            return self._call(_BY_AST[type(tree.op)], [tree.operand])
        if isinstance(tree, ast.BinOp) and type(tree.op) in _BY_AST:
            return self._call(_BY_AST[type(tree.op)], [tree.left, tree.right])
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _BY_AST:
            return self._call(_BY_AST[type(tree.ops[0])], [tree.left, tree.comparators[0]])
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
            return self._call(tree.func.id, tree.args)
        raise InvalidProgram(f"got {ast.unparse(tree)!r} in a program, which its language does not have")

    def _call(self, name: str, arguments: Sequence[ast.expr]) -> int:
        return self.builder.call(name, *map(self.value, arguments))

    def _name(self, name: str) -> int:
        if name == SUM:
            return self.builder.sum()
        if name in _NUMBERS:
            return self.builder.constant(_NUMBERS[name])
        if name in self.named:
            return self.named[name]
        if operand := _OPERAND.fullmatch(name):
            return self.builder.operand(operand[1], int(operand[2]))  # type: ignore[arg-type]
        operands = ", ".join(f"{kind}0" for kind in KINDS)
        raise InvalidProgram(f"got the name {name!r}; allowed are {SUM}, {operands} and so on")


def written(
    nodes: Sequence[Node], leaf: Callable[[Node], str], call: Callable[[Node, list[str]], str | None]
) -> Iterator[tuple[Node, str, str]]:
    """The expressions of a program, with as few parentheses as Python needs, and C.

    Args:
        leaf: of a constant, an operand or the sum.
        call: of an operation with its arguments; None where its symbol says it.

    Yields:
        What is used more than once, with its name and how it is computed; at last the result, whose name is empty.
    """
    uses = [0] * len(nodes)
    for node in nodes:
        for argument in node.arguments:
            uses[argument] += 1
    texts: list[tuple[str, int]] = []  # and how tightly each binds
    defined = 0
    for place, node in enumerate(nodes):
        operation = node.operation
        if operation is None:
            text, precedence = leaf(node), _ATOM
        else:
            arguments = [texts[argument] for argument in node.arguments]
            called = call(node, [text for text, _ in arguments])
            text, precedence = _symbolic(operation, arguments) if called is None else (called, _ATOM)
        if operation is not None and uses[place] > 1:
            yield node, f"t{defined}", text
            text, precedence, defined = f"t{defined}", _ATOM, defined + 1
        texts.append((text, precedence))
    yield nodes[-1], "", texts[-1][0]


#: Of names, calls and constants: they need no parentheses.
_ATOM = 9


def _symbolic(operation: Operation, arguments: Sequence[tuple[str, int]]) -> tuple[str, int]:
    def bound(argument: tuple[str, int], tighter: bool) -> str:
        text, precedence = argument
        return f"({text})" if precedence < operation.precedence + tighter else text

    if operation.arity == 1:
        return operation.symbol + bound(arguments[0], True), operation.precedence
    left = bound(arguments[0], operation.tests)
    return f"{left} {operation.symbol} {bound(arguments[1], True)}", operation.precedence


def _leaf(node: Node) -> str:
    if isinstance(node.what, float):
        return _constant(node.what)
    return node.what.name if isinstance(node.what, Operand) else node.what


def _call(node: Node, arguments: list[str]) -> str | None:
    operation = node.operation
    return None if operation is None or operation.symbol else f"{operation.name}({', '.join(arguments)})"


def _constant(value: float) -> str:
    """The shortest text of a constant that gives it again: ``0.2``, ``2``, ``-inf``."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 and str(value) != "-0.0" else repr(value)
