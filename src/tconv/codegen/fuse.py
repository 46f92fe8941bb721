"""The user's source with what stands behind transposed convolutions handed to them: ``cuda_fused(layer, x, tail=…)``.

A layer's result is followed through the expression in which the layer is called, and then through the statements behind
that, as long as they are calls and operators that the pointwise language has, on it and on what needs no computation.
They become a function, the *tail*, in the words that the user wrote: it runs where a kernel does not compute the same.
Values in between must be used nowhere else.

What is called there was seen in a forward pass (`Calls`): of a name alone nothing is known.
"""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeGuard

from tconv.codegen.names import Names
from tconv.codegen.uses import Uses, bound_names, reader_of_frames
from tconv.pointwise.calls import known_calls
from tconv.sandbox.behind import FORWARD, FUSED, LAYER, POINTWISE, Place, place_of

#: What each call was seen to call, by where it stands.
Calls = Mapping[Place, Collection[str]]

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_IN_PLACE = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_COMPARISONS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
#: Deletions, and annotations alone.
_WITHOUT_VALUE = (ast.Delete, ast.AnnAssign)
#: What may have effects.
_BUSY = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.comprehension)
_CONCATENATIONS = ("torch.cat", "torch.concat", "torch.concatenate")
#: Methods that give a view.
_VIEWS = frozenset({"detach", "expand", "flatten", "permute", "reshape", "squeeze", "transpose", "unsqueeze", "view"})
_FUNCTION_MODULES = ("torch", "torch.nn.functional", "torch.special")
#: Functions of numbers.
_OF_NUMBERS = frozenset({"float", "int", "math.sqrt", "math.exp", "math.log"})
_TENSOR = "torch.tensor"
#: Decorators that run a function as it is; so do those that a call gives.
_NOT_READERS = ("torch.no_grad", "torch.inference_mode", None)
_FOUR = " " * 4
#: Of comments, and of calls in one line with their tails.
_COLUMNS, _LONGEST = 110, 120


@dataclass(frozen=True)
class FusedSite:
    """One layer's call with what was handed to it.

    Args:
        layer: where the call stands in the user's source.
        line: of the statement.
    """

    layer: Place
    line: int


@dataclass(frozen=True)
class FusedSource:
    """A source after that.

    Args:
        text: the whole file.
        lines: of each line of `text`, from 1 on, the line of the user's source that it came from.
        sites: the calls that were given tails, by their numbers.
        apart: why nothing goes with other layers' calls, where something stands behind them.
    """

    text: str
    lines: tuple[int, ...]
    sites: tuple[FusedSite, ...] = ()
    apart: Mapping[Place, str] = field(default_factory=dict)

    def origin(self, line: int) -> int:
        """The line of the user's source."""
        return self.lines[line - 1] if 0 < line <= len(self.lines) else line


def fuse(
    source: str,
    calls: Calls,
    without: Collection[Place] = (),
    comments: Mapping[Place, str] = MappingProxyType({}),
    numbered: bool = False,
    compiled: Collection[int] = (),
) -> FusedSource:
    """The source with the tails of its layers.

    Args:
        without: layers' calls that stay as they are.
        comments: what to say above a statement, by the place of its layer's call.
        numbered: say the number of its site in each call.
        compiled: lines that TorchScript compiles.
    """
    return _Fuser(source, calls, without, comments, numbered, compiled).result()


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class _Joined:
    """A call of ``torch.cat`` along the channels: the element that is a layer's result, and those around it."""

    call: ast.Call
    value: ast.expr
    before: Sequence[ast.expr]
    behind: Sequence[ast.expr]


@dataclass
class _Chain:
    """A layer's call and what was found to stand behind it.

    Args:
        layer: the call.
        expression: the largest one around it that the language has.
        name: what the result of `expression` is assigned to; None where that is part of something larger.
        statements: further ones, whole.
        kept: the name that holds their result; "return" where they return it.
        part: of the statement behind those, an expression of the language, or a concatenation; None for none.
        joined: the concatenation that takes the result along the channels; None for none.
        captured: names that the statements read before they bind them.
        ends: why further statements do not belong to it, where they might.
    """

    layer: ast.Call
    expression: ast.expr
    statement: ast.stmt
    name: str | None = None
    statements: list[ast.stmt] = field(default_factory=list)
    part: tuple[ast.stmt, ast.expr] | None = None
    joined: _Joined | None = None
    kept: str | None = None
    captured: tuple[str, ...] = ()
    ends: str | None = None

    @property
    def last(self) -> ast.expr | None:
        """The expression of the statement behind the whole ones that gives the result; None for none."""
        return None if self.part is None else self.joined.value if self.joined else self.part[1]


@dataclass(frozen=True)
class _Step:
    """A statement of a chain.

    Args:
        kept: the name that holds the result behind it; "return" where it is returned.
        region: the names that hold values of the chain.
        captured: those of them that statements up to this one read before they bind them.
    """

    statement: ast.stmt
    kept: str
    region: frozenset[str]
    captured: frozenset[str] = frozenset()


class _Fuser:
    def __init__(
        self,
        source: str,
        calls: Calls,
        without: Collection[Place],
        comments: Mapping[Place, str],
        numbered: bool,
        compiled: Collection[int],
    ) -> None:
        self._bytes = source.encode()
        self._lines = self._bytes.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._newline = "\r\n" if b"\r\n" in self._bytes else "\n"
        self._tree = _Plain().visit(ast.parse(source))
        self._names = Names(self._tree)
        self._calls, self._without, self._comments, self._numbered = calls, without, comments, numbered
        self._compiled = compiled
        self._known = known_calls()
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._strings = {
            line
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.start[0] != token.end[0]
            and token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
            for line in range(token.start[0], token.end[0] + 1)
        }
        self._uses: dict[ast.FunctionDef, Uses] = {}
        self._frames = reader_of_frames(self._tree)
        self._apart: dict[Place, str] = {}
        self._sites: list[FusedSite] = []
        self._looked_at: set[Place] = set()

    def result(self) -> FusedSource:
        edits: list[_Edit] = []
        taken: set[ast.stmt] = set()
        for function in ast.walk(self._tree):
            if isinstance(function, ast.FunctionDef) and not self._is_read(function):
                for block in _blocks(function):
                    for number, statement in enumerate(block):
                        if statement in taken:
                            continue
                        chain = self._chain(function, block, number)
                        if chain is not None:
                            edits += self._rewritten(function, chain)
                            self._sites.append(FusedSite(place_of(chain.layer), statement.lineno))
                            taken.update([*chain.statements, *([chain.part[0]] if chain.part else [])])
        self._tell_of_others()
        edits.sort(key=lambda edit: edit.start)
        text, lines = self._apply(edits)
        return FusedSource(text, lines, tuple(self._sites), self._apart)

    def _tell_of_others(self) -> None:
        """Why nothing goes with layers that are called where no statement was looked at."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and FORWARD in self._calls.get(place_of(node), ()):
                self._apart[place_of(node)] = f"{self._short(node)} is no call of the layer itself"
            if isinstance(node, ast.Call) and self._is_layer(node) and place_of(node) not in self._looked_at:
                around = self._parents[node]
                while not isinstance(around, ast.stmt):
                    around = self._parents[around]
                self._apart[place_of(node)] = f"it stands inside {self._short(around)}: give it a line of its own"

    def _is_read(self, function: ast.FunctionDef) -> bool:
        """Whether something may read the function's text, as TorchScript does; then it is said of its layers."""
        readers = [each for each in function.decorator_list if self._names.dotted(each) not in _NOT_READERS]
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        if readers:
            why = f"{function.name} is decorated with {self._short(readers[0])}"
        elif any(line in lines for line in self._compiled):
            why = f"{function.name} is compiled by TorchScript, too"
        else:
            return False
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and self._is_layer(node):
                self._looked_at.add(place_of(node))
                self._apart[place_of(node)] = why
        return True

    # ---- what stands behind a layer

    def _chain(self, function: ast.FunctionDef, block: Sequence[ast.stmt], number: int) -> _Chain | None:
        statement = block[number]
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.AugAssign):
            return None
        layers = [node for node in _within(statement) if self._is_layer(node)]
        self._looked_at.update(map(place_of, layers))
        layers = [node for node in layers if place_of(node) not in self._without]
        # Of layers one of which is called on what the others give, that one.
        outermost = [node for node in layers if set(layers) <= set(ast.walk(node))]
        if not outermost or not self._stands_alone(statement):
            several = "another statement, or a text of several lines," if outermost else "more than one layer"
            for layer in layers:
                self._apart[place_of(layer)] = f"{several} stands in its line"
            return None
        layer = outermost[0]
        for other in layers:
            if other is not layer:
                self._apart[place_of(other)] = "it stands in the call of another layer: give it a line of its own"
        chain = _Chain(layer, self._largest(layer, frozenset(), layer), statement)
        chain.joined = self._joined_around(chain.expression, frozenset())
        whole = isinstance(statement, ast.Assign) and statement.value is chain.expression
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if whole and isinstance(target, ast.Name):
            chain.name = target.id
            self._extend(function, block, number, chain)
        if chain.expression is layer and _are_copies(chain.statements) and chain.part is None and chain.joined is None:
            ends = chain.ends or self._what_ends(block, number + len(chain.statements), layer)
            if ends is not None:
                self._apart.setdefault(place_of(layer), ends)
            return None
        return chain

    def _is_layer(self, node: ast.expr) -> TypeGuard[ast.Call]:
        return isinstance(node, ast.Call) and set(self._calls.get(place_of(node), ())) == {LAYER}

    def _what_ends(self, block: Sequence[ast.stmt], number: int, layer: ast.Call) -> str | None:
        """Why nothing goes with a layer; None where nothing stands behind it."""
        around = self._parents[layer]
        while isinstance(around, ast.List | ast.Tuple | ast.keyword):
            around = self._parents[around]
        if isinstance(around, ast.expr):
            return f"around it stands {self._short(around)}"
        return f"behind it stands {self._short(block[number + 1])}" if number + 1 < len(block) else None

    def _short(self, node: ast.expr | ast.stmt) -> str:
        text = " ".join(self._text(node).split())
        return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"

    def _largest(self, inner: ast.expr, region: frozenset[str], hole: ast.Call | None) -> ast.expr:
        """The largest expression of the language around `inner`."""
        found = inner
        while isinstance(parent := self._parents[found], ast.expr | ast.keyword):
            around = self._parents[parent] if isinstance(parent, ast.keyword) else parent
            # The function of a method's call stands between the two.
            if isinstance(around, ast.Attribute) and isinstance(self._parents[around], ast.Call):
                around = self._parents[around]
            if not (isinstance(around, ast.expr) and self._is_value(around, region, hole)):
                break
            found = around
        return found

    def _extend(self, function: ast.FunctionDef, block: Sequence[ast.stmt], number: int, chain: _Chain) -> None:
        """Adds to a chain the statements behind it, as many as leave no value in between to others."""
        assert chain.name is not None
        first = _Step(chain.statement, chain.name, frozenset({chain.name}))
        read, declared = self._read([chain.expression], frozenset(), chain.layer), set[str]()
        first = replace(first, captured=first.region & read)
        steps = [first]
        part: tuple[ast.stmt, ast.expr] | None = None
        joined: _Joined | None = None
        for statement in block[number + 1 :]:
            before = steps[-1]
            if not self._stands_alone(statement) or isinstance(before.statement, ast.Return):
                break
            if (gone := _deleted(statement)) and gone <= before.region - {before.kept}:
                steps.append(replace(before, statement=statement, region=before.region - gone))
                continue
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):  # without a value
                declared.add(statement.target.id)
                captured = before.captured | ({statement.target.id} & read - before.region)
                steps.append(replace(before, statement=statement, captured=captured))
                continue
            kept = self._kept(statement, before.region)
            if kept is None:
                joined = self._joined_in(statement, before.region)
                part = self._part(statement, before.region) if joined is None else (statement, joined.call)
                if part is not None:
                    captured = before.captured | (declared & self._read([part[1]], before.region, None))
                    steps[-1] = replace(before, captured=captured)
                break
            own = self._read([statement], before.region, None)
            read |= own
            captured = before.captured | ({kept} & read - before.region) | (declared & own)
            steps.append(_Step(statement, kept, before.region | {kept}, captured))
        while steps[1:] or part is not None:
            chain.ends = self._who_sees(function, block, chain, steps, part)
            if chain.ends is None:
                chain.statements, chain.part = [step.statement for step in steps[1:]], part
                chain.joined = joined if part else None
                chain.kept, chain.captured = steps[-1].kept, tuple(sorted(steps[-1].captured))
                return
            if part is not None:
                part = None
            else:
                steps.pop()
                while isinstance(steps[-1].statement, _WITHOUT_VALUE):
                    steps.pop()

    def _who_sees(
        self,
        function: ast.FunctionDef,
        block: Sequence[ast.stmt],
        chain: _Chain,
        steps: Sequence[_Step],
        part: tuple[ast.stmt, ast.expr] | None,
    ) -> str | None:
        """Who would see that these statements have become a function: a clause; None for nobody."""
        uses = self._uses_of(function)
        moved = [step.statement for step in steps] + ([part[0]] if part else [])
        kept = bound_names(part[0]) if part else {steps[-1].kept}
        inside = {node for statement in moved for node in ast.walk(statement)}
        targets = filter(None, (_target(step.statement) for step in steps))
        hidden = [target for name, target in {each.id: each for each in targets}.items() if name not in kept]
        names = kept | {target.id for target in hidden}
        if (reader := uses.of_all_names() or uses.seen_in_part(chain.statement, names)) is not None:
            return reader
        ends = None if isinstance(moved[-1], ast.Return) else block[block.index(moved[-1]) + 1 :]
        found = (uses.hiding(target, inside, chain.statement, ends) for target in hidden)
        return next((each for each in found if each is not None), None)

    def _uses_of(self, function: ast.FunctionDef) -> Uses:
        if function not in self._uses:
            self._uses[function] = Uses(function, self._names, self._frames)
        return self._uses[function]

    def _kept(self, statement: ast.stmt, region: frozenset[str]) -> str | None:
        """The name that holds the result of a statement that the language has; None for others."""
        if isinstance(statement, ast.Return):
            there = statement.value is not None and self._is_value(statement.value, region, None)
            return "return" if there and not isinstance(statement.value, ast.Name) else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            return target.id if isinstance(target, ast.Name) and self._is_value(statement.value, region, None) else None
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            there = statement.target.id in region and isinstance(statement.op, _IN_PLACE)
            value = statement.value
            there = there and (self._is_value(value, region, None) or self._is_operand(value, region))
            return statement.target.id if there else None
        if isinstance(statement, ast.Expr) and self._is_value(statement.value, region, None):
            return _changed(statement.value)
        return None

    def _part(self, statement: ast.stmt, region: frozenset[str]) -> tuple[ast.stmt, ast.expr] | None:
        """The expression of a statement in which alone it uses the region's values, if the language has that."""
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.AugAssign):
            return None
        uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id in region]
        uses = [n for n in uses if isinstance(n.ctx, ast.Load)]
        held = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
        if not uses or held or any(map(self._is_layer, _within(statement))):
            return None
        largest = self._largest(uses[0], region, None)
        there = set(ast.walk(largest))
        if isinstance(largest, ast.Name) or not all(use in there for use in uses):
            return None
        return (statement, largest) if self._may_come_first(statement, largest, region) else None

    def _may_come_first(self, statement: ast.stmt, part: ast.expr, region: frozenset[str]) -> bool:
        """Whether an expression of a statement may be evaluated before the rest of that.

        It is evaluated there always, and once; and what is evaluated before it changes nothing that it reads.
        """
        calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
        called = {name for call in calls for name in ast.walk(call.func)}
        names = (node for node in ast.walk(part) if isinstance(node, ast.Name) and node.id not in region)
        apart = all(name in called for name in names) and not any(map(self._draws, calls))
        inner: ast.AST = part
        while inner is not statement:
            around = self._parents[inner]
            if not _evaluates(around, inner):
                return False
            before = [n for n in ast.iter_child_nodes(around) if n is not inner and _stands_before(n, inner)]
            if not apart and not all(self._is_idle(node) for node in before):
                return False
            inner = around
        return True

    def _draws(self, call: ast.Call) -> bool:
        """Whether a call may draw random numbers."""
        names = {
            self._names.dotted(call.func) or "",
            getattr(call.func, "attr", ""),
            *self._calls.get(place_of(call), ()),
        }
        return any("dropout" in name.lower() for name in names)

    def _is_idle(self, node: ast.AST) -> bool:
        """Whether to evaluate a node calls nothing and binds nothing."""
        return not any(isinstance(each, _BUSY) for each in ast.walk(node))

    def _joined_around(self, value: ast.expr, region: frozenset[str]) -> _Joined | None:
        """The concatenation along the channels of which an expression is an element, if the others are still."""
        elements = self._parents[value]
        call = self._parents.get(elements)
        if not (isinstance(elements, ast.List | ast.Tuple) and isinstance(call, ast.Call) and elements in call.args):
            return None
        axis = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg in ("dim", "axis"))]
        along = len(axis) == 1 and isinstance(axis[0], ast.Constant) and axis[0].value == 1
        known = self._names.dotted(call.func) in _CONCATENATIONS and call.args[0] is elements
        others = [each for each in elements.elts if each is not value]
        if not (along and known and others and len(call.args) + len(call.keywords) == 2):
            return None
        if not all(self._is_still(each, region) for each in others):
            return None
        place = elements.elts.index(value)
        return _Joined(call, value, elements.elts[:place], elements.elts[place + 1 :])

    def _joined_in(self, statement: ast.stmt, region: frozenset[str]) -> _Joined | None:
        """The concatenation in a statement that alone uses the region's values, and that in one of its elements."""
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr) or any(
            map(self._is_layer, _within(statement))
        ):
            return None
        uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id in region]
        uses = [n for n in uses if isinstance(n.ctx, ast.Load)]
        if not uses:
            return None
        largest = self._largest(uses[0], region, None)
        there = set(ast.walk(largest))
        joined = self._joined_around(largest, region) if all(use in there for use in uses) else None
        return joined if joined is not None and self._may_come_first(statement, joined.call, region) else None

    # ---- the language

    def _is_value(self, node: ast.expr, region: frozenset[str], hole: ast.Call | None) -> bool:
        """Whether an expression is one of the language, of a layer's result: `hole`, or what names of `region` hold."""
        if node is hole or (isinstance(node, ast.Name) and node.id in region):
            return True
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self._is_value(node.operand, region, hole)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow):
                return self._is_value(node.left, region, hole) and self._is_operand(node.right, region)
            return isinstance(node.op, _OPERATORS) and self._are_values([node.left, node.right], region, hole)
        if isinstance(node, ast.Compare):
            compares = len(node.ops) == 1 and isinstance(node.ops[0], _COMPARISONS)
            return compares and self._are_values([node.left, *node.comparators], region, hole)
        if not isinstance(node, ast.Call):
            return False
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        dotted = self._names.dotted(node.func)
        if dotted is not None:
            module, _, name = dotted.rpartition(".")
            known = module in _FUNCTION_MODULES and self._is_known(name)
            return known and self._are_values(arguments, region, hole)
        if isinstance(node.func, ast.Attribute) and self._is_value(node.func.value, region, hole):
            return self._is_known(node.func.attr) and self._are_values([node.func.value, *arguments], region, hole)
        if not self._is_module(node):
            return False
        return len(node.args) == 1 and not node.keywords and self._is_value(node.args[0], region, hole)

    def _is_known(self, name: str) -> bool:
        return name.removesuffix("_") in self._known

    def _is_module(self, node: ast.Call) -> bool:
        seen = set(self._calls.get(place_of(node), ()))
        return bool(seen) and seen <= POINTWISE.keys() and self._is_still(node.func, frozenset())

    def _are_values(self, nodes: Sequence[ast.expr], region: frozenset[str], hole: ast.Call | None) -> bool:
        """Whether at least one is, and the others stand beside it."""
        of = [self._is_value(node, region, hole) for node in nodes]
        return any(of) and all(is_one or self._is_operand(node, region) for is_one, node in zip(of, nodes, strict=True))

    def _is_operand(self, node: ast.expr, region: frozenset[str]) -> bool:
        """Whether an expression needs no computation, or makes a tensor of a number that needs none.

        That is no tensor while the tail is noted: nothing may be done with it.
        """
        if isinstance(node, ast.Call) and self._names.dotted(node.func) == _TENSOR:
            plain = len(node.args) == 1 and all(each.arg in ("dtype", "device") for each in node.keywords)
            parts = [*node.args, *(each.value for each in node.keywords)]
            several = any(isinstance(part, ast.List | ast.Tuple) for part in parts)
            return plain and not several and all(self._is_still(part, region) for part in parts)
        return self._is_still(node, region)

    def _is_still(self, node: ast.AST, region: frozenset[str]) -> bool:
        """Whether to evaluate an expression, more than once, changes nothing and takes no time."""
        parts: Sequence[ast.AST]
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id not in region
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in region:
                return node.attr in ("device", "dtype")
            return self._is_still(node.value, region)
        if isinstance(node, ast.Subscript):
            parts = [node.value, node.slice]
        elif isinstance(node, ast.Slice):
            parts = [part for part in (node.lower, node.upper, node.step) if part is not None]
        elif isinstance(node, ast.Tuple | ast.List):
            parts = node.elts
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            called = self._names.dotted(node.func) or (node.func.id if isinstance(node.func, ast.Name) else None)
            if called not in _OF_NUMBERS:
                if not (isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS):
                    return False
                parts = [node.func.value, *parts]
        else:
            return False
        return all(self._is_still(part, region) for part in parts)

    def _read(self, nodes: Sequence[ast.AST], region: Collection[str], hole: ast.Call | None) -> set[str]:
        """The names that these read, outside of `hole`, and that are no values of the region."""
        gone = set() if hole is None else set(ast.walk(hole))
        names = (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and n not in gone)
        return {n.id for n in names if isinstance(n.ctx, ast.Load)} - set(region)

    # ---- its text

    def _rewritten(self, function: ast.FunctionDef, chain: _Chain) -> Iterator[_Edit]:
        used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} | {a.arg for a in _arguments(function)}
        modules, row = self._modules(chain), self._row(chain)
        comment = self._comments.get(place_of(chain.layer))
        indent = self._bytes[self._starts[chain.statement.lineno - 1] : self._offset(chain.statement)].decode()
        said = textwrap.wrap(comment, _COLUMNS - len(indent), break_long_words=False) if comment else []
        above = "".join(f"{indent}# {line}{self._newline}" for line in said)
        first = self._starts[chain.statement.lineno - 1]
        if not chain.statements and chain.part is None:
            alone = chain.expression is chain.layer
            tail = "" if alone or row else self._lambda(chain.layer, chain.expression, _free("y", used))
            call = _call(self._fused_words(chain, tail, row or modules))
            taken = chain.joined.call if chain.joined else chain.expression
            yield _Edit(first, first, above)
            yield _Edit(self._offset(taken), self._end(taken), call)
            return
        assert chain.name is not None
        last = chain.statements[-1] if chain.statements else chain.statement
        kept = chain.kept or chain.name
        whole = chain.part is None and isinstance(last, ast.Return)
        target = "return" if whole else f"{chain.name if chain.part else kept} ="
        # From here on the statements' own lines.
        start, end = self._starts[chain.statement.end_lineno or 0], self._starts[last.end_lineno or 0]
        if behind := self._bytes[self._end(chain.statement) : start].decode().strip():  # a comment
            above = f"{indent}{behind}{self._newline}{above}"
        instead = self._instead(chain)
        target = instead or target
        alone = chain.expression is chain.layer
        tail = _free("tail", used)
        only = self._only_expression(chain)
        in_line = ""
        if only is not None and alone:
            call = _call(self._fused_words(chain, f"lambda {chain.name}: {self._text(only[1])}", modules))
            in_line = f"{indent}{target} {call}{self._newline}"
        nothing = alone and _are_copies(chain.statements) and isinstance(chain.last, ast.Name)
        if row or nothing:
            call = self._line(indent, target, self._fused_words(chain, "", row))
            yield _Edit(first, start, self._comments_between(start, end) + above + call)
        elif only is not None and in_line and len(in_line) <= _LONGEST:
            between = self._bytes[start : self._starts[only[0].lineno - 1]].decode()
            yield _Edit(first, start, between + above + in_line)
            start = self._starts[only[0].lineno - 1]
            end = start if chain.part else end
        else:
            # What it reads before it binds it, it takes as an argument, whose default is what is bound outside.
            parameter = _free("y", used) if chain.name in chain.captured else chain.name
            parameters = ", ".join([parameter, *(f"{name}={name}" for name in chain.captured)])
            body = f"{indent}def {tail}({parameters}):{self._newline}"
            further = "\t" if "\t" in indent else _FOUR
            if not alone:
                text = self._lambda(chain.layer, chain.expression, parameter).partition(": ")[2]
                body += f"{indent}{further}{chain.name} = {_enclosed(text)}{self._newline}"
            for line in self._bytes[start:end].decode().splitlines(keepends=True):
                deeper = indent + further + line.removeprefix(indent) if line.startswith(indent) else further + line
                body += deeper if line.strip() else line
            result = _enclosed(self._text(chain.last)) if chain.last else kept
            body += "" if whole else f"{indent}{further}return {result}{self._newline}"
            yield _Edit(first, start, body + self._newline)
            yield _Edit(end, end, above + self._line(indent, target, self._fused_words(chain, tail, modules)))
        if end > start:
            yield _Edit(start, end, "")
        if chain.part is not None and instead:
            statement = chain.part[0]
            yield _Edit(self._starts[statement.lineno - 1], self._starts[statement.end_lineno or 0], "")
        elif chain.part is not None:
            yield _Edit(self._offset(chain.part[1]), self._end(chain.part[1]), chain.name)

    def _instead(self, chain: _Chain) -> str:
        """What takes the place of a statement that is a concatenation and nothing else; empty for others."""
        statement, call = chain.part or (None, None)
        if chain.joined is None or call is not chain.joined.call:
            return ""
        if isinstance(statement, ast.Return) and statement.value is call:
            return "return"
        if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
            return f"{self._text(statement.targets[0])} ="
        return ""

    def _comments_between(self, start: int, end: int) -> str:
        """The lines of comments there."""
        lines = self._bytes[start:end].decode().splitlines(keepends=True)
        return "".join(line for line in lines if line.lstrip().startswith("#"))

    def _row(self, chain: _Chain) -> list[str]:
        """The modules whose calls, one behind another, a chain is; none if it is something else."""
        words: list[str] = []

        def follow(node: ast.expr | None, name: str | None) -> bool:
            """Whether an expression is such calls on the layer, or on what `name` holds."""
            found: list[str] = []
            while isinstance(node, ast.Call) and node is not chain.layer and self._is_module(node):
                found.insert(0, self._text(node.func))
                node = node.args[0]
            words.extend(found)
            return node is chain.layer if name is None else isinstance(node, ast.Name) and node.id == name

        alike, name = follow(chain.expression, None), chain.name
        for statement in chain.statements:
            if isinstance(statement, _WITHOUT_VALUE):
                continue
            if not isinstance(statement, ast.Assign | ast.Return):
                return []
            alike = alike and follow(statement.value, name)
            name = self._result_name(statement, "")
        alike = alike and (chain.last is None or follow(chain.last, name))
        return words if alike else []

    def _only_expression(self, chain: _Chain) -> tuple[ast.stmt, ast.expr] | None:
        """The one expression that stands behind a chain's first statement, if that is all and takes one line."""
        only: tuple[ast.stmt, ast.expr] | None = None
        if chain.part is not None and chain.last is not None and not chain.statements:
            only = chain.part[0], chain.last
        elif chain.part is None and len(chain.statements) == 1:
            statement = chain.statements[0]
            if isinstance(statement, ast.Return | ast.Assign) and statement.value is not None:
                only = statement, statement.value
        return only if only is not None and only[1].lineno == only[1].end_lineno else None

    def _result_name(self, statement: ast.stmt, name: str) -> str:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            return statement.targets[0].id
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            return statement.target.id
        if isinstance(statement, ast.Expr):
            return _changed(statement.value) or name
        return name

    def _lambda(self, layer: ast.Call, expression: ast.expr, name: str) -> str:
        start, end = self._offset(expression), self._end(expression)
        before, behind = self._bytes[start : self._offset(layer)], self._bytes[self._end(layer) : end]
        return f"lambda {name}: {before.decode()}{name}{behind.decode()}"

    def _fused_words(self, chain: _Chain, tail: str, modules: Sequence[str]) -> list[str]:
        """The arguments of `cuda_fused`."""
        layer = chain.layer
        function = self._text(layer.func)
        given = self._bytes[self._end(layer.func) : self._end(layer)].decode().strip()[1:-1].strip().rstrip(",")
        if "\n" in given or "#" in given:
            given = ast.unparse(layer)[len(ast.unparse(layer.func)) + 1 : -1]
        words = [function, *([given] if given else []), *[f"tail={tail}"] * bool(tail)]
        if modules:
            words.append(f"modules=[{', '.join(modules)}]")
        if chain.joined is not None:
            for name, parts in (("before", chain.joined.before), ("behind", chain.joined.behind)):
                words += [f"{name}=[{', '.join(map(self._text, parts))}]"] * bool(parts)
        words += [f"reads=[{', '.join(self._reads(chain))}]"] * bool(tail)
        words += [f"site={len(self._sites)}"] * (self._numbered or bool(tail))
        return words

    def _line(self, indent: str, target: str, words: Sequence[str]) -> str:
        """A statement that calls `cuda_fused` with these arguments, in several lines where one is too long."""
        line = f"{indent}{target} {_call(words)}{self._newline}"
        if len(line) <= _LONGEST:
            return line
        further = indent + ("\t" if "\t" in indent else _FOUR)
        given = "".join(f"{further}{word},{self._newline}" for word in words)
        return f"{indent}{target} {FUSED}({self._newline}{given}{indent}){self._newline}"

    def _reads(self, chain: _Chain) -> list[str]:
        """What a tail reads beside the layer's result, but for functions and modules that it calls.

        Names, attributes, and parts and views of these, as they are before the tail binds any name.
        """
        region: set[str | None] = {target.id for target in map(_target, chain.statements) if target is not None}
        region |= {chain.name} if chain.statements or chain.part else set()  # else it is bound behind the call
        found, inside = list(chain.captured), set[ast.AST]()
        names = (n for n in _behind(chain) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        for name in sorted(names, key=place_of):
            if name.id in region or name in inside:
                continue
            read = self._part_or_view(name)
            around = self._parents[read]
            called = isinstance(around, ast.Call) and around.func is read
            if not called and self._names.dotted(read) is None:
                found.append(self._text(read))
                inside.update(ast.walk(read))
        return list(dict.fromkeys(found))

    def _part_or_view(self, name: ast.Name) -> ast.expr:
        """The largest attribute, part or view of what a name holds; what is called, without the call."""
        read: ast.expr = name
        while True:
            around = self._parents[read]
            if isinstance(around, ast.Attribute):
                call = self._parents[around]
                read, around = around, call
                if not (isinstance(call, ast.Call) and call.func is read):
                    continue
            is_part = isinstance(around, ast.Subscript) and around.value is read
            is_view = isinstance(around, ast.Call) and around.func is read and getattr(read, "attr", "") in _VIEWS
            if not ((is_part or is_view) and isinstance(around, ast.expr) and self._is_still(around, frozenset())):
                return read
            read = around

    def _modules(self, chain: _Chain) -> list[str]:
        """The texts of the modules that a chain calls."""
        calls = [n for n in _behind(chain) if isinstance(n, ast.Call)]
        calls = [n for n in calls if self._names.dotted(n.func) is None and self._is_module(n)]
        return list(dict.fromkeys(self._text(n.func) for n in sorted(calls, key=place_of)))

    def _stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself, and no text of several lines in them."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        before = self._bytes[self._starts[first - 1] : self._offset(statement)]
        behind = self._bytes[self._end(statement) : self._starts[last]].strip()
        lines = range(first, last + 1)
        return not before.strip() and behind[:1] in (b"", b"#") and not any(line in self._strings for line in lines)

    def _offset(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._bytes[self._offset(node) : self._end(node)].decode()

    def _apply(self, edits: Sequence[_Edit]) -> tuple[str, tuple[int, ...]]:
        """The text, and of each of its lines the line that it began in."""
        text, lines, at = "", [1], 0
        for edit in [*edits, _Edit(len(self._bytes), len(self._bytes), "")]:
            kept = self._bytes[at : edit.start].decode()
            first = self._line_at(at)
            lines += range(first + 1, first + 1 + kept.count("\n"))
            lines += [self._line_at(edit.start)] * edit.text.count("\n")
            text += kept + edit.text
            at = max(at, edit.end)
            if text.endswith("\n"):
                lines[-1] = self._line_at(at)
        return text, tuple(lines)

    def _line_at(self, offset: int) -> int:
        return next((n for n, start in enumerate(self._starts) if start > offset), len(self._starts))


class _Plain(ast.NodeTransformer):
    """Takes ``name: annotation = value`` for ``name = value``."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | ast.Assign:
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _behind(chain: _Chain) -> Iterator[ast.AST]:
    """The nodes of what stands behind a layer's call."""
    inner = set(ast.walk(chain.layer))
    for part in (chain.expression, *chain.statements, *([chain.last] if chain.last else [])):
        yield from (node for node in ast.walk(part) if node not in inner)


def _call(words: Sequence[str]) -> str:
    return f"{FUSED}({', '.join(words)})"


def _enclosed(text: str) -> str:
    """An expression of several lines as it may stand by itself: what enclosed them may have stayed behind."""
    return f"({text})" if "\n" in text else text


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """The function's statements that stand in a row, without those of functions and classes in it."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value
            for child in value if isinstance(value, list) else [value]:
                inner = ast.stmt | ast.ExceptHandler | getattr(ast, "match_case", ast.ExceptHandler)
                if isinstance(child, inner) and not isinstance(child, ast.FunctionDef | ast.ClassDef):
                    waiting.append(child)


def _within(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without those of functions in it."""
    waiting = [child for child in ast.iter_child_nodes(statement)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        own = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        if not isinstance(node, own):
            waiting += ast.iter_child_nodes(node)


def _changed(node: ast.expr) -> str | None:
    """The name whose tensor methods change in place, one behind another; None for other expressions."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        node = node.func.value
        if isinstance(node, ast.Name):
            return node.id
    return None


def _evaluates(around: ast.AST, inner: ast.AST) -> bool:
    """Whether evaluating `around` evaluates `inner`, in any case and once."""
    if isinstance(around, ast.IfExp):
        return inner is around.test
    if isinstance(around, ast.BoolOp):
        return inner is around.values[0]
    if isinstance(around, ast.Compare):
        return inner in (around.left, around.comparators[0])
    # Positions in f-strings are wrong before Python 3.12.
    return not isinstance(around, ast.Lambda | ast.comprehension | ast.JoinedStr | _COMPREHENSIONS)


def _stands_before(node: ast.AST, other: ast.AST) -> bool:
    place = [(getattr(each, "lineno", 0), getattr(each, "col_offset", 0)) for each in (node, other)]
    return place[0] < place[1]


def _target(statement: ast.stmt) -> ast.Name | None:
    """The name that a statement binds, or adds to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    target = statement.target if isinstance(statement, ast.AugAssign) else targets[0] if targets else None
    return target if isinstance(target, ast.Name) else None


def _deleted(statement: ast.stmt) -> frozenset[str]:
    """The names that a statement deletes; none where it deletes anything else."""
    targets = statement.targets if isinstance(statement, ast.Delete) else []
    names = frozenset(target.id for target in targets if isinstance(target, ast.Name))
    return names if len(names) == len(targets) else frozenset()


def _are_copies(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements give values other names, and do nothing else."""
    return all(isinstance(each, ast.Assign) and isinstance(each.value, ast.Name) for each in statements)


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    of = function.args
    return [*of.posonlyargs, *of.args, *of.kwonlyargs, *(a for a in (of.vararg, of.kwarg) if a is not None)]


def _free(name: str, used: Collection[str]) -> str:
    """A name that is not used yet."""
    names = [name, *(f"{name}_{number}" for number in range(len(used)))]
    return next(each for each in names if each not in used)
