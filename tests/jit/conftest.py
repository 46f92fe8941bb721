"""A cache directory of one test's own, a kernel that needs nothing of ours, and a small one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tconv.jit.cache import default_cache
from tconv.planner import DIRECT, Gpu, Kernel
from tconv.problem import Layer, Problem
from tconv.settings import settings


@pytest.fixture
def scale_source() -> str:
    return 'extern "C" __global__ void scale(float* y, const float* x) { y[threadIdx.x] = 3.0f * x[threadIdx.x]; }\n'


@pytest.fixture
def kernel() -> Kernel:
    return DIRECT.plan(Problem(Layer(1, 2, 2, kernel=(1, 1, 3)), 1, (1, 1, 9)), Gpu.h200()).kernel


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What TCONV_CACHE_DIR names during the test; not created yet."""
    directory = tmp_path / "kernels of a test"
    monkeypatch.setenv("TCONV_CACHE_DIR", str(directory))
    settings.cache_clear()
    default_cache.cache_clear()
    yield directory
    settings.cache_clear()
    default_cache.cache_clear()
