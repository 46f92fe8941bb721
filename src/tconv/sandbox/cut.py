"""What a written file would build and launch, cut out of it: it runs in a process of its own, as any user's file.

Nothing here knows how such a file is made, only the few names in it that are asked for.
"""

from __future__ import annotations

import builtins
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tconv.kernels.source import LAUNCH_NUMBERS, LaunchNumbers, alone, launch_numbers
from tconv.planner import InputPreparation, Preparation
from tconv.planner.numbers import INDEX_LIMIT
from tconv.problem import Problem
from tconv.sandbox.model_file import CANDIDATE, ModelFileError, load
from tconv.sandbox.trace import TIMEOUT_SECONDS, TracedLayer, decode_layer, record
from tconv.sandbox.without_cuda import CudaMeansCpu, autocast_dtype
from tconv.sandbox.worker import Workshop

_OWN = vars(builtins)
#: Slices of a batch have a multiple of so many samples: they begin at multiples of 16 bytes.
SLICED = 16
#: What a GPU that runs all kernels has.
_MOST_SHARED_BYTES, _MULTIPROCESSORS = 227 * 1024, 132
#: Reasons for which a file leaves to PyTorch what it should: a layer that it does not replace, and nothing to compute.
_NOT_ITS_OWN, _EMPTY = "none was made", "the batch is empty"


@dataclass(frozen=True)
class Cut:
    """What of the file's text one launch runs, and the name of the kernel in it.

    Behind the file's own text stands a function that tells how the kernel is launched: `launch_of` asks it.

    Args:
        aligned: tensors begin at multiples of 16 bytes.
    """

    source: str
    kernel: str
    aligned: bool


@dataclass(frozen=True)
class CutLaunch:
    """How a cut is launched at one size, as its templates say.

    Args:
        too_far: offsets do not reach: the file launches slices of the batch.
    """

    grid: int
    threads: int
    shared_bytes: int
    preparation: Preparation | None
    inputs: InputPreparation | None
    too_far: bool = False


@dataclass(frozen=True)
class Built:
    """A launch by what the file builds.

    Args:
        options: the arguments of load_inline.
        place: of the kernel in that.
        weight_bytes: of the weights in the order in which the kernel loads them; 0 where it takes them as they are.
        prepares_inputs: inputs are put into another order, too, behind the weights.
        aligned: tensors begin at multiples of 16 bytes.
    """

    options: dict[str, Any]
    place: int
    weight_bytes: int
    prepares_inputs: bool
    aligned: bool


#: Of a text and the name of a function in it: what that writes on these arguments, in one thread.
Ask = Callable[[str, str, tuple[int, ...]], Sequence[int]]


def launch_of(cut: Cut, problem: Any, multiprocessors: int, ask: Ask) -> CutLaunch:
    """How `cut` is launched for `problem`, tconv's or a file's own plan, where there are so many multiprocessors.

    Raises:
        ValueError: the grid would be too large.
    """
    arguments = (multiprocessors, problem.batch, *problem.input_size, *problem.output_size)
    launched = LaunchNumbers(*ask(cut.source, LAUNCH_NUMBERS.format(cut.kernel), arguments))
    if max(launched.counted, launched.weight_blocks) >= INDEX_LIMIT:
        raise ValueError(f"{cut.kernel} would need more blocks than a grid has, which is below 2^31")
    preparation, inputs = None, None
    if launched.weight_blocks:
        preparation = Preparation(launched.weight_blocks, launched.preparing_threads, launched.weight_bytes)
    if launched.input_blocks:
        inputs = InputPreparation(launched.input_blocks, launched.preparing_threads)
    too_far = bool(launched.wide_index)
    return CutLaunch(launched.blocks, launched.threads, launched.shared_bytes, preparation, inputs, too_far)


@dataclass(frozen=True)
class Replaced:
    """What one forward pass of `ModelNew` does.

    Args:
        launches: how often each layer is launched, by its description.
        remaining: transposed convolutions that are PyTorch's still.
        extensions: the arguments of load_inline for all that it builds on this machine's GPU.
        elsewhere: why PyTorch ran a layer, with its own words.
    """

    launches: dict[str, int]
    remaining: tuple[TracedLayer, ...]
    extensions: tuple[dict[str, Any], ...] = ()
    elsewhere: tuple[str, ...] = ()


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
        """The launches that the file would make for these problems on a GPU that runs all its kernels.

        Args:
            skip: so many of the kernels that run the layer, the best first, are not there.

        Raises:
            ModelFileError: the file has none for one of them.
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

    def replaced(self) -> Replaced | None:
        """What a forward pass launches; None where the model does not run on fake tensors."""
        found = self._worker.call("replaced", timeout_s=self._timeout_s)
        if found is None:
            return None
        remaining = tuple(map(decode_layer, found["remaining"]))
        return Replaced(found["launches"], remaining, tuple(found["extensions"]), tuple(found["elsewhere"]))

    def __enter__(self) -> WrittenFile:
        return self

    def __exit__(self, *unused: object) -> None:
        self._worker.close()


def cut_of(kernel: Any, texts: Mapping[str, str]) -> Cut:
    """One of a file's own kernels, of its text for each family."""
    source = alone(texts[kernel.family], kernel.name) + launch_numbers(
        kernel.name, kernel.weight_bytes > 0 or kernel.prepares_inputs
    )
    return Cut(source, kernel.name, _is_aligned(kernel))


def _is_aligned(kernel: Any) -> bool:
    """Whether the file aligns the tensors that it hands to a kernel of its."""
    return bool(kernel.family != "direct")


def runs_all(file: dict[str, Any]) -> dict[str, Any]:
    """What stands in for a file's own functions so that it takes tensors on the CPU for ones on a GPU that runs all
    its kernels, built without a compiler.
    """
    return {
        "_gpu": lambda device: file["_Gpu"]((9, 0), _MOST_SHARED_BYTES, _MULTIPROCESSORS),
        "_runs_on": lambda kernel, gpu: True,
        "_can_build": lambda kernel, gpu: True,
        "_extension": lambda family, capability: None,
        "_samples": lambda kernel, device, run, batch, *sizes: batch,
        "_autocast_dtype": autocast_dtype,
    }


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
        kernels = [self._kernel(Problem.from_dict(problem), skip) for problem in problems]
        return [asdict(cut_of(kernel, self._file["_CUDA"])) for kernel in kernels]

    def built(self, problems: list[dict[str, Any]], skip: int) -> list[dict[str, Any]]:
        kernels = [self._kernel(Problem.from_dict(problem), skip) for problem in problems]
        capability = torch.cuda.get_device_capability()
        return [
            {
                "options": self._file["_load_options"](kernel.family, capability),
                "place": kernel.place,
                "weight_bytes": kernel.weight_bytes,
                "prepares_inputs": kernel.prepares_inputs,
                "aligned": _is_aligned(kernel),
            }
            for kernel in kernels
        ]

    def _kernel(self, problem: Problem, skip: int) -> Any:
        """The kernel that the file launches for a problem, where the first of those for its layer are not there."""
        layer = problem.layer
        used = slice(3 - layer.spatial_dims, None)
        shapes = (problem.input_shape, layer.weight_shape, (layer.out_channels,) if layer.bias else None)
        options = (layer.stride[used], layer.padding[used], problem.output_padding[used], layer.groups)
        recorded = self._file["_RECORDED"]

        def last(kernels: list[Any]) -> list[Any]:
            alike = [each for each in kernels if each.program == layer.epilogue]
            return alike[skip:]

        launch_for = self._file["_launch_for"]
        launch_for.cache_clear()
        with self._standing_in({**runs_all(self._file), "_RECORDED": {key: last(recorded[key]) for key in recorded}}):
            found = launch_for(
                torch.device("cpu"),
                getattr(torch, layer.dtype),
                *shapes,
                (*options, layer.dilation[used]),
                layer.epilogue,
                problem.into,
            )
        launch_for.cache_clear()
        if isinstance(found, str):
            raise ModelFileError(
                f"the written file has no kernel for {layer.describe()} on {problem.input_shape}: {found}"
            )
        return found.kernel

    def replaced(self) -> dict[str, Any] | None:
        launched: list[Any] = []
        elsewhere: list[str] = []
        empty: set[tuple[int, ...]] = set()

        def note(weight_shape: tuple[int, ...], options: Any, reason: str, how: str) -> None:
            if reason == _EMPTY:
                empty.add(weight_shape)
            elif not reason.startswith(_NOT_ITS_OWN):
                elsewhere.append(reason)

        stand_ins = {
            **runs_all(self._file),
            "_GLOBAL_HOOKS": (),  # but for ours
            "_looked_at": lambda tensors: "",
            "_modes": int,
            "_elsewhere": note,
            "_launch": lambda launch, *tensors: launched.append(launch.kernel),
        }
        self._file["_launch_for"].cache_clear()
        with self._standing_in(stand_ins):
            try:
                remaining = self._remaining()
            except ModelFileError:
                return None
        self._file["_launch_for"].cache_clear()
        # Its own with nothing to compute.
        replaced = [each for each in remaining if each.empty and each.problem.layer.weight_shape in empty]
        layers = [asdict(layer) for layer in remaining if layer not in replaced]
        found = {"launches": Counter(kernel.name for kernel in launched), "remaining": layers}
        return found | {"extensions": self._extensions(), "elsewhere": list(dict.fromkeys(elsewhere))}

    def _extensions(self) -> list[dict[str, Any]]:
        """What the file builds on this machine's GPU."""
        if not torch.cuda.is_available():
            return []
        gpu = self._file["_gpu"](torch.device("cuda", torch.cuda.current_device()))
        kernels = [kernel for kernels in self._file["_RECORDED"].values() for kernel in kernels]
        families = dict.fromkeys(each.family for each in kernels if self._file["_runs_on"](each, gpu))
        return [self._file["_load_options"](family, gpu.capability) for family in families]

    def _remaining(self) -> list[TracedLayer]:
        """What PyTorch runs in a forward pass on fake tensors."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return record(self._model)

    @contextlib.contextmanager
    def _standing_in(self, stand_ins: Mapping[str, Any]) -> Iterator[None]:
        """While it is entered, these stand in for the file's own where it has them."""
        before = {name: self._file[name] for name in stand_ins if name in self._file}
        self._file.update({name: stand_ins[name] for name in before})
        try:
            yield
        finally:
            self._file.update(before)
