"""The text of a model file by bytes, as `ast` counts columns: where nodes stand in it, and what edits make of it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Another text in place of these bytes."""

    start: int
    end: int
    text: str


class SourceText:
    """A file's text.

    Args:
        source: with its own line ends.
    """

    def __init__(self, source: str) -> None:
        self.bytes = source.encode()
        #: Where each line begins, the first one's number being 0.
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.newline = "\r\n" if b"\r\n" in self.bytes else "\n"
        self._strings = {
            line
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.start[0] != token.end[0]
            and token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
            for line in range(token.start[0], token.end[0] + 1)
        }

    def offset(self, node: ast.expr | ast.stmt) -> int:
        """Of a node's first byte."""
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Of the first byte behind a node."""
        return self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node, as it stands there."""
        return self.bytes[self.offset(node) : self.end(node)].decode()

    def short(self, node: ast.expr | ast.stmt) -> str:
        """The same for a message: quoted, in one line, cut where it is long."""
        text = " ".join(self.of(node).split())
        return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself, and no text of several lines in them."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        before = self.bytes[self.starts[first - 1] : self.offset(statement)]
        behind = self.bytes[self.end(statement) : self.starts[last]].strip()
        lines = range(first, last + 1)
        return not before.strip() and behind[:1] in (b"", b"#") and not any(line in self._strings for line in lines)

    def applied(self, edits: Sequence[Edit]) -> tuple[str, tuple[int, ...]]:
        """The text, and of each of its lines the line that it began in."""
        text, lines, at = "", [1], 0
        for edit in [*edits, Edit(len(self.bytes), len(self.bytes), "")]:
            kept = self.bytes[at : edit.start].decode()
            first = self._line_at(at)
            lines += range(first + 1, first + 1 + kept.count("\n"))
            lines += [self._line_at(edit.start)] * edit.text.count("\n")
            text += kept + edit.text
            at = max(at, edit.end)
            if text.endswith("\n"):
                lines[-1] = self._line_at(at)
        return text, tuple(lines)

    def _line_at(self, offset: int) -> int:
        return next((n for n, start in enumerate(self.starts) if start > offset), len(self.starts))
