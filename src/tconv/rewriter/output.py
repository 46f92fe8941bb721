"""Writing the result: whole or not at all, and never over a file of the user's own."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tconv.errors import Trouble
from tconv.sandbox.imports import imported, place_of, relative_imports
from tconv.sandbox.source_scan import GENERATED_MARK


def default_output(model: Path) -> Path:
    """``<stem>_new.py`` beside the model file."""
    return model.with_name(f"{model.stem}_new.py")


def check_output(output: Path, model: Path, force: bool) -> None:
    """Refuses a place that cannot be written, before any work is done.

    Raises:
        Trouble: it is a folder, its folder is missing, it is the model file, or a file that tconv did not write.
    """
    if output.is_dir():
        raise Trouble(f"{output} is a folder; name a file with -o")
    if not output.parent.is_dir():
        raise Trouble(f"the folder {output.parent} does not exist; create it, or choose another place with -o")
    if output.exists() and model.exists() and output.samefile(model):
        raise Trouble(f"{output} is the model file itself; choose another place with -o")
    if output.exists() and not force and not _is_ours(output):
        raise Trouble(f"{output} exists and tconv did not write it; overwrite it with --force, or name another with -o")


def check_neighbours(output: Path, model: Path, source: str) -> None:
    """Refuses a place from which the model file's own modules are not found: they are imported from beside the file.

    Args:
        source: the model file's text.

    Raises:
        Trouble: it imports a module of its folder, and `output` is in another one.
    """
    if output.resolve().parent == model.resolve().parent:
        return
    there, here = place_of(model.resolve(), source), place_of(output.resolve(), source)
    relative = relative_imports(source)
    lost = relative[:1] or [name for name in imported(source) if there.finds(name) and not here.finds(name)]
    if lost:
        raise Trouble(
            f"{model.name} imports {lost[0]}, which lies beside it, and would not be found beside {output}: "
            f"write the file there, with -o {default_output(model)}"
        )


@dataclass(frozen=True)
class Draft:
    """A file beside its final place."""

    path: Path
    _final: Path

    def rewrite(self, text: str) -> None:
        """Puts another text in its place.

        Raises:
            Trouble: it cannot be written.
        """
        try:
            self.path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise Trouble(f"cannot write in {self.path.parent}: {error.strerror}; choose another place") from None

    def publish(self) -> None:
        """Moves the draft to its final place, over whatever is there, in one step."""
        try:
            os.replace(self.path, self._final)
        except OSError as error:
            raise Trouble(f"cannot write {self._final}: {error.strerror}; choose another place") from None


@contextlib.contextmanager
def draft(output: Path, text: str) -> Iterator[Draft]:
    """A complete file with `text`, in the folder of `output` so that it can be moved there; gone at the end if not.

    Raises:
        Trouble: the folder cannot be written.
    """
    # Its name is there before it is: whenever Ctrl-C comes, it is known what to delete.
    path = output.with_name(f".{output.stem}_{secrets.token_hex(8)}.py")
    try:
        try:
            with path.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise Trouble(f"cannot write in {output.parent}: {error.strerror}; choose another place") from None
        yield Draft(path, output)
    finally:
        path.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there with all of `text`, or not at all.

    Raises:
        Trouble: the place cannot be written.
    """
    with draft(path, text) as made:
        made.publish()


def _is_ours(output: Path) -> bool:
    try:
        with output.open("rb") as file:
            return file.read(len(GENERATED_MARK)) == GENERATED_MARK.encode()
    except OSError as error:
        raise Trouble(f"cannot read {output}: {error.strerror}; choose another place with -o") from None
