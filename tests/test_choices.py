"""The planner's choices for every layer of benchmarks/cases.json, by family, on file so that a change of them shows.

After a change that is meant: python tests/test_choices.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from layers import problem_of  # noqa: E402
from results import cases  # noqa: E402

from tconv.planner import FAMILIES, Gpu, Question, Unplannable, choose  # noqa: E402
from tconv.planner.plan import tile_fields  # noqa: E402
from tconv.problem import Problem  # noqa: E402

CHOICES = Path(__file__).parent / "data" / "choices.json"
H200 = Gpu.h200()


def choices() -> dict[str, Any]:
    return {
        f"{name} {family}": choice(problem_of(case), family) for name, case in cases().items() for family in FAMILIES
    }


def choice(problem: Problem, family: str) -> Any:
    try:
        chosen = choose(Question(problem), H200, [family])
    except Unplannable as reason:
        return str(reason)
    return {"tile": dict(tile_fields(chosen.kernel.tile)), "grid": chosen.grid, "shared_bytes": chosen.shared_bytes}


def test_choices_are_those_on_file() -> None:
    kept, found = json.loads(CHOICES.read_text(encoding="utf-8")), choices()
    changed = [name for name in found | kept if found.get(name) != kept.get(name)]
    assert not changed, f"choices changed: {', '.join(changed)}; if that is meant, run python tests/test_choices.py"


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(choice)}" for name, choice in choices().items()]
    CHOICES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
