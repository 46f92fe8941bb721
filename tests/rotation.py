"""Which tests run this time: all of them, or those that `make test` has time for, others with every change.

Under `--rotate` three kinds are left out, and a list of them closes the run:

- `@pytest.mark.rotates(parts)`: of a test's cases, all but one in `parts`. Which ones run depends on the shard, a
  number taken from the contents of the tree: every change meets other cases, and the same tree the same ones.
- `@pytest.mark.slow` and `@pytest.mark.compat`: whole tests, or cases, that belong to `make test-all`.

The shard is also the seed of the random problems (the fixture `shard`), with `--rotate` or without.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What makes a tree another one. Results of measurements and documents do not.
_CONTENTS = ("src", "tests", "examples", "pyproject.toml", "constraints.txt")
_SHARDS = 10_000
_LEFT_OUT = "left_out"
_lines_key = pytest.StashKey[list[str]]()
#: Marks of what `--rotate` leaves to `make test-all`, and what a closing list calls them.
_WHOLE = {"slow": "slow", "compat": "other compilers"}


def tree_digest(root: Path = ROOT) -> str:
    """A digest of the names and bytes of the source files under `root`, with git or without."""
    digest = hashlib.sha256()
    for path in sorted(file for name in _CONTENTS for file in _files(root / name)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


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
        type=int,
        default=os.environ.get("SHARD") or None,
        help="which cases run under --rotate, and the seed of random ones (default: $SHARD, else from the tree)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.shard is None:  # xdist hands the options on to its workers
        config.option.shard = int(tree_digest()[:16], 16) % _SHARDS


def pytest_report_header(config: pytest.Config) -> str:
    return f"shard: {config.option.shard}"


@pytest.fixture(scope="session")
def shard(request: pytest.FixtureRequest) -> int:
    """The number that changes with the tree; repeated by `SHARD=`."""
    return request.config.option.shard


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.rotate:
        return
    all_of = Counter(item.nodeid.partition("::")[0] for item in items)
    reasons = [(item, _why_left_out(item, config.option.shard)) for item in items]
    left_out = [item for item, reason in reasons if reason]
    items[:] = [item for item, reason in reasons if not reason]
    counts = Counter((item.nodeid.partition("::")[0], reason) for item, reason in reasons if reason)
    lines = [f"{count:6} of {all_of[file]:5}  {file}: {reason}" for (file, reason), count in sorted(counts.items())]
    if hasattr(config, "workeroutput"):
        config.workeroutput[_LEFT_OUT] = {"ids": [item.nodeid for item in left_out], "lines": lines}
    else:
        _keep(config, left_out, lines)


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
    shard = config.option.shard
    terminalreporter.line(f"`make test SHARD={shard}` runs the same cases again, another number others;")
    terminalreporter.line("`make test-all` runs all. Without SHARD the number is taken from the tree's contents.")
