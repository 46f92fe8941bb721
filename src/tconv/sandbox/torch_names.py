"""Classes of `torch.nn` and functions of `torch.nn.functional` by name, since models take them as arguments.

A name is looked up in a table of these and nowhere else.
"""

from __future__ import annotations

from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn


@cache
def torch_values() -> dict[str, Any]:
    """By names as ``nn.BatchNorm2d`` and ``nn.functional.relu``."""
    classes = {
        f"nn.{name}": value
        for name, value in vars(nn).items()
        if isinstance(value, type) and issubclass(value, nn.Module)
    }
    functions = {
        f"nn.functional.{name}": value
        for name, value in vars(nn.functional).items()
        if not name.startswith("_") and isinstance(value, (FunctionType, BuiltinFunctionType))
    }
    return {**classes, **functions}


def torch_name(value: Any) -> str | None:
    """The name of such a class or function; None for any other value."""
    return _names().get(id(value))


@cache
def _names() -> dict[int, str]:
    # By identity: they live as long as torch, and a value that is looked up need not be hashable.
    return {id(value): name for name, value in torch_values().items()}
