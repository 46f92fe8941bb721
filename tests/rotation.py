"""Which tests run this time: all of them, or those that `make test` has time for, others with every change.

Under `--rotate` three kinds are left out, and a list of them closes the run:

- `@pytest.mark.rotates(parts)`: of a test's cases, all but one in `parts`. Which ones run depends on the shard, a
  number taken from the code of the test's area: every change meets other cases, and the same code the same ones.
- `@pytest.mark.slow` and `@pytest.mark.compat`: whole tests, or cases, that belong to `make test-all`.

Nothing is left out because its code is as it was: a checkout of one commit has no earlier one to compare with, and what
another run found is no proof for this one. So of the judge's strict level, too, a part runs each time, another one with
every change of the judge or the sandbox; nothing of it runs what codegen or the rewriter wrote.

Tests marked `gpu` are left out of every run where there is no CUDA device, and counted in one line.

The shard is also the seed of the random problems (the fixture `shard`), with `--rotate` or without.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: The folders and files of each area, under `src/tconv` and under `tests`. A change of one draws no cases of another.
_AREAS = {
    "kernels": (
        ("kernels", "planner", "emulator", "jit", "pointwise", "problem.py"),
        ("kernels", "emulator", "jit", "pointwise", "fuzz", "test_choices.py", "test_problem.py", "test_planner*.py"),
    ),
    "codegen": (("codegen", "rewriter"), ("codegen", "rewriter")),
    "judge": (("evaluation", "sandbox"), ("evaluation", "sandbox", "corpus", "cli")),
}
#: All else.
_LIBRARY = "library"
AREAS = (*_AREAS, _LIBRARY)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMMENT = re.compile(r"//[^\n]*|[ \t]+$", re.MULTILINE)
_SHARDS = 10_000
_LEFT_OUT = "left_out"
_lines_key = pytest.StashKey[list[str]]()
#: Marks of what `--rotate` leaves to `make test-all`, and what a closing list calls them.
_WHOLE = {"slow": "slow", "compat": "other compilers"}


@cache
def area_of(path: str) -> str:
    """The area of a test's file or of a source, by its path in the repository."""
    for area, (sources, tests) in _AREAS.items():
        of_area = [*(f"src/tconv/{each}" for each in sources), *(f"tests/{each}" for each in tests)]
        if any(PurePath(path).match(each) or path.startswith(f"{each}/") for each in of_area):
            return area
    return _LIBRARY


def area_digests(root: Path = ROOT) -> dict[str, str]:
    """By area, a digest of the names and the code of the files under `root`: without comments and docstrings."""
    digests = {area: hashlib.sha256() for area in AREAS}
    for path in sorted(file for name in ("src", "tests", "examples") for file in _files(root / name)):
        name = path.relative_to(root).as_posix()
        digests[area_of(name)].update(name.encode() + b"\0" + _code(path) + b"\0")
    return {area: digest.hexdigest() for area, digest in digests.items()}


def _code(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix in (".cuh", ".h", ".cpp"):
        return _COMMENT.sub("", content.decode()).encode()
    if path.suffix != ".py":
        return content
    try:
        tree = ast.parse(content)
    except SyntaxError:  # as some model files of tests are meant to be
        return content
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree).encode()


def _files(path: Path) -> Iterator[Path]:
    """The file, or the folder's files, but for what Python and its tools leave beside them."""
    if path.is_file():
        yield path
    elif path.is_dir() and path.name != "__pycache__" and path.suffix != ".egg-info" and path.name[0] != ".":
        for inner in path.iterdir():
            yield from _files(inner)


def runs(case: str, parts: int, shard: int) -> bool:
    """Whether a case is in this shard's part; in each of `parts` consecutive shards another part is.

    A case's part depends on nothing but its name: what else there is or is collected does not matter.
    """
    return int.from_bytes(hashlib.sha256(case.encode()).digest()[:8], "big") % parts == shard % parts


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rotation")
    group.addoption("--rotate", action="store_true", help="leave out slow tests, and most cases of those that rotate")
    group.addoption(
        "--shard",
        default=os.environ.get("SHARD"),
        metavar="NUMBER|AREA=NUMBER,...",
        help="which cases run under --rotate, and the seed of random ones (default: $SHARD, else from the area's code)",
    )


def shards_of(asked: str | None) -> dict[str, int]:
    """By area: what was asked for, one number or some areas' own, and of the others the one of their code.

    Raises:
        pytest.UsageError: it is neither, or there is no such area.
    """
    given = dict.fromkeys(AREAS, asked) if asked and "=" not in asked else {}
    for each in asked.split(",") if asked and not given else ():
        area, _, number = each.partition("=")
        given[area] = number
    if given.keys() - set(AREAS) or not all(number and number.isdigit() for number in given.values()):
        raise pytest.UsageError(f"got SHARD={asked}; allowed are a number, or AREA=NUMBER,... of {', '.join(AREAS)}")
    digests = area_digests() if given.keys() < set(AREAS) else {}
    of_code = {area: int(digest[:16], 16) % _SHARDS for area, digest in digests.items()}
    return of_code | {area: int(number or 0) for area, number in given.items()}


def pytest_configure(config: pytest.Config) -> None:
    # All code is read for it, which takes two seconds: at once for workers of xdist, which get the options; else when
    # something asks.
    if config.option.rotate or getattr(config.option, "numprocesses", None):
        _shards(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    return f"shards: {_written(config)}" if config.option.rotate else None


def _shards(config: pytest.Config) -> dict[str, int]:
    if not isinstance(config.option.shard, dict):
        config.option.shard = shards_of(config.option.shard)
    return config.option.shard


def _written(config: pytest.Config) -> str:
    return ",".join(f"{area}={number}" for area, number in _shards(config).items())


def _shard_of(item: pytest.Item, config: pytest.Config) -> int:
    return _shards(config)[area_of(f"tests/{item.nodeid.partition('::')[0].removeprefix('tests/')}")]


@pytest.fixture(scope="session")
def shard(request: pytest.FixtureRequest) -> int:
    """The number that changes with the code of the kernels; repeated by `SHARD=`."""
    return _shards(request.config)["kernels"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    of_gpus = _without_their_gpu(items)
    items[:] = [item for item in items if item not in of_gpus]
    all_of = Counter(item.nodeid.partition("::")[0] for item in items)
    reasons = [(item, _why_left_out(item, _shard_of(item, config))) for item in items] if config.option.rotate else []
    left_out = [*of_gpus, *(item for item, reason in reasons if reason)]
    if not left_out:
        return
    counts = Counter((item.nodeid.partition("::")[0], reason) for item, reason in reasons if reason)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    lines = [f"{count:6} of {all_of[file]:5}  {file}: {reason}" for (file, reason), count in sorted(counts.items())]
    lines += [f"{len(of_gpus):6} tests need a CUDA device: make test-gpu runs them"] * bool(of_gpus)
    if hasattr(config, "workeroutput"):
        config.workeroutput[_LEFT_OUT] = {"ids": [item.nodeid for item in left_out], "lines": lines}
    else:
        _keep(config, left_out, lines)


def _without_their_gpu(items: Sequence[pytest.Item]) -> dict[pytest.Item, None]:
    """The tests that need a GPU, where there is none."""
    marked = dict.fromkeys(item for item in items if item.get_closest_marker("gpu"))
    if marked:
        import torch

        if torch.cuda.is_available():
            return {}
    return marked


def _why_left_out(item: pytest.Item, shard: int) -> str | None:
    for mark, reason in _WHOLE.items():
        if item.get_closest_marker(mark):
            return reason
    rotates = item.get_closest_marker("rotates")
    if rotates is None:
        return None
    parts = rotates.args[0]
    by, always = rotates.kwargs.get("by"), rotates.kwargs.get("always", ())
    case = item.nodeid if by is None else item.callspec.params[by]  # type: ignore[attr-defined]
    return None if case in always or runs(case, parts, shard) else f"one case in {parts} runs"


def _keep(config: pytest.Config, left_out: Sequence[Any], lines: list[str]) -> None:
    """For the closing list, and for pytest's count of what was deselected."""
    config.stash[_lines_key] = lines
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of xdist has ended. All have collected, and left out, the same."""
    found = getattr(node, "workeroutput", {}).get(_LEFT_OUT)
    if found is not None and _lines_key not in node.config.stash:
        _keep(node.config, [SimpleNamespace(nodeid=nodeid) for nodeid in found["ids"]], found["lines"])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    yield
    lines = config.stash.get(_lines_key, [])
    if not lines:
        return
    terminalreporter.section("left out this time")
    for line in lines:
        terminalreporter.line(line)
    terminalreporter.line(f"`make test SHARD={_written(config)}` runs the same cases again, other numbers others;")
    terminalreporter.line("`make test-all` runs all. Without SHARD the numbers are taken from the code of each area.")
