"""The instances of every family: kernels with a small problem for each, that reach every value of each axis.

Tests compile all instances for every arch and run them in the emulator; on a GPU they are compared with the emulator.
A new template parameter must be listed in its family's `AXES` (a test reads the headers), and a new case of an old one
in `cases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from tconv.kernels import col2im, col2im_rows, col2im_wgmma, direct, mma, wgmma
from tconv.kernels.cases import PROGRAMS, Instance

#: What the templates of a family read from their parameters, and which values behave differently.
AXES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "direct": direct.AXES,
        "mma": mma.AXES,
        "wgmma": wgmma.AXES,
        "col2im": col2im.AXES,
        "col2im_wgmma": col2im_wgmma.AXES,
        "col2im_rows": col2im_rows.AXES,
    }
)
#: Of those that can, one in so many has a twin with weights in channels_last.
_EACH_LAST = 6
_INSTANCES: Mapping[str, Callable[[], Iterator[Instance]]] = MappingProxyType(
    {
        "direct": direct.instances,
        "mma": mma.instances,
        "wgmma": wgmma.instances,
        "col2im": col2im.instances,
        "col2im_wgmma": col2im_wgmma.instances,
        "col2im_rows": col2im_rows.instances,
    }
)


def instances(family: str = "direct") -> Iterator[Instance]:
    """All instances of `family`: every case with some of the tiles that suit it, some with 64-bit positions.

    At the end come some of them with weights in channels_last.
    """
    found = list(_INSTANCES[family]())
    yield from found
    differing = [instance for instance in found if _may_lie_last(instance)]
    yield from map(with_weights_last, differing[::_EACH_LAST])


def with_weights_last(instance: Instance) -> Instance:
    """The instance with weights in channels_last."""
    problem, kernel = instance.problem, instance.kernel
    return Instance(
        f"{instance.name}-weights_last",
        replace(problem, layer=problem.layer.in_channels_last()),
        replace(kernel, layer=kernel.layer.in_channels_last()),
    )


def _may_lie_last(instance: Instance) -> bool:
    """Whether the instance runs with weights in channels_last, and that is an order of its own."""
    kernel = instance.kernel
    # Those with some of the phases read weights of neighbouring taps together.
    some_phases = kernel.family == "col2im_wgmma" and kernel.tile.phases > 0
    return kernel.layer.in_channels_last() != kernel.layer and not some_phases


def programmed(family: str) -> Iterator[Instance]:
    """Some of the instances of `family`, each with a program behind it; every program has its turns."""
    for number, instance in enumerate(list(instances(family))[::4]):
        program = list(PROGRAMS)[number % len(PROGRAMS)]
        yield replace(with_program(instance, PROGRAMS[program]), name=f"{instance.name}-{program}")


def sliced(family: str) -> Iterator[Instance]:
    """Some of the instances of `family`, each with outputs that are a slice of a tensor with more channels.

    channels_last ones have as many more as keep what is stored together at multiples of its size.
    """
    for instance in list(instances(family))[2::6]:
        layer, last = instance.problem.layer, getattr(instance.kernel.tile, "channels_last", 0)
        together = 16 // layer.item_bytes if last else 1
        into = (layer.out_channels + 5 + together - 1) // together * together + together
        yield replace(
            instance,
            name=f"{instance.name}-slice",
            problem=replace(instance.problem, into=into),
        )


def with_program(instance: Instance, program: str) -> Instance:
    """The instance with the program of this text behind it."""
    problem, kernel = instance.problem, instance.kernel
    return replace(
        instance,
        problem=replace(problem, layer=replace(problem.layer, epilogue=program)),
        kernel=replace(kernel, layer=replace(kernel.layer, epilogue=program)),
    )
