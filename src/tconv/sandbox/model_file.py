"""Model files: Python with a class `Model`, `get_inputs()` and, where Model takes arguments, `get_init_inputs()`.

Where a file has another name for the class, or lacks the functions, an `Interface` says what stands for them.

Such a file is somebody's program. It is loaded in a worker process only, and whatever goes wrong in it becomes a
`ModelFileError` of one line. The time limit is the worker's.
"""

from __future__ import annotations

import ast
import inspect
import io
import random
import re
import symtable
import sys
import tokenize
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from tconv.errors import Trouble
from tconv.sandbox.imports import lies_around, place_of

#: Packages whose name on PyPI is not that of the module.
_PACKAGE_OF = {"cv2": "opencv-python", "PIL": "pillow", "skimage": "scikit-image", "yaml": "pyyaml"}
#: In one of the first two lines: see PEP 263.
#: Before a model file's name, as the module's that it is loaded into.
_MODULE = "tconv_model_"
_NOTEBOOK = ".ipynb"
_CODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+", re.ASCII)
_MESSAGE_LENGTH = 300
_INPUTS_ADVICE = "add one that returns a list of tensors, or give their shapes, as --inputs 8x3x64x64"
_ARGUMENTS_ADVICE = "give them, as --init 64 --init stride=2, or add that function"


class ModelFileError(Trouble):
    """Something is wrong in a model file. One line: what, where in the file, and what to do."""


class Interface(NamedTuple):
    """By what a file is used: the name of its class, and functions that it does not have itself.

    Args:
        model: the name of the class.
        inputs: Python text of what `get_inputs()` is to return; "" where the file has that function.
        arguments: the same for `get_init_inputs()`.
    """

    model: str = "Model"
    inputs: str = ""
    arguments: str = ""

    def completed(self, source: str, name: str) -> str:
        """A file's text with these functions behind it: who evaluates the file calls both.

        Args:
            name: what messages call the file.

        Raises:
            ModelFileError: the file has one of them.
        """
        if not (self.inputs or self.arguments):
            return source
        try:
            table = symtable.symtable(source, name, "exec")
        except (SyntaxError, ValueError):
            return source  # said where it is run
        bound = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
        added = ""
        for function, option, imports, text in (
            ("get_inputs", "--inputs", "import torch\n\n    ", self.inputs),
            ("get_init_inputs", "--init", "", self.arguments),
        ):
            if text and function in bound:
                raise ModelFileError(f"{name} has {function}() itself: leave out {option}, or change it there")
            # A constructor without arguments gets its function as well.
            if text or (function == "get_init_inputs" and function not in bound):
                added += f"\n\n\ndef {function}():\n    {imports}return {text or '[]'}"
        newline = "\r\n" if "\r\n" in source else "\n"
        return source.rstrip() + f"{added}\n".replace("\n", newline)


#: Of a model file, and of a candidate for it.
MODEL, CANDIDATE = Interface(), Interface("ModelNew")


@dataclass(frozen=True)
class LoadedModel:
    """A model file that was run.

    Args:
        namespace: its module.
        model_class: the class that was asked for.
        init_args, init_kwargs: what `get_init_inputs()` returned; empty where there is none.
        get_inputs: the file's own, None where there is none.
    """

    path: Path
    namespace: ModuleType
    model_class: Callable[..., Any]
    init_args: tuple[Any, ...] = ()
    init_kwargs: dict[str, Any] = field(default_factory=dict)
    get_inputs: Callable[[], Any] | None = None

    def construct(self, seed: int, *args: Any, **kwargs: Any) -> Any:
        """The module, built with these arguments after seeding every generator."""
        seed_everything(seed)
        with blamed(self.path, f"{self.model_class.__name__}(...)"):
            return self.model_class(*args, **kwargs)

    def make_inputs(self, seed: int) -> list[Any]:
        """What `get_inputs()` returns after seeding every generator: at least one value, as a list."""
        if self.get_inputs is None:
            raise ModelFileError(f"{self.path.name} has no get_inputs(): {_INPUTS_ADVICE}")
        seed_everything(seed)
        with blamed(self.path, "get_inputs()"):
            inputs = self.get_inputs()
        if not isinstance(inputs, (list, tuple)) or not inputs:
            found = "nothing" if inputs is None or inputs in ([], ()) else f"a {type(inputs).__name__}"
            raise ModelFileError(f"get_inputs() in {self.path.name} returns {found}: return a list of tensors, as [x]")
        return list(inputs)


def of_model_file(kind: type) -> bool:
    """Whether a model file defines the class."""
    return kind.__module__.rpartition(".")[2].startswith(_MODULE)


def class_name(kind: type) -> str:
    """With its module's name, but for a class of a model file, whose module nobody has named."""
    return kind.__qualname__ if of_model_file(kind) else f"{kind.__module__}.{kind.__qualname__}"


def read_source(path: Path) -> str:
    """The text of a program as Python reads it, with its line ends as they are.

    A line that names another encoding than UTF-8 names that instead: in it the text is written.

    Raises:
        ModelFileError: it cannot be read.
    """
    if path.suffix == _NOTEBOOK:
        raise ModelFileError(f"{path} is a notebook: save its code as a .py file")
    try:
        raw = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from None
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise ModelFileError(f"{path} is not UTF-8, nor what a coding line of it says: save it as UTF-8") from None
    if encoding.startswith("utf-8"):
        return text
    lines = text.split("\n")
    lines[:2] = [_CODING.sub(r"\1utf-8", line) for line in lines[:2]]
    return "\n".join(lines)


def load(
    path: str | Path,
    interface: Interface = MODEL,
    text: str | ast.Module | None = None,
    names: Mapping[str, Any] = MappingProxyType({}),
) -> LoadedModel:
    """Run a model file and find its parts. For use in a worker process.

    Args:
        text: runs in the file's place; its own, completed, if None.
        names: what that needs beside its own.

    Raises:
        ModelFileError: no such file, not Python, it raises, it imports what is not installed, it has no such class.
    """
    path = Path(path).resolve()
    source = read_source(path)
    place = place_of(path, source)
    name = _MODULE + re.sub(r"\W", "_", path.stem)
    module = ModuleType(f"{place.package}.{name}" if place.package else name)
    module.__file__, module.__package__ = str(path), place.package
    if place.package:
        module.__spec__ = ModuleSpec(module.__name__, None, origin=str(path))
    vars(module).update(names)
    # Dataclasses and pickling look a class's module up.
    sys.modules[module.__name__] = module
    place.enter()
    with blamed(path, "the file"), _as_a_script(path):
        program = interface.completed(source, path.name) if text is None else text
        exec(compile(program, str(path), "exec"), module.__dict__)
    model_class = getattr(module, interface.model, None)
    if not isinstance(model_class, type):
        raise ModelFileError(f"{path.name} has no class {interface.model}: {_instead(module, interface)}")
    args, kwargs = _init_inputs(path, module)
    if not hasattr(module, "get_init_inputs") and interface != CANDIDATE and (required := _required(model_class)):
        taken = f"{interface.model} takes {', '.join(required)}"
        raise ModelFileError(f"{path.name} has no get_init_inputs(), and {taken}: {_ARGUMENTS_ADVICE}")
    return LoadedModel(path, module, model_class, args, kwargs, getattr(module, "get_inputs", None))


@contextmanager
def _as_a_script(path: Path) -> Iterator[None]:
    """While it is entered, the command line is the file's own, without arguments; who ends for that says why."""
    argv, sys.argv = sys.argv, [str(path)]
    words = io.StringIO()
    try:
        with redirect_stderr(words):
            yield
    except SystemExit as ended:
        last = next(reversed(words.getvalue().split("\n")[:-1]), "")
        if not last:
            raise
        raise SystemExit(f"{last}; the file is loaded without arguments: give those that it parses defaults") from ended
    finally:
        sys.argv = argv
        sys.stderr.write(words.getvalue())


def _instead(module: ModuleType, interface: Interface) -> str:
    """What to do where there is no such class."""
    from torch import nn

    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    ]
    if not own:
        return "define one, a torch.nn.Module"
    found, named = f"it has {', '.join(own)}", f"name it, as --model {own[-1]}"
    if interface.model not in (MODEL.model, CANDIDATE.model):
        return f"{found}; {named}"
    advice = f"{found}; add `class {interface.model}({own[-1]}): pass` for the one that is meant"
    return advice if interface == CANDIDATE else f"{advice}, or {named}"


def _required(model_class: type) -> list[str]:
    """The constructor's parameters that have no default."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = inspect.signature(model_class).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _init_inputs(path: Path, module: ModuleType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the constructor; `get_init_inputs` returns ``[a, b]``, or ``[[a, b], {"name": value}]``."""
    get_init_inputs = getattr(module, "get_init_inputs", None)
    if get_init_inputs is None:
        return (), {}
    with blamed(path, "get_init_inputs()"):
        found = get_init_inputs()
    if not isinstance(found, (list, tuple)):
        kind = type(found).__name__
        raise ModelFileError(f"get_init_inputs() in {path.name} returns {kind}: return a list of Model's arguments")
    if len(found) == 2 and isinstance(found[0], (list, tuple)) and isinstance(found[1], dict):
        return tuple(found[0]), dict(found[1])
    return tuple(found), {}


def seed_everything(seed: int) -> None:
    """Seed torch's generators, on every device, Python's, and NumPy's global one where the program uses NumPy."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


@contextmanager
def blamed(path: Path, doing: str) -> Iterator[None]:
    """Turn whatever is raised within into a `ModelFileError` that names the last line of `path` it came through."""
    try:
        yield
    except ModelFileError:
        raise
    except BaseException as error:
        raise ModelFileError(_explain(error, path, doing)) from error


def _explain(error: BaseException, path: Path, doing: str) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"{path.name} line {error.lineno}: {error.msg}: the file is not valid Python {version}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        if (near := lies_around(path, module)) is not None:
            return f"{path.name} imports {error.name}, which {near} does not have; PYTHONPATH says where else to look"
        package = _PACKAGE_OF.get(module, module)
        return f"{path.name} imports {error.name}, which is not installed: pip install {package}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path.name} line {lines[-1]}" if lines else path.name
    message = " ".join(str(error).split())[:_MESSAGE_LENGTH]
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{where}: {what} (in {doing})"
