"""The user's source with their epilogues handed to transposed convolutions: ``cuda_fused(layer, x, epilogue=…)``.

A layer's result is followed through the expression in which the layer is called, and then through the statements behind
that, as long as they are calls and operators that the pointwise language has, on it and on what needs no computation.
They become a function, the *epilogue*, in the words that the user wrote. It runs where a kernel does not compute the
same. Values in between must be used nowhere else.

What is called there was seen in a forward pass (`Calls`): of a name alone nothing is known.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tconv.codegen.fuse.chains import ChainFinder
from tconv.codegen.fuse.language import Calls, Language
from tconv.codegen.fuse.source import Edit, SourceText
from tconv.codegen.fuse.syntax import WithoutAnnotations, blocks
from tconv.codegen.fuse.writing import ChainWriter
from tconv.codegen.names import Names
from tconv.sandbox.epilogues import FORWARD, Place, place_of

#: Decorators that run a function as it is; so do those that a call gives.
_NOT_READERS = ("torch.no_grad", "torch.inference_mode", None)


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
        sites: the calls that were given epilogues, by their numbers.
        apart: why other layers have no epilogue, where something follows them.
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
    """The source with the epilogues of its layers.

    Args:
        without: layers' calls that stay as they are.
        comments: what to say above a statement, by the place of its layer's call.
        numbered: say the number of its site in each call.
        compiled: lines that TorchScript compiles.
    """
    return _Fuser(source, calls, without, comments, numbered, compiled).result()


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
        self._source = SourceText(source)
        self._tree = WithoutAnnotations().visit(ast.parse(source))
        self._names = Names(self._tree)
        self._calls, self._compiled = calls, compiled
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._language = Language(self._names, calls, self._parents)
        of_file = (self._source, self._names, self._language, self._parents)
        self._finder = ChainFinder(self._tree, *of_file, without)
        self._writer = ChainWriter(*of_file, comments, numbered)
        self._sites: list[FusedSite] = []

    def result(self) -> FusedSource:
        edits: list[Edit] = []
        taken: set[ast.stmt] = set()
        for function in ast.walk(self._tree):
            if isinstance(function, ast.FunctionDef) and not self._is_read(function):
                for block in blocks(function):
                    for number, statement in enumerate(block):
                        if statement in taken:
                            continue
                        chain = self._finder.chain(function, block, number)
                        if chain is not None:
                            edits += self._writer.written(function, chain, len(self._sites))
                            self._sites.append(FusedSite(place_of(chain.layer), statement.lineno))
                            taken.update([*chain.statements, *([chain.part[0]] if chain.part else [])])
        self._tell_of_others()
        edits.sort(key=lambda edit: edit.start)
        text, lines = self._source.applied(edits)
        return FusedSource(text, lines, tuple(self._sites), self._finder.apart)

    def _tell_of_others(self) -> None:
        """Why nothing goes with layers that are called where no statement was looked at."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and FORWARD in self._calls.get(place_of(node), ()):
                self._finder.apart[place_of(node)] = f"{self._source.short(node)} is no call of the layer itself"
            elif isinstance(node, ast.Call) and self._language.is_layer(node):
                around = self._parents[node]
                while not isinstance(around, ast.stmt):
                    around = self._parents[around]
                if place_of(node) not in self._finder.looked_at:
                    why = f"it stands inside {self._source.short(around)}: give it a line of its own"
                    self._finder.apart[place_of(node)] = why

    def _is_read(self, function: ast.FunctionDef) -> bool:
        """Whether something may read the function's text, as TorchScript does; then it is said of its layers."""
        readers = [each for each in function.decorator_list if self._names.dotted(each) not in _NOT_READERS]
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        if readers:
            why = f"{function.name} is decorated with {self._source.short(readers[0])}"
        elif any(line in lines for line in self._compiled):
            why = f"{function.name} is compiled by TorchScript, too"
        else:
            return False
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and self._language.is_layer(node):
                self._finder.looked_at.add(place_of(node))
                self._finder.apart[place_of(node)] = why
        return True
