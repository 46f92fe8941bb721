"""Calls that no kernel of a written file runs: PyTorch's result, a warning that says why, or an error if that is asked.

Once for each layer and reason, and never beside PyTorch's own errors.
"""

from __future__ import annotations

import copy
import pickle
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from codegen_helpers import Namespace, executed, function_of, generated_text, launched, planned_layers, silent, told
from modes import Dispatched
from torch import Tensor, nn

from tconv.rewriter.pipeline import build

MODEL = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 6, 3, 2, 1, 1)
            self.weight = nn.Parameter(torch.randn(4, 6, 3, 3))

        def forward(self, x):
            return F.conv_transpose2d(x, self.weight).mean() + self.up(x)

    def get_inputs():
        return [torch.rand(2, 4, 6, 8)]
"""
#: Of the layer that the tests call: stride, padding, output padding, groups, dilation.
OPTIONS = (2, 1, 1, 1, 1)
LAYER = r"conv_transpose2d 4→6, kernel \(3, 3\), stride \(2, 2\), padding \(1, 1\), dilation \(1, 1\), groups 1"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same file with kernels that round and without."""
    path = tmp_path_factory.mktemp("elsewhere") / "model.py"
    path.write_text(textwrap.dedent(MODEL), encoding="utf-8")
    return {wanted: generated_text(path, wanted, families=("direct",)) for wanted in ("fp32", "tf32")}  # type: ignore[arg-type]


@pytest.fixture
def file(texts: dict[str, str]) -> Namespace:
    """One that takes CPU tensors for ones on a GPU that runs all its kernels."""
    file = executed(texts["fp32"])
    file["own"] = {name: file[name] for name in ("_gpu", "_runs_on", "_can_build", "_extension", "_samples")}
    file["launches"] = launched(file)
    return file


def tensors(dtype: torch.dtype = torch.float32, **changes: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = {"batch": 2, "kernel": 3, "out_channels": 6, **changes}
    x = torch.randn((sizes["batch"], 4, 5, 7), generator=generator)
    weight = torch.randn((4, sizes["out_channels"], sizes["kernel"], 3), generator=generator)
    return [each.to(dtype) for each in (x, weight, torch.randn(sizes["out_channels"], generator=generator))]


class Subclass(Tensor):
    """What a library may make of a tensor."""


Prepare = Callable[[Namespace, pytest.MonkeyPatch], None]


class Case(NamedTuple):
    """Why PyTorch runs a call: what is said, what makes it so of the file, and on which tensors."""

    reason: str
    prepare: Prepare = lambda file, monkeypatch: None
    made: Callable[[], list[Tensor]] = tensors
    layer: str = LAYER


def own(*names: str) -> Prepare:
    """The file's own functions in place of those that take all for a GPU."""

    def prepare(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
        file.update({name: file["own"][name] for name in names})

    return prepare


def no_nvcc(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    own("_can_build")(file, monkeypatch)


def old_gpu(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    file["_gpu"] = lambda device: file["_Gpu"]((7, 0), 99 * 1024, 80)
    own("_runs_on")(file, monkeypatch)


def some_widths(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = file["_RECORDED"]
    for layer, kernels in recorded.items():
        recorded[layer] = [kernel._replace(columns=4) for kernel in kernels]


def some_axes(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = file["_RECORDED"]
    for layer, kernels in recorded.items():
        recorded[layer] = [kernel._replace(single=(1,)) for kernel in kernels]


def few_samples(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    file["_samples"] = lambda *asked: 15


def rounding_forbidden(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = file["_RECORDED"]
    for layer, kernels in recorded.items():
        recorded[layer] = [kernel._replace(tf32=True) for kernel in kernels]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


CASES = {
    "another kernel": Case(
        "none was made for these arguments of the layer",
        made=lambda: tensors(kernel=5),
        layer=LAYER.replace(r"\(3, 3\)", r"\(5, 3\)"),
    ),
    "other channels": Case(
        "none was made for these arguments of the layer",
        made=lambda: tensors(out_channels=8),
        layer=LAYER.replace("4→6", "4→8"),
    ),
    "no bias": Case("none was made for these arguments of the layer", made=lambda: tensors()[:2]),
    "half": Case(
        "its kernels are for float32, not for float16: tconv optimize --types makes others",
        made=lambda: tensors(torch.float16),
    ),
    "double": Case("its kernels are for float32, not for float64", made=lambda: tensors(torch.float64)),
    "complex": Case("its kernels are for float32, not for complex64", made=lambda: tensors(torch.complex64)),
    "an empty batch": Case("the batch is empty", made=lambda: tensors(batch=0)),
    "on the CPU": Case("they run on a GPU, and the tensors are on 'cpu'", own("_gpu", "_runs_on", "_can_build")),
    "an old GPU": Case(r"none runs on a GPU of compute capability 7\.0", old_gpu),
    "rows of another width": Case("none takes an input of this size", some_widths),
    "an axis of more than one": Case("none takes an input of this size", some_axes),
    "no compiler": Case("the CUDA compiler, nvcc, is not found", no_nvcc),
    "too large": Case("it is too large for one launch", few_samples, made=lambda: tensors(batch=16)),
    "no rounding": Case("they round to TF32, which PyTorch's flags forbid now", rounding_forbidden),
    "a subclass": Case("a tensor is of a subclass", made=lambda: [t.as_subclass(Subclass) for t in tensors()]),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, file: Namespace, monkeypatch: pytest.MonkeyPatch) -> Case:
    found = CASES[request.param]
    found.prepare(file, monkeypatch)
    return found


def test_the_kernels_run_what_was_recorded(file: Namespace) -> None:
    x, weight, bias = tensors()
    with silent():
        y = function_of(file, 2)(x, weight, bias, *OPTIONS)
        function_of(file, 2)(x, weight)
    torch.testing.assert_close(y, F.conv_transpose2d(x, weight, bias, *OPTIONS))
    assert [launch.batch for launch in file["launches"]] == [2, 2]


def test_it_is_said_once_and_the_result_is_pytorchs(file: Namespace, case: Case) -> None:
    function, given = function_of(file, 2), [*case.made(), None][:3]
    expected = F.conv_transpose2d(*given, *OPTIONS)
    for times in (1, 0, 0):
        with told() as said:
            got = function(*given, *OPTIONS)
        assert torch.equal(got, expected) and got.stride() == expected.stride() and type(got) is type(expected)
        assert len(said) == times
        if said:
            pattern = rf"PyTorch runs {case.layer}, not a kernel of this file: {case.reason}"
            assert re.match(pattern, said[0]), said
    assert not file["launches"]


def test_each_layer_is_named(file: Namespace, case: Case) -> None:
    function, given = function_of(file, 2), [*case.made(), None][:3]
    of_another = (2,) if "none was made" in case.reason else ()
    with told() as said:
        for _ in range(2):
            function(*given, *OPTIONS)
            function(*given[:2], None, *of_another)
    assert len(said) == 2 and all(re.search(case.reason, each) for each in said)
    assert re.search(LAYER[-50:], said[0]) and "padding (0, 0)" in said[1]
    assert not file["launches"]


def test_it_is_an_error_where_that_is_asked(file: Namespace, case: Case) -> None:
    file["ELSEWHERE"] = "error"
    function, given = function_of(file, 2), [*case.made(), None][:3]
    pattern = rf"no kernel of this file runs {case.layer}: {case.reason}.* \(ELSEWHERE is 'error'\)"
    with silent():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=pattern):
                function(*given, *OPTIONS)
    assert not file["launches"]


def test_gradients_and_formats_are_pytorchs(file: Namespace, case: Case) -> None:
    found = []
    for function in (F.conv_transpose2d, function_of(file, 2)):
        owned = [each.detach().clone().requires_grad_() for each in case.made()]
        x, *others = owned
        y = function(x.contiguous(memory_format=torch.channels_last), *others, *[None] * (3 - len(owned)), *OPTIONS)
        found.append([y.detach(), *torch.autograd.grad(y.abs().square().sum(), owned)])
    for expected, got in zip(*found, strict=True):
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    assert not file["launches"]


def test_a_module_says_the_same(file: Namespace) -> None:
    theirs = nn.ConvTranspose2d(4, 6, 5)
    ours = file["CudaConvTranspose2d"](4, 6, 5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 5, 5)
    with told() as said:
        assert torch.equal(ours(x), theirs(x)) and torch.equal(ours(x[0]), theirs(x[0]))
        assert torch.equal(ours(x, output_size=(9, 9)), theirs(x, output_size=(9, 9)))
    assert len(said) == 1 and "kernel (5, 5)" in said[0]


def test_files_with_the_error_are_written(model_file: Callable[[str], Path]) -> None:
    path = model_file(MODEL)
    layers = planned_layers(path, families=("direct",))
    assert executed(build(path, layers, elsewhere="error"))["ELSEWHERE"] == "error"
    assert executed(build(path, layers))["ELSEWHERE"] == "pytorch"


@pytest.mark.parametrize("elsewhere", ["pytorch", "error"])
@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda x, weight, bias: (x[:, :3], weight, bias), {}),
        (lambda x, weight, bias: (x, weight, bias[:5]), {}),
        (lambda x, weight, bias: (x[0, 0], weight, bias), {}),
        (lambda x, weight, bias: (x, weight[0], bias), {}),
        (lambda x, weight, bias: (x, weight, bias), {"output_padding": 2}),
        (lambda x, weight, bias: (x, weight, bias), {"stride": (2, 2, 2)}),
        (lambda x, weight, bias: (x.double(), weight, bias), {}),
        (lambda x, weight, bias: (x, weight, bias.double()), {}),
        (lambda x, weight, bias: (x[:, :, :0], weight, bias), {}),
        (lambda x, weight, bias: (x, weight, bias), {"output_padding": (1, 1, 1)}),
        (lambda x, weight, bias: (x, weight, bias), {"output_padding": -1}),
    ],
)
def test_pytorchs_errors_stay_its_own(file: Namespace, change: Any, options: dict[str, Any], elsewhere: str) -> None:
    """Nothing is said, and with ELSEWHERE = "error" nothing else is raised."""
    file["ELSEWHERE"] = elsewhere
    given, named = change(*tensors()), {"stride": 2, "padding": 1, "output_padding": 1, **options}
    raised = []
    for function in (F.conv_transpose2d, function_of(file, 2)):
        with silent(), pytest.raises((RuntimeError, ValueError, TypeError)) as error:
            function(*given, **named)
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]
    assert not file["launches"]


@pytest.mark.parametrize("which", range(3))
def test_tensors_of_two_devices_are_pytorchs_matter(file: Namespace, which: int) -> None:
    given = tensors()
    given[which] = given[which].to("meta")
    found = []
    for function in (F.conv_transpose2d, function_of(file, 2)):
        with silent():
            try:
                y = function(*given, *OPTIONS)
                found.append((y.shape, y.device))
            except RuntimeError as error:
                found.append(str(error))
    assert found[0] == found[1] and not file["launches"]


# ---- who else looks at what is computed


def test_in_transforms(file: Namespace) -> None:
    x, weight, bias = tensors()

    def results(function: Callable[..., Tensor]) -> list[Tensor]:
        def call(x: Tensor, weight: Tensor) -> Tensor:
            return function(x, weight, bias, *OPTIONS)

        found = [torch.func.vmap(call)(x[:, None], weight.expand(2, *weight.shape))]
        found.append(torch.func.grad(lambda x: call(x, weight).square().sum())(x))
        found += torch.func.jvp(call, (x, weight), (x.flip(0), weight.cos()))
        return found

    with told() as said:
        got = results(function_of(file, 2))
    assert all(map(torch.equal, got, results(F.conv_transpose2d)))
    assert len(said) == 1 and "torch.func transforms the call" in said[0] and not file["launches"]
    file["ELSEWHERE"] = "error"  # also for what was said before
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"torch\.func transforms the call"):
            torch.func.vmap(lambda x: function_of(file, 2)(x[None], weight, bias, *OPTIONS))(x)


def test_in_forward_mode(file: Namespace) -> None:
    x, weight, bias = tensors()
    forward_ad = torch.autograd.forward_ad
    with told() as said, forward_ad.dual_level():
        for _ in range(2):
            dual = forward_ad.make_dual(x, x.sin())
            pairs = [f(dual, weight, bias, *OPTIONS) for f in (function_of(file, 2), F.conv_transpose2d)]
            got, expected = map(forward_ad.unpack_dual, pairs)
            assert torch.equal(got.primal, expected.primal) and torch.equal(got.tangent, expected.tangent)
    assert len(said) == 1 and "forward-mode differentiation follows the call" in said[0] and not file["launches"]


@pytest.mark.parametrize("elsewhere", ["pytorch", "error"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*")
def test_in_a_trace(file: Namespace, elsewhere: str) -> None:
    """Where shapes are tensors, not numbers."""
    file["ELSEWHERE"] = elsewhere
    x, weight, bias = tensors()
    function = function_of(file, 2)
    raises = pytest.raises(RuntimeError, match=r"torch\.jit traces the call") if elsewhere == "error" else nullcontext()
    with told() as said, raises:
        traced = torch.jit.trace(lambda x, weight: function(x, weight, bias, *OPTIONS), (x, weight), check_trace=False)
        assert torch.equal(traced(3 * x[:1], weight), F.conv_transpose2d(3 * x[:1], weight, bias, *OPTIONS))
        assert "conv_transpose2d" in str(traced.graph) or "_convolution" in str(traced.graph)
    assert len(said) == (elsewhere == "pytorch") and all("torch.jit traces the call" in each for each in said)
    assert not file["launches"]


def test_under_a_dispatch_mode_it_is_the_files_operator(file: Namespace) -> None:
    x, weight, bias = tensors()
    function = function_of(file, 2)
    plain = function(x, weight, bias, *OPTIONS)
    name = file["_OPERATOR"]._qualname.replace("::", ".")
    with silent(), Dispatched() as seen:
        assert torch.equal(function(x, weight, bias, *OPTIONS), plain)
    assert [each for each in seen.names if "conv" in each] == [f"{name}.default"]
    assert len(file["launches"]) == 2, "the operator launches as the call does"


def test_in_the_operator_pytorch_runs_what_no_kernel_does(file: Namespace) -> None:
    x, weight, bias = tensors(kernel=5)
    with told() as said, Dispatched() as seen:
        y = function_of(file, 2)(x, weight, bias, *OPTIONS)
    assert torch.equal(y, F.conv_transpose2d(x, weight, bias, *OPTIONS))
    assert len(said) == 1 and "none was made for these arguments" in said[0]
    assert file["_OPERATOR"]._qualname.replace("::", ".") in "".join(seen.names)


def test_without_operators_dispatch_modes_see_pytorchs(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "custom_op")
    file = executed(texts["fp32"])
    launches = launched(file)
    x, weight, bias = tensors()
    with told() as said, Dispatched() as seen:
        y = function_of(file, 2)(x, weight, bias, *OPTIONS)
    assert torch.equal(y, F.conv_transpose2d(x, weight, bias, *OPTIONS)) and not launches
    assert len(said) == 1 and "a dispatch mode is active" in said[0] and any("convolution" in n for n in seen.names)


def test_compilers_see_one_operator_without_a_word(file: Namespace) -> None:
    torch.compiler.reset()
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    model = file["ModelNew"]()
    x = torch.rand(2, 4, 6, 8)
    with silent():
        expected = model(x)
    with told() as said:
        assert torch.equal(torch.compile(model, fullgraph=True, backend=backend)(x), expected)
    assert sum(file["_OPERATOR"]._qualname.replace("::", ".") in target for target in seen) == 2 and not said


# ---- flags, devices, compilers


@pytest.mark.parametrize("newer", [True, False])
def test_the_flag_is_asked_at_each_call(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    """By the newer flag where PyTorch has it, by the older one elsewhere; of a file that does not round never."""
    if newer and not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("this PyTorch has the older flag alone")
    if not newer:
        monkeypatch.delattr(torch._C, "_get_fp32_precision_getter", raising=False)
    x, weight, bias = tensors()
    for wanted in ("tf32", "fp32"):
        file = executed(texts[wanted])
        launches = launched(file)
        for allowed, times in ((True, 0), (False, 1), (True, 0), (False, 0)):
            monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
            before = len(launches)
            with told() as said:
                y = function_of(file, 2)(x, weight, bias, *OPTIONS)
            rounds = wanted == "tf32"
            assert len(launches) - before == (allowed or not rounds) and len(said) == (times and rounds)
            exact = F.conv_transpose2d(x, weight, bias, *OPTIONS)
            torch.testing.assert_close(y, exact, rtol=1e-2, atol=1e-2)
            assert torch.equal(y, exact) or launches[before:]


def test_the_model_runs_on_a_cpu(texts: dict[str, str], model_file: Callable[[str], Path]) -> None:
    """No emulator: what stands in the file."""
    file = executed(texts["fp32"])
    theirs = executed(textwrap.dedent(MODEL))["Model"]()
    model = file["ModelNew"]()
    model.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 4, 6, 8)
    found = []
    with told() as said:
        for each in (model, theirs):
            each.zero_grad()
            y = each(x)
            y.square().sum().backward()
            found.append([y.detach(), *(parameter.grad for parameter in each.parameters())])
    assert all(map(torch.equal, *found))
    assert len(said) == 2 and all("they run on a GPU, and the tensors are on 'cpu'" in each for each in said)


def as_on_gpu(file: Namespace, monkeypatch: pytest.MonkeyPatch, load_inline: Callable[..., Any]) -> None:
    """CPU tensors are taken for ones on a GPU, for which extensions are built; so is a model."""
    capability = (9, 0)
    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    file["_gpu"] = lambda device: file["_Gpu"](capability, 227 * 1024, 132)


def test_without_a_compiler_models_are_made_and_run(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def load_inline(**options: Any) -> Any:
        raise AssertionError("there is no compiler")

    file = executed(texts["fp32"])
    as_on_gpu(file, monkeypatch, load_inline)
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    with silent():
        model = file["ModelNew"]()
    with told() as said:
        model(torch.rand(2, 4, 6, 8))
        model(torch.rand(3, 4, 7, 8))
    assert len(said) == 2 and all("the CUDA compiler, nvcc, is not found" in each for each in said)


def test_a_build_that_fails_raises(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time: it is no reason to run something else."""

    def load_inline(**options: Any) -> Any:
        raise RuntimeError("Error building extension")

    file = executed(texts["fp32"])
    with silent():
        model = file["ModelNew"]()
    as_on_gpu(file, monkeypatch, load_inline)
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", "/usr/local/cuda")
    with silent():
        for call in (file["ModelNew"], lambda: model(torch.rand(2, 4, 6, 8)), lambda: model(torch.rand(2, 4, 6, 8))):
            with pytest.raises(RuntimeError, match="Error building extension"):
                call()


# ---- copies, and files beside each other


@contextmanager
def as_module(file: Namespace, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file as an imported module, which pickles are found by."""
    module = ModuleType(name)
    vars(module).update(file)
    monkeypatch.setitem(sys.modules, name, module)
    for each in ("ModelNew", "CudaConvTranspose2d"):
        monkeypatch.setattr(file[each], "__module__", name)
    yield


def test_copies_and_pickles_before_and_after_the_first_call(file: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_module(file, "file_of_copies", monkeypatch), silent():
        model, x = file["ModelNew"](), torch.rand(2, 4, 6, 8)
        ways: list[Callable[[Any], Any]] = [copy.deepcopy, copy.copy, lambda each: pickle.loads(pickle.dumps(each))]
        before = [way(model) for way in ways]
        expected = model(x)
        for other in [*before, *(way(model) for way in ways)]:
            assert type(other.up) is type(model.up)
            assert torch.equal(other(x), expected)
    assert len(file["launches"]) == 14


def test_two_files_in_one_process_have_their_own_kernels(file: Namespace, model_file: Callable[[str], Path]) -> None:
    """Each knows its layers alone, and says so once."""
    path = model_file(MODEL.replace("(4, 6, 3, 2, 1, 1)", "(4, 6, 5, 2, 1)"))
    other = executed(generated_text(path, "fp32", families=("direct",)))
    launches = launched(other)
    x, model, second = torch.rand(2, 4, 6, 8), file["ModelNew"](), other["ModelNew"]()
    with silent():
        model(x), second(x)
    assert (len(file["launches"]), len(launches)) == (2, 2)
    with told() as said:
        file["CudaConvTranspose2d"](4, 6, 5, 2, 1)(x)
        other["CudaConvTranspose2d"](4, 6, 3, 2, 1, 1)(x)
        other["CudaConvTranspose2d"](4, 6, 3, 2, 1, 1)(x)
    assert len(said) == 2 and (len(file["launches"]), len(launches)) == (2, 2)


def test_the_same_file_twice(texts: dict[str, str]) -> None:
    """Each load says what it has to say, and has an operator of its own."""
    first, second = (executed(texts["fp32"]) for _ in range(2))
    launches = launched(first)
    x = torch.rand(2, 4, 6, 8)
    with told() as said:
        first["ModelNew"]()(x)
    assert len(launches) == 2 and not said
    with told() as said:
        second["ModelNew"]()(x)
    assert len(said) == 2, "of the second one the tensors are on the CPU"
    assert first["_OPERATOR"]._qualname != second["_OPERATOR"]._qualname
