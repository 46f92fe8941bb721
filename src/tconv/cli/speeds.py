"""Times in words: how many times faster, than PyTorch by default and in its fastest other way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What a last line says of a slower file.
_SLOWER = ": SLOWER than PyTorch"
#: The ways in which files are timed, and how a sentence has them.
_WAYS = {"as called": "as called", "inference": "in inference"}


def speed(ratio: float) -> tuple[str, str]:
    """``6.8x faster``, ``as fast as PyTorch (1.01x)`` or, in red, ``0.3x: SLOWER than PyTorch``; and the style."""
    from tconv.evaluation.verdict import NOISE

    if abs(ratio - 1) < NOISE:
        return f"as fast as PyTorch ({times(ratio)})", "bold green"
    return (f"{times(ratio)} faster", "bold green") if ratio > 1 else (f"{times(ratio)}{_SLOWER}", "bold red")


def speeds(timing: Mapping[str, Any]) -> tuple[str, str]:
    """``as called 5.1x (best other 4.9x), inference 5.3x (3.9x)``, and the style.

    A file that is slower in inference is said to be ``: SLOWER than PyTorch``, in red, and one that is slower as it is
    called, and only there, ``… as called``, in yellow.

    Args:
        timing: as `Timing.to_dict` has it.
    """
    ways, words = _ways(timing), list[str]()
    for name, sides in ways.items():
        best, other = sides["over_best_other"], "" if words else "best other "
        words.append(f"{name} {times(sides['speedup'])}" + ("" if best is None else f" ({other}{times(best)})"))
    if "as called" not in ways:
        words.append("not timed as called")
    slower = [_WAYS[name] for name, sides in ways.items() if sides["slower"]]
    where = "" if len(slower) == len(ways) else f" {slower[0]}" if slower else ""
    style = "bold red" if timing["slower"] else "bold yellow" if slower else "bold green"
    return ", ".join(words) + (_SLOWER + where if slower else ""), style


def times(ratio: float) -> str:
    """``13x``, ``5.1x``, ``0.3x``; near one, where more digits count, ``1.04x``."""
    if ratio >= 10:
        return f"{ratio:.0f}x"
    return f"{ratio:.2f}x" if 0.9 <= ratio < 1.1 else f"{ratio:.2g}x"


def remarks(timing: Mapping[str, Any]) -> list[str]:
    """What there is to say of times before the last line.

    Args:
        timing: as `Timing.to_dict` has it.
    """
    ways = _ways(timing)
    found = [f"Times: {note}." for note in timing["notes"]]
    if "as called" in ways and ways["as called"]["slower"]:
        ours, theirs = (ways["as called"][side]["median"] for side in ("candidate", "reference"))
        what = "what the host does in a call counts there, and gradients are enabled"
        found.append(f"Slower as called: {ours:.4g} ms, PyTorch {theirs:.4g} ms: {what}.")
    return found


def compiled_hint(timing: Mapping[str, Any], name: str) -> str:
    """Where the file under `torch.compile` is clearly the fastest, and how that is had; empty if nowhere.

    Args:
        timing: as `Timing.to_dict` has it.
        name: the file's.
    """
    best = {_WAYS[way]: sides["compiled"] for way, sides in _ways(timing).items() if sides["best_compiled"]}
    where = ", ".join(f"{way} {compiled['median']:.4g} ms" for way, compiled in best.items())
    return f"Fastest: {name} as model = torch.compile(ModelNew(...)): {where}." if best else ""


def _ways(timing: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Both ways in which the file was timed, or the one."""
    called = timing["as_called"]
    return {**({} if called is None else {"as called": called}), "inference": timing}
