"""What `tconv tune` measured, on disk: one small JSON file for each GPU, in the directory of the cache.

Its header says where and with what that was measured. A file of another GPU, driver, PyTorch or tconv, or of other
kernels, is no file, and neither is one that is damaged: a line of the log says so, and tiles are predicted as before.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from tconv.errors import MissingToolchain, Trouble
from tconv.jit.toolchain import driver_version
from tconv.kernels.source import header_digest
from tconv.planner import Gpu
from tconv.planner.tuned import Answers, Question, Tuned, from_dict, to_dict
from tconv.settings import settings
from tconv.version import __version__

_log = logging.getLogger("tconv")
_REMEDY = "run tconv tune again"


@cache
def answers(gpu_name: str) -> Answers:
    """What was measured on GPUs of that name; empty where nothing that counts here was. Read once in a process."""
    path = path_of(gpu_name)
    if path is None:
        return MappingProxyType({})
    try:
        return MappingProxyType(_read(path, gpu_name))
    except FileNotFoundError:
        return MappingProxyType({})
    except (OSError, ValueError) as error:
        _log.warning("the tiles tuned in %s are not used: %s; %s", path, error, _REMEDY)
        return MappingProxyType({})


def path_of(gpu_name: str) -> Path | None:
    """Where the measurements of a GPU are kept; None where nothing can be kept on disk."""
    directory = settings().cache_directory
    slug = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
    return None if directory is None else directory / "tuned" / f"{slug}.json"


def store(gpu: Gpu, found: dict[Question, Tuned]) -> Path:
    """Adds measurements to those on disk that still count; returns the file. It is replaced as a whole.

    Raises:
        Trouble: it cannot be written.
    """
    with _writing(gpu) as (path, directory):
        try:
            kept = _read(path, gpu.name)
        except (OSError, ValueError):
            kept = {}
        entries = [to_dict(*entry) for entry in {**kept, **found}.items()]
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        header = json.dumps(_header(gpu.name), indent=1).removesuffix("\n}")
        _replace(path, directory, f'{header},\n "entries": [\n{lines}\n]\n}}\n')
    return path


def check_writable(gpu: Gpu) -> None:
    """Whether measurements can be kept, before they are made.

    Raises:
        Trouble: they cannot.
    """
    with _writing(gpu) as (_, directory), tempfile.TemporaryFile(dir=directory):
        return


@contextmanager
def _writing(gpu: Gpu) -> Iterator[tuple[Path, Path]]:
    """The file and its directory, which is made."""
    path = path_of(gpu.name)
    if path is None:
        raise Trouble("measurements are not kept: there is no home directory; set TCONV_CACHE_DIR to an absolute path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path, path.parent
    except OSError as error:
        raise Trouble(
            f"cannot write {path} ({error.strerror}); set TCONV_CACHE_DIR to a directory that can be written"
        ) from None


def _replace(path: Path, directory: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".json", encoding="utf-8", delete=False) as aside:
        try:
            aside.write(text)
            aside.close()
            os.replace(aside.name, path)
        except BaseException:
            os.unlink(aside.name)
            raise


def _read(path: Path, gpu_name: str) -> dict[Question, Tuned]:
    """The entries of the file.

    Raises:
        FileNotFoundError: there is none.
        OSError, ValueError: it cannot be read or does not count here; the message says why.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        entries = table.pop("entries")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ValueError("the file is damaged") from None
    header = _header(gpu_name)
    differing = [name for name in header if table.get(name) != header[name]]
    if differing:
        name = differing[0]
        raise ValueError(f"they were measured with {name} {str(table.get(name))[:40]}, here is {header[name][:40]}")
    if not isinstance(entries, list):
        raise ValueError("the file is damaged")
    return dict(map(from_dict, entries))


def _header(gpu_name: str) -> dict[str, str]:
    """Where and with what a measurement counts."""
    try:
        driver = driver_version()
    except MissingToolchain:
        driver = None
    return {
        "gpu": gpu_name,
        "driver": "none" if driver is None else f"CUDA {driver[0]}.{driver[1]}",
        "torch": str(torch.__version__),
        "cudnn": _cudnn_version(),
        "tconv": __version__,
        "kernels": header_digest(),
    }


@cache
def _cudnn_version() -> str:
    """Asked once: where cuDNN cannot be loaded, as without a GPU, torch raises at first and then answers."""
    try:
        return str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    except RuntimeError:
        return "none"
