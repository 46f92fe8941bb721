"""What a written file would build and launch, cut out of it: it runs in a process of its own, as any user's file.

Nothing here knows how such a file is made, only the few names in it that are asked for.
"""

from __future__ import annotations

import builtins
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tconv.kernels.source import LAUNCHING, Launched, launching
from tconv.planner import InputPreparation, Preparation
from tconv.problem import DTYPE_OF, Problem
from tconv.sandbox.model_file import CANDIDATE, ModelFileError, load
from tconv.sandbox.other_attributes import TOGETHER, change_layers
from tconv.sandbox.trace import TIMEOUT_SECONDS, TracedLayer, decode_layer, record
from tconv.sandbox.without_cuda import CudaMeansCpu, autocast_dtype
from tconv.sandbox.worker import Workshop

_OWN = vars(builtins)
_INDEX_LIMIT = 2**31


@dataclass(frozen=True)
class Cut:
    """What the file would compile for one launch, and the name of the kernel in it.

    Behind the file's own text stands a function that tells how the kernel is launched: `told` asks it.

    Args:
        source: the text for offsets of 32 bits.
        wide_source: the same for 64 bits.
    """

    source: str
    wide_source: str
    kernel: str


@dataclass(frozen=True)
class Told:
    """How the text of a cut is launched at one size, as its templates say; and which of its texts that takes."""

    source: str
    grid: int
    threads: int
    shared_bytes: int
    preparation: Preparation | None
    inputs: InputPreparation | None


@dataclass(frozen=True)
class Built:
    """A launch by what the file builds.

    Args:
        options: the arguments of load_inline.
        wide_options: the same for a kernel whose offsets have 64 bits.
        prepares_inputs: inputs are brought into another order, too, behind the weights.
        aligned: tensors begin at multiples of 16 bytes.
    """

    options: dict[str, Any]
    wide_options: dict[str, Any]
    prepares_inputs: bool
    aligned: bool


#: Of a text and the name of a function in it: what that writes on these arguments, in one thread.
Ask = Callable[[str, str, tuple[int, ...]], Sequence[int]]


def told(cut: Cut, problem: Any, multiprocessors: int, ask: Ask) -> Told:
    """How `cut` is launched for `problem`, tconv's or a file's own plan, where there are so many multiprocessors.

    Raises:
        ValueError: the grid would be too large.
    """
    arguments = (multiprocessors, problem.batch, *problem.input_size, *problem.output_size)
    launched = Launched(*ask(cut.source, LAUNCHING.format(cut.kernel), arguments))
    if max(launched.counted, launched.weight_blocks) >= _INDEX_LIMIT:
        raise ValueError(f"{problem.layer.describe()} would need more blocks than a grid has, which is below 2^31")
    preparation, inputs = None, None
    if launched.weight_blocks:
        preparation = Preparation(launched.weight_blocks, launched.preparing_threads, launched.weight_bytes)
    if launched.input_blocks:
        inputs = InputPreparation(launched.input_blocks, launched.preparing_threads, launched.input_shared_bytes)
    source = cut.wide_source if launched.wide_index else cut.source
    return Told(source, launched.blocks, launched.threads, launched.shared_bytes, preparation, inputs)


@dataclass(frozen=True)
class Replaced:
    """What one forward pass of `ModelNew` does.

    Args:
        launches: how often each layer is launched, by its description.
        remaining: transposed convolutions that are PyTorch's still.
        extensions: the arguments of load_inline for all that it builds on this machine's GPU, and for what it will
            build for other sizes and types.
    """

    launches: dict[str, int]
    remaining: tuple[TracedLayer, ...]
    extensions: tuple[dict[str, Any], ...] = ()


class WrittenFile:
    """A file that tconv wrote, in a worker process of `workshop`. A context manager.

    Args:
        needed: builtins that tconv's part of the file takes for Python's own.

    Raises:
        ModelFileError: the file does not load, or the user's part of it rebinds one that is `needed`.
    """

    def __init__(
        self, path: Path, workshop: Workshop, needed: Collection[str] = (), *, timeout_s: float = TIMEOUT_SECONDS
    ) -> None:
        self._timeout_s = timeout_s
        self._worker = workshop.start(Cutter, timeout_s=timeout_s, path=str(path), needed=sorted(needed))

    def cuts(self, problems: Sequence[Problem], *, skip: int = 0) -> list[Cut]:
        """The launches that the file would make for these problems on the GPU that it was planned for.

        Args:
            skip: so many of the kernels that run the layer, the best first, are not there.

        Raises:
            ModelFileError: the file plans none for one of them.
        """
        asked = [asdict(problem) for problem in problems]
        found = self._worker.call("cuts", timeout_s=self._timeout_s, problems=asked, skip=skip)
        return [Cut(**fields) for fields in found]

    def built(self, problems: Sequence[Problem], *, skip: int = 0) -> list[Built]:
        """The launches that the file makes for these problems by what it builds on this machine's GPU.

        Args:
            skip: as in `cuts`.
        """
        asked = [asdict(problem) for problem in problems]
        found = self._worker.call("built", timeout_s=self._timeout_s, problems=asked, skip=skip)
        return [Built(**fields) for fields in found]

    def replaced(self, types: Sequence[torch.dtype] = ()) -> Replaced | None:
        """What a forward pass launches; None where the model does not run on fake tensors.

        Args:
            types: what the model may be cast to.
        """
        names = [str(each).removeprefix("torch.") for each in types]
        found = self._worker.call("replaced", timeout_s=self._timeout_s, types=names)
        if found is None:
            return None
        return Replaced(found["launches"], tuple(map(decode_layer, found["remaining"])), tuple(found["extensions"]))

    def __enter__(self) -> WrittenFile:
        return self

    def __exit__(self, *unused: object) -> None:
        self._worker.close()


def cut_of(kernel: Any, cuda_source: Callable[[Any], str]) -> Cut:
    """One of a file's own kernels, with the text that the file hands to load_inline."""
    name = "tconv_kernel"
    source, wide_source = (
        cuda_source(kernel._replace(wide_index=wide)) + launching(kernel.family, name) for wide in (False, True)
    )
    return Cut(source, wide_source, name)


class Cutter:
    """The file in its process."""

    def __init__(self, path: str, needed: list[str]) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(CudaMeansCpu())  # as in `trace`
        self._model = load(path, CANDIDATE)
        self._file: dict[str, Any] = vars(self._model.namespace)
        rebound = [name for name in needed if self._file.get(name, _OWN[name]) is not _OWN[name]]
        if rebound:
            raise ModelFileError(
                f"the model file binds {', '.join(rebound)}, which the generated file needs as Python's own: "
                "rename it, or import by name instead of by star"
            )

    def cuts(self, problems: list[dict[str, Any]], skip: int) -> list[dict[str, Any]]:
        with self._without_first(skip):
            return [asdict(self._cut(Problem.from_dict(problem))) for problem in problems]

    def built(self, problems: list[dict[str, Any]], skip: int) -> list[dict[str, Any]]:
        with self._without_first(skip):
            kernels = [self._kernel(Problem.from_dict(problem)) for problem in problems]
        capability = torch.cuda.get_device_capability()
        return [
            {
                "options": self._file["_load_options"](kernel, capability),
                "wide_options": self._file["_load_options"](kernel._replace(wide_index=True), capability),
                "prepares_inputs": kernel.prepares_inputs,
                "aligned": kernel.family not in ("direct", "plain"),
            }
            for kernel in kernels
        ]

    @contextlib.contextmanager
    def _without_first(self, skip: int) -> Iterator[None]:
        """While it is entered, the first kernels that run a layer are not there."""
        before, plan = self._file["_kernels"], self._file["_plan"]
        plan.cache_clear()
        self._file["_kernels"] = lambda layer, gpu: islice(before(layer, gpu), skip, None)
        try:
            yield
        finally:
            self._file["_kernels"] = before
            plan.cache_clear()

    def _cut(self, problem: Problem) -> Cut:
        return cut_of(self._kernel(problem), self._file["_cuda_source"])

    def _kernel(self, problem: Problem) -> Any:
        layer = problem.layer
        used = slice(3 - layer.spatial_dims, None)
        shapes = (problem.input_shape, layer.weight_shape, (layer.out_channels,) if layer.bias else None)
        options = (layer.stride[used], layer.padding[used], problem.output_padding[used], layer.groups)
        dtype = getattr(torch, layer.dtype)
        plan = self._file["_plan"](layer.spatial_dims, dtype, *shapes, *options, layer.dilation[used])
        if plan is None:
            raise ModelFileError(f"the written file has no plan for {layer.describe()} on {problem.input_shape}")
        if layer.tail or layer.into:
            plan = self._file["_with_program"](plan, layer.tail, layer.into)
        return plan.kernel

    def replaced(self, types: list[str]) -> dict[str, Any] | None:
        with self._counted() as (launched, builds):
            try:
                remaining = self._remaining()
            except ModelFileError:
                return None
        built = [
            kernel
            for kernels, device in builds
            if device.type == "cuda"
            for kernel in self._built(kernels, self._file["_gpu"](device), types)
        ]
        built += self._with_attributes() if built else []
        capability = torch.cuda.get_device_capability() if built else None
        extensions = [self._file["_load_options"](kernel, capability) for kernel in dict.fromkeys(built)]
        launches = Counter(kernel.layer.describe() for kernel in launched)
        remaining_layers = [asdict(layer) for layer in remaining]
        return {"launches": launches, "remaining": remaining_layers, "extensions": extensions}

    def _remaining(self, prepare: Callable[[nn.Module], None] | None = None) -> list[TracedLayer]:
        """What PyTorch runs in a forward pass on fake tensors."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return record(self._model, prepare)

    def _with_attributes(self) -> list[Any]:
        """The kernels that layers with other attributes take."""
        found: list[Any] = []
        for attributes in (TOGETHER, *((each,) for each in TOGETHER)):
            with self._counted() as (launched, _), contextlib.suppress(ModelFileError):
                self._remaining(partial(change_layers, attributes=attributes))
                found += launched
                if attributes == TOGETHER:
                    break
        return found

    def _built(self, kernels: Sequence[Any], gpu: Any, types: Sequence[str]) -> list[Any]:
        """The kernels that are built: with the model, and of each layer for other widths, after casts, without tails.

        Args:
            kernels: the model's own, which come first.
            types: what the model may be cast to.
        """
        found = list(kernels)
        for recorded in self._file["_RECORDED"]:
            programs = self._file.get("_BEHIND", {}).get(recorded, ())
            names = [name for name in types if name != DTYPE_OF[recorded.precision]]
            casts = (recorded._replace(precision=self._file["_PRECISIONS"][getattr(torch, name)]) for name in names)
            for layer in (recorded, *map(self._file["_with_precision"], casts)):
                first, *others = self._file["_kernels"](layer, gpu)
                of_any_width = next(each for each in (first, *others) if each.columns_together == 1)
                for kernel in (first, of_any_width):
                    with_programs = (kernel.layer._replace(tail=program, into=into) for program, into in programs)
                    found += [kernel._replace(layer=each) for each in with_programs]
                    found.append(kernel)
        return list(dict.fromkeys(found))

    @contextlib.contextmanager
    def _counted(self) -> Iterator[tuple[list[Any], list[tuple[list[Any], torch.device]]]]:
        """While it is entered, the file notes the kernels that it would launch and those it would build."""
        launched: list[Any] = []
        builds: list[tuple[list[Any], torch.device]] = []
        stand_ins = {
            "_build": lambda kernels, device: builds.append((kernels, device)),
            "_watched": lambda: False,  # by us alone
            "_autocast_dtype": autocast_dtype,
            "_launch": lambda plan, *tensors: launched.append(plan.kernel),
        }
        before = {name: self._file[name] for name in stand_ins if name in self._file}
        self._file.update({name: stand_ins[name] for name in before})
        try:
            yield launched, builds
        finally:
            self._file.update(before)
