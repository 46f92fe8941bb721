"""What a file is generated from: the layers of a model with their plans, and their epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tconv.planner import Kernel, Plan
from tconv.problem import Problem
from tconv.sandbox.epilogues import KnownEpilogue


class LayerEpilogue(NamedTuple):
    """What becomes of a layer's outputs in its kernel.

    Args:
        program: what is computed of them; "" where nothing is.
        into: how many channels the tensor has of which they are a slice; 0 where they are all of it.
        backward: the program gives the gradient of the layer's result.
    """

    program: str = ""
    into: int = 0
    backward: bool = False

    def kernel(self, kernel: Kernel[Any]) -> Kernel[Any]:
        """The same tile with the program behind the layer; where outputs are written is no part of a kernel."""
        return replace(kernel, layer=replace(kernel.layer, epilogue=self.program))

    def problem(self, problem: Problem) -> Problem:
        """A problem with this behind its layer."""
        return replace(problem, layer=replace(problem.layer, epilogue=self.program), into=self.into)

    def describe(self) -> str:
        """``then max(y, 0), into 128 channels``."""
        when = "backward: " if self.backward else "then "
        said = [when + self.program] * bool(self.program) + [f"into {self.into} channels"] * bool(self.into)
        return ", ".join(said)


@dataclass(frozen=True)
class PlannedLayer:
    """A transposed convolution of the model and how it is computed.

    Args:
        name: the module's qualified name, or where the function is called.
        plan: what was planned for the sizes of ``get_inputs()``.
        count: how often a forward pass runs it.
        called: it is a call of a function, not a module.
        line: of the model file, for a call that stands there.
        compiled: of the model file, lines that TorchScript compiles with it.
        left: it stays PyTorch's, for this reason.
        any_size: what runs it where `plan` does not: at rows of any width. None where `plan` does.
        types: the same two of each further element type that was asked for.
        epilogues: what becomes of its outputs in the model as it is built.
        in_evaluation: the same in evaluation mode, where that is another one.
        backward: what becomes of them in backward passes through those.
    """

    name: str
    plan: Plan
    count: int = 1
    called: bool = False
    line: int | None = None
    left: bool = False
    reason: str = ""
    any_size: Plan | None = None
    types: tuple[tuple[Plan, ...], ...] = ()
    epilogues: tuple[LayerEpilogue, ...] = (LayerEpilogue(),)
    in_evaluation: tuple[LayerEpilogue, ...] = ()
    backward: tuple[LayerEpilogue, ...] = ()
    compiled: tuple[int, ...] = ()

    @property
    def kernel_epilogues(self) -> tuple[LayerEpilogue, ...]:
        """What its kernels do beside computing the layer."""
        all_of_them = (*self.epilogues, *self.in_evaluation, *self.backward)
        return tuple(dict.fromkeys(each for each in all_of_them if any(each)))

    @property
    def groups(self) -> tuple[tuple[Plan, ...], ...]:
        """The plans that the file records, those for the model's own type first, and of each type the best one."""
        own = (self.plan,) if self.any_size is None else (self.plan, self.any_size)
        return (own, *self.types)

    @property
    def variants(self) -> dict[str, Plan]:
        """The same by their use: ``""``, ``"any size"``, ``"float16"``, ``"float16, any size"``."""
        own = self.plan.problem.layer.dtype
        found: dict[str, Plan] = {}
        for plans in self.groups:
            for plan, size in zip(plans, ("", "any size"), strict=False):
                dtype = plan.problem.layer.dtype
                found[", ".join(filter(None, ["" if dtype == own else dtype, size]))] = plan
        return found

    @property
    def fused(self) -> dict[str, Plan]:
        """Of `variants` those that the file has with the layer's epilogue, too: of each type the best one.

        At sizes that these do not run, it runs after the kernel for any size.
        """
        return {use: plan for use, plan in self.variants.items() if plan in [plans[0] for plans in self.groups]}


@dataclass(frozen=True)
class Epilogues:
    """What a file knows of the epilogues in its text.

    Args:
        known: those that it can tell of others, by what they read.
        programs: by what epilogues call.
        modules: the classes of modules that they call, by their names in `torch.nn`.
    """

    known: Sequence[KnownEpilogue] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()


NO_EPILOGUES = Epilogues()


def types_of(layers: Sequence[PlannedLayer]) -> list[str]:
    """The element types that the file has kernels for, the model's own first, by torch's names."""
    plans = (plan for layer in layers if not layer.left for plans in layer.groups for plan in plans)
    return list(dict.fromkeys(plan.problem.layer.dtype for plan in plans))
