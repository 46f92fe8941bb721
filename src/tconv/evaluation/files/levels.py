"""The list of all checks ("looks") of a judgement: the errors that each finds, its cost, and the level of its start.

At the default level one call serves several looks. If it fails, each look gets a call of its own, and the report names
the one that fails. At the strict level each look always has calls of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from tconv.evaluation.verdict import Level


class Look(NamedTuple):
    """One check of a judgement.

    Args:
        costs: calls of the candidate at the default level; for looks of the strict level, at that.
        level: the first level that has this look.
    """

    name: str
    finds: str
    costs: str
    level: Level

    def within(self, level: Level) -> bool:
        """Whether a judgement at this level has the look."""
        return level == "strict" or self.level == "default"


STATE = Look(
    "state and parameters",
    "other names, shapes, types or values in the state_dict; other parameters, or the same ones in another order",
    "no call",
    "default",
)
EVERY_CALL = Look(
    "every call",
    "changed inputs, parameters, flags or random states; no random numbers where Model draws some; results that share "
    "memory, change later or are no plain tensors; functions of PyTorch or Python that are replaced",
    "no call",
    "default",
)
AS_BUILT = Look("as built", "a wrong result on the file's own inputs and weights", "1 call at full size", "default")
AGAIN = Look("same bits twice", "races, memory that is never written", "1 call at full size", "default")
SIDE_STREAM = Look(
    "on the current stream",
    "launches on the default stream, which do not wait for work on the current one. Reported by default, refused with "
    "--strict",
    "none on a CPU; on a GPU it is the second call, with --strict 1 call more",
    "default",
)
IN_EVALUATION = Look(
    "in evaluation",
    "norms, dropout, ones or zeros that are left out; weights that are loaded after a call and not used",
    "1 call",
    "default",
)
DRAWS = Look("random layers", "of one layer, a result that is right for its own weights alone", "1 call", "default")
IN_TRAINING = Look(
    "in training, with gradients",
    "wrong buffers, wrong gradients of parameters and inputs",
    "1 small call",
    "default",
)
STEP = Look("an optimizer's step", "weights and buffers that were prepared once, and kept", "1 small call", "default")
SIZES = Look(
    "sizes and strides",
    "sizes that are built in; inputs that are assumed to be contiguous or aligned",
    "3 small calls: an odd size with reversed axes, at an offset; a batch of one in channels_last; an expanded batch",
    "default",
)
SCALES = Look(
    "scales",
    "narrower types inside, constants added to inputs, divisions by zero",
    "1 small call, whose samples are times 2^24, 2^-24, 2^10, 2^-10 and zero",
    "default",
)
NOT_FINITE = Look(
    "infinities and NaN",
    "zeros that are skipped, NaN that becomes a number",
    "2 small calls: NaN in an input, infinity in a weight",
    "default",
)
HALF = Look("cast to float16", "bits that are read as another type", "1 small call", "default")

ALL_SAMPLES = Look(
    "all samples in float64",
    "in results of 256 MiB and more, an error in some samples alone, which the default checks do not compare",
    "no call",
    "strict",
)
MORE_DRAWS = Look(
    "more draws", "errors that one or two draws do not show", "1 call at full size, of one layer 4", "strict"
)
EACH_AWKWARD = Look("each awkward input of one layer", "results that break rule 5 or 6", "11 calls", "strict")
SECOND_TRAINING = Look("a second call in training", "counters that do not count", "2 calls", "strict")
EACH_ROUTE = Look(
    "each way on which weights change",
    "prepared weights that miss a change, a saved state that is not the one in use, assumed strides of weights",
    "6 to 12 calls",
    "strict",
)
COPIED = Look(
    "deep copies",
    "closures over the module, weights that modules share; in tconv's own files, which are checked so by default, also "
    "attributes of layers that are built in",
    "2 calls; of own files 4",
    "strict",
)
EACH_KIND = Look(
    "each kind of inputs",
    "sums by index that drop one of two, results that are kept by address and version",
    "8 to 12 calls",
    "strict",
)
ALL_PLACES = Look(
    "further infinities", "NaN in the first or the last weight that becomes a number", "2 calls", "strict"
)
EACH_WAY_BACK = Look(
    "each way back",
    "wrong gradients in a second backward(), of one output of several, or where parameters are frozen",
    "3 calls",
    "strict",
)
EIGHT_CALLS = Look("eight calls later", "results in memory that a later call uses again", "memory", "strict")
DIGESTS = Look(
    "values on their way",
    "other processes that change tensors between candidate and judge",
    "on the host 2.5 s a gigabyte, at both ends",
    "strict",
)
STRAYS = Look(
    "strays", "processes that leave the candidate's process group", "a list of processes in each call", "strict"
)

LOOKS = (
    *(STATE, EVERY_CALL, AS_BUILT, AGAIN, SIDE_STREAM, DRAWS, IN_EVALUATION, IN_TRAINING, STEP, SIZES, SCALES),
    *(NOT_FINITE, HALF, ALL_SAMPLES, MORE_DRAWS, EACH_AWKWARD, SECOND_TRAINING, EACH_ROUTE, COPIED, EACH_KIND),
    *(ALL_PLACES, EACH_WAY_BACK, EIGHT_CALLS, DIGESTS, STRAYS),
)
