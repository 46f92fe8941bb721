"""Public names of version 0.1.0 that have changed still work, and say so."""

from __future__ import annotations

import pytest
import torch

import tconv

ARGUMENTS = torch.randn(2, 3, 5, 5), torch.randn(3, 4, 3, 3)
SKIP = torch.randn(2, 4, 7, 7)


def function(y: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    return torch.relu(y) + skip


def test_the_class() -> None:
    with pytest.warns(DeprecationWarning, match=r"tconv\.Tail is now tconv\.Epilogue"):
        assert tconv.Tail is tconv.Epilogue


def test_the_arguments() -> None:
    epilogue = tconv.Epilogue(function)
    expected = tconv.conv_transpose2d(*ARGUMENTS, epilogue=epilogue, epilogue_inputs=(SKIP,))
    with pytest.warns(DeprecationWarning, match="'tail' is now 'epilogue'"):
        found = tconv.conv_transpose2d(*ARGUMENTS, tail=epilogue, tail_inputs=(SKIP,))  # type: ignore[call-arg]
    assert torch.equal(found, expected)
    with pytest.warns(DeprecationWarning, match="'tail_inputs' is now 'epilogue_inputs'"):
        tconv.explain(*ARGUMENTS, tail=epilogue, tail_inputs=(SKIP,), gpu=tconv.Gpu.h200())


def test_both_names_at_once() -> None:
    epilogue = tconv.Epilogue(function)
    with pytest.raises(TypeError, match="give 'epilogue'"):
        tconv.conv_transpose2d(*ARGUMENTS, epilogue=epilogue, tail=epilogue)  # type: ignore[call-arg]


def test_the_names_of_today_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    tconv.conv_transpose2d(*ARGUMENTS, epilogue=tconv.Epilogue(function), epilogue_inputs=(SKIP,))
    assert not [each for each in recwarn if issubclass(each.category, DeprecationWarning)]
