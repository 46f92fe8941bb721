"""Building real kernels, and what a launch hands to the driver, as far as that goes without one."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tconv.dispatch import decide
from tconv.errors import NotWarmedUp
from tconv.jit import loader
from tconv.jit.compile import Compiled
from tconv.kernels import source
from tconv.planner import COL2IM_WGMMA, DIRECT, MMA, WGMMA, Gpu, Kernel, Plan
from tconv.planner.wgmma.builder import wgmma_tile
from tconv.problem import Layer, Problem


@pytest.fixture
def plan() -> Plan:
    layer = Layer(2, 4, 6, kernel=(1, 3, 2), stride=(1, 2, 3), padding=(0, 1, 0), bias=True)
    return DIRECT.plan(Problem(layer, 5, (1, 7, 9)), Gpu.h200())


def test_a_kernel_is_compiled_once(cache_directory: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = loader.build(plan.kernel, "sm_80").cubin
    assert cubin.startswith(b"\x7fELF") and b"tconv_kernel" in cubin
    compile_source = loader.compile_source
    monkeypatch.setattr(loader, "compile_source", None)
    assert loader.build(plan.kernel, "sm_80").cubin == cubin

    compiled = []
    monkeypatch.setattr(loader, "compile_source", lambda *a, **k: compiled.append(a) or compile_source(*a, **k))
    assert loader.build(plan.kernel, "sm_90").cubin != cubin
    assert len(compiled) == 1


def test_a_kernel_that_spills_is_compiled_for_fewer_blocks_once(
    cache_directory: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler reported is kept beside the cubin: nothing is compiled to learn it again."""
    compiled: list[Compiled] = []

    def spills(source: str, arch: str, **options: Any) -> Compiled:
        fewer = replace(compile_source(source, arch, **options), spill_bytes=0 if compiled else 8)
        compiled.append(fewer)
        return fewer

    compile_source = loader.compile_source
    monkeypatch.setattr(loader, "compile_source", spills)
    fitting, first = loader.compile_kernel(plan.kernel, "sm_80")
    assert fitting.tile.blocks < plan.kernel.tile.blocks and len(compiled) == 2
    monkeypatch.setattr(loader, "compile_source", None)
    again, second = loader.compile_kernel(plan.kernel, "sm_80")
    assert again == fitting and second.cubin == first.cubin and second.registers == first.registers


def test_a_damaged_entry_is_compiled_anew(cache_directory: Path, plan: Plan) -> None:
    cubin = loader.build(plan.kernel, "sm_80").cubin
    (entry,) = (path for path in (cache_directory / "kernels" / "entries").rglob("*") if path.is_file())
    entry.write_bytes(entry.read_bytes()[:1000])
    assert loader.build(plan.kernel, "sm_80").cubin == cubin
    assert entry.read_bytes().startswith(cubin)


def test_swapped_entries_are_compiled_anew(cache_directory: Path, plan: Plan, kernel: Kernel) -> None:
    cubins = [loader.build(plan.kernel, "sm_80").cubin, loader.build(kernel, "sm_80").cubin]
    one, other = (path for path in (cache_directory / "kernels" / "entries").rglob("*") if path.is_file())
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert [loader.build(plan.kernel, "sm_80").cubin, loader.build(kernel, "sm_80").cubin] == cubins
    assert other.read_bytes() != content


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A header that every kernel includes, in a copy of the headers that is compiled instead of the shipped ones."""
    copy = tmp_path / "headers"
    shutil.copytree(source.header_directory(), copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for module in (source, loader):
        monkeypatch.setattr(module, "header_directory", lambda: copy)
    return copy / "primitives" / "language.cuh"


_CHANGE = "__device__ int changed_header = 5;\n"


def test_a_changed_header_is_compiled(cache_directory: Path, kernel: Kernel, header: Path) -> None:
    before, text = loader.build(kernel, "sm_80").cubin, header.read_text()
    header.write_text(text + _CHANGE)
    assert b"changed_header" in loader.build(kernel, "sm_80").cubin
    header.write_text(text)
    assert loader.build(kernel, "sm_80").cubin == before


def test_a_header_that_changes_during_the_compilation(
    cache_directory: Path, kernel: Kernel, header: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_source, text = loader.compile_source, header.read_text()

    def change_and_compile(*arguments: Any, **options: Any) -> Any:
        header.write_text(text + _CHANGE)
        return compile_source(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(loader, "compile_source", change_and_compile)
        assert b"changed_header" in loader.build(kernel, "sm_80").cubin
    header.write_text(text)
    assert b"changed_header" not in loader.build(kernel, "sm_80").cubin


def test_another_header_is_another_kernel(cache_directory: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    loader.build(plan.kernel, "sm_80")
    monkeypatch.setattr(loader, "header_digest", lambda: "of other headers")
    loader.build(plan.kernel, "sm_80")
    assert len([path for path in (cache_directory / "kernels" / "entries").rglob("*") if path.is_file()]) == 2


def test_nothing_is_loaded_while_a_graph_is_captured(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(loader, "build", None)
    with pytest.raises(NotWarmedUp, match=r"2-D 4→6 k\(3,2\).* run the layer once .* before the capture"):
        loader.launcher(plan, 0)


_OF_KERNEL, _OF_WEIGHTS, _OF_INPUTS = "PPPPiiiiiiii", "PP", "PPiiii"
_PREPARED = Problem(Layer(2, 16, 32, (1, 2, 2), (1, 2, 2), precision="fp16"), 5, (1, 7, 9))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of what is allocated, one after the other; the memory begins at 5001, 5002, …"""
    found: list[int] = []

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Any:
        assert (strides, dtype) == ((1,), torch.uint8)
        found.extend(shape)
        address = 5000 + len(found)
        return SimpleNamespace(data_ptr=lambda: address)

    monkeypatch.setattr(loader, "empty", empty)
    return found


def test_what_is_launched(plan: Plan, driver: Any) -> None:
    launch = loader.Launcher(driver.kernel("kernel", _OF_KERNEL), plan, 0)
    launch.enqueue(0xA0, 100, 200, 300, 400)
    launch.enqueue(0xB0, 101, 201, 0, 1 << 47)
    launch.enqueue(0xB0, 102, 202, 0, 402)
    first, second, third = driver.launches
    assert first[:5] == ("kernel", 0xA0, plan.grid, plan.kernel.threads, plan.shared_bytes)
    # x, weight, bias, y, its channels, batch, input and output (depth, height, width): (7-1)*2 - 2 + 3 and (9-1)*3 + 2
    sizes = [6, 5, 1, 7, 9, 1, 13, 26]
    assert first.values == [100, 200, 300, 400, *sizes]
    assert second == first._replace(stream=0xB0, values=[101, 201, 0, 1 << 47, *sizes])
    assert third == second._replace(values=[102, 202, 0, 402, *sizes])


def test_operands_follow_the_sizes(driver: Any) -> None:
    layer = Layer(2, 4, 6, kernel=(1, 3, 2), epilogue="max(y * channel0 + channel1, output2)")
    plan = DIRECT.plan(Problem(layer, 5, (1, 7, 9)), Gpu.h200())
    launch = loader.Launcher(driver.kernel("kernel", _OF_KERNEL + "PPP"), plan, 0)
    launch.enqueue(0xA0, 100, 200, 0, 400, 1 << 40, 600, 700)
    (launched,) = driver.launches
    assert launched.values == [100, 200, 0, 400, 6, 5, 1, 7, 9, 1, 9, 10, 1 << 40, 600, 700]


def test_a_kernel_is_told_of_how_many_channels_its_result_is_a_slice(driver: Any) -> None:
    """By whoever plans it: one kernel serves both."""
    shapes = [torch.empty(shape, device="meta") for shape in ((5, 2, 7, 9), (2, 6, 3, 2))]
    plans = [decide(*shapes, gpu=Gpu.h200(), into=into).plan for into in (0, 11)]
    for plan in plans:
        assert plan is not None
        loader.Launcher(driver.kernel("kernel", _OF_KERNEL), plan, 0).enqueue(0xA0, 100, 200, 300, 400)
    assert plans[0].kernel == plans[1].kernel  # type: ignore[union-attr]
    assert [launched.values[4] for launched in driver.launches] == [6, 11]


def test_weights_are_prepared_before_every_call(driver: Any, taken: list[int]) -> None:
    plan = MMA.plan(_PREPARED, Gpu.h200())
    kernels = driver.kernel("kernel", _OF_KERNEL), driver.kernel("preparing", _OF_WEIGHTS)
    launch = loader.Launcher(kernels[0], plan, 0, kernels[1])
    launch.enqueue(0xA0, 100, 200, 0, 400)
    launch.enqueue(0xA0, 100, 200, 0, 400)
    assert plan.preparation is not None
    assert taken == [plan.preparation.bytes] * 2
    for number in (1, 2):
        first, second = driver.launches[2 * number - 2 : 2 * number]
        assert (first.kernel, first.values) == ("preparing", [200, 5000 + number])
        assert (first.grid, first.threads) == (plan.preparation.grid, plan.preparation.threads)
        assert (second.kernel, second.values[:4]) == ("kernel", [100, 5000 + number, 0, 400])
        assert second.overlaps
        # Whatever is in front of the preparation may write the input.
        assert not first.overlaps
        assert first.stream == second.stream == 0xA0


def test_inputs_are_prepared_before_the_weights(driver: Any, taken: list[int]) -> None:
    """Behind a kernel of the same call the next begins while that runs; in front of the first, anybody's may stand."""
    problem = _PREPARED
    block_tile = (1, 1, 2, 8)
    tile = wgmma_tile(
        problem.layer, block_tile=block_tile, channels=32, phases=4, position_tiles=1, stacked=0, k_tile_steps=2,
        patch_columns=1, prepared_inputs=1,
    )  # fmt: skip
    plan = WGMMA.plan_with(problem, Kernel("wgmma", problem.layer, tile), Gpu.h200())
    kernels = [
        driver.kernel(name, parameters)
        for name, parameters in (("kernel", _OF_KERNEL), ("of weights", _OF_WEIGHTS), ("of inputs", _OF_INPUTS))
    ]
    launch = loader.Launcher(kernels[0], plan, 0, *kernels[1:])
    launch.enqueue(0xA0, 100, 200, 0, 400)
    launch.enqueue_prepared(0xA0, 100, 5002, 0, 400)
    inputs, weights, kernel, inputs_alone, kernel_alone = driver.launches
    assert plan.inputs is not None and plan.preparation is not None
    assert taken == [5 * 16 * 7 * 9 * 2, plan.preparation.bytes, 5 * 16 * 7 * 9 * 2]
    assert (inputs.kernel, inputs.values) == ("of inputs", [100, 5001, 5, 1, 7, 9])
    assert inputs_alone == inputs._replace(values=[100, 5003, 5, 1, 7, 9])
    assert inputs[2:5] == (5, 256, 0)  # a block for each image: channels and positions are few
    assert (weights.kernel, weights.values) == ("of weights", [200, 5002])
    assert (kernel.kernel, kernel.values[:4]) == ("kernel", [5001, 5002, 0, 400])
    assert kernel_alone.values[:4] == [5003, 5002, 0, 400]
    for behind_ours in (weights, kernel, kernel_alone):
        assert behind_ours.overlaps
    for first in (inputs, inputs_alone):
        assert not first.overlaps
    launch.prepare(200)
    assert driver.launches[-1] == weights._replace(values=[200, 5004], overlaps=False)


def test_a_kernel_overlaps_the_one_that_prepares_inputs_alone(driver: Any, taken: list[int]) -> None:
    problem = Problem(Layer(1, 1024, 512, (1, 1, 2), (1, 1, 2), precision="fp16"), 1, (1, 1, 325))
    plan = COL2IM_WGMMA.plan(problem, Gpu.h200())
    assert plan.inputs is not None and plan.preparation is None
    of_inputs = driver.kernel("of inputs", _OF_INPUTS)
    loader.Launcher(driver.kernel("kernel", _OF_KERNEL), plan, 0, None, of_inputs).enqueue(0xA0, 100, 200, 0, 400)
    inputs, kernel = driver.launches
    assert taken == [1024 * 325 * 2]
    assert (inputs.kernel, inputs.values) == ("of inputs", [100, 5001, 1, 1, 1, 325])
    assert kernel.values[:4] == [5001, 200, 0, 400]
    assert kernel.overlaps and not inputs.overlaps


def test_which_launches_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with a preparation in front, from sm_90 on, and with drivers whose graphs know of it."""
    for capability, version, expected in (
        ((9, 0), (12, 3), True),
        ((10, 0), (13, 0), True),
        ((8, 9), (13, 0), False),
        ((9, 0), (12, 2), False),
        ((9, 0), None, False),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        monkeypatch.setattr(loader, "driver_version", lambda found=version: found)
        loader.overlaps.cache_clear()
        assert loader.overlaps(0) is expected
    loader.overlaps.cache_clear()


def test_without_a_preparation_nothing_overlaps(plan: Plan, driver: Any) -> None:
    loader.Launcher(driver.kernel("kernel", _OF_KERNEL), plan, 0).enqueue(0xA0, 100, 200, 0, 400)
    assert not driver.launches[0].overlaps


def test_weights_that_are_prepared_already(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MMA.plan(_PREPARED, Gpu.h200())
    monkeypatch.setattr(loader, "empty", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))
    kernels = driver.kernel("kernel", _OF_KERNEL), driver.kernel("preparing", _OF_WEIGHTS)
    launch = loader.Launcher(kernels[0], plan, 0, kernels[1])
    memory = launch.prepare(200)
    assert plan.preparation is not None and memory.nbytes == plan.preparation.bytes
    assert launch.prepare(201, memory) is memory
    for launched, weight in zip(driver.launches, (200, 201), strict=True):
        assert (launched.kernel, launched.values) == ("preparing", [weight, memory.data_ptr()])
        of_plan = plan.preparation.grid, plan.preparation.threads
        assert (launched.stream, launched.grid, launched.threads) == (0xA0, *of_plan)
    driver.launches.clear()
    launch.enqueue_prepared(0xB0, 100, memory.data_ptr(), 0, 400)
    (launched,) = driver.launches
    assert launched[:5] == ("kernel", 0xB0, plan.grid, plan.kernel.threads, plan.shared_bytes)
    assert launched.values[:4] == [100, memory.data_ptr(), 0, 400]
    # Nothing that would let it begin before the kernel in front of it, which may be anybody's, has ended.
    assert not launched.overlaps
    assert launch.preparing is kernels[1] and loader.Launcher(kernels[0], plan, 0).preparing is None


def test_both_functions_of_a_kernel_are_loaded(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MMA.plan(_PREPARED, Gpu.h200())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(loader, "check_driver", lambda: None)
    monkeypatch.setattr(loader, "gpu_of", lambda device: Gpu.h200())
    loads: list[tuple[str, int]] = []

    def load(cubin: bytes, name: str, shared_bytes: int, device: int) -> str:
        assert name.encode() in cubin
        loads.append((name, shared_bytes))
        return name

    monkeypatch.setattr(loader, "load", load)
    for _ in range(2):
        assert loader.launcher(plan, 0).preparing == "tconv_kernel_weights"
    assert sorted(loads) == [("tconv_kernel", plan.shared_bytes), ("tconv_kernel_weights", 0)]


def test_as_many_blocks_are_launched_as_fit_once_compiled(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each works at one block tile after the other; a rest of blocks would work alone."""
    layer = Layer(3, 16, 8, (4, 4, 4), (2, 2, 2), (1, 1, 1), precision="fp16")
    plan = MMA.plan(Problem(layer, 1, (24, 40, 92)), Gpu.h200())
    tile = plan.kernel.tile
    assert tile.pipeline.resident and tile.blocks == 4 and plan.grid == 525
    fewer = replace(plan.kernel, tile=replace(tile, blocks=3))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(loader, "check_driver", lambda: None)
    monkeypatch.setattr(loader, "gpu_of", lambda device: Gpu.h200())
    monkeypatch.setattr(loader, "build", lambda kernel, arch: loader.Built(fewer, b""))
    parameters = {"tconv_kernel": _OF_KERNEL, "tconv_kernel_weights": _OF_WEIGHTS}
    monkeypatch.setattr(loader, "load", lambda cubin, name, *_: driver.kernel(name, parameters[name]))
    for _ in range(2):
        loader.launcher(plan, 0).enqueue_prepared(0xA0, 100, 200, 0, 400)
        assert driver.launches[-1].grid == 394 <= 3 * 132


def test_every_thread_gets_a_context_once(plan: Plan, driver: Any) -> None:
    launch = loader.Launcher(driver.kernel("kernel", _OF_KERNEL), plan, 0)

    def twice() -> None:
        launch.enqueue(0xA0, 1, 2, 0, 3)
        launch.enqueue(0xA0, 1, 2, 0, 3)

    twice()
    other = threading.Thread(target=twice)
    other.start()
    other.join()
    assert len(driver.launches) == 4
    assert len(driver.threads_given_context) == len(set(driver.threads_given_context)) == 2


def test_threads_load_a_kernel_once(plan: Plan, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    ready = threading.Barrier(4)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(loader, "check_driver", lambda: None)
    monkeypatch.setattr(loader, "gpu_of", lambda device: Gpu.h200())
    monkeypatch.setattr(loader, "build", lambda kernel, arch: loader.Built(kernel, b"cubin for " + arch.encode()))

    def load(*values: Any) -> str:
        loads.append(values)
        time.sleep(0.05)  # the others arrive meanwhile
        return "kernel"

    monkeypatch.setattr(loader, "load", load)

    def work() -> None:
        ready.wait()
        loader.launcher(plan, 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [(b"cubin for sm_90a", "tconv_kernel", plan.shared_bytes, 0)]


class _Loading:
    """Stands in for the bindings and the part of cuda.core that loads; keeps what was asked of them, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: str = "CUDA_SUCCESS") -> None:
        self.asked: list[tuple[Any, ...]] = []
        results = SimpleNamespace(CUDA_SUCCESS="CUDA_SUCCESS" if answer == "CUDA_SUCCESS" else "another")
        attributes = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="most shared")
        status = "CUDA_SUCCESS" if answer == "CUDA_SUCCESS" else SimpleNamespace(name=answer)

        def ask(*values: Any) -> tuple[Any, ...]:
            self.asked.append(values)
            return (status,)

        bindings = SimpleNamespace(
            CUresult=results,
            CUfunction_attribute=attributes,
            CUdevice=lambda index: f"device {index}",
            cuKernelGetFunction=lambda handle: (*ask("function", handle), 0xF),
            cuKernelSetAttribute=lambda *values: ask("attribute", *values),
        )
        kernel = SimpleNamespace(handle="handle")
        code = SimpleNamespace(get_kernel=lambda name: self.asked.append(("kernel", name)) or kernel)
        core = SimpleNamespace(
            Device=lambda index: SimpleNamespace(
                set_current=lambda: self.asked.append(("current", index)),
                properties=SimpleNamespace(max_shared_memory_per_block_optin=101_376),
            ),
            ObjectCode=SimpleNamespace(from_cubin=lambda cubin, name: self.asked.append(("cubin", cubin)) or code),
        )
        monkeypatch.setattr(loader, "driver", lambda: bindings)
        monkeypatch.setattr(loader, "cuda_core", lambda: core)
        monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext(self.asked.append(("within", index))))


@pytest.mark.parametrize("shared_bytes", [48 * 1024, 48 * 1024 + 4])
def test_a_kernel_is_ready_when_it_is_loaded(shared_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function is in the device's context, and may use its shared memory: nothing of that waits for the launch."""
    loading = _Loading(monkeypatch)
    assert loader.load(b"cubin", "name", shared_bytes, 3).handle == 0xF
    asked = [("within", 3), ("current", 3), ("cubin", b"cubin"), ("kernel", "name"), ("function", "handle")]
    if shared_bytes > 48 * 1024:
        asked.append(("attribute", "most shared", shared_bytes, "handle", "device 3"))
    assert loading.asked == asked


def test_what_the_driver_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _Loading(monkeypatch, answer="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(RuntimeError, match="the CUDA driver answered CUDA_ERROR_OUT_OF_MEMORY while a kernel"):
        loader.load(b"cubin", "name", 0, 0)


def test_what_the_planner_is_told_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _Loading(monkeypatch)
    h200 = Gpu.h200()
    found = {}
    for name in (h200.name, "NVIDIA L4"):
        properties = SimpleNamespace(name=name, major=8, minor=9, multi_processor_count=58)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, given=properties: given)
        loader.gpu_of.cache_clear()
        found[name] = loader.gpu_of(0)
    loader.gpu_of.cache_clear()
    assert found["NVIDIA L4"] == Gpu("NVIDIA L4", "sm_89", 58, 101_376)
    assert not found["NVIDIA L4"].is_measured
    assert (found[h200.name].bandwidth, found[h200.name].rates) == (h200.bandwidth, h200.rates)


def test_weights_are_prepared_on_a_device_that_is_not_current(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MMA.plan(_PREPARED, Gpu.h200())
    current = [0]

    @contextmanager
    def device(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
    streams = {0: 0xA0, 1: 0xA1}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", streams.__getitem__)
    kernels = driver.kernel("kernel", _OF_KERNEL), driver.kernel("preparing", _OF_WEIGHTS)
    launch = loader.Launcher(kernels[0], plan, 1, kernels[1])
    memory = torch.empty(1)
    assert launch.prepare(200, memory) is memory
    assert [launched.stream for launched in driver.launches] == [0xA1]
    assert current == [0]
