"""What a judgement looks at, in one list: what each look finds, what it costs, and the level at which it begins.

At the default level one call carries several looks; where it fails, they are taken apart to name the one. At the strict
level each has calls of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from tconv.evaluation.verdict import Level


class Look(NamedTuple):
    """One thing that a judgement looks at.

    Args:
        costs: calls of the candidate at the default level, or at the strict one where it begins there.
        level: the first level at which it is looked at.
    """

    name: str
    finds: str
    costs: str
    level: Level

    def within(self, level: Level) -> bool:
        """Whether a judgement at that level looks at it."""
        return level == "strict" or self.level == "default"


STATE = Look(
    "state and parameters",
    "names, shapes, types or values of the state_dict that are others; parameters that are none, or in another order",
    "no call",
    "default",
)
EVERY_CALL = Look(
    "every call",
    "patches, inputs written to, results that are changed later or share memory, flags and random states left changed",
    "no call",
    "default",
)
AS_BUILT = Look("as built", "a wrong result on the file's own inputs and weights", "1 call at full size", "default")
AGAIN = Look("same bits twice", "races, memory that nobody writes", "1 call at full size", "default")
SIDE_STREAM = Look(
    "on the current stream",
    "launches on the default stream, which do not wait for what stands before them. Reported at the default level, "
    "refused at the strict one",
    "on a GPU that second call, at the strict level one more",
    "default",
)
IN_EVALUATION = Look(
    "in evaluation",
    "norms, dropout and ones or zeros that are left out; weights that were loaded after a call",
    "1 call",
    "default",
)
DRAWS = Look("random layers", "for a model of one layer: what is right for its own weights alone", "1 call", "default")
IN_TRAINING = Look(
    "in training, with gradients",
    "buffers and gradients of parameters and inputs that are wrong, beside float64",
    "1 small call",
    "default",
)
STEP = Look("an optimizer's step", "weights and buffers that were prepared once, and kept", "1 small call", "default")
SIZES = Look(
    "sizes and strides",
    "sizes that are built in; inputs that are taken to lie without gaps, or at an aligned address",
    "3 small calls: another, odd size with its axes reversed, at an offset; a batch of one in channels_last; expanded",
    "default",
)
SCALES = Look(
    "scales",
    "narrower types inside, constants beside inputs, divisions by zero",
    "1 small call, whose samples are times 2^24, 2^-24, 2^10, 2^-10 and zero",
    "default",
)
NOT_FINITE = Look(
    "infinities and NaN",
    "zeros that are skipped, numbers made of NaN",
    "2 small calls: NaN in an input, infinity in a weight",
    "default",
)
HALF = Look("cast to float16", "bits that are read as another type", "1 small call", "default")

ALL_SAMPLES = Look(
    "all samples in float64",
    "in results of 256 MiB and more, an error that is in some samples alone, and takes them no further than twice as "
    "far from PyTorch's as others are",
    "no call",
    "strict",
)
MORE_DRAWS = Look("more draws", "what shows in few draws", "1 call at full size, of one layer 4", "strict")
EACH_AWKWARD = Look(
    "each awkward input of one layer", "what rules 5 and 6 find, each by the layer's own bounds", "11 calls", "strict"
)
SECOND_TRAINING = Look("a second call in training", "counters that do not count", "2 calls", "strict")
EACH_ROUTE = Look(
    "each way on which weights change",
    "a saved state that is not what it computes with; what follows another weight, or weights and not statistics; "
    "strides of weights; each type, and the way back",
    "6 to 12 calls",
    "strict",
)
COPIED = Look(
    "deep copies",
    "closures over the module, weights that modules share; of tconv's own files, at the default level as well, also "
    "attributes of layers that are built in",
    "2 calls; of own files 4",
    "strict",
)
EACH_KIND = Look(
    "each kind of inputs",
    "by its own calls; and sums by index that take one of two, results that are known by an address and a version",
    "8 to 12 calls",
    "strict",
)
ALL_PLACES = Look("further infinities", "NaN in the first and in the last weight", "2 calls", "strict")
EACH_WAY_BACK = Look(
    "each way back",
    "backward() twice, one output of several, gradients that hang on those of frozen parameters",
    "3 calls",
    "strict",
)
EIGHT_CALLS = Look("eight calls later", "results in memory that later calls are given", "memory", "strict")
DIGESTS = Look(
    "values on their way", "other processes that change them", "on the host 2.5 s a gigabyte, at both ends", "strict"
)
STRAYS = Look("strays", "processes that leave the candidate's group", "a list of processes in each call", "strict")

LOOKS = (
    *(STATE, EVERY_CALL, AS_BUILT, AGAIN, SIDE_STREAM, DRAWS, IN_EVALUATION, IN_TRAINING, STEP, SIZES, SCALES),
    *(NOT_FINITE, HALF, ALL_SAMPLES, MORE_DRAWS, EACH_AWKWARD, SECOND_TRAINING, EACH_ROUTE, COPIED, EACH_KIND),
    *(ALL_PLACES, EACH_WAY_BACK, EIGHT_CALLS, DIGESTS, STRAYS),
)
