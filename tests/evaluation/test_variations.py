"""Other constructor arguments and other sizes: which ones are tried."""

from __future__ import annotations

import pytest

from tconv.evaluation.files.sides.file_process import Shapes
from tconv.evaluation.files.sides.other_arguments import variations, varied_shape
from tconv.evaluation.files.sides.smaller_inputs import cut_down, fewer_samples

VALUES = {
    "in_channels": 3,
    "out_channels": 5,
    "kernel_size": 3,
    "stride": 1,
    "padding": 0,
    "output_padding": 0,
    "dilation": 1,
    "groups": 1,
    "bias": False,
}


def test_ten_variations_the_same_ones_each_time() -> None:
    found = list(variations(VALUES))
    assert found == list(variations(VALUES)) and len(found) == 10
    assert {"stride": 2} in found and {"bias": True} in found
    assert {"groups": 2, "in_channels": 4, "out_channels": 6} in found
    varied = {name for changes in found for name in changes}
    assert varied == set(VALUES)
    assert all(value != VALUES[name] for changes in found for name, value in changes.items())


def test_a_tuple_stays_a_tuple_with_a_value_for_each_axis() -> None:
    found = list(variations({"kernel_size": (3, 3, 3), "stride": (1, 1, 1), "bias": True}))
    assert {"stride": (2, 3, 2)} in found and {"bias": False} in found
    assert {"kernel_size": (4, 2, 4), "stride": (2, 2, 2)} in found


def test_names_of_ones_own_are_left_alone() -> None:
    assert list(variations({"width": 3, "depth": 2})) == []
    assert list(variations({"width": 3, "bias": True})) == [{"bias": False}]


def test_a_small_input_with_the_channels_that_go_with_the_arguments() -> None:
    assert varied_shape((16, 3, 64, 128), VALUES, {"in_channels": 4}) == (2, 4, 9, 8)
    assert varied_shape((1, 3, 5), VALUES, {"stride": 2}) == (1, 3, 5)
    assert varied_shape((8, 7, 64), VALUES, {"in_channels": 4}) == (2, 7, 9)  # these are not the model's in_channels
    assert varied_shape((8, 3), VALUES, {"in_channels": 4}) == (8, 3)


def work(shapes: Shapes) -> int | None:
    """One multiply-add for each element; only multiples of eight are taken."""
    (shape, _) = shapes
    assert shape is not None
    batch, _, height, width = shape
    return batch * height * width if height % 8 == width % 8 == 0 else None


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (10**6, (16, 3, 64, 128)),  # fits as it is
        (5 * 8192, (4, 3, 64, 128)),  # the batch first
        (2000, (2, 3, 16, 32)),  # then the map
        (10, (2, 3, 8, 16)),  # what cannot be smaller
    ],
)
def test_sizes_are_halved_until_they_fit(limit: int, found: tuple[int, ...]) -> None:
    assert cut_down([(16, 3, 64, 128), None], work, limit) == [found, None]


def test_a_model_that_cannot_be_traced_keeps_its_sizes() -> None:
    assert cut_down([(16, 3, 64, 128)], lambda shapes: None, 1) == [(16, 3, 64, 128)]


def test_batches_of_rows_are_halved_and_their_rows_are_not() -> None:
    assert cut_down([(16, 512)], lambda shapes: 10**9, 1) == [(2, 512)]
    assert cut_down([(7,)], lambda shapes: 10**9, 1) == [(7,)]


def test_maps_and_rows_of_one_batch_are_halved_together() -> None:
    def work_of_pair(shapes: Shapes) -> int | None:
        x, labels = shapes
        return None if x is None or labels is None or x[0] != labels[0] else x[0]

    assert cut_down([(16, 3, 8, 8), (16, 10)], work_of_pair, 4) == [(4, 3, 8, 8), (4, 10)]


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(128, 64, 256, 256)], [(8, 64, 256, 256)]),  # 16 MiB a sample
        ([(128, 64, 256, 256), (128, 10), None, (3, 3)], [(7, 64, 256, 256), (7, 10), None, (3, 3)]),
        ([(8, 64, 1024, 1024)], [(2, 64, 1024, 1024)]),  # no batch is cut below two
        ([(4, 64, 1024, 1024)], [(4, 64, 1024, 1024)]),  # three draws of two samples are no less
        ([(64, 3, 32, 32)], [(64, 3, 32, 32)]),
        ([None], [None]),
        ([(0, 3, 8)], [(0, 3, 8)]),
    ],
)
def test_later_draws_of_large_inputs_have_fewer_samples(shapes: Shapes, found: Shapes) -> None:
    assert fewer_samples(shapes, 128 * 2**20, 3) == found
