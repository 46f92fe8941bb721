"""The user's source with its model's class renamed to `ModelNew` and its transposed convolutions redirected.

Edits are made at the positions of the syntax tree; every other byte stays as the user wrote it. Redirected are

- constructions ``nn.ConvTranspose2d(...)``, under any import form and under names that are assigned from them; classes
  that are derived from it, ``class Up(nn.ConvTranspose2d)``, have the new forward before torch's,
- uses of ``F.conv_transpose2d`` and ``torch.conv_transpose2d``, called or handed on,
- tests whether a class is that very one, ``type(m) is nn.ConvTranspose2d``, or another object's: they ask whether it is
  equal to it, which classes of the file are. So are those of ``nn.Sequential``.

Functions that TorchScript compiles stay as they are, and what is built in a call of ``torch.jit.script`` or
``torch.jit.trace``: it does not know the functions of the file. Of layers that are built elsewhere and come to it,
it takes torch's forward (`runtime._CudaForward`).

Every other mention of torch's class keeps its meaning, as the class in the file is a subclass of it, and equal to it:
``isinstance``, tables whose keys are classes and weight initialisation find the layers as before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tconv.codegen.names import Names
from tconv.sandbox.model_file import ModelFileError
from tconv.sandbox.source_scan import GENERATED_MARK

DECORATOR, FORWARD = "_cuda_model", "_CudaForward"
_SCRIPTS = ("torch.jit.script", "torch.jit.trace")
_DIMENSIONS = (1, 2, 3)
_CLASSES = {
    f"{module}.{lazy}ConvTranspose{n}d": f"Cuda{lazy}ConvTranspose{n}d"
    for module in ("torch.nn", "torch.nn.modules", "torch.nn.modules.conv")
    for lazy in ("", "Lazy")
    for n in _DIMENSIONS
}
_SEQUENCES = ("torch.nn.Sequential", "torch.nn.modules.Sequential", "torch.nn.modules.container.Sequential")
#: Comments are told from what stands between two operands.
_IS = re.compile(r"#[^\n]*|\bis(?:[ \t]+not)?\b|\bnot\b")
_FUNCTIONS = {
    f"{module}.conv_transpose{n}d": f"cuda_conv_transpose{n}d"
    for module in ("torch", "torch.nn.functional")
    for n in _DIMENSIONS
}


@dataclass(frozen=True)
class Site:
    """One redirected place: its line in the user's file (1 is the first), and what stood there."""

    line: int
    text: str


@dataclass(frozen=True)
class Rewritten:
    """The edited source, cut where the generated part goes: after the docstring and ``from __future__`` lines.

    Args:
        module_names: what the module binds, with the dotted path of what is imported and None for the rest.
        model: what the class was called that is now `ModelNew`.
    """

    prologue: str
    body: str
    sites: tuple[Site, ...]
    module_names: Mapping[str, str | None]
    model: str = "Model"


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def rewrite(
    source: str, name: str = "the model file", keep_lines: Collection[int] = (), model: str = "Model"
) -> Rewritten:
    """Redirects the transposed convolutions of `source` and renames its model's class to `ModelNew`.

    Args:
        source: the text of the model file.
        name: what messages call the file.
        keep_lines: lines whose function calls stay torch's.
        model: the name of that class, or another name that it is given once, as by ``Model = Generator``.

    Raises:
        ModelFileError: a syntax error, no such class at the top level, a file that tconv wrote.
    """
    if source.startswith(GENERATED_MARK):
        raise ModelFileError(f"{name} was written by tconv; give the file that it was made from")
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ModelFileError(f"{name}, line {error.lineno}: {error.msg}") from None
    return _Rewriter(source, tree, name, keep_lines, model).result()


class _Rewriter:
    def __init__(self, source: str, tree: ast.Module, name: str, keep_lines: Collection[int], model: str) -> None:
        self._bytes = source.encode()
        self._line_starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._tree = tree
        self._name = name
        self._keep_lines = frozenset(keep_lines)
        self._names = Names(tree, starred={*_CLASSES, *_FUNCTIONS})
        self._model = self._class_called(model)
        self._sites: dict[ast.expr, Site] = {}

    def result(self) -> Rewritten:
        self._require_plain_model()
        edits = sorted({*self._renames(), *self._redirections()}, key=lambda edit: (edit.start, edit.end))
        cut = self._end_of_prologue()
        edited = [self._apply([e for e in edits if e.start < cut], 0, cut)]
        edited.append(self._apply([e for e in edits if e.start >= cut], cut, len(self._bytes)))
        sites = sorted(self._sites.values(), key=lambda site: site.line)
        return Rewritten(edited[0], edited[1], tuple(sites), self._names.module_origins(), self._model)

    # ---- Model

    def _class_called(self, model: str) -> str:
        """The class that the name stands for: another one where ``Model = Generator`` is all about it."""
        meant = self._assigned_classes(model)
        return meant[0] if len(self._names.module.origins.get(model, ())) == len(meant) == 1 else model

    def _assigned_classes(self, name: str) -> list[str]:
        """The classes of the file that the module's own `name` is assigned."""
        assigned = [each.id for each in self._names.module.origins.get(name, ()) if isinstance(each, ast.Name)]
        return sorted(each for each in assigned if self._names.module_classes(each))

    def _require_plain_model(self) -> None:
        bound = self._names.module.origins
        if "ModelNew" in bound:
            raise ModelFileError(f"{self._name} already has a ModelNew; rename it")
        if not self._names.module_classes(self._model):
            advice = f"write `class {self._model}(nn.Module)` at the top level of the file"
            if classes := self._assigned_classes(self._model):
                advice += f", or name the class that is meant, as --model {classes[0]}"
            there = self._model in bound
            found = f"its {self._model} is no class statement" if there else f"it has no class {self._model}"
            raise ModelFileError(f"{self._name}: {found}; {advice}")

    def _renames(self) -> Iterator[_Edit]:
        renamed = not self._has_private_names()
        for node in self._names.module_classes(self._model):
            start = self._offset(node)
            keyword = re.compile(rb"class[\s\\]+").match(self._bytes, start)
            name_start = keyword.end() if keyword else start
            if renamed:
                yield _Edit(name_start, name_start + len(self._model.encode()), "ModelNew")
            first = self._line_start(min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]))
            indent = self._bytes[self._line_start(node.lineno) : start].decode()
            yield _Edit(first, first, f"{indent}@{DECORATOR}{self._newline()}")
        for use in self._names.module_names(self._model) if renamed else ():
            yield self._replace(use, "ModelNew")
        if not renamed:
            ends = self._newline()
            text = f"{ends}{ends}ModelNew = {self._model}{ends}"
            yield _Edit(len(self._bytes), len(self._bytes), text if self._bytes.endswith(b"\n") else ends + text)

    def _has_private_names(self) -> bool:
        """Whether the class has names that Python completes by the class's own, as ``self.__up``."""
        inside = (inner for node in self._names.module_classes(self._model) for inner in ast.walk(node))
        names = (str(getattr(node, "attr", getattr(node, "id", ""))) for node in inside)
        return any(name.startswith("__") and not name.endswith("__") for name in names)

    # ---- transposed convolutions

    def _redirections(self) -> Iterator[_Edit]:
        scripted = {inner for node in ast.walk(self._tree) if self._is_scripted(node) for inner in ast.walk(node)}
        for node in ast.walk(self._tree):
            if node in scripted:
                continue
            if isinstance(node, ast.Call):
                yield from self._redirect_class(node.func)
            elif isinstance(node, ast.ClassDef):
                for base in node.bases:
                    yield from self._redirect_base(base)
            elif isinstance(node, ast.Compare):
                yield from self._equal_classes(node)
            if isinstance(node, ast.Attribute):  # nn.ConvTranspose2d.forward
                yield from self._redirect_class(node.value)
            if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                target = _FUNCTIONS.get(self._names.dotted(node) or "")
                if target and node.lineno not in self._keep_lines:
                    self._sites[node] = Site(node.lineno, self._text(node))
                    yield self._replace(node, target)

    def _is_scripted(self, node: ast.AST) -> bool:
        """Whether TorchScript compiles it, or what it builds, which does not know the functions of the file."""
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        called = [node.func] if isinstance(node, ast.Call) else decorators
        return any(self._names.dotted(each) in _SCRIPTS for each in called)

    def _redirect_class(self, node: ast.expr) -> Iterator[_Edit]:
        target = _CLASSES.get(self._names.dotted(node) or "")
        if target:
            self._sites[node] = Site(node.lineno, self._text(node))
            yield self._replace(node, target)

    def _redirect_base(self, node: ast.expr) -> Iterator[_Edit]:
        """Torch's class stays a base: the file's has a metaclass, beside which no other may stand."""
        target = _CLASSES.get(self._names.dotted(node) or "", "")
        if target.startswith("CudaLazy"):
            yield from self._redirect_class(node)
        elif target:
            self._sites[node] = Site(node.lineno, self._text(node))
            yield _Edit(self._offset(node), self._offset(node), f"{FORWARD}, ")

    def _equal_classes(self, node: ast.Compare) -> Iterator[_Edit]:
        """``type(m) is nn.ConvTranspose2d`` as ``type(m) == nn.ConvTranspose2d``."""
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            sides = left, right
            asks = any(map(self._is_replaced, sides)) or (any(map(_is_class_of, sides)) and not self._is_plain(sides))
            if isinstance(operator, ast.Is | ast.IsNot) and asks:
                between = self._bytes[self._end(left) : self._offset(right)].decode()
                equal = "==" if isinstance(operator, ast.Is) else "!="
                for word in _IS.finditer(between):
                    begin, end = (self._end(left) + len(between[:at].encode()) for at in word.span())
                    if not word[0].startswith("#"):
                        yield _Edit(begin, end, "" if word[0] == "not" else equal)
            left = right

    def _is_replaced(self, node: ast.expr) -> bool:
        """Whether a node stands for a class of torch's in whose place the file may have one."""
        dotted = self._names.dotted(node) or ""
        return dotted in _CLASSES or dotted in _SEQUENCES

    def _is_plain(self, sides: Sequence[ast.expr]) -> bool:
        """Whether one of two expressions is None, a class of Python's, or one of torch's that no file has."""
        plain = (
            self._names.is_builtin(each) if isinstance(each, ast.Name) else isinstance(each, ast.Constant)
            for each in sides
        )
        return any(plain) or any((self._names.dotted(each) or "").startswith("torch.") for each in sides)

    # ---- positions: the tree counts lines from 1 and columns in UTF-8 bytes

    def _line_start(self, line: int) -> int:
        return self._line_starts[line - 1]

    def _offset(self, node: ast.expr | ast.stmt) -> int:
        return self._line_start(node.lineno) + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._line_start(node.end_lineno or node.lineno) + (node.end_col_offset or 0)

    def _text(self, node: ast.expr) -> str:
        return self._bytes[self._offset(node) : self._end(node)].decode()

    def _replace(self, node: ast.expr, text: str) -> _Edit:
        last_word = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if not self._text(node).endswith(last_word):  # before Python 3.12, positions in some f-strings are wrong
            place = f"{self._name}, line {node.lineno}"
            raise ModelFileError(f"{place}: {last_word} is in an f-string that cannot be edited; take it out of there")
        return _Edit(self._offset(node), self._end(node), text)

    def _newline(self) -> str:
        return "\r\n" if b"\r\n" in self._bytes else "\n"

    def _end_of_prologue(self) -> int:
        """Offset after the docstring and the ``from __future__`` lines, which must stay first."""
        count = 0
        for number, node in enumerate(self._tree.body):
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if not is_future and not (number == 0 and ast.get_docstring(self._tree, clean=False) is not None):
                break
            count = number + 1
        if count == 0:
            return 0
        last = self._tree.body[count - 1]
        line_end = self._line_starts[last.end_lineno or last.lineno]
        following = self._tree.body[count : count + 1]
        return min([line_end, *(self._offset(node) for node in following)])

    def _apply(self, edits: list[_Edit], start: int, end: int) -> str:
        pieces, position = [], start
        for edit in edits:
            pieces += [self._bytes[position : edit.start], edit.text.encode()]
            position = edit.end
        return b"".join([*pieces, self._bytes[position:end]]).decode()


def _is_class_of(node: ast.expr) -> bool:
    """Whether a node is ``type(x)`` or ``x.__class__``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1
    return isinstance(node, ast.Attribute) and node.attr == "__class__"
