"""The machine code of families by wgmma: its products are those that its tile says, and nothing gets in their way."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
from kernel_runs import INSTANCES

from tconv.jit.loader import compile_kernel
from tconv.planner import Kernel
from tconv.planner.col2im_wgmma.shape import Col2imWgmmaShape
from tconv.planner.wgmma.shape import WgmmaKind, WgmmaShape

#: An instruction whose first operand is a register that it writes: its opcode and the register.
_WRITES = re.compile(r"(?:@!?U?P\w+\s+)?((?!ST|RED|ATOM|BAR|LDGSTS)\S+) R(\d+)\b")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)")
#: By family, what says how many products of a step a warpgroup makes.
ROW_TILES: dict[str, Callable[[Kernel[Any]], int]] = {
    "col2im_wgmma": lambda kernel: Col2imWgmmaShape(kernel.layer, kernel.tile).row_tiles,
    "col2im_rows": lambda kernel: 1,
}


def listing(cubin: bytes, folder: Path) -> str:
    """The code as nvdisasm writes it."""
    found = (path for path in files("nvidia-cuda-nvdisasm") or () if path.name == "nvdisasm")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    return subprocess.run([next(found).locate(), "-c", path], capture_output=True, text=True, check=True).stdout


def opcodes(cubin: bytes, folder: Path) -> Counter[str]:
    """How often each stands in the code, without what is behind its first dot."""
    return Counter(_INSTRUCTION.findall(listing(cubin, folder)))


def written_too_early(code: str) -> list[str]:
    """Instructions that write a register of a product's first factor while the product may be on its way.

    Those on all ways from the last product to where products are waited for, or begin.
    """
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in code.splitlines()]
    products = [number for number, line in enumerate(lines) if "HGMMA" in line]
    read = {
        int(first) + i
        for line in lines
        for first in re.findall(r"HGMMA\S* R\d+, R(\d+), gdesc", line)
        for i in range(4)
    }
    labels = {line[:-1]: number for number, line in enumerate(lines) if re.fullmatch(r"\.L_x_\d+:", line)}
    found, seen, ways = [], set(), [products[-1] + 1]
    while ways:
        number = ways.pop()
        while number not in seen and not re.search(r"WARPGROUP\.DEPBAR|HGMMA|^EXIT", lines[number]):
            seen.add(number)
            line = lines[number]
            if of := _WRITES.match(line):
                wide = 4 if ".128" in of[1] else 2 if re.search(r"\.64|WIDE|CS2R", of[1]) else 1
                found += [line] * bool(read & set(range(int(of[2]), int(of[2]) + wide)))
            if to := re.search(r"BRA.*`\((\.L_x_\d+)\)", line):
                ways.append(labels[to[1]])
                if not line.startswith("@"):
                    break
            number += 1
    return found


@pytest.mark.rotates(144)
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
    assert (code["UBLKCP"] >= 1) != tile.own_weights, "prepared weights come by cp.async.bulk"
    assert code["USETMAXREG"] == 2, "warps take and give registers"
    assert code["HMMA"] == code["STL"] == code["LDL"] == 0


@pytest.mark.rotates(72)
@pytest.mark.parametrize("name", [name for name, i in INSTANCES.items() if i.kernel.family in ROW_TILES])
def test_products_keep_the_registers_that_they_read(name: str, tmp_path: Path) -> None:
    """Compilers do not keep them where products are on their way from one turn of a loop to the next."""
    kernel = INSTANCES[name].kernel
    code = listing(compile_kernel(kernel, "sm_90a", name)[1].cubin, tmp_path)
    assert written_too_early(code) == []
    counts = Counter(_INSTRUCTION.findall(code))
    assert counts["HGMMA"] == ROW_TILES[kernel.family](kernel) * kernel.tile.k_tile_steps
    assert counts["HMMA"] == counts["STL"] == counts["LDL"] == 0


def test_a_register_that_is_written_too_early_is_found() -> None:
    loop = """
.L_x_1:
LDS R88, [R1] ;
{}WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
LDS R89, [R1] ;
HGMMA.64x16x8.F32.TF32 R24, R88, gdesc[UR4], R24, gsb0 ;
@P0 BRA `(.L_x_1) ;
EXIT ;
"""
    assert written_too_early(loop.format("")) == ["LDS R88, [R1] ;"]
    assert written_too_early(loop.replace("R88, [R1]", "R92, [R1]").format("")) == []
    assert written_too_early(loop.replace("R88, [R1]", "R80, [R1]").format("@P1 IMAD.WIDE R86, R1, R2, R4 ;\n")) == []
    assert written_too_early(loop.replace("LDS R88", "LDS.128 R86").format("")) == ["LDS.128 R86, [R1] ;"]
