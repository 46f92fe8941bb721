"""How a chain is written: the call of `cuda_fused`, with a function of the layer's epilogue."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from tconv.codegen.fuse.chains import WITHOUT_VALUE, Chain, behind
from tconv.codegen.fuse.language import VIEWS, Language
from tconv.codegen.fuse.source import Edit, SourceText
from tconv.codegen.fuse.syntax import are_copies, arguments_of, changed, free_name, target_of
from tconv.codegen.names import Names
from tconv.sandbox.epilogues import FUSED, Place, place_of

_FOUR = " " * 4
#: Of comments, and of calls in one line with their epilogues.
_COLUMNS, _LONGEST = 110, 120


class ChainWriter:
    """Writes those of one file.

    Args:
        comments: what to say above a statement, by the place of its layer's call.
        numbered: say the number of its site in each call.
    """

    def __init__(
        self,
        source: SourceText,
        names: Names,
        language: Language,
        parents: Mapping[ast.AST, ast.AST],
        comments: Mapping[Place, str],
        numbered: bool,
    ) -> None:
        self._source, self._names, self._language, self._parents = source, names, language, parents
        self._comments, self._numbered = comments, numbered

    def written(self, function: ast.FunctionDef, chain: Chain, number: int) -> Iterator[Edit]:
        used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} | {a.arg for a in arguments_of(function)}
        modules, row = self._modules(chain), self._row(chain)
        comment = self._comments.get(place_of(chain.layer))
        indent = self._source.bytes[
            self._source.starts[chain.statement.lineno - 1] : self._source.offset(chain.statement)
        ].decode()
        said = textwrap.wrap(comment, _COLUMNS - len(indent), break_long_words=False) if comment else []
        above = "".join(f"{indent}# {line}{self._source.newline}" for line in said)
        first = self._source.starts[chain.statement.lineno - 1]
        if not chain.statements and chain.part is None:
            alone = chain.expression is chain.layer
            epilogue = "" if alone or row else self._lambda(chain.layer, chain.expression, free_name("y", used))
            call = _call(self._fused_words(number, chain, epilogue, row or modules))
            taken = chain.joined.call if chain.joined else chain.expression
            yield Edit(first, first, above)
            yield Edit(self._source.offset(taken), self._source.end(taken), call)
            return
        assert chain.name is not None
        last = chain.statements[-1] if chain.statements else chain.statement
        kept = chain.kept or chain.name
        whole = chain.part is None and isinstance(last, ast.Return)
        target = "return" if whole else f"{chain.name if chain.part else kept} ="
        # From here on the statements' own lines.
        start, end = self._source.starts[chain.statement.end_lineno or 0], self._source.starts[last.end_lineno or 0]
        if behind := self._source.bytes[self._source.end(chain.statement) : start].decode().strip():  # a comment
            above = f"{indent}{behind}{self._source.newline}{above}"
        instead = self._instead(chain)
        target = instead or target
        alone = chain.expression is chain.layer
        epilogue = free_name("epilogue", used)
        only = self._only_expression(chain)
        in_line = ""
        if only is not None and alone:
            call = _call(self._fused_words(number, chain, f"lambda {chain.name}: {self._source.of(only[1])}", modules))
            in_line = f"{indent}{target} {call}{self._source.newline}"
        nothing = alone and are_copies(chain.statements) and isinstance(chain.last, ast.Name)
        if row or nothing:
            call = self._line(indent, target, self._fused_words(number, chain, "", row))
            yield Edit(first, start, self._comments_between(start, end) + above + call)
        elif only is not None and in_line and len(in_line) <= _LONGEST:
            between = self._source.bytes[start : self._source.starts[only[0].lineno - 1]].decode()
            yield Edit(first, start, between + above + in_line)
            start = self._source.starts[only[0].lineno - 1]
            end = start if chain.part else end
        else:
            # What it reads before it binds it, it takes as an argument, whose default is what is bound outside.
            parameter = free_name("y", used) if chain.name in chain.captured else chain.name
            parameters = ", ".join([parameter, *(f"{name}={name}" for name in chain.captured)])
            body = f"{indent}def {epilogue}({parameters}):{self._source.newline}"
            further = "\t" if "\t" in indent else _FOUR
            if not alone:
                text = self._lambda(chain.layer, chain.expression, parameter).partition(": ")[2]
                body += f"{indent}{further}{chain.name} = {_enclosed(text)}{self._source.newline}"
            for line in self._source.bytes[start:end].decode().splitlines(keepends=True):
                deeper = indent + further + line.removeprefix(indent) if line.startswith(indent) else further + line
                body += deeper if line.strip() else line
            result = _enclosed(self._source.of(chain.last)) if chain.last else kept
            body += "" if whole else f"{indent}{further}return {result}{self._source.newline}"
            yield Edit(first, start, body + self._source.newline)
            yield Edit(
                end, end, above + self._line(indent, target, self._fused_words(number, chain, epilogue, modules))
            )
        if end > start:
            yield Edit(start, end, "")
        if chain.part is not None and instead:
            statement = chain.part[0]
            yield Edit(self._source.starts[statement.lineno - 1], self._source.starts[statement.end_lineno or 0], "")
        elif chain.part is not None:
            yield Edit(self._source.offset(chain.part[1]), self._source.end(chain.part[1]), chain.name)

    def _instead(self, chain: Chain) -> str:
        """What takes the place of a statement that is a concatenation and nothing else; empty for others."""
        statement, call = chain.part or (None, None)
        if chain.joined is None or call is not chain.joined.call:
            return ""
        if isinstance(statement, ast.Return) and statement.value is call:
            return "return"
        if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
            return f"{self._source.of(statement.targets[0])} ="
        return ""

    def _comments_between(self, start: int, end: int) -> str:
        """The lines of comments there."""
        lines = self._source.bytes[start:end].decode().splitlines(keepends=True)
        return "".join(line for line in lines if line.lstrip().startswith("#"))

    def _row(self, chain: Chain) -> list[str]:
        """The modules whose calls, one after the other, a chain is; none if it is something else."""
        words: list[str] = []

        def follow(node: ast.expr | None, name: str | None) -> bool:
            """Whether an expression is such calls on the layer, or on what `name` holds."""
            found: list[str] = []
            while isinstance(node, ast.Call) and node is not chain.layer and self._language.is_module(node):
                found.insert(0, self._source.of(node.func))
                node = node.args[0]
            words.extend(found)
            return node is chain.layer if name is None else isinstance(node, ast.Name) and node.id == name

        alike, name = follow(chain.expression, None), chain.name
        for statement in chain.statements:
            if isinstance(statement, WITHOUT_VALUE):
                continue
            if not isinstance(statement, ast.Assign | ast.Return):
                return []
            alike = alike and follow(statement.value, name)
            name = self._result_name(statement, "")
        alike = alike and (chain.last is None or follow(chain.last, name))
        return words if alike else []

    def _only_expression(self, chain: Chain) -> tuple[ast.stmt, ast.expr] | None:
        """The one expression that follows a chain's first statement, if that is all and takes one line."""
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
            return changed(statement.value) or name
        return name

    def _lambda(self, layer: ast.Call, expression: ast.expr, name: str) -> str:
        start, end = self._source.offset(expression), self._source.end(expression)
        before, after = (
            self._source.bytes[start : self._source.offset(layer)],
            self._source.bytes[self._source.end(layer) : end],
        )
        return f"lambda {name}: {before.decode()}{name}{after.decode()}"

    def _fused_words(self, number: int, chain: Chain, epilogue: str, modules: Sequence[str]) -> list[str]:
        """The arguments of `cuda_fused`."""
        layer = chain.layer
        function = self._source.of(layer.func)
        given = (
            self._source.bytes[self._source.end(layer.func) : self._source.end(layer)]
            .decode()
            .strip()[1:-1]
            .strip()
            .rstrip(",")
        )
        if "\n" in given or "#" in given:
            given = ast.unparse(layer)[len(ast.unparse(layer.func)) + 1 : -1]
        words = [function, *([given] if given else []), *[f"epilogue={epilogue}"] * bool(epilogue)]
        if modules:
            words.append(f"modules=[{', '.join(modules)}]")
        if chain.joined is not None:
            for name, parts in (("before", chain.joined.before), ("after", chain.joined.after)):
                words += [f"{name}=[{', '.join(map(self._source.of, parts))}]"] * bool(parts)
        words += [f"reads=[{', '.join(self._reads(chain))}]"] * bool(epilogue)
        words += [f"site={number}"] * (self._numbered or bool(epilogue))
        return words

    def _line(self, indent: str, target: str, words: Sequence[str]) -> str:
        """A statement that calls `cuda_fused` with these arguments, in several lines where one is too long."""
        line = f"{indent}{target} {_call(words)}{self._source.newline}"
        if len(line) <= _LONGEST:
            return line
        further = indent + ("\t" if "\t" in indent else _FOUR)
        given = "".join(f"{further}{word},{self._source.newline}" for word in words)
        return f"{indent}{target} {FUSED}({self._source.newline}{given}{indent}){self._source.newline}"

    def _reads(self, chain: Chain) -> list[str]:
        """What an epilogue reads beside the layer's result, but for functions and modules that it calls.

        Names, attributes, and parts and views of these, as they are before the epilogue binds any name.
        """
        region: set[str | None] = {target.id for target in map(target_of, chain.statements) if target is not None}
        region |= {chain.name} if chain.statements or chain.part else set()  # else it is bound after the call
        found, inside = list(chain.captured), set[ast.AST]()
        names = (n for n in behind(chain) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        for name in sorted(names, key=place_of):
            if name.id in region or name in inside:
                continue
            read = self._part_or_view(name)
            around = self._parents[read]
            called = isinstance(around, ast.Call) and around.func is read
            if not called and self._names.dotted(read) is None:
                found.append(self._source.of(read))
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
            is_view = isinstance(around, ast.Call) and around.func is read and getattr(read, "attr", "") in VIEWS
            if not (
                (is_part or is_view) and isinstance(around, ast.expr) and self._language.is_still(around, frozenset())
            ):
                return read
            read = around

    def _modules(self, chain: Chain) -> list[str]:
        """The texts of the modules that a chain calls."""
        calls = [n for n in behind(chain) if isinstance(n, ast.Call)]
        calls = [n for n in calls if self._names.dotted(n.func) is None and self._language.is_module(n)]
        return list(dict.fromkeys(self._source.of(n.func) for n in sorted(calls, key=place_of)))


def _call(words: Sequence[str]) -> str:
    return f"{FUSED}({', '.join(words)})"


def _enclosed(text: str) -> str:
    """An expression of several lines as it may stand by itself: what enclosed them may have stayed behind."""
    return f"({text})" if "\n" in text else text
