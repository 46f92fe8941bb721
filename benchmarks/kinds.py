"""Kinds of layer that are slow in PyTorch or were in tconv, some layers of each: judged equal, timed beside PyTorch.

    PYTHONPATH=src python3 benchmarks/kinds.py [--only TEXT] [--quick]

Writes benchmarks/results/kinds.json. A run goes on where an earlier one stopped.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from layers import compile_ahead, layer, measured
from results import Results, cases
from runs import measure_missing, parser


def kinds() -> dict[str, dict[str, Results]]:
    """Layers by kind and name."""
    half = {"dtype": "float16"}
    same = {"padding": 1, "output_padding": 1}
    return {
        "small": {
            "3-D 320→320 k2 2×4³": layer((320, 320), [2, 2, 2], 2, 2, [4, 4, 4], **half),
            "3-D 768→384 k2 2×3³": layer((768, 384), [2, 2, 2], 2, 2, [3, 3, 3], bias=False, **half),
            "3-D 256→128 k2 2×4×8²": layer((256, 128), [2, 2, 2], 2, 2, [4, 8, 8]),
            "1024→512 k4 s2 2²": layer((1024, 512), [4, 4], 2, 1, [2, 2], padding=1, bias=False),
            "1024→512 k4 s2 8²": layer((1024, 512), [4, 4], 2, 1, [8, 8], padding=1, bias=False),
            "512→128 k4 s2 32²": layer((512, 128), [4, 4], 2, 1, [32, 32], padding=1, bias=False),
            "1-D 512→256 k16 s8 16×32": layer((512, 256), [16], 8, 16, [32], padding=4),
            "1-D 256→128 k16 s8 800": layer((256, 128), [16], 8, 1, [800], padding=4, **half),
            "1-D 1024→512 k16 s8 250": layer((1024, 512), [16], 8, 1, [250], dtype="bfloat16"),
            "64→32 k2 s2 128²": layer((64, 32), [2, 2], 2, 1, [128, 128], dtype="bfloat16"),
            "192→192 k2 s2 37²": layer((192, 192), [2, 2], 2, 1, [37, 37], **half),
        },
        "no taps": {
            "3-D 32→64 k3 s2 d2": layer((32, 64), [3, 3, 3], 2, 16, [16, 32, 32], padding=1, dilation=2),
            "1-D 32→64 k3 s2 d2": layer((32, 64), [3], 2, 16, [131072], padding=1, dilation=2),
            "2-D 128→64 k4 s2 d2": layer((128, 64), [4, 4], 2, 8, [64, 64], padding=3, dilation=2, **half),
            "2-D 64→64 k3 s4 d2": layer((64, 64), [3, 3], 4, 8, [64, 64], padding=1, dilation=2),
            "1-D 512→256 k3 s4": layer((512, 256), [3], 4, 4, [545]),
            "2-D 256→128 k2 s3": layer((256, 128), [2, 2], 3, 4, [64, 64]),
        },
        "1×1": {
            "128→256 4×128²": layer((128, 256), [1, 1], 1, 4, [128, 128], **half),
            "64→128 4×248×216": layer((64, 128), [1, 1], 1, 4, [248, 216], **half),
            "256→64 8×57²": layer((256, 64), [1, 1], 1, 8, [57, 57]),
            "3-D 96→96 2×16×32²": layer((96, 96), [1, 1, 1], 1, 2, [16, 32, 32], **half),
        },
        "kernel = m·stride, 1-D": {
            "80→80 k1024 s256": layer((80, 80), [1024], 256, 12, [63], **half),
            "4098→1 k4096 s1024": layer((4098, 1), [4096], 1024, 2, [431]),
            "1026→1 k1024 s256": layer((1026, 1), [1024], 256, 1, [800]),
            "256→2 k512 s128": layer((256, 2), [512], 128, 8, [400]),
            "514→1 k512 s128": layer((514, 1), [512], 128, 4, [501]),
            "128→32 k320 s160": layer((128, 32), [320], 160, 8, [96], **half),
        },
        "few output channels": {
            "32→3 k6 s2 2500×30²": layer((32, 3), [6, 6], 2, 2500, [30, 30]),
            "3-D 64→1 k4 s2": layer((64, 1), [4, 4, 4], 2, 32, [32, 32, 32], padding=1),
            "56→1 k9 s2": layer((56, 1), [9, 9], 2, 1, [270, 480], padding=4, output_padding=1),
            "56→1 k9 s3": layer((56, 1), [9, 9], 3, 1, [270, 480], padding=4),
            "56→1 k9 s4": layer((56, 1), [9, 9], 4, 1, [270, 480], padding=4, output_padding=1),
            "64→3 k4 s2 32×128²": layer((64, 3), [4, 4], 2, 32, [128, 128], padding=1),
            "32→2 k5 s2 16×96²": layer((32, 2), [5, 5], 2, 16, [96, 96], padding=2, output_padding=1, **half),
        },
        "few positions, large batch": {
            "1024→128 k5 s2 2500×1²": layer((1024, 128), [5, 5], 2, 2500, [1, 1]),
            "128→64 k5 s2 2500×5²": layer((128, 64), [5, 5], 2, 2500, [5, 5]),
            "100→512 k4 s1 64×1²": layer((100, 512), [4, 4], 1, 64, [1, 1]),
            "256→128 k3 s2 1000×3²": layer((256, 128), [3, 3], 2, 1000, [3, 3], **same, **half),
        },
        "small maps": {
            "256→256 k4 s2 32×16×12": layer((256, 256), [4, 4], 2, 32, [16, 12], padding=1, **half),
            "2048→256 k4 s2 32×8×6": layer((2048, 256), [4, 4], 2, 32, [8, 6], padding=1, **half),
            "2048→256 k2 s2 1000×7²": layer((2048, 256), [2, 2], 2, 1000, [7, 7], **half),
            "512→256 k3 s2 32×16²": layer((512, 256), [3, 3], 2, 32, [16, 16], **half),
            "1024→512 k4 s2 8×6×8": layer((1024, 512), [4, 4], 2, 8, [6, 8], padding=1),
            "384→192 k2 s2 16×14²": layer((384, 192), [2, 2], 2, 16, [14, 14], **half),
        },
        "groups of many channels": {
            "16 × 512→256 k3 s2 64²": layer((8192, 4096), [3, 3], 2, 1, [64, 64], groups=16, **half),
            "16 × 512→512 k3 s2 4²": layer((8192, 8192), [3, 3], 2, 1, [4, 4], groups=16),
            "16 × 512→512 k3 s2 32²": layer((8192, 8192), [3, 3], 2, 1, [32, 32], groups=16, **half),
            "8 × 128→64 k4 s2 33²": layer((1024, 512), [4, 4], 2, 1, [33, 33], padding=1, groups=8, **half),
        },
        "3-D, narrow channels": {
            "32→16 k(3,5,7)": layer((32, 16), [3, 5, 7], 2, 16, [16, 32, 64], padding=[1, 2, 3], output_padding=1),
            "64→16 k3 s2": layer((64, 16), [3, 3, 3], 2, 2, [32, 64, 64], **same, **half),
            "48→32 k4 s2": layer((48, 32), [4, 4, 4], 2, 1, [12, 20, 46], padding=1, **half),
            "16→16 k5 s1": layer((16, 16), [5, 5, 5], 1, 4, [24, 48, 48], padding=2),
        },
    }


def every_layer() -> dict[str, Results]:
    """The layers of `cases.json` and of all kinds, by name."""
    return cases() | {name: case for of_kind in kinds().values() for name, case in of_kind.items()}


def main() -> int:
    parsed = parser(__doc__)
    parsed.add_argument("--quick", action="store_true", help="one draw, no awkward inputs, PyTorch's default alone")
    options = parsed.parse_args()
    listed = {f"{kind}: {name}": each for kind, layers in kinds().items() for name, each in layers.items()}
    if torch.cuda.is_available():
        compile_ahead((each for name, each in listed.items() if options.only in name), None)
    wanted = {name: partial(measured, each, options.quick, None) for name, each in listed.items()}
    return measure_missing("kinds", wanted, options)


if __name__ == "__main__":
    sys.exit(main())
