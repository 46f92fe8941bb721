"""The machine code of the wgmma family: its products are those that its tile says, and its weights come in bulk."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib.metadata import files
from pathlib import Path

import pytest
from kernel_runs import INSTANCES

from tconv.jit.loader import compile_kernel
from tconv.planner.wgmma.shape import WgmmaKind, WgmmaShape

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)")


def opcodes(cubin: bytes, folder: Path) -> Counter[str]:
    """How often each stands in the code, without what is behind its first dot."""
    found = (path for path in files("nvidia-cuda-nvdisasm") or () if path.name == "nvdisasm")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([next(found).locate(), "-c", path], capture_output=True, text=True, check=True).stdout
    return Counter(_INSTRUCTION.findall(listing))


@pytest.mark.rotates(48)
@pytest.mark.parametrize("name", [name for name, i in INSTANCES.items() if i.kernel.family == "wgmma"])
def test_opcodes(name: str, tmp_path: Path) -> None:
    kernel = INSTANCES[name].kernel
    shape, tile = WgmmaShape(kernel.layer, kernel.tile), kernel.tile
    code = opcodes(compile_kernel(kernel, "sm_90a", name)[1].cubin, tmp_path)
    # Where phases are known all taps' products stand in the code, of a row's phases those along the width, else those
    # of one visit; of exact ones a batch's.
    of_kind = {WgmmaKind.ALL_PHASES: shape.taps, WgmmaKind.ROW_PHASES: kernel.layer.kernel[2]}
    of_visit = of_kind.get(WgmmaKind(shape.kind), shape.row_visits)
    steps, planes = (shape.batch_steps, 3) if shape.exact else (tile.k_tile_steps, 1)
    of_tile = of_visit * steps * planes
    # Those of tiles that have no position of the block tile may be left out: nothing of them is stored.
    used = tile.position_tiles if tile.stacked else min(tile.position_tiles, -(-shape.block_tile_positions // 128))
    assert code["HGMMA"] in (of_tile * tile.position_tiles, of_tile * used)
    assert code["UBLKCP"] >= 1, "weights come by cp.async.bulk"
    assert code["USETMAXREG"] == 2, "warps take and give registers"
    assert code["HMMA"] == code["STL"] == code["LDL"] == 0
