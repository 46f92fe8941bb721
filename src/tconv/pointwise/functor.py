"""A program as CUDA: the functor that a kernel's epilogue calls for each output (`kernels/primitives/epilogue.cuh`)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch

from tconv.pointwise.interval import Interval, intervals
from tconv.pointwise.program import MOST_OPERANDS, MOST_OPERATIONS, SUM, Builder, Node, Operand, Program, written

_ERF = re.compile(r"erf\((.*)\)")
#: Of normal numbers, far from the smallest.
_SMALL = 2.0**-100


def functor(program: Program, name: str) -> str:
    """The struct template `name`, of a layer and of whether its outputs are channels_last.

    Operands have the layer's elements; those of all outputs lie as these do. What depends on the channel alone is
    computed once for each.
    """
    text, operands = program.text, program.operands
    program, computed = _by_channel(_without_quotients(program))
    per_channel = [each for each in operands if each.kind in ("channel", "scalar")]
    per_output = [each for each in operands if each.kind in ("output", "sample")]
    loads = [
        f"of.{each.name} = tconv::value_at({each.name}{' + channel' * (each.kind == 'channel')})"
        for each in per_channel
    ]
    for known, of_channel in computed.items():
        *lines, last = _body(of_channel)
        statements = "; ".join([*lines, last.replace("return", f"of.{known.name} =", 1)])
        loads.append(f"{{ {statements}; }}" if lines else statements)
    reads = "".join(f"    {_read(each)};\n" for each in per_output)
    return f"""// {text}
template <class Layer, bool channels_last>
struct {name} {{
  using Element = typename Layer::Element;
  using Sum = typename tconv::AccumulatorOf<Element>::type;
  const Element* first;  // output
  long long plane;
{"".join(f"  const Element* {each.name};{chr(10)}" for each in operands)}  struct Channel {{
{"".join(f"    Sum {each.name};{chr(10)}" for each in [*per_channel, *computed])}  }};
  template <int N>
  struct Values {{
{"".join(f"    Sum {each.name}[N];{chr(10)}" for each in per_output)}  }};
  TCONV_DEVICE Channel of(int channel) const {{
    Channel of;
{"".join(f"    {load};{chr(10)}" for load in loads)}    return of;
  }}
  template <int N>
  TCONV_DEVICE Values<N> fetch(const Element* to, bool present) const {{
    Values<N> values;
{reads}    return values;
  }}
  template <int N>
  TCONV_DEVICE Sum apply(Sum y, const Channel& of, const Values<N>& read, int i) const {{
{"".join(f"    {line};{chr(10)}" for line in _body(program))}  }}
}};
"""


def _read(operand: Operand) -> str:
    name = operand.name
    if operand.kind == "output":
        return f"tconv::read_outputs({name} + (to - first), present, values.{name})"
    channels = "Layer::groups * Layer::group_out_channels"
    return f"tconv::read_samples<channels_last, {channels}>({name}, to - first, plane, present, values.{name})"


def _body(program: Program) -> list[str]:
    """The statements that compute the program of `y`, the last one a return; what is used again has a name."""

    def leaf(node: Node) -> str:
        if isinstance(node.what, float):
            return _constant(node.what)
        if isinstance(node.what, Operand):
            return f"read.{node.what.name}[i]" if node.what.kind in ("output", "sample") else f"of.{node.what.name}"
        return node.what

    def call(node: Node, arguments: list[str]) -> str | None:
        operation = node.operation
        assert operation is not None
        if operation.name == "div" and node.arguments[1] in safe:
            return f"tconv::quick_quotient({', '.join(arguments)})"
        if operation.name == "add" and "Sum(1)" in arguments:
            other = _ERF.fullmatch(arguments[arguments[0] == "Sum(1)"])
            if other is not None and _is_whole(other[1]):
                return f"tconv::one_plus_erf({other[1]})"
        if operation.cuda:
            return operation.cuda.format(*arguments)
        return None if operation.symbol else f"{operation.name}({', '.join(arguments)})"

    safe = _safe_divisors(program)
    lines = []
    for node, name, text in written(program.nodes, leaf, call):
        kind = "bool" if node.operation is not None and node.operation.tests else "Sum"
        lines.append(f"const {kind} {name} = {text}" if name else f"return {text}")
    return lines


def _by_channel(program: Program) -> tuple[Program, dict[Operand, Program]]:
    """The program in two steps: what is computed for each output of further operands, and those for each channel."""
    alone: list[bool] = []  # whether a value depends on the channel alone
    for node in program.nodes:
        if isinstance(node.what, Operand):
            alone.append(node.what.kind in ("channel", "scalar"))
        else:
            alone.append(node.what != SUM and all(alone[argument] for argument in node.arguments))
    read = {
        argument
        for place, node in enumerate(program.nodes)
        for argument in node.arguments
        if not alone[place] and alone[argument]
    }
    computed: dict[Operand, Program] = {}
    nodes = list(program.nodes)
    for place in sorted(read):
        of_channel = _reaching(program.nodes, place)
        operation = nodes[place].operation
        if operation is not None and not operation.tests and any(isinstance(n.what, Operand) for n in of_channel):
            known = Operand("channel", MOST_OPERANDS + len(computed))
            computed[known] = Program(of_channel)
            nodes[place] = Node(known)
    return Program(_reaching(nodes, len(nodes) - 1)), computed


def _reaching(nodes: Sequence[Node], result: int) -> tuple[Node, ...]:
    """The nodes that one value is computed of, which is the last."""
    wanted = {result}
    for place in range(result, -1, -1):
        wanted.update(nodes[place].arguments if place in wanted else ())
    order = {place: number for number, place in enumerate(sorted(wanted))}
    return tuple(Node(nodes[place].what, tuple(order[a] for a in nodes[place].arguments)) for place in order)


def _without_quotients(program: Program) -> Program:
    """The program with products in place of quotients by constants, as PyTorch computes them on a GPU."""
    builder = Builder()
    places: list[int] = []
    for node in program.nodes:
        arguments = [places[argument] for argument in node.arguments]
        if isinstance(node.what, float):
            places.append(builder.constant(node.what))
        elif isinstance(node.what, Operand):
            places.append(builder.operand(*node.what))
        elif node.operation is None:
            places.append(builder.sum())
        else:
            divisor = program.nodes[node.arguments[-1]].what
            if node.what == "div" and isinstance(divisor, float) and divisor and math.isfinite(1 / divisor):
                places.append(builder.call("mul", arguments[0], builder.constant(1 / divisor)))
            else:
                places.append(builder.call(node.what, *arguments))
    return builder.program(places[-1])


def _safe_divisors(program: Program) -> set[int]:
    """The places of values whose inverse is a normal number, whatever the sums and the operands are."""
    anything = Interval(torch.tensor(-math.inf).double(), torch.tensor(math.inf).double())
    known = intervals(program, anything, [anything] * (2 * MOST_OPERANDS + MOST_OPERATIONS), unit=2.0**-23)
    return {
        place
        for place, (low, high) in enumerate(known)
        if low.dtype == torch.float64 and bool((low > _SMALL) & (high < 1 / _SMALL))
    }


def _is_whole(text: str) -> bool:
    """Whether no parenthesis is closed that was not opened."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return True


def _constant(value: float) -> str:
    if math.isnan(value):
        return "Sum(tconv::bits_float(0x7fc00000u))"
    if math.isinf(value):
        return f"Sum(tconv::bits_float({'0x7f800000u' if value > 0 else '0xff800000u'}))"
    return f"Sum({int(value) if value.is_integer() and abs(value) < 1e9 and str(value) != '-0.0' else repr(value)})"
