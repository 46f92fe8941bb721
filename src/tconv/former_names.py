"""Names of arguments that were others in version 0.1.0. The former ones work for one version more, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: By the former name.
_ARGUMENTS = {"tail": "epilogue", "tail_inputs": "epilogue_inputs"}


def takes_former_names(function: Callable[P, R]) -> Callable[P, R]:
    """A function with the arguments ``epilogue`` and ``epilogue_inputs`` takes ``tail`` and ``tail_inputs`` as well.

    Raises:
        TypeError: an argument is given by both names.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if "tail" not in kwargs and "tail_inputs" not in kwargs:  # every warm call comes here
            return function(*args, **kwargs)
        for former in _ARGUMENTS.keys() & kwargs.keys():
            name = _ARGUMENTS[former]
            if name in kwargs:
                raise TypeError(
                    f"{function.__name__}() got both {name!r} and its former name {former!r}: give {name!r}"
                )
            warn(f"the argument {former!r}", f"{name!r}")
            kwargs[name] = kwargs.pop(former)
        return function(*args, **kwargs)

    return called


def warn(former: str, now: str) -> None:
    """Says to the caller's caller that a name has changed."""
    warnings.warn(
        f"{former} is now {now}; the former name goes with the next version", DeprecationWarning, stacklevel=3
    )
