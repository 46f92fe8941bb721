"""Values that pass between processes: plain ones as JSON, tensors as raw bytes in files of one directory.

Nothing is pickled: what comes from somebody's program is read as numbers and never as code.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: A tree of tensors and plain values, in the form that JSON can carry.
Tree = Any


class Unportable(TypeError):
    """A value of a kind that cannot be passed to another process."""


class Exchange:
    """Writes values into a directory that both processes see, and reads what the other side wrote.

    Args:
        directory: shared by both sides.
        side: prefix of this side's files.
    """

    def __init__(self, directory: str | Path, side: str) -> None:
        self._directory = Path(directory)
        self._names = (f"{side}-{number}" for number in itertools.count())

    def write(self, value: Any) -> Tree:
        """`value` as a JSON-able tree; its tensors' bytes go into files.

        Raises:
            Unportable: for anything but tensors, numbers, strings, None, dtypes, devices and containers of them.
        """
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return self._write_tensor(value)
        if isinstance(value, dict):
            return {"dict": [[self.write(key), self.write(item)] for key, item in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [self.write(item) for item in value]}
        if isinstance(value, list):
            return [self.write(item) for item in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        raise Unportable(f"a value of type {type(value).__module__}.{type(value).__qualname__}")

    def read(self, tree: Tree, device: torch.device | str = "cpu") -> Any:
        """The value of a tree that the other side wrote; its files are removed. Tensors come to `device`."""
        if isinstance(tree, list):
            return [self.read(item, device) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if "file" in tree:
            return self._read_tensor(tree, device)
        if "dict" in tree:
            return {self.read(key): self.read(item, device) for key, item in tree["dict"]}
        if "tuple" in tree:
            return tuple(self.read(item, device) for item in tree["tuple"])
        if "dtype" in tree:
            return getattr(torch, tree["dtype"])
        return torch.device(tree["device"])

    def _write_tensor(self, tensor: Tensor) -> Tree:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise Unportable(f"a tensor of layout {tensor.layout}, quantized: {tensor.is_quantized}")
        name = next(self._names)
        plain = tensor.detach().as_subclass(Tensor).contiguous().flatten().view(torch.uint8)
        if plain.numel():
            path = self._directory / name
            _reserve(path, plain.numel())
            torch.from_file(str(path), shared=True, size=plain.numel(), dtype=torch.uint8).copy_(plain)
        return {
            "file": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
        }

    def _read_tensor(self, tree: Tree, device: torch.device | str) -> Tensor:
        dtype, shape = getattr(torch, tree["dtype"]), tuple(tree["shape"])
        item = torch.empty((), dtype=dtype).element_size()
        size = item * torch.Size(shape).numel()
        path = self._directory / tree["file"]
        if not size:
            return torch.empty_strided(shape, tree["stride"], dtype=dtype, device=device)
        plain = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        path.unlink()
        # A copy in memory of its own: of the right device, stride and alignment, and writable.
        return _with_layout(plain.view(dtype).view(shape), tree["stride"], tree["offset"], device)


def _reserve(path: Path, size: int) -> None:
    """Make the file and its room on disk: writing into a mapped file on a full disk would end the process."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)


def _with_layout(values: Tensor, stride: list[int], offset: int, device: torch.device | str) -> Tensor:
    """A copy of `values` with that stride, at that offset into its storage; contiguous where elements would overlap."""
    if 0 in stride:
        return values.to(device, copy=True).contiguous()
    reach = sum((length - 1) * step for length, step in zip(values.shape, stride, strict=True)) + 1
    storage = torch.empty(offset + reach, dtype=values.dtype, device=device)
    return storage.as_strided(values.shape, stride, offset).copy_(values)


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree of containers with the path to it: ``[0]``, ``['name']``."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}[{index}]")
