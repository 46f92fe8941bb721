"""The frame of the command line: the commands, and the one place that turns exceptions into exit codes.

A command lives in the module of its name and imports what it needs when it runs, so that `tconv --help` loads
neither torch nor CUDA. It returns its exit code, or None for 0.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tconv.cli import bench, cache, doctor, exit_codes, explain, optimize, tune, verify
from tconv.cli.console import messages
from tconv.errors import Trouble
from tconv.version import __version__

Command = Callable[..., int | None]
#: Variables with settings of torch's allocator, in the words of older and of newer versions.
_ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}


def guarded(command: Command) -> Callable[..., None]:
    """`command` with its outcome, exceptions included, as the exit code that `exit_codes` gives it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(_outcome(functools.partial(command, *args, **kwargs)))

    return run


def _outcome(call: Callable[[], int | None]) -> int:
    try:
        return call() or exit_codes.EQUAL
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Trouble as trouble:
        _complain(str(trouble))
        return exit_codes.TROUBLE
    except KeyboardInterrupt:
        _complain("interrupted")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has left. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.BROKEN_PIPE
    except Exception as bug:
        what = ": ".join([type(bug).__name__, *str(bug).splitlines()[:1]])
        _complain(f"this is a bug in tconv ({what}); please report it with the file {_save_report(bug)}")
        return exit_codes.BUG


def _complain(what: str) -> None:
    from rich.markup import escape

    messages().print(f"[bold red]tconv:[/] {escape(' '.join(what.split()))}", soft_wrap=True)


def _save_report(bug: BaseException) -> str:
    from tconv.cli.doctor import versions

    with tempfile.NamedTemporaryFile("w", prefix="tconv-bug-", suffix=".txt", encoding="utf-8", delete=False) as report:
        report.write(f"command: {sys.argv}\n")
        report.writelines(f"{name}: {version}\n" for name, version in versions().items())
        report.writelines(traceback.format_exception(bug))
    return report.name


app = typer.Typer(
    name="tconv",
    help="Fast transposed convolutions for PyTorch: CUDA kernels made for each layer.",
    epilog="Exit codes: 0 done or equal, 1 not equal, 2 trouble with a file or this machine, 3 a bug, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tconv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _register(group: typer.Typer, *commands: Command) -> None:
    for command in commands:
        group.command()(guarded(command))


def _let_memory_grow() -> None:
    """Has torch's allocator, in this process and in those that it starts, extend what it holds.

    Its blocks of fixed size leave gaps between tensors of gigabytes: judging a file took 1.7 times what its tensors do.
    Whoever has settings for it keeps them.
    """
    if not _ALLOCATOR.intersection(os.environ):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


_register(app, optimize.optimize, verify.verify, bench.bench, explain.explain, tune.tune, doctor.doctor)
_cache_app = typer.Typer(no_args_is_help=True, help="The compiled kernels kept on disk.")
_register(_cache_app, cache.info, cache.clear)
app.add_typer(_cache_app, name="cache")


def main() -> None:
    """Runs the command that `sys.argv` names, and exits with its code."""
    _let_memory_grow()
    try:
        app(prog_name="tconv")
    except SystemExit as ended:
        if "torch" in sys.modules and isinstance(ended.code, int):
            _end(ended.code)
        raise


def _end(code: int) -> None:
    """Ends this process with what is registered for its end, but for torch's own shutdown, which takes a second.

    Where what was written cannot go out, it returns: Python's own end says so.
    """
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)
