"""Each one-line mistake in a kernel shows in its instance: in a result, or in a report of the sanitizers."""

from __future__ import annotations

import pytest
from kernel_runs import emulate, random_tensors, worst
from mutations import BY_FAMILY, instance_of

from tconv.emulator import EmulatorError
from tconv.kernels import source

#: What may be reported of a mistake, by how the emulator runs: anything but that it could not be built, or has no end.
REPORTS = {
    "plain": {"crash", "deadlock", "divergence", "warp"},
    "address": {"address", "undefined", "crash", "deadlock", "divergence", "warp"},
    "thread": {"race"},
}


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("family", "mutation"), [(family, mutation) for family in BY_FAMILY for mutation in BY_FAMILY[family]]
)
def test_mutation_is_caught(family, mutation):
    old, new, name, mode = BY_FAMILY[family][mutation]
    instance = instance_of(name)
    text = source.inlined([(instance.kernel, "tconv_kernel")])
    assert text.count(old) == 1, "the kernel has changed: the mutation must be adapted"
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode, text=text)) <= 1
    try:
        y = emulate(instance, tensors, mode, text=text.replace(old, new))
    except EmulatorError as error:
        assert error.kind in REPORTS[mode], error
    else:
        assert worst(instance.problem, tensors, y) > 1
