"""Dense layers in every type and memory format through the library, on a GPU: judged equal, and timed beside PyTorch.

    PYTHONPATH=src python3 benchmarks/dense.py

Writes benchmarks/results/dense.json after each layer, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import sys
from functools import partial

from layers import floor_ms, measure, problem_of, strided
from results import FORMATS, Results, cases
from runs import Measure, measure_missing, parser

from tconv.evaluation.precision import arithmetic

TYPES = ("float32", "float16", "bfloat16")
#: A float32 layer with TF32 not allowed on either side, and the one that is measured so.
STRICT = "float32, no TF32"
_STRICT_ROW = "kernelbench-L1-65"
#: The type that is measured with the first layers alone.
DOUBLE = "float64"
_ROWS_OF_DOUBLES = 3
_KERNELBENCH = ("kernelbench-L1-71", "kernelbench-L1-57", _STRICT_ROW, "kernelbench-L1-69")


def rows() -> list[Results]:
    """The layers, as lines of cases.json would have them."""
    known = cases()
    return [
        strided(2, 8, (128, 64), 256),
        strided(4, 16, (256, 64), 64, padding=1),
        strided(3, 8, (128, 64), 128, padding=1, output_padding=1),
        *(known[name] for name in _KERNELBENCH),
    ]


def wanted() -> dict[str, Measure]:
    """What is to be measured, by name."""
    chosen = [(row, dtype, layout) for row in rows() for dtype in TYPES for layout in FORMATS]
    chosen.append((cases()[_STRICT_ROW], STRICT, "contiguous"))
    chosen += [(row, DOUBLE, "contiguous") for row in rows()[:_ROWS_OF_DOUBLES]]
    return {f"{described(each[0])}, {each[1]}, {each[2]}": partial(measured, *each) for each in chosen}


def measured(row: Results, dtype: str, layout: str) -> Results:
    """The layer of that row in this type and memory format."""
    strict = dtype == STRICT
    case = row | {"dtype": "float32" if strict else dtype}
    with arithmetic("fp32" if strict else "tf32"):
        found = measure(case | {"floor_ms": floor_ms(problem_of(case))}, quick=True, variant=layout)
    return {"layer": described(row), "type": dtype, "format": layout, **found}


def described(case: Results) -> str:
    """A 2-D layer and its sizes in a few words: ``k3 s2 p1 op1, 8×128→64, 128×128``."""
    words = [f"k{_short(case['kernel'])}"]
    words += [f"s{_short(case['stride'])}"] if case["stride"] != [1, 1] else []
    words += [f"p{_short(case['padding'])}"] if any(case["padding"]) else []
    words += [f"op{_short(case['output_padding'])}"] if any(case["output_padding"]) else []
    channels = f"{case['in_channels']}→{case['out_channels']}"
    return f"{' '.join(words)}, {case['batch']}×{channels}, {'×'.join(map(str, case['input_size']))}"


def _short(values: list[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"({','.join(map(str, values))})"


def main() -> int:
    return measure_missing("dense", wanted(), parser(__doc__).parse_args())


if __name__ == "__main__":
    sys.exit(main())
