"""How time grows with batch, size and channels around one layer, on a GPU: judged equal, and timed beside PyTorch.

    PYTHONPATH=src python3 benchmarks/growth.py

Writes benchmarks/results/growth.json after each layer, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import sys
from functools import partial

from layers import floor_ms, measure, problem_of, strided
from results import GROWTH_BASE, Results
from runs import Measure, measure_missing, parser

#: What each quantity is changed to, while the others stay at the base.
SWEEPS = {
    "batch": (1, 2, 4, 8, 16, 32, 64),
    "size": (16, 32, 64, 128, 256),
    "channels": (8, 16, 32, 64, 128, 256, 512),
}


def wanted() -> dict[str, Measure]:
    """What is to be measured, by name; the base, which all sweeps share, is there once."""
    points = [{**GROWTH_BASE, quantity: value} for quantity, values in SWEEPS.items() for value in values]
    return {"batch {batch}, channels {channels}, size {size}".format(**at): partial(measured, at) for at in points}


def measured(at: dict[str, int]) -> Results:
    """The layer at this batch, with so many channels in and out, on squares of this size."""
    case = strided(4, at["batch"], (at["channels"], at["channels"]), at["size"], padding=1)
    return {"at": at, **measure(case | {"floor_ms": floor_ms(problem_of(case))}, quick=True)}


def main() -> int:
    return measure_missing("growth", wanted(), parser(__doc__).parse_args())


if __name__ == "__main__":
    sys.exit(main())
