"""The epilogues of the layers of a model file: chains of expressions and statements.

A layer's result is followed through the expression in which the layer is called, and then through the statements behind
that, as long as they are calls and operators that the pointwise language has, on it and on what needs no computation.
Values in between must be used nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tconv.codegen.fuse.language import Language
from tconv.codegen.fuse.source import SourceText
from tconv.codegen.fuse.syntax import (
    are_copies,
    changed,
    deleted,
    evaluates,
    stands_before,
    target_of,
    within,
)
from tconv.codegen.names import Names
from tconv.codegen.uses import Uses, bound_names, reader_of_frames
from tconv.sandbox.epilogues import Place, place_of

#: Deletions, and annotations alone.
WITHOUT_VALUE = (ast.Delete, ast.AnnAssign)
_IN_PLACE = (ast.Add, ast.Sub, ast.Mult, ast.Div)
#: What may have effects.
_BUSY = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.comprehension)
_CONCATENATIONS = ("torch.cat", "torch.concat", "torch.concatenate")


@dataclass(frozen=True)
class Joined:
    """A call of ``torch.cat`` along the channels: the element that is a layer's result, and those around it."""

    call: ast.Call
    value: ast.expr
    before: Sequence[ast.expr]
    after: Sequence[ast.expr]


@dataclass
class Chain:
    """A layer's call and the epilogue that was found.

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
    joined: Joined | None = None
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


class ChainFinder:
    """Finds them in one file.

    Args:
        without: layers' calls that have none.
    """

    def __init__(
        self,
        tree: ast.Module,
        source: SourceText,
        names: Names,
        language: Language,
        parents: Mapping[ast.AST, ast.AST],
        without: Collection[Place],
    ) -> None:
        self._source, self._names, self._language, self._parents = source, names, language, parents
        self._without = without
        self._frames = reader_of_frames(tree)
        self._uses: dict[ast.FunctionDef, Uses] = {}
        #: Why layers have no epilogue, where something follows them.
        self.apart: dict[Place, str] = {}
        #: The calls of layers that were looked at.
        self.looked_at: set[Place] = set()

    def chain(self, function: ast.FunctionDef, block: Sequence[ast.stmt], number: int) -> Chain | None:
        statement = block[number]
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.AugAssign):
            return None
        layers = [node for node in within(statement) if self._language.is_layer(node)]
        self.looked_at.update(map(place_of, layers))
        layers = [node for node in layers if place_of(node) not in self._without]
        # Of layers one of which is called on what the others give, that one.
        outermost = [node for node in layers if set(layers) <= set(ast.walk(node))]
        if not outermost or not self._source.stands_alone(statement):
            several = "another statement, or a text of several lines," if outermost else "more than one layer"
            for layer in layers:
                self.apart[place_of(layer)] = f"{several} stands in its line"
            return None
        layer = outermost[0]
        for other in layers:
            if other is not layer:
                self.apart[place_of(other)] = "it stands in the call of another layer: give it a line of its own"
        chain = Chain(layer, self._language.largest(layer, frozenset(), layer), statement)
        chain.joined = self._joined_around(chain.expression, frozenset())
        whole = isinstance(statement, ast.Assign) and statement.value is chain.expression
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if whole and isinstance(target, ast.Name):
            chain.name = target.id
            self._extend(function, block, number, chain)
        if chain.expression is layer and are_copies(chain.statements) and chain.part is None and chain.joined is None:
            ends = chain.ends or self._what_ends(block, number + len(chain.statements), layer)
            if ends is not None:
                self.apart.setdefault(place_of(layer), ends)
            return None
        return chain

    def _what_ends(self, block: Sequence[ast.stmt], number: int, layer: ast.Call) -> str | None:
        """Why a layer has no epilogue; None where nothing follows it."""
        around = self._parents[layer]
        while isinstance(around, ast.List | ast.Tuple | ast.keyword):
            around = self._parents[around]
        if isinstance(around, ast.expr):
            return f"around it stands {self._source.short(around)}"
        return f"behind it stands {self._source.short(block[number + 1])}" if number + 1 < len(block) else None

    def _extend(self, function: ast.FunctionDef, block: Sequence[ast.stmt], number: int, chain: Chain) -> None:
        """Adds to a chain the statements behind it, as many as leave no value in between to others."""
        assert chain.name is not None
        first = _Step(chain.statement, chain.name, frozenset({chain.name}))
        read, declared = self._read([chain.expression], frozenset(), chain.layer), set[str]()
        first = replace(first, captured=first.region & read)
        steps = [first]
        part: tuple[ast.stmt, ast.expr] | None = None
        joined: Joined | None = None
        for statement in block[number + 1 :]:
            before = steps[-1]
            if not self._source.stands_alone(statement) or isinstance(before.statement, ast.Return):
                break
            if (gone := deleted(statement)) and gone <= before.region - {before.kept}:
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
                while isinstance(steps[-1].statement, WITHOUT_VALUE):
                    steps.pop()

    def _who_sees(
        self,
        function: ast.FunctionDef,
        block: Sequence[ast.stmt],
        chain: Chain,
        steps: Sequence[_Step],
        part: tuple[ast.stmt, ast.expr] | None,
    ) -> str | None:
        """Who would see that these statements have become a function: a clause; None for nobody."""
        uses = self._uses_of(function)
        moved = [step.statement for step in steps] + ([part[0]] if part else [])
        kept = bound_names(part[0]) if part else {steps[-1].kept}
        inside = {node for statement in moved for node in ast.walk(statement)}
        targets = filter(None, (target_of(step.statement) for step in steps))
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
            there = statement.value is not None and self._language.is_value(statement.value, region, None)
            return "return" if there and not isinstance(statement.value, ast.Name) else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            return (
                target.id
                if isinstance(target, ast.Name) and self._language.is_value(statement.value, region, None)
                else None
            )
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            there = statement.target.id in region and isinstance(statement.op, _IN_PLACE)
            value = statement.value
            there = there and (self._language.is_value(value, region, None) or self._language.is_operand(value, region))
            return statement.target.id if there else None
        if isinstance(statement, ast.Expr) and self._language.is_value(statement.value, region, None):
            return changed(statement.value)
        return None

    def _part(self, statement: ast.stmt, region: frozenset[str]) -> tuple[ast.stmt, ast.expr] | None:
        """The expression of a statement in which alone it uses the region's values, if the language has that."""
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.AugAssign):
            return None
        uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id in region]
        uses = [n for n in uses if isinstance(n.ctx, ast.Load)]
        held = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
        if not uses or held or any(map(self._language.is_layer, within(statement))):
            return None
        largest = self._language.largest(uses[0], region, None)
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
        apart = all(name in called for name in names) and not any(map(self._language.draws, calls))
        inner: ast.AST = part
        while inner is not statement:
            around = self._parents[inner]
            if not evaluates(around, inner):
                return False
            before = [n for n in ast.iter_child_nodes(around) if n is not inner and stands_before(n, inner)]
            if not apart and not all(self._is_idle(node) for node in before):
                return False
            inner = around
        return True

    def _is_idle(self, node: ast.AST) -> bool:
        """Whether to evaluate a node calls nothing and binds nothing."""
        return not any(isinstance(each, _BUSY) for each in ast.walk(node))

    def _joined_around(self, value: ast.expr, region: frozenset[str]) -> Joined | None:
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
        if not all(self._language.is_still(each, region) for each in others):
            return None
        place = elements.elts.index(value)
        return Joined(call, value, elements.elts[:place], elements.elts[place + 1 :])

    def _joined_in(self, statement: ast.stmt, region: frozenset[str]) -> Joined | None:
        """The concatenation in a statement that alone uses the region's values, and that in one of its elements."""
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr) or any(
            map(self._language.is_layer, within(statement))
        ):
            return None
        uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id in region]
        uses = [n for n in uses if isinstance(n.ctx, ast.Load)]
        if not uses:
            return None
        largest = self._language.largest(uses[0], region, None)
        there = set(ast.walk(largest))
        joined = self._joined_around(largest, region) if all(use in there for use in uses) else None
        return joined if joined is not None and self._may_come_first(statement, joined.call, region) else None

    def _read(self, nodes: Sequence[ast.AST], region: Collection[str], hole: ast.Call | None) -> set[str]:
        """The names that these read, outside of `hole`, and that are no values of the region."""
        gone = set() if hole is None else set(ast.walk(hole))
        names = (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and n not in gone)
        return {n.id for n in names if isinstance(n.ctx, ast.Load)} - set(region)


def behind(chain: Chain) -> Iterator[ast.AST]:
    """The nodes of a layer's epilogue's call."""
    inner = set(ast.walk(chain.layer))
    for part in (chain.expression, *chain.statements, *([chain.last] if chain.last else [])):
        yield from (node for node in ast.walk(part) if node not in inner)
