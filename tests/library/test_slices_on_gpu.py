"""Results that kernels write into some channels of a larger tensor, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import tconv
from tconv import routes

pytestmark = pytest.mark.gpu

#: Input, weight and stride; one layer for each family that has its own stores.
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "direct": ((3, 3, 17, 19), (3, 5, 3, 3), 2),
    "tensor cores": ((4, 64, 33, 31), (64, 48, 3, 3), 2),
    "aligned": ((8, 64, 32, 32), (64, 64, 4, 4), 2),
    "1-D": ((3, 64, 301), (64, 32, 8), 4),
    "3-D": ((2, 32, 5, 9, 11), (32, 40, 3, 3, 3), 2),
}


@pytest.fixture(autouse=True)
def insists(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from tconv.settings import settings

    monkeypatch.setenv("TCONV_INSIST", "1")
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize("epilogue", [None, tconv.Epilogue(torch.relu)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_they_are_the_results(
    name: str, dtype: torch.dtype, last: bool, epilogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, weight_shape, stride = LAYERS[name]
    dims = len(shape) - 2
    if last and dims == 1:
        pytest.skip("1-D tensors have no channels_last format")
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    weight = torch.randn(weight_shape, device="cuda", dtype=dtype) / (shape[1] * 4) ** 0.5
    format: Any = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}[dims]
    x = x.to(memory_format=format) if last else x
    call = getattr(tconv, f"conv_transpose{dims}d")
    expected = call(x, weight, None, stride, epilogue=epilogue) if epilogue else call(x, weight, None, stride)
    channels = expected.shape[1]
    larger = torch.full((len(x), channels + 24, *expected.shape[2:]), float("nan"), device="cuda", dtype=dtype)
    larger = larger.to(memory_format=format) if last else larger
    written: list[bool] = []
    write = routes.write

    def noted(*arguments: Any) -> bool:
        written.append(write(*arguments))
        return written[-1]

    monkeypatch.setattr(routes, "write", noted)
    call(x, weight, None, stride, epilogue=epilogue, out=larger[:, 8 : 8 + channels])
    assert torch.equal(larger[:, 8 : 8 + channels], expected)
    assert larger[:, :8].isnan().all() and larger[:, 8 + channels :].isnan().all()
    theirs = getattr(functional, f"conv_transpose{dims}d")(x, weight, None, stride)
    torch.testing.assert_close(expected, epilogue(theirs) if epilogue else theirs, rtol=1e-2, atol=1e-2)
    assert written == [True] or last, "contiguous tensors are written by every family"
