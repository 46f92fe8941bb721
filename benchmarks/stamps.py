"""Where the time of a kernel goes: stamps of a block's clock, written by a build of the kernel with stamps in its text.

    PYTHONPATH=src python3 benchmarks/stamps.py [--only TEXT] [--kind col2im-resident]

For small layers of benchmarks/kinds.py or, with --only, any of it and of cases.json. Prints the nanoseconds from stamp
to stamp of one warp a block: the median over blocks, and that of the slowest block. The GPU's L2 cache is cold before
each launch, as it is where layers are timed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from kinds import kinds
from layers import problem_of
from results import cases

from tconv.evaluation.draws import draw
from tconv.jit.compile import compile_source
from tconv.jit.launch import Function
from tconv.jit.loader import Launcher, gpu_of, load_all
from tconv.jit.toolchain import driver
from tconv.kernels.source import header_files, unit
from tconv.planner import FAMILIES
from tconv.planner.choice import replan
from tconv.planner.plan import tile_fields
from tconv.precision import allows_tf32, question_of

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
#: A stamp: its name, the text that is looked for, whether the stamp stands behind that, and when it is taken.
Stamp = tuple[str, str, bool, str]
_FIRST_TILE = "if (number == static_cast<int>(blockIdx.x) / Shape::weight_sets) "
_ONCE = "if (!stamped) "
#: The end of the first tile: later ones take no stamps.
_END = "  stamped = true;\n"
#: Of `col2im_wgmma`, from the first k-tile on.
_OF_K_TILES: tuple[Stamp, ...] = (
    ("first k-tile there", "    copies.begin(ahead < Shape::set_k_tiles,", False, "if (k_tile == 0) "),
    ("last product", "  __syncthreads();  // nobody reads a stage any more\n", False, ""),
    ("sums met", "  const Epilogue<Layer, Program> epilogue{", False, ""),
    ("last store", "}\n\n// Prepares the inputs of `col2im_wgmma`", False, ""),
)
#: Of `col2im_rows`: where a row is stored, and the two rows behind the first that is.
_STORE = "      if (k_tile == 0 && row > Shape::rows_before) store(row - 1);\n"
_NEXT_ROW = "if (row == Shape::rows_before + 1 && k_tile == 0) "
_ROW_AFTER = "if (row == Shape::rows_before + 2 && k_tile == 0) "
#: Of a kind of kernel: its family, its file and its stamps in the order of the text.
STAMPED: dict[str, tuple[str, str, tuple[Stamp, ...]]] = {
    "col2im": (
        "col2im",
        "col2im/col2im.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            ("places known", "  unsigned char* const resident = ", False, ""),
            ("all asked for", "      if (k_tile >= 0) {\n", True, "if (k_tile == 0) "),
            ("first k-tile there", "      copies.begin(ahead < Shape::set_k_tiles,", False, "if (k_tile == 0) "),
            ("last product", "    __syncthreads();  // nobody reads a stage any more\n", False, ""),
            ("sums met", "    col2im_store_outputs<Layer, Tile, Shape, Program>(", False, ""),
            ("last store", "    return;\n  }\n\n  // Resident weights", False, ""),
        ),
    ),
    "col2im-resident": (
        "col2im",
        "col2im/col2im.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            ("weights asked for", "  copies.begin_resident(resident);\n", True, ""),
            (
                "inputs asked for",
                "    col2im_clear<Layer, Tile>(accumulators);\n#pragma unroll 1\n    for (int k_tile",
                False,
                _FIRST_TILE,
            ),
            (
                "first k-tile there",
                "      ask();\n      multiply_k_tile(resident",
                False,
                f"if (k_tile == 0) {_FIRST_TILE}",
            ),
            (
                "last product of the first tile",
                "    // Nobody reads the sums of the block tile before",
                False,
                _FIRST_TILE,
            ),
            ("its sums met", "    col2im_store_positions<Layer, Tile, Shape, Program>(", False, _FIRST_TILE),
            ("it is stored", "  }\n}\n\n}  // namespace tconv\n", False, _FIRST_TILE),
            ("last store", "  }\n}\n\n}  // namespace tconv\n", False, ""),
        ),
    ),
    "col2im_wgmma": (
        "col2im_wgmma",
        "col2im_wgmma/col2im_wgmma.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            ("all asked for", "    if (k_tile >= 0) {\n", True, "if (k_tile == 0) "),
            *_OF_K_TILES,
        ),
    ),
    "col2im_wgmma-prepared": (
        "col2im_wgmma",
        "col2im_wgmma/col2im_wgmma.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            ("first weights asked for", "    wait_for_kernel_before();\n", False, ""),
            ("inputs are prepared", "    wait_for_kernel_before();\n", True, ""),
            *_OF_K_TILES,
        ),
    ),
    "col2im_rows": (
        "col2im_rows",
        "col2im_rows/col2im_rows.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            ("inputs asked for", "  const Epilogue<Layer, Program> epilogue{bias", False, ""),
            ("weights put", "  show_to_products();\n  __syncthreads();\n", True, ""),
            ("first products asked for", "      products.end_group();\n", True, "if (row == 0 && k_tile == 0) "),
            ("first fragments there", "      inputs.take(fragments);\n", True, "if (row == 0 && k_tile == 0) "),
            ("next row's products asked for", "      products.end_group();\n", True, _NEXT_ROW),
            ("first row's sums begin", _STORE, False, _NEXT_ROW),
            ("first row is stored", _STORE, True, _NEXT_ROW),
            ("next row's products done", "      products.template wait<0>();\n", True, _NEXT_ROW),
            ("next row's results put", "    accumulators.move_on();\n", False, "if (row == Shape::rows_before + 1) "),
            ("fragments of the row after there", "      inputs.take(fragments);\n", True, _ROW_AFTER),
            ("last row's sums begin", "  store(Shape::input_rows - 1);\n", False, ""),
            ("last store", "  store(Shape::input_rows - 1);\n", True, ""),
        ),
    ),
    "wgmma": (
        "wgmma",
        "wgmma/wgmma.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            (
                "weights are prepared",
                "wait_for_kernel_before();  // that kernel may still write where outputs go\n",
                True,
                "",
            ),
            ("", "  bool read = false;", False, "bool stamped = false, weighed = false;\n"),
            ("first inputs there", "      inputs.wait_full();\n", True, f"if (k_tile == 0) {_ONCE}"),
            (
                "first weights there",
                "        if (batch == 0 && !Tile::own_weights) weights.wait_full();\n",
                True,
                "if (batch == 0 && !weighed) weighed = true, ",
            ),
            (
                "last product of the first tile",
                "    products.template wait<0>();\n    __syncwarp();\n    give_back(weights.stage());",
                False,
                _ONCE,
            ),
            # Each stands before the one above.
            ("last store", "          .store(has_taps);\n", True, ""),
            ("", "          .store(has_taps);\n", True, "consumer.stamped = true;\n"),
            ("it is stored", "          .store(has_taps);\n", True, "if (!consumer.stamped) "),
        ),
    ),
    "mma": (
        "mma",
        "mma/mma.cuh",
        (
            ("first instruction", "  TCONV_SHARED(shared);\n", True, ""),
            ("inputs asked for", "  ask(0, 1, 0);\n\n", True, ""),
            ("weights are prepared", "  wait_for_kernel_before();  // that kernel prepares the weights\n", True, ""),
            ("", "  do {\n    mma_clear<Layer, Tile>(accumulators);", False, "bool stamped = false;\n"),
            (
                "first weights and inputs there",
                "        __syncthreads();\n        if (Shape::input_parts == 0",
                False,
                f"if (k_tile == 0 && shift_group == 0) {_ONCE}",
            ),
            (
                "last product of the first tile",
                "    if (!Tile::Pipeline::resident)\n      __syncthreads();",
                False,
                _ONCE,
            ),
            ("it is stored", "    number += block_tiles_together;\n", False, _ONCE),
            ("", "    number += block_tiles_together;\n", False, _END),
            ("last store", "    number += block_tiles_together;\n", False, ""),
        ),
    ),
}
#: Of kinds with a kernel before: its file, and behind what that kernel takes its stamp.
_BEGUN = "  let_next_kernel_begin();\n"
_PREPARING = {kind: (f"{kind}/weights.cuh", _BEGUN) for kind in ("mma", "wgmma")}
_OF_INPUTS = "  using Order = ChannelsLast<Layer>;\n"
_PREPARING["col2im_wgmma-prepared"] = ("primitives/channels_last.cuh", _OF_INPUTS)
_OF_PREPARING = _STAMPS - 1


def stamped_headers(kind: str, folder: Path) -> list[str]:
    """Writes the headers with stamps to a folder; the names of the stamps."""
    _, name, stamps = STAMPED[kind]
    preparing, anchor = _PREPARING.get(kind, ("", ""))
    names = [what for what, *_ in stamps if what]
    for header, path in header_files().items():
        text = path.read_text(encoding="utf-8")
        if header == name:
            for what, found, behind, when in stamps:
                text = _inserted(text, found, behind, f"  {when}tconv_stamp({names.index(what)});\n" if what else when)
        if header == preparing:
            text = _inserted(text, anchor, True, f"  tconv_stamp({_OF_PREPARING});\n")
        if header == "primitives/language.cuh":
            text = text.replace("#pragma once\n", _DEVICE.format(blocks=_MOST_BLOCKS, stamps=_STAMPS))
        (folder / header).parent.mkdir(parents=True, exist_ok=True)
        (folder / header).write_text(text, encoding="utf-8")
    return names


def _inserted(text: str, anchor: str, behind: bool, inserted: str) -> str:
    """The text with something before or behind the last place of `anchor`."""
    before, found, after = text.rpartition(anchor)
    if not found:
        raise SystemExit(f"the headers have no {anchor!r} any more")
    return before + (found + inserted if behind else inserted + found) + after


def measure(name: str, case: dict, kind: str, rank: int, tile: list[int] | None) -> None:
    gpu = gpu_of(torch.cuda.current_device())
    family = STAMPED[kind][0]
    problem = question_of(problem_of(case), gpu, allows_tf32()).problem_of(family)
    considered = FAMILIES[family].considered(problem, gpu)
    if considered is None:
        return
    found = (considered[int(place)].kernel for place in considered.order())
    own = (k for k in found if _is_of(k.tile, kind))
    if tile:
        own = (k for k in own if [value for _, value in tile_fields(k.tile)] == tile)
    kernel = next(itertools.islice(own, 0 if tile else rank, None), None)
    plan = kernel and replan(problem, kernel, gpu)
    if plan is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        names = stamped_headers(kind, Path(folder))
        compiled = compile_source(unit(plan.kernel), gpu.arch, name="tconv_kernel", headers=Path(folder))
    operands = draw(problem, torch.device("cuda"), seed=0)
    loaded, preparing, of_inputs = load_all(plan, compiled.cubin, 0)
    before = of_inputs if kind.endswith("prepared") else preparing
    launch = Launcher(loaded, plan, 0, preparing, of_inputs).enqueue
    y = torch.empty(problem.output_shape, dtype=operands.x.dtype, device="cuda")
    bias = 0 if operands.bias is None else operands.bias.data_ptr()
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    blocks = min(plan.grid, _MOST_BLOCKS)
    rows: list[list[float]] = []
    for _ in range(_LAUNCHES):
        flush.zero_()
        launch(stream, operands.x.data_ptr(), operands.weight.data_ptr(), bias, y.data_ptr())
        torch.cuda.synchronize()
        stamps = _stamps_of(loaded)[:blocks]
        begin = stamps[:, 0].min()
        if before is not None:
            begun = _stamps_of(before)[:, _OF_PREPARING]
            begin = begun[begun > 0].min()
        stamps = stamps[:, : len(names)] - begin
        rows.append([float(stamps[:, i].median()) for i in range(len(names))] + [float(stamps.max())])
    medians = [statistics.median(column) for column in zip(*rows[2:], strict=True)]
    tile = " ".join(str(value) for _, value in tile_fields(plan.kernel.tile))
    print(f"{name}: {plan.grid} blocks, tile {tile}, {compiled.registers} registers, {len(compiled.cubin)} bytes")
    of_stamps = sorted(zip(medians, [*names, "last of all blocks"], strict=True), key=lambda pair: pair[0])
    for nanoseconds, what in of_stamps:
        print(f"    {nanoseconds / 1e3:6.2f} us  {what}", flush=True)


def _is_of(tile: Any, kind: str) -> bool:
    """Whether a kernel with that tile takes the stamps of a kind."""
    families = {"col2im": "resident", "col2im_wgmma": "prepared_inputs"}
    flag = families.get(STAMPED[kind][0])
    return flag is None or bool(getattr(tile, flag)) == ("-" in kind)


def _stamps_of(function: Function) -> torch.Tensor:
    """The stamps of a kernel's library, by block."""
    host = torch.empty(_MOST_BLOCKS * _STAMPS, dtype=torch.int64)
    library = driver().cuKernelGetLibrary(function.kernel.handle)[1]
    address = driver().cuLibraryGetGlobal(library, b"tconv_stamps")[1]
    driver().cuMemcpyDtoH(host.data_ptr(), address, host.numel() * 8)
    return host.view(_MOST_BLOCKS, _STAMPS).double()


def main() -> None:
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("--only", action="append", metavar="TEXT", help="only layers whose name contains one of these")
    parsed.add_argument("--kind", default="col2im", choices=list(STAMPED))
    parsed.add_argument("--rank", type=int, default=0, help="of the tile in the model's ranking")
    parsed.add_argument("--tile", metavar="N,N,...", help="the numbers of another of its tiles")
    options = parsed.parse_args()
    tile = [int(number) for number in options.tile.split(",")] if options.tile else None
    named = {f"{kind}: {name}": case for kind, layers in kinds().items() for name, case in layers.items()}
    for name, case in (named | cases()).items():
        if any(text in name for text in options.only or ("small: ",)):
            measure(name, case, options.kind, options.rank, tile)


if __name__ == "__main__":
    main()
