"""Calls on another stream than CUDA's default one: whether a candidate waits for what stands before it there."""

from __future__ import annotations

from collections.abc import Callable

from tconv.evaluation.files.levels import SIDE_STREAM
from tconv.evaluation.files.sides.file_process import CandidateRaised
from tconv.evaluation.files.sides.model_and_candidate import Pair
from tconv.evaluation.verdict import DEFAULT_STREAM_ONLY, Check, Verdict


def check_on_both(pair: Pair, check: Callable[[bool], list[Check]]) -> list[Check]:
    """Checks of which, on a GPU, one call is made on a side stream; where that fails, they are made without it.

    Args:
        check: told whether that call is made so.
    """
    if pair.device.type != "cuda":
        return check(False)
    try:
        found = check(True)
        if Verdict(tuple(found)).equal:
            return [*found, Check(SIDE_STREAM.name, True)]
    except CandidateRaised:
        pass
    found = check(False)
    if not Verdict(tuple(found)).equal:
        return found
    reason = f"{DEFAULT_STREAM_ONLY}: on another stream it does not wait for its inputs; launch on the current stream"
    passed = False if pair.level == "strict" else None
    return [*found, Check(SIDE_STREAM.name, passed, DEFAULT_STREAM_ONLY, "the current stream", reason)]
