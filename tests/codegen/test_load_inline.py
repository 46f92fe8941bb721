"""What load_inline is given: its arguments under every PyTorch, and its two objects, compiled as far as no GPU goes."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from codegen_helpers import EXAMPLES, Namespace, executed, fused_text, generated_text, kernels_of, silent
from test_generated_epilogues import BLOCK
from torch.utils import cpp_extension

from tconv.sandbox.cut import cut_of, launch_of
from tconv.sandbox.emulated import ask


@pytest.fixture(scope="module")
def text() -> str:
    return generated_text(EXAMPLES / "unet.py", families=("direct",))


@pytest.fixture
def file(text: str) -> Namespace:
    return executed(text)


def test_a_family_is_an_extension_named_by_its_text(file: Namespace) -> None:
    assert {kernel.family for kernel in kernels_of(file)} == set(file["_CUDA"]) == {"direct"}
    options = file["_load_options"]("direct", (9, 0))
    assert options["cuda_sources"] == [file["_CUDA"]["direct"]] and options["cpp_sources"] == [file["_BINDING"]]
    # Some releases look for "arch" among all flags, the extension's name included, and then add none of their own.
    assert options["name"].startswith("tconv_") and "arch" not in options["name"] and options["name"].isidentifier()
    assert file["_load_options"]("direct", (9, 0)) == options
    flags = options["extra_cuda_cflags"]
    assert not any("std=" in flag for flag in flags) and "extra_cflags" not in options
    for name, argument in inspect.signature(cpp_extension.load_inline).parameters.items():
        assert argument.default is not inspect.Parameter.empty or name in options


@pytest.mark.parametrize(
    ("capability", "arch", "overlaps"),
    [
        ((7, 5), "75", False),
        ((8, 0), "80", False),
        ((8, 9), "89", False),
        ((9, 0), "90a", True),
        ((12, 0), "120", True),
    ],
)
def test_each_gpu_has_an_extension_of_its_own(
    file: Namespace, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], arch: str, overlaps: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    options = file["_load_options"]("direct", capability)
    expected = ["-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", *["-DTCONV_OVERLAPS"] * overlaps]
    assert options["extra_cuda_cflags"] == [*expected, "--split-compile=0"]
    others = {(7, 5), (8, 0), (8, 9), (9, 0), (12, 1)} - {capability}
    assert options["name"] not in {file["_load_options"]("direct", other)["name"] for other in others}


def test_an_nvcc_that_cannot_compile_kernels_beside_each_other_is_not_asked_to(
    file: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert not any("split" in flag for flag in file["_load_options"]("direct", (8, 0))["extra_cuda_cflags"])


@pytest.mark.parametrize("what", ["_BINDING", "_CUDA"])
def test_another_text_is_another_extension(file: Namespace, what: str) -> None:
    """What was built before stays what it is: names are what load_inline finds builds by."""
    before = file["_load_options"]("direct", (8, 0))["name"]
    if what == "_CUDA":
        file["_CUDA"]["direct"] += "\n"
    else:
        file[what] += "\n"
    assert file["_load_options"]("direct", (8, 0))["name"] != before


def test_headers_are_left_out_where_that_can_be_asked_for(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "load_inline", lambda name, cpp_sources, no_implicit_headers=False: None)
    assert file["_load_options"]("direct", (9, 0))["no_implicit_headers"] is True
    monkeypatch.setattr(cpp_extension, "load_inline", lambda name, cpp_sources: None)
    assert "no_implicit_headers" not in file["_load_options"]("direct", (9, 0))


def test_the_binding_is_a_module_that_hands_over_numbers(file: Namespace, tmp_path: Path) -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        pytest.skip(f"needs {header}: install Python's development headers")
    main, extension = tmp_path / "main.cpp", tmp_path / "some_name.so"
    last = "int64_t launch(const std::vector<int64_t>& numbers) { return numbers.back() - numbers.size(); }\n"
    main.write_text(file["_BINDING"] + last, encoding="utf-8")
    flags = ["-std=c++14", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-fPIC"]
    command = ["g++", *flags, f"-I{header.parent}", "-DTORCH_EXTENSION_NAME=some_name", "-shared", str(main)]
    built = subprocess.run([*command, "-o", str(extension)], capture_output=True, text=True, timeout=300)
    assert built.returncode == 0 and not built.stderr, built.stderr
    spec = importlib.util.spec_from_file_location("some_name", extension)
    assert spec is not None and spec.loader is not None
    launch = importlib.util.module_from_spec(spec).launch
    assert launch(7) == 6
    assert launch(0, 0, 2**62 + 1) == 2**62 - 2 and launch(-(2**62)) == -(2**62) - 1
    for wrong, error in ((1.0, TypeError), (None, TypeError), (2**64, OverflowError)):
        with pytest.raises(error):
            launch(1, wrong, 3)


class OnGpu:
    """A tensor as far as a launch looks at it."""

    def __init__(self, *shape: int, address: int, index: int = 0) -> None:
        self.shape, self.device, self._address = shape, torch.device("cuda", index), address

    def data_ptr(self) -> int:
        return self._address


class Host:
    """A machine with two GPUs, and an extension that answers as it is told: what is built, what is launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builds: list[str] = []
        self.asked: list[tuple[int, ...]] = []
        self.asked_on: list[int] = []
        self.launched: list[tuple[int, ...]] = []
        self.current = [1]
        self.error = 0
        self.fits = 10**6
        monkeypatch.setattr(cpp_extension, "load_inline", self._load_inline)
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/usr/local/cuda")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        properties = SimpleNamespace(multi_processor_count=78)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current[-1])
        monkeypatch.setattr(torch.cuda, "device", self._entered)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 99 + index, raising=False)

    def _load_inline(self, **options: Any) -> Any:
        self.builds.append(options["name"])
        return SimpleNamespace(launch=self._launch)

    def _launch(self, *numbers: int) -> int:
        assert all(type(number) is int for number in numbers)
        if numbers[6] == 0:  # without outputs it says how many samples one launch takes
            self.asked.append(numbers)
            self.asked_on.append(self.current[-1])
            return min(self.fits, numbers[9])
        self.launched.append(numbers)
        return self.error

    @contextmanager
    def _entered(self, device: torch.device) -> Iterator[None]:
        self.current.append(device.index)
        yield
        self.current.pop()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


SHAPES = (8, 128, 64, 64), (128, 64, 2, 2), (64,)
OPTIONS = (2, 2), (0, 0), (0, 0), 1, (1, 1)


def launch_for(file: Namespace, batch: int = 8, index: int = 0) -> Any:
    x, *others = SHAPES
    return file["_launch_for"](torch.device("cuda", index), torch.float32, (batch, *x[1:]), *others, OPTIONS)


def test_a_family_is_built_once_for_all_its_kernels(file: Namespace, host: Host) -> None:
    with silent():
        for _ in range(2):
            file["ModelNew"](*file["get_init_inputs"]())
    assert len(host.builds) == 1 and len(kernels_of(file)) >= 4
    launch_for(file), launch_for(file, index=1)
    assert len(host.builds) == 1, "another GPU of the same kind takes the same one"
    assert host.asked_on == [0, 1] and host.current == [1], "each GPU is readied"
    assert not host.launched


def test_it_is_built_at_the_first_call_where_the_model_was_made_without_a_gpu(
    file: Namespace, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file["ModelNew"](*file["get_init_inputs"]())
    assert not host.builds
    launch_for(file)
    assert len(host.builds) == 1


def test_what_a_launch_hands_over(file: Namespace, host: Host) -> None:
    launch = launch_for(file)
    assert launch.samples == launch.batch == 8 and launch.shape == (8, 64, 128, 128)
    place = launch.kernel.place
    assert host.asked == [(place, 0, 78, 0, 0, 0, 0, 0, 0, 8, 1, 64, 64, 1, 128, 128)] and launch_for(file) is launch
    tensors = [OnGpu(8, 128, 64, 64, address=1), OnGpu(128, 64, 2, 2, address=2), OnGpu(64, address=3)]
    y = OnGpu(8, 64, 128, 128, address=4)
    file["_launch"](launch, *tensors, y)
    file["_launch"](launch, *tensors[:2], None, y)
    assert host.current == [1], "the caller's device is current again"
    assert host.launched[0] == (place, 99, 78, 1, 2, 3, 4, 0, 64, 8, 1, 64, 64, 1, 128, 128)
    assert host.launched[1][5] == 0
    host.error = 700
    with pytest.raises(RuntimeError, match=rf"CUDA error 700 at the launch of {launch.kernel.name} on \(8, 128, "):
        file["_launch"](launch, *tensors, y)


def test_places_are_those_of_the_names(file: Namespace, host: Host) -> None:
    seen = {}
    for layer, kernels in file["_RECORDED"].items():
        shapes = (2, layer.in_channels, 8, 8), (layer.in_channels, layer.out_channels, 2, 2), (layer.out_channels,)
        launch = file["_launch_for"](torch.device("cuda", 0), torch.float32, *shapes, OPTIONS)
        assert launch.kernel is kernels[0]
        seen[launch.kernel.name] = host.asked[-1][0]
    assert len(seen) == 4 and sorted(seen.values()) == [0, 1, 2, 3]
    for name, place in seen.items():
        assert f"case {place}: return launched(numbers, tconv::{name}_launch," in file["_CUDA"]["direct"]


@pytest.mark.parametrize(
    ("fits", "batch", "samples"),
    [(40, 40, 40), (40, 39, 39), (40, 41, 32), (16, 17, 16), (31, 40, 16), (15, 16, None), (15, 15, 15), (0, 1, None)],
)
def test_how_many_samples_a_launch_takes(
    file: Namespace, host: Host, fits: int, batch: int, samples: int | None
) -> None:
    """All of them, or a multiple of 16."""
    host.fits = fits
    launch = launch_for(file, batch)
    if samples is None:
        assert launch == "it is too large for one launch"
    else:
        assert (launch.samples, launch.batch) == (samples, batch)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["direct", "mma", "wgmma"])
def test_both_objects_compile(family: str, cuda_home: Path, tmp_path: Path) -> None:
    """Everything but the link, which takes torch's CUDA libraries: main.cpp and cuda.cu, by ninja, as for a GPU."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        pytest.skip(f"needs {header}: install Python's development headers")
    source = tmp_path / "model_new.py"
    text = generated_text(EXAMPLES / "unet.py", families=[family], types=("float16", "bfloat16"))
    source.write_text(text, encoding="utf-8")
    script = """
        import sys
        from pathlib import Path
        import torch
        from torch.utils import cpp_extension

        family, source, home, folder = sys.argv[1:]
        cpp_extension.CUDA_HOME, torch.version.cuda = home, torch.version.cuda or "13.0"
        file = {}
        exec(Path(source).read_text(encoding="utf-8"), file)
        assert list(file["_CUDA"]) == [family]
        for number, capability in enumerate([(9, 0)] if family == "wgmma" else [(9, 0), (8, 0)]):
            try:
                where = f"{folder}/{number}"
                Path(where).mkdir()
                cpp_extension.load_inline(build_directory=where, **file["_load_options"](family, capability))
            except (RuntimeError, OSError, ImportError) as error:
                print(error)
    """
    folder = tmp_path / "build"
    folder.mkdir()
    arguments = [family, str(source), str(cuda_home), str(folder)]
    run = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments]
    shown = subprocess.run(run, capture_output=True, text=True, timeout=590)
    for built in folder.iterdir():
        assert {"main.o", "cuda.cuda.o"} <= {path.name for path in built.iterdir()}, shown.stdout + shown.stderr
    assert len(list(folder.iterdir())) == (1 if family == "wgmma" else 2)
    assert "warning" not in shown.stdout, shown.stdout


@pytest.mark.slow
def test_the_host_hands_over_what_a_program_reads(cuda_home: Path, tmp_path: Path) -> None:
    """The file's own host code, linked to a runtime that prints what it would launch."""
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(BLOCK), encoding="utf-8")
    file = executed(fused_text(path, ("direct",)))
    ((program, operands),) = file["_PROGRAMS"].items()
    kernels = kernels_of(file)
    (kernel,) = [each for each in kernels if each.program == program]
    assert kernel.place == 1 and len(operands) == 7
    source, built, stub = tmp_path / "cuda.cu", tmp_path / "cuda.o", Path(__file__).with_name("runtime_stub.cpp")
    source.write_text(file["_CUDA"]["direct"], encoding="utf-8")
    nvcc = [str(cuda_home / "bin" / "nvcc"), "-std=c++17", "-arch=sm_80", "-c", str(source), "-o", str(built)]
    include, binary = f"-I{cuda_home / 'include'}", tmp_path / "launched"
    link = ["g++", include, str(stub), str(built), "-o", str(binary)]
    for command in (nvcc, link):
        made = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr

    def call(*numbers: int) -> list[str]:
        command = [str(binary), str(len(operands)), *map(str, numbers)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()

    sizes = (6, 2, 1, 4, 5, 1, 8, 10)
    reads = [0x900 + number for number in range(7)]
    shown, result = call(kernel.place, 0, 132, 0x100, 0x200, 0x300, 0x400, 0, *sizes, *reads)
    read = " ".join(f"{each:x}" for each in reads)
    name, _, handed = shown.partition(": ")
    assert name.startswith(f"{kernel.name} ") and handed == f"100 200 300 400 6 2 1 4 5 1 8 10 {read}"
    assert result == "0"
    # Without outputs it launches nothing, and says how many samples do.
    assert call(kernel.place, 0, 132, 0, 0, 0, 0, 0, *sizes) == ["2"]
    # Half of the batch, and so on, until offsets of 32 bits reach and the grid has so many blocks.
    found = []
    cases = (100, 2_000), (64, 20_000), (1_000_000, 20_000), (3, 200_000)
    for batch, rows in cases:
        size = (1, rows, 20_000), (1, 2 * rows, 40_000)
        fits = batch
        while fits and too_far(file, kernel, fits, *size):
            fits //= 2
        assert call(kernel.place, 0, 132, 0, 0, 0, 0, 0, 0, batch, *size[0], *size[1]) == [str(fits)]
        found.append(fits)
    assert found[0] == 100 and 0 < found[2] < 1_000_000 and found[3] == 0, found
    assert call(len(kernels), 0, 132, 0x100, 0x200, 0x300, 0x400, 0, *sizes) == ["1"]  # cudaErrorInvalidValue


def too_far(file: Namespace, kernel: Any, batch: int, input_size: Any, output_size: Any) -> bool:
    """What the text says of one launch, to the emulator."""
    sizes = SimpleNamespace(batch=batch, input_size=input_size, output_size=output_size)
    try:
        return launch_of(cut_of(kernel, file["_CUDA"]), sizes, 132, ask).too_far
    except ValueError as error:
        assert "more blocks than a grid has" in str(error)
        return True
