"""Each one-line mistake in a kernel shows in its instance: in a result, or in a report of the sanitizers."""

from __future__ import annotations

import pytest
from kernel_runs import Tensors, emulate, random_tensors, worst
from mutations import BY_FAMILY, instance_of

from tconv.emulator import Copies, EmulatorError, Mode
from tconv.kernels import source
from tconv.kernels.instances import Instance

#: What may be reported of a mistake, by how the emulator runs: anything but that it could not be built, or has no end.
REPORTS = {
    "plain": {"barrier", "crash", "deadlock", "divergence", "warp"},
    "address": {"address", "undefined", "barrier", "crash", "deadlock", "divergence", "warp"},
    "thread": {"race"},
}


@pytest.mark.parametrize("family", BY_FAMILY)
def test_mutations_are_of_the_kernels_text(family):
    """All of them in every run: a change of a kernel's text must not wait for the run that takes the mutation."""
    counts = {name: _text(instance).count(old) for name, (old, _, instance, _) in BY_FAMILY[family].items()}
    assert {name: count for name, count in counts.items() if count != 1} == {}, "adapt them to the kernel"


@pytest.mark.rotates(72)
@pytest.mark.parametrize(
    ("family", "mutation"), [(family, mutation) for family in BY_FAMILY for mutation in BY_FAMILY[family]]
)
def test_mutation_is_caught(family, mutation):
    old, new, name, mode = BY_FAMILY[family][mutation]
    instance, text = instance_of(name), _text(name)
    tensors = random_tensors(instance.problem)
    assert worst(instance.problem, tensors, emulate(instance, tensors, mode, text=text)) <= 1
    mutated = text.replace(old, new)
    # Late copies show a wait that is missing, eager ones what comes into memory that is still read.
    assert any(shows(instance, tensors, mode, mutated, copies) for copies in ("late", "eager"))


def _text(name: str) -> str:
    return source.inlined([(instance_of(name).kernel, "tconv_kernel")])


def shows(instance: Instance, tensors: Tensors, mode: Mode, text: str, copies: Copies) -> bool:
    """Whether `text` in place of the instance's own is reported, or gives a wrong result."""
    try:
        y = emulate(instance, tensors, mode, text=text, copies=copies)
    except EmulatorError as error:
        assert error.kind in REPORTS[mode], error
        return True
    return worst(instance.problem, tensors, y) > 1
