"""Where the time of a kernel goes: stamps of a block's clock, written by a build of the kernel with stamps in its text.

    PYTHONPATH=src python3 benchmarks/stamps.py [--only TEXT] [--family col2im]

For small layers of benchmarks/kinds.py. Prints the nanoseconds from stamp to stamp of one warp a block: the median over
blocks, and that of the slowest block. The GPU's L2 cache is cold before each launch, as it is where layers are timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from kinds import kinds
from layers import as_pytorch_rounds, problem_of

from tconv.evaluation.draws import draw
from tconv.jit.compile import compile_source
from tconv.jit.loader import Launcher, gpu_of, load
from tconv.jit.toolchain import driver
from tconv.kernels.source import header_files, unit
from tconv.planner import FAMILIES
from tconv.planner.choice import replan
from tconv.planner.plan import tile_fields

_MOST_BLOCKS, _STAMPS, _LAUNCHES = 16384, 16, 7
_DEVICE = """#pragma once
extern "C" {{ __device__ unsigned long long tconv_stamps[{blocks}][{stamps}]; }}
__device__ __forceinline__ void tconv_stamp(int number) {{
  if (threadIdx.x != 0 || blockIdx.x >= {blocks}) return;
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
  tconv_stamps[blockIdx.x][number] = now;
}}
"""
#: Of a family: its file, and its stamps: a name, the text that is looked for, and whether the stamp stands behind that.
STAMPED = {
    "col2im": (
        "col2im/col2im.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True),
            ("places known", "  unsigned char* const stages = ", False),
            ("all asked for", "    if (step >= 0) {\n", True),
            ("first step there", "none reads the one before any more\n", True),
            ("last product", "  float* const sums = reinterpret_cast", False),
            ("sums met", "  const Epilogue<Layer, Program> epilogue{", False),
            ("last store", "  outputs.store();\n", True),
        ),
    ),
}


def stamped_headers(family: str, folder: Path) -> list[str]:
    """Writes the headers with stamps to a folder; the names of the stamps."""
    name, places = STAMPED[family]
    for header, path in header_files().items():
        text = path.read_text(encoding="utf-8")
        if header == name:
            for number, (what, anchor, behind) in enumerate(places):
                before, found, after = text.rpartition(anchor)
                if not found:
                    raise SystemExit(f"{name} has no {anchor!r} for the stamp {what!r}")
                once = "if (step == 0) " if anchor.startswith(("    if (step", "none reads")) else ""
                call = f"  {once}tconv_stamp({number});\n"
                text = before + (found + call if behind else call + found) + after
            text = text.replace("#pragma once\n", _DEVICE.format(blocks=_MOST_BLOCKS, stamps=_STAMPS))
        (folder / header).parent.mkdir(parents=True, exist_ok=True)
        (folder / header).write_text(text, encoding="utf-8")
    return [what for what, _, _ in places]


def measure(name: str, case: dict, family: str, rank: int) -> None:
    gpu = gpu_of(torch.cuda.current_device())
    problem = as_pytorch_rounds(problem_of(case))
    considered = FAMILIES[family].considered(problem, gpu)
    if considered is None:
        return
    kernel = considered.first(rank + 1)[rank].kernel
    plan = replan(problem, kernel, gpu)
    if plan is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        names = stamped_headers(family, Path(folder))
        compiled = compile_source(unit(plan.kernel), gpu.arch, name="tconv_kernel", headers=Path(folder))
    operands = draw(problem, torch.device("cuda"), seed=0)
    loaded = load(compiled.cubin, "tconv_kernel", plan.shared_bytes, 0)
    library = driver().cuKernelGetLibrary(loaded.handle)[1]
    address = driver().cuLibraryGetGlobal(library, b"tconv_stamps")[1]
    launch = Launcher(loaded, plan, 0)
    y = torch.empty(problem.output_shape, dtype=operands.x.dtype, device="cuda")
    bias = 0 if operands.bias is None else operands.bias.data_ptr()
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    host = torch.empty(_MOST_BLOCKS * _STAMPS, dtype=torch.int64)
    blocks = min(plan.grid, _MOST_BLOCKS)
    rows: list[list[float]] = []
    for _ in range(_LAUNCHES):
        flush.zero_()
        launch(operands.x.data_ptr(), operands.weight.data_ptr(), bias, y.data_ptr())
        torch.cuda.synchronize()
        driver().cuMemcpyDtoH(host.data_ptr(), address, host.numel() * 8)
        stamps = host.view(_MOST_BLOCKS, _STAMPS)[:blocks, : len(names)].double()
        begin = stamps[:, 0].min()
        rows.append(
            [float((stamps[:, i] - begin).median()) for i in range(len(names))] + [float((stamps - begin).max())]
        )
    medians = [statistics.median(column) for column in zip(*rows[2:], strict=True)]
    tile = " ".join(str(value) for _, value in tile_fields(plan.kernel.tile))
    print(f"{name}: {plan.grid} blocks, tile {tile}, {compiled.registers} registers, {len(compiled.cubin)} bytes")
    for what, nanoseconds in zip([*names, "last of all blocks"], medians, strict=True):
        print(f"    {nanoseconds / 1e3:6.2f} us  {what}", flush=True)


def main() -> None:
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("--only", default="", metavar="TEXT", help="only layers whose name contains this")
    parsed.add_argument("--family", default="col2im", choices=list(STAMPED))
    parsed.add_argument("--rank", type=int, default=0, help="of the tile in the model's ranking")
    options = parsed.parse_args()
    for name, case in kinds()["small"].items():
        if options.only in name:
            measure(name, case, options.family, options.rank)


if __name__ == "__main__":
    main()
