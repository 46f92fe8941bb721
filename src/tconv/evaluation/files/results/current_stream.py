"""Calls on a side stream of CUDA: whether a candidate waits for earlier work on the current stream."""

from __future__ import annotations

from collections.abc import Callable

from tconv.evaluation.files.levels import SIDE_STREAM
from tconv.evaluation.files.sides.file_process import CandidateRaised
from tconv.evaluation.files.sides.model_and_candidate import Pair
from tconv.evaluation.verdict import DEFAULT_STREAM_ONLY, Check, Verdict


def check_on_both(pair: Pair, check: Callable[[bool], list[Check]]) -> list[Check]:
    """The checks with one call on a side stream, on a GPU. If they fail, they are repeated without that stream.

    Args:
        check: makes the checks; its argument says whether to use the side stream.
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
