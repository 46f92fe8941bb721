"""Values that pass between processes: plain ones as JSON, tensors as raw bytes in files of one directory.

Nothing is pickled: what comes from somebody's program is read as numbers and never as code. It may not even have come
from `Exchange.write`, so that reading takes nothing for granted: neither names nor sizes nor kinds of files.

Files lie where every process of this user may write. Their names cannot be guessed, and the JSON, which no other
process sees, has a digest of each where `digests` are asked for.
"""

from __future__ import annotations

import io
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from tconv.errors import Trouble
from tconv.sandbox.digest import digest
from tconv.sandbox.model_file import LoadedModel, ModelFileError, class_name
from tconv.sandbox.own_classes import Record, Unportable, fields_of, record_of, restored_for
from tconv.sandbox.torch_names import torch_name, torch_values
from tconv.sandbox.untrusted import open_plain

#: The names that `write` gives to files.
_NAME = re.compile(r"[\w-]+", re.ASCII)
#: So many bytes go to a GPU, or come from one, at a time.
_STAGED_BYTES = 64 * 2**20
#: Fewer bytes are written with others.
_BUFFER_BYTES = 2**16
#: A larger tensor lies in so many files, a piece in each by turns, and a thread writes or reads each. To one file, a
#: thread alone can write at a time, a fifth as fast.
_STRIPED_BYTES, _STRIPES, _PIECE_BYTES = 128 * 2**20, 8, 16 * 2**20
_ALLOWED = (
    "use tensors, numbers, strings, classes of torch.nn, functions of torch.nn.functional, partial of those, "
    "members of enums, and instances of the file's classes, dataclasses, namespaces and containers of them"
)
_OTHER_SIZE = "wrote another number of bytes than its tensors have"
_CHANGED = "another process or thread changed values on their way: judge again with nothing beside it"
#: A tree of tensors and plain values, in the form that JSON can carry.
Tree = Any


class Malformed(ValueError):
    """What the other side wrote is no tree with its files; the message is a clause."""


class Exchange:
    """Writes values into a directory that both processes see, and reads what the other side wrote.

    Args:
        directory: shared by both sides.
        side: prefix of this side's files.
        limit_bytes: the most that one tensor read here may span; None for no limit.
        digests: bytes are compared with their digests; both sides have them, or neither.
    """

    def __init__(
        self, directory: str | Path, side: str, limit_bytes: int | None = None, *, digests: bool = True
    ) -> None:
        self._directory = Path(directory)
        self._limit_bytes = limit_bytes
        self._side = side
        self._digests = digests

    def write(self, value: Any) -> Tree:
        """`value` as a JSON-able tree; its tensors' bytes go into a file.

        Raises:
            Unportable: for anything but tensors, numbers, strings, None, dtypes, devices, what `torch_names` has and
                containers of them. Instances of dataclasses, named tuples, namespaces, enums, subclasses of dict and a
                model file's own classes are among those, read as `Record`. A subclass of Tensor is another thing:
                its values may be computed by whoever looks at them.
            Trouble: the directory cannot be written.
        """
        with _Written(self._directory / self._unused_name()) as file:
            return _tree(value, lambda tensor: self._write_tensor(tensor, file))

    def read(self, tree: Tree, device: torch.device | str = "cpu") -> Any:
        """The value of a tree that the other side wrote; its file is removed. Tensors come to `device`.

        Raises:
            Malformed: the tree or a file is not what `write` makes.
            Trouble: another process has changed a file.
        """
        try:
            with _Read(self._directory) as files:
                value = _value(tree, lambda tree: self._read_tensor(tree, device, files))
                files.require_end()
            return value
        except (Malformed, Trouble):
            raise
        except Exception as error:
            # Whatever a wrong type, a missing key or a missing file leads to, it is the writer's doing.
            raise Malformed(f"wrote what cannot be read ({type(error).__name__}: {error})") from error

    def again(self, tree: Tree) -> Tree:
        """A trusted tree for one more reader, while its file is there: whoever reads a tree removes the file.

        Raises:
            Trouble: the directory cannot be written.
        """
        names: dict[str, str] = {}

        def linked(part: Tree) -> str:
            if part["file"] not in names:
                name = names[part["file"]] = self._unused_name()
                with suppress(FileNotFoundError):  # there is none where all tensors are empty
                    for old, new in zip(_files(part), _files({**part, "file": name}), strict=True):
                        os.link(self._directory / old, self._directory / new)
            return names[part["file"]]

        def inner(part: Tree) -> Tree:
            if isinstance(part, list):
                return [inner(each) for each in part]
            if not isinstance(part, dict):
                return part
            return {**part, "file": linked(part)} if "file" in part else {k: inner(v) for k, v in part.items()}

        try:
            return inner(tree)
        except OSError as error:
            raise _trouble(self._directory, error) from None

    def _unused_name(self) -> str:
        return f"{self._side}-{secrets.token_hex(8)}"

    @staticmethod
    def size(tree: Tree) -> int:
        """The bytes of all tensors of a tree that is trusted."""
        sizes: list[int] = []

        def note(tensor: Tree) -> None:
            sizes.append(_dtype(tensor["dtype"]).itemsize * math.prod(tensor["shape"]))

        _value(tree, note)
        return sum(sizes)

    def _write_tensor(self, tensor: Tensor, file: _Written) -> Tree:
        _require_plain(tensor)
        seed = secrets.randbits(63)
        plain = tensor.detach().as_subclass(Tensor).contiguous().flatten().view(torch.uint8)
        place = {"file": file.path.name, "striped": False, "at": 0}
        if plain.numel() > _STRIPED_BYTES:
            place |= {"file": self._unused_name(), "striped": True}
            file.beside(plain, _files(place))
        else:
            place["at"] = file.append(plain)
        return {
            **place,
            "seed": seed,
            "digest": digest(plain, seed) if self._digests else None,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
        }

    def _read_tensor(self, tree: Tree, device: torch.device | str, files: _Read) -> Tensor:
        dtype, shape, stride = _dtype(tree["dtype"]), torch.Size(tree["shape"]), tree["stride"]
        size, offset = dtype.itemsize * shape.numel(), tree["offset"]
        if (
            not _NAME.fullmatch(tree["file"])
            or min([0, offset, tree["at"], *shape, *stride]) < 0
            or len(stride) != len(shape)
        ):
            raise Malformed("wrote a tensor that cannot be")
        if not size:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)
        reach = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True)) + 1
        largest = max(size, dtype.itemsize * reach)
        if self._limit_bytes is not None and largest > self._limit_bytes:
            raise Malformed(f"returned a tensor that spans {largest} bytes; allowed here are {self._limit_bytes}")
        if tree["striped"]:
            plain = files.read_striped(_files(tree), size, torch.device(device))
        else:
            plain = files.read(tree["file"], tree["at"], size, torch.device(device))
        if self._digests and digest(plain, tree["seed"]) != tree["digest"]:
            raise Trouble(_CHANGED)
        values = plain.view(dtype).view(shape)
        # As they were written there are no gaps: the tensor itself may have had some.
        return values if not offset and values.stride() == tuple(stride) else _with_layout(values, stride, offset)


def _files(tree: Tree) -> list[str]:
    """The names of the files that hold a tensor's bytes."""
    return [f"{tree['file']}-{number}" for number in range(_STRIPES)] if tree["striped"] else [tree["file"]]


def require_portable(file: LoadedModel, value: Any, what: str, fake: bool = False) -> None:
    """See that other processes can have what a function of the file returned; nothing is written.

    Args:
        what: returned it.
        fake: its tensors are fake ones, about which nothing is said.

    Raises:
        ModelFileError: it holds what cannot pass.
    """
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tree:
        if not fake:
            _require_plain(tensor)
        kept.append(tensor)
        return {"file": len(kept) - 1}

    with refused(file, what, "; build anything else inside the model, from a name or a number"):
        tree = _tree(value, keep)
    restored_for(file, _value(tree, lambda part: kept[part["file"]]))


@contextmanager
def refused(file: LoadedModel, what: str, advice: str = "") -> Iterator[None]:
    """Turn what raises `Unportable` into a fault of the file.

    Args:
        what: of the file has such a value.
    """
    try:
        yield
    except (Unportable, RecursionError) as error:
        found = error if isinstance(error, Unportable) else "a value that holds itself"
        raise ModelFileError(f"{what} in {file.path.name} has {found}: {_ALLOWED}{advice}") from None


def _tree(value: Any, write: Callable[[Tensor], Tree]) -> Tree:
    """The value as a tree, a tensor as what `write` makes of it."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Tensor):
        return write(value)

    def inner(item: Any) -> Tree:
        return _tree(item, write)

    if (record := record_of(value)) is not None:
        return _tree_of_record(record, inner)
    if isinstance(value, dict):
        return {"dict": [[inner(key), inner(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [inner(item) for item in value]}
    if isinstance(value, list):
        return [inner(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if type(value) is partial:
        keywords = [[key, inner(item)] for key, item in value.keywords.items()]
        return {"partial": inner(value.func), "args": inner(list(value.args)), "keywords": keywords}
    if (name := torch_name(value)) is not None:
        return {"torch": name}
    if isinstance(value, (type, FunctionType)):
        raise Unportable(f"the {'class' if isinstance(value, type) else 'function'} {value.__qualname__}")
    raise Unportable(f"a value of type {class_name(type(value))}")


def _tree_of_record(record: Record, inner: Callable[[Any], Tree]) -> Tree:
    named = {"record": record.name, "module": record.module}
    if record.attributes is None:
        return {**named, "fields": [[key, inner(item)] for key, item in record.items()]}
    attributes = None
    if record.attributes is not record:
        # Without a value it is the item of that name.
        attributes = [
            [name] if record.also_item(name) else [name, inner(item)] for name, item in record.attributes.items()
        ]
    return {**named, "items": [[inner(key), inner(item)] for key, item in record.items()], "attributes": attributes}


def _value(tree: Tree, read: Callable[[Tree], Any]) -> Any:
    """The value of a tree, a tensor as what `read` makes of its part."""

    def inner(item: Tree) -> Any:
        return _value(item, read)

    if isinstance(tree, list):
        return [inner(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "file" in tree:
        return read(tree)
    if "record" in tree:
        return _record(tree, inner)
    if "dict" in tree:
        return {inner(key): inner(item) for key, item in tree["dict"]}
    if "tuple" in tree:
        return tuple(inner(item) for item in tree["tuple"])
    if "dtype" in tree:
        return _dtype(tree["dtype"])
    if "torch" in tree:
        return torch_values()[tree["torch"]]
    if "partial" in tree:
        keywords = {str(key): inner(item) for key, item in tree["keywords"]}
        return partial(inner(tree["partial"]), *inner(tree["args"]), **keywords)
    return torch.device(tree["device"])


def _record(tree: Tree, inner: Callable[[Tree], Any]) -> Record:
    name, module = str(tree["record"]), str(tree["module"])
    if "fields" in tree:
        return Record(name, {str(key): inner(item) for key, item in tree["fields"]}, module)
    record = Record(name, {inner(key): inner(item) for key, item in tree["items"]}, module)
    attributes = tree["attributes"]
    record.attributes = record
    if attributes is not None:
        record.attributes = {str(key): inner(item[0]) if item else record[key] for key, *item in attributes}
    return record


def _require_plain(tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, nn.Parameter):
        raise Unportable(f"a value of type {class_name(type(tensor))}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Unportable(f"a tensor of layout {tensor.layout}, quantized: {tensor.is_quantized}")


class _Written:
    """A new file for the bytes of all tensors of a tree, made with the first of them: to open one takes long.

    Large tensors have files of their own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0
        self._file: BinaryIO | None = None
        self._others: list[Path] = []

    def append(self, plain: Tensor) -> int:
        """Write bytes, from wherever they are; returns where they begin."""
        start = self._end
        staged = None if plain.device.type == "cpu" else _staging(plain.numel())
        try:
            if self._file is None and plain.numel():
                self._file = self.path.open("xb", buffering=_BUFFER_BYTES)
            for first in range(0, plain.numel(), _STAGED_BYTES):
                part = plain[first : first + _STAGED_BYTES]
                there = part if staged is None else staged[: part.numel()].copy_(part)
                assert self._file is not None
                self._file.write(there.numpy())  # type: ignore[call-overload]
        except OSError as error:
            raise _trouble(self.path.parent, error) from None
        self._end += plain.numel()
        return start

    def beside(self, plain: Tensor, names: Sequence[str]) -> None:
        """Write bytes into new files in the same directory, a piece in each by turns."""
        paths = [self.path.with_name(name) for name in names]
        self._others += paths

        def write(path: Path, pieces: Iterator[Tensor]) -> None:
            staged = None if plain.device.type == "cpu" else _staging(_PIECE_BYTES)
            with path.open("xb", buffering=0) as file:
                for piece in pieces:
                    there = piece if staged is None else staged[: piece.numel()].copy_(piece)
                    left = memoryview(there.numpy())  # type: ignore[arg-type]
                    while left:
                        left = left[file.write(left) :]

        try:
            _by_threads(write, paths, _striped(plain))
        except OSError as error:
            raise _trouble(self.path.parent, error) from None

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            raise _trouble(self.path.parent, error) from None
        finally:
            if failed is not None:  # nobody will read them
                for path in (self.path, *self._others):
                    path.unlink(missing_ok=True)


def _striped(plain: Tensor) -> list[Iterator[Tensor]]:
    """The pieces of each file."""
    step = _STRIPES * _PIECE_BYTES

    def pieces(number: int) -> Iterator[Tensor]:
        for first in range(number * _PIECE_BYTES, plain.numel(), step):
            yield plain[first : first + _PIECE_BYTES]

    return [pieces(number) for number in range(_STRIPES)]


def _by_threads(work: Callable[..., None], *arguments: Iterable[Any]) -> None:
    with ThreadPoolExecutor(_STRIPES) as pool:
        list(pool.map(work, *arguments))  # what one raises is raised here


def _trouble(directory: Path, error: OSError) -> Trouble:
    reason = error.strerror or error
    return Trouble(f"cannot write in {directory}: {reason}; values pass through it: see that it has room")


class _Read:
    """Files that the other side wrote, each opened once, and removed then.

    They are read, since nobody may cut short what is mapped.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, io.BufferedReader] = {}
        self._read: dict[str, int] = {}

    def read(self, name: str, start: int, size: int, device: torch.device) -> Tensor:
        """Bytes of a file, from a place on."""
        file = self._opened(name)
        if self._read[name] + size > os.fstat(file.fileno()).st_size:  # no byte twice: memory is asked for next
            raise Malformed(_OTHER_SIZE)
        file.seek(start)
        plain = torch.empty(size, dtype=torch.uint8, device=device)
        staged = plain if device.type == "cpu" else _staging(size)
        for first in range(0, size, staged.numel()):
            part = plain[first : first + staged.numel()]
            if file.readinto(staged[: part.numel()].numpy()) != part.numel():  # type: ignore[arg-type]
                raise Malformed(_OTHER_SIZE)
            if staged is not plain:
                part.copy_(staged[: part.numel()])
        self._read[name] += size
        return plain

    def read_striped(self, names: Sequence[str], size: int, device: torch.device) -> Tensor:
        """All bytes of files that have a piece each by turns."""
        files = [self._opened(name) for name in names]
        there = sum(os.fstat(file.fileno()).st_size for file in files)
        if there != size or any(self._read[name] for name in names):  # no byte twice: memory is asked for next
            raise Malformed(_OTHER_SIZE)
        plain = torch.empty(size, dtype=torch.uint8, device=device)

        def read(file: io.BufferedReader, pieces: Iterator[Tensor]) -> None:
            staged = None if plain.device.type == "cpu" else _staging(_PIECE_BYTES)
            for piece in pieces:
                into = piece if staged is None else staged[: piece.numel()]
                if file.readinto(into.numpy()) != piece.numel():  # type: ignore[arg-type]
                    raise Malformed(_OTHER_SIZE)
                if staged is not None:
                    piece.copy_(into)

        _by_threads(read, files, _striped(plain))
        for name, file in zip(names, files, strict=True):
            self._read[name] = file.tell()
        return plain

    def _opened(self, name: str) -> io.BufferedReader:
        """A file, which no other process finds any more."""
        if name not in self._files:
            path = self._directory / name
            self._files[name], self._read[name] = open_plain(path), 0
            path.unlink()
        return self._files[name]

    def require_end(self) -> None:
        """See that no file holds more than what was read.

        Raises:
            Malformed: one does.
        """
        if any(os.fstat(file.fileno()).st_size != self._read[name] for name, file in self._files.items()):
            raise Malformed(_OTHER_SIZE)

    def __enter__(self) -> _Read:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


def _staging(size: int) -> Tensor:
    """Page-locked memory for up to so many bytes at a time, which torch keeps: without it CUDA copies page by page."""
    return torch.empty(min(size, _STAGED_BYTES), dtype=torch.uint8, pin_memory=True)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise Malformed("wrote a dtype that is none")
    return found


def _with_layout(values: Tensor, stride: list[int], offset: int) -> Tensor:
    """A copy of `values` with that stride, at that offset into its storage; as it is where elements would overlap."""
    if 0 in stride:
        return values
    reach = sum((length - 1) * step for length, step in zip(values.shape, stride, strict=True)) + 1
    storage = torch.empty(offset + reach, dtype=values.dtype, device=values.device)
    return storage.as_strided(values.shape, stride, offset).copy_(values)


class Unchanged:
    """Equal to another one if both are of the same tensors, by the same paths, and nobody has written to them since."""

    def __init__(self, value: Any) -> None:
        self._tensors = list(tensors(value))  # that live as long as this: no other has their place
        self._said = [(path, id(tensor), tensor._version) for path, tensor in self._tensors]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unchanged) and self._said == other._said

    __hash__ = None  # type: ignore[assignment]


def tensor_bytes(value: Any) -> int:
    """The bytes of all elements of a tree's tensors."""
    return sum(map(_bytes, tensors(value)))


def largest_bytes(value: Any) -> int:
    """The bytes of the largest of a tree's tensors, 0 where it has none."""
    return max(map(_bytes, tensors(value)), default=0)


def _bytes(named: tuple[str, Tensor]) -> int:
    return named[1].numel() * named[1].element_size()


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree of containers with the path to it: ``[0]``, ``['name']``."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}[{key!r}]")
    elif (values := fields_of(value)) is not None:
        yield from tensors(values, path)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}[{index}]")
