"""Small cases that once showed a mistake, found or planted. The ordinary suite runs them all.

`fuzz.py` prints such lines; what each is about stands above it.
"""

from __future__ import annotations

from random_cases import Case

from tconv.problem import Layer, Problem

KEPT: list[Case] = [
    # Taps in the wrong order; a left border that is not checked.
    Case(Problem(Layer(1, 1, 1, (1, 1, 2)), 1, (1, 1, 1))),
    # A shift that leaves out the dilation.
    Case(Problem(Layer(1, 1, 1, (1, 1, 2), (1, 1, 1), (0, 0, 0), (1, 1, 2)), 1, (1, 1, 1))),
    # A first tap without the modular inverse.
    Case(Problem(Layer(2, 1, 1, (1, 2, 1), (1, 4, 1), (0, 0, 0), (1, 3, 1)), 1, (1, 1, 1))),
    # A column without the padding.
    Case(Problem(Layer(1, 1, 1, (1, 1, 2), (1, 1, 2), (0, 0, 1), (1, 1, 2)), 1, (1, 1, 1))),
    # A right border off by one.
    Case(Problem(Layer(2, 1, 1, (1, 2, 1)), 1, (1, 1, 1))),
    # The group left out of an offset: the weight's, the bias's.
    Case(Problem(Layer(1, 2, 2, (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 2), 1, (1, 1, 1))),
    Case(Problem(Layer(1, 2, 2, (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 2, True), 1, (1, 1, 1))),
    # A partial tile of channels written as a whole one.
    Case(Problem(Layer(1, 1, 3, (1, 1, 4), (1, 1, 2), (0, 0, 0), (1, 1, 1), 1, True), 1, (1, 1, 1))),
    # Columns without taps left out.
    Case(Problem(Layer(1, 1, 1, (1, 1, 1), (1, 1, 2)), 1, (1, 1, 2))),
    # Depth phases left out.
    Case(Problem(Layer(2, 1, 1, (1, 2, 1), (1, 2, 1)), 1, (1, 1, 1))),
    # Operands truncated to TF32, or not rounded; ties rounded away instead of to even.
    Case(Problem(Layer(1, 1, 1, (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1, False, "tf32"), 1, (1, 1, 1))),
    Case(Problem(Layer(2, 8, 1, (1, 1, 1), precision="tf32"), 1, (1, 22, 5)), seed=259),
    # Exact sums of one and of four channels that stayed in the tensor core for four shifts: seen on a GPU alone.
    Case(
        Problem(Layer(3, 1, 7, (3, 5, 2), (3, 3, 1), (3, 0, 0), (1, 1, 1), 1, True), 1, (10, 11, 12), (2, 0, 0)),
        seed=444,
        tensor_cores=True,
    ),
    Case(Problem(Layer(2, 4, 7, (1, 4, 5), (1, 2, 3)), 3, (1, 18, 5)), seed=882, tensor_cores=True),
    # Outputs of a block that ended before its first, where padding is larger than the map.
    Case(
        Problem(Layer(2, 3, 65, (1, 8, 1), (1, 1, 1), (0, 4, 0), (1, 2, 1), precision="tf32"), 5, (1, 3, 11)),
        seed=599,
        tensor_cores=True,
    ),
]
