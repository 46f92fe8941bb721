"""Importing tconv does nothing but import: no driver, no context, no directory, no cuda.core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_WATCH = """
import json, logging, sys
import torch
before = set(sys.modules)  # newer torch imports cuda.bindings itself
handlers = len(logging.getLogger().handlers)
import tconv
layer = tconv.ConvTranspose2d(4, 6, 3, stride=2)
x = torch.randn(1, 4, 5, 5)
same = torch.equal(layer(x), torch.nn.ConvTranspose2d.forward(layer, x))
print(json.dumps({
    "cuda modules": [name for name in sys.modules.keys() - before if name.split(".")[0] == "cuda"],
    "context": torch.cuda.is_initialized(),
    "handlers": [len(logging.getLogger().handlers) - handlers, len(logging.getLogger("tconv").handlers)],
    "heavy": [name for name in ("typer", "rich", "tconv.jit.loader") if name in sys.modules],
    "same": same,
    "version": tconv.__version__,
}))
"""


def _run(tmp_path: Path, script: str) -> dict[str, object]:
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("TCONV_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_and_cpu_calls_leave_nothing_behind(tmp_path: Path) -> None:
    assert _run(tmp_path, _WATCH) == {
        "cuda modules": [],
        "context": False,
        "handlers": [0, 0],
        "heavy": [],
        "same": True,
        "version": "0.1.0",
    }
    assert list(tmp_path.iterdir()) == []


def test_cpu_tensors_need_no_cuda_core(tmp_path: Path) -> None:
    absent = "import sys\nfor name in ('cuda', 'cuda.core', 'cuda.bindings'):\n    sys.modules[name] = None\n"
    assert _run(tmp_path, absent + _WATCH)["same"] is True
    assert list(tmp_path.iterdir()) == []
