"""The generated file's classes and functions beside torch's, in the emulator: every way of making and calling them."""

from __future__ import annotations

import copy
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from codegen_helpers import Namespace, executed, function_of, generated_text, launched, silent, told
from torch import nn

#: Where a test does not say that PyTorch runs a call, the files' kernels do.
pytestmark = [pytest.mark.filterwarnings("error:PyTorch runs"), pytest.mark.rotates(4)]

Both = Callable[..., tuple[Namespace, Namespace]]

LAYER = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self, *args, **options):
            super().__init__()
            self.up = nn.ConvTranspose2d(*(args or (4, 6, 3)), **options)

        def forward(self, x, **options):
            return self.up(x, **options)

    def get_inputs():
        return [torch.rand(1, 4, 5, 5)]
"""


def seeded(namespace: Namespace, name: str, *args: Any, **options: Any) -> nn.Module:
    torch.manual_seed(7)
    return namespace[name](*args, **options)


#: All layers that the tests call.
LAYERS = """
    import torch
    from torch import nn
    from torch.nn.functional import conv_transpose1d, conv_transpose2d, conv_transpose3d

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 6, 3)
            self.strided = nn.ConvTranspose2d(4, 6, 3, stride=2)
            self.padded = nn.ConvTranspose2d(4, 6, 3, padding=1)
            self.grouped = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
            self.bare = nn.ConvTranspose2d(4, 6, 3, bias=False)
            self.pair = nn.ConvTranspose2d(2, 1, 2, 2, bias=False)
            self.lines = nn.ModuleList([kind(4, 3, 3, bias=False) for kind in (nn.ConvTranspose1d, nn.ConvTranspose3d)])
            self.line = nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2)
            self.cube = nn.ConvTranspose3d(4, 6, 3, 2, 1, 1, 2)
            self.few = nn.ConvTranspose2d(4, 3, 3, bias=False)

        def forward(self, x):
            for layer in (self.strided, self.padded, self.grouped, self.bare, self.few):
                layer(x)
            self.pair(x[:, :2]), self.lines[0](x[:, :, 0]), self.lines[1](x[..., None]), self.line(x[:, :, 0])
            self.cube(x[..., None])
            return self.up(x)

    def get_inputs():
        return [torch.rand(4, 4, 5, 5)]
"""
TYPES = ("float64", "float16", "bfloat16")


@pytest.fixture(scope="module")
def layer_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("layer") / "model.py"
    path.write_text(textwrap.dedent(LAYERS), encoding="utf-8")
    return generated_text(path, "fp32", types=TYPES)


@pytest.fixture
def layer_file(layer_text: str) -> Namespace:
    """The file generated from LAYERS, in the emulator; its `launches` are kept."""
    namespace = executed(layer_text)
    namespace["launches"] = launched(namespace)
    return namespace


def pair(file: Namespace, *args: Any, **options: Any) -> tuple[nn.Module, nn.Module]:
    """torch's layer and the file's, with the same parameters."""
    torch.manual_seed(7)
    theirs = nn.ConvTranspose2d(*args, **options)
    ours = file["CudaConvTranspose2d"](*args, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert got.stride() == expected.stride()


# ---- calls


def test_unbatched_input(layer_file: Namespace) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3, stride=2)
    x = torch.randn(4, 5, 7)
    close(ours(x), theirs(x))


def test_output_size(layer_file: Namespace) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3, stride=2)
    x = torch.randn(2, 4, 5, 7)
    for size in ([11, 15], [12, 16], [2, 6, 12, 15]):
        close(ours(x, output_size=size), theirs(x, output_size=size))
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, output_size=[40, 40])


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose(2, 3),
        lambda x: x[:, :, ::2, 1:],
        lambda x: x[:1].expand(3, -1, -1, -1),
        lambda x: x[:0],
        lambda x: x.to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "expanded", "empty", "channels_last"],
)
def test_memory_of_the_input(layer_file: Namespace, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3, padding=1)
    x = change(torch.randn(2, 4, 6, 6))
    with told() as said:
        close(ours(x), theirs(x))
    assert [launch.batch for launch in layer_file["launches"]] == [len(x)] * (len(x) > 0)
    assert len(said) == (len(x) == 0) and all(each.endswith("the batch is empty") for each in said)


def test_channels_last_weight(layer_file: Namespace) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3)
    x = torch.randn(2, 4, 6, 6)
    close(ours.to(memory_format=torch.channels_last)(x), theirs.to(memory_format=torch.channels_last)(x))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float16, 2e-2), (torch.bfloat16, 5e-2)]
)
def test_dtypes(layer_file: Namespace, dtype: torch.dtype, tolerance: float) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3, stride=2, dtype=dtype)
    x = torch.randn(2, 4, 5, 5, dtype=dtype)
    got = ours(x)
    assert got.dtype == dtype
    expected = theirs.double()(x.double())
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    assert [launch.kernel.name for launch in layer_file["launches"]] == [f"conv_strided_{str(dtype)[6:]}"]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_functions(layer_file: Namespace, dims: int) -> None:
    x, weight, bias = torch.randn(2, 4, *[5] * dims), torch.randn(4, 3, *[3] * dims), torch.randn(6)
    theirs, ours = getattr(F, f"conv_transpose{dims}d"), function_of(layer_file, dims)
    close(ours(x, weight), theirs(x, weight))
    options = (2, 1, 1, 2, 1)
    close(ours(x, weight, bias, *options), theirs(x, weight, bias, *options))
    as_lists = {"stride": [2], "padding": [1] * dims, "output_padding": (1,) * dims, "groups": 2}
    close(ours(x, weight, bias, **as_lists), theirs(x, weight, bias, **as_lists))
    assert len(layer_file["launches"]) == 3


# ---- gradients


def test_gradients(layer_file: Namespace) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    x, gradient = torch.randn(2, 4, 5, 5), torch.randn(2, 6, 10, 10)
    gradients = []
    for layer in (theirs, ours):
        leaf = x.clone().requires_grad_()
        layer(leaf).backward(gradient)
        gradients.append([leaf.grad, layer.weight.grad, layer.bias.grad])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_some_and_without_bias(layer_file: Namespace) -> None:
    _, ours = pair(layer_file, 4, 6, 3, bias=False)
    ours.weight.requires_grad_(False)
    x = torch.randn(4, 5, 5, requires_grad=True)
    ours(x).sum().backward()
    assert x.grad is not None and ours.weight.grad is None
    with torch.no_grad():
        assert not ours(x).requires_grad


def test_second_gradients(layer_file: Namespace) -> None:
    x = torch.randn(1, 2, 3, 3, requires_grad=True)
    weight = torch.randn(2, 1, 2, 2, requires_grad=True)
    seconds = []
    for function in (F.conv_transpose2d, function_of(layer_file, 2)):
        (first,) = torch.autograd.grad(function(x, weight, stride=2).pow(2).sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.pow(3).sum(), (x, weight)))
    for expected, got in zip(*seconds, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


# ---- errors


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 3, 5, 5), {}),
        ((2, 4, 5), {}),
        ((2, 4, 5, 5, 5), {}),
        ((2, 4, 0, 3), {"padding": 1}),
    ],
    ids=["channels", "too few axes", "too many axes", "empty input"],
)
def test_torchs_own_errors(layer_file: Namespace, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3, **options)
    x = torch.randn(shape)
    with pytest.raises((RuntimeError, ValueError)) as expected:
        theirs(x)
    with pytest.raises((RuntimeError, ValueError)) as got:
        ours(x)
    assert str(got.value) == str(expected.value)
    assert type(got.value) is type(expected.value)


def test_torchs_own_error_for_mixed_dtypes(layer_file: Namespace) -> None:
    theirs, ours = pair(layer_file, 4, 6, 3)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    with pytest.raises(RuntimeError) as expected:
        theirs(x)
    with pytest.raises(RuntimeError) as got:
        ours(x)
    assert str(got.value) == str(expected.value)


def test_pytorch_computes_what_has_no_kernel(layer_file: Namespace) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = function_of(layer_file, 1), F.conv_transpose1d
        x, weight = torch.randn(2, 3, 5, dtype=torch.complex64), torch.randn(3, 2, 4, dtype=torch.complex64)
        assert torch.equal(ours(x, weight, stride=2), theirs(x, weight, stride=2))
        x, weight = torch.randn(0, 3, 4, requires_grad=True), torch.randn(3, 2, 3, requires_grad=True)
        got = ours(x, weight, stride=2)
        assert got.shape == theirs(x, weight, stride=2).shape == (0, 2, 9) and got.requires_grad
        assert not layer_file["launches"]
        for changed, options in ((x.to(torch.complex64), {}), (torch.randn(1, 3, 4), {"padding": 3})):
            try:  # whether it takes a layer without outputs hangs on the CPU
                expected = theirs(changed, weight, **options)
            except RuntimeError as error:
                with pytest.raises(RuntimeError) as refused:
                    ours(changed, weight, **options)
                assert str(refused.value) == str(error)
            else:
                assert ours(changed, weight, **options).shape == expected.shape


def _of_func(call: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """What transforms of torch.func, forward-mode differentiation and a trace give of a function."""
    found = [torch.func.vmap(call)(x[:, None], weight.expand(len(x), *weight.shape))]
    found.append(torch.func.vmap(call, (None, 0))(x, torch.stack([weight, 2 * weight])))
    found.append(torch.func.grad(lambda x: call(x, weight).square().sum())(x))
    found += torch.func.jvp(call, (x, weight), (x.flip(0), weight.cos()))
    found.append(torch.func.jacrev(lambda x: call(x, weight).sum((0, 2, 3)))(x))
    with torch.autograd.forward_ad.dual_level():
        dual = call(torch.autograd.forward_ad.make_dual(x, x.sin()), weight)
        found += torch.autograd.forward_ad.unpack_dual(dual)
    return found


def test_transforms_and_traces_see_pytorchs_operator(layer_file: Namespace) -> None:
    """Also beside a layer's epilogue, and for a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, weight = torch.randn(3, 4, 5, 5), torch.randn(4, 6, 3, 3)
        ours, theirs = function_of(layer_file, 2), F.conv_transpose2d
        for got, expected in zip(_of_func(ours, x, weight), _of_func(theirs, x, weight), strict=True):
            assert torch.equal(got, expected)
        torchs, module = pair(layer_file, 4, 6, 3)
        for each in (module, torchs):
            each.requires_grad_(False)
        assert torch.equal(torch.jit.trace(module, x)(3 * x), torchs(3 * x))

        def called(module: nn.Module) -> Callable[..., torch.Tensor]:
            return lambda x, weight: torch.func.functional_call(module, {"weight": weight}, (x,))

        for got, expected in zip(_of_func(called(module), x, weight), _of_func(called(torchs), x, weight), strict=True):
            assert torch.equal(got, expected)


def test_constructors_errors_are_torchs(layer_file: Namespace) -> None:
    for options in ({"groups": 3}, {"padding_mode": "reflect"}):
        with pytest.raises(ValueError) as expected:
            nn.ConvTranspose2d(4, 6, 3, **options)
        with pytest.raises(ValueError) as got:
            layer_file["CudaConvTranspose2d"](4, 6, 3, **options)
        assert str(got.value) == str(expected.value)


def test_cpu_tensors_are_pytorchs(layer_text: str) -> None:
    """Without an emulator: the warning comes once, and the result is bit by bit PyTorch's."""
    theirs, ours = pair(executed(layer_text), 4, 6, 3)
    x = torch.randn(2, 4, 5, 5)
    for times in (1, 0):
        with told() as said:
            assert torch.equal(ours(x), theirs(x))
        assert len(said) == times and all("the tensors are on 'cpu'" in each for each in said)


def test_old_gpus_build_nothing(layer_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = executed(layer_text)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    properties = SimpleNamespace(multi_processor_count=80)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    namespace["_extension"] = lambda family, capability: pytest.fail("a kernel was built")
    with silent():
        namespace["ModelNew"]()


# ---- models


def test_imported_blocks_are_swapped_after_construction(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocks_of_others.py").write_text(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
        "class Plain(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.up = nn.ConvTranspose2d(3, 4, 2, stride=2)\n"
        "    def forward(self, x):\n        return self.up(x)\n"
        "class Special(nn.ConvTranspose2d):\n"
        "    def forward(self, x):\n        return 2 * super().forward(x)\n"
        "def normed():\n    return nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 4, 3, padding=1))\n"
        "def old_normed():\n    return nn.utils.spectral_norm(nn.ConvTranspose2d(4, 2, 1))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs, ours = both("""
        import torch
        from torch import nn
        from blocks_of_others import Plain, Special, normed, old_normed

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.Sequential(Plain(), Special(4, 4, 2), Special(4, 4, 2), normed(), old_normed())
            def forward(self, x):
                return self.blocks(x)

        def get_inputs():
            return [torch.rand(1, 3, 4, 4)]
    """)
    monkeypatch.delitem(sys.modules, "blocks_of_others")
    model, candidate = seeded(theirs, "Model").eval(), seeded(ours, "ModelNew").eval()
    assert list(model.state_dict()) == list(candidate.state_dict())
    cuda = ours["CudaConvTranspose2d"]
    layers = [m for m in candidate.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert len(layers) == 5 and all(isinstance(layer, ours["_CudaForward"]) for layer in layers)
    assert [type(layer).__name__ for layer in layers] == [
        "ConvTranspose2d",
        "Special",
        "Special",
        "ParametrizedConvTranspose2d",
        "ConvTranspose2d",
    ]
    assert type(layers[1]) is type(layers[2])
    x = torch.randn(2, 3, 4, 4)
    close(candidate(x), model(x))
    nn.utils.parametrize.remove_parametrizations(candidate.blocks[3], "weight")
    assert type(candidate.blocks[3]) is cuda
    close(candidate(x), model(x))


def test_wrapped_and_initialised_layers(both: Both) -> None:
    """weight_norm and spectral_norm in both forms, initialisation by class, by exact type and by name."""
    theirs, ours = both("""
        import torch
        from torch import nn
        from torch.nn.utils import parametrizations, spectral_norm, weight_norm

        def by_class(m):
            if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(m.weight, 0.0, 0.02)

        def by_type(m):
            if type(m) is nn.ConvTranspose2d:
                nn.init.constant_(m.bias, 0.5)

        def by_name(m):
            if m.__class__.__name__.find("ConvTranspose2d") != -1 and m.__class__.__name__ == "ConvTranspose2d":
                nn.init.uniform_(m.weight)

        class Up(nn.ConvTranspose2d):
            def __init__(self, *args, scale=3.0, **kwargs):
                super(Up, self).__init__(*args, **kwargs)
                self.scale = scale
            def forward(self, x):
                return nn.ConvTranspose2d.forward(self, x) * self.scale

        class Model(nn.Module):
            def __init__(self):
                super(Model, self).__init__()
                self.a = nn.ConvTranspose2d(3, 4, 2)
                self.b = Up(4, 4, 2, bias=False)
                self.apply(by_class)
                self.c = nn.ConvTranspose2d(4, 4, 1)
                self.c.apply(by_type)
                self.d = nn.ConvTranspose2d(4, 4, 1).apply(by_name)
                self.e = weight_norm(nn.ConvTranspose2d(4, 4, 1))
                self.f = spectral_norm(nn.ConvTranspose2d(4, 4, 1))
                self.g = parametrizations.spectral_norm(nn.ConvTranspose2d(4, 4, 1))
                kind = nn.ConvTranspose2d  # a mention that is no construction
                self.h = kind(4, 4, 1)
                self.i = nn.ModuleDict({"x": nn.Sequential(nn.LazyConvTranspose2d(5, 2), nn.ReLU())})

            def forward(self, x):
                for part in (self.a, self.b, self.c, self.d, self.e, self.f, self.g, self.h, self.i["x"]):
                    x = part(x)
                return x

        def get_inputs():
            return [torch.rand(1, 3, 4, 4)]
    """)
    model, candidate = seeded(theirs, "Model"), seeded(ours, "ModelNew")
    x = torch.randn(2, 3, 4, 4)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    close(candidate(x), expected)
    assert str(candidate) == str(model).replace("Model(", "ModelNew(", 1)
    state = candidate.state_dict()
    assert list(state) == list(model.state_dict())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value)
    assert type(candidate.i["x"][0]) is ours["CudaConvTranspose2d"]
    with torch.no_grad():
        expected = model.eval()(x)
        candidate.eval()(x)  # the old weight_norm leaves a weight that can be copied only without its graph
        close(copy.deepcopy(candidate)(x), expected)


def test_calls_of_functions_with_computed_weights(both: Both) -> None:
    theirs, ours = both("""
        import torch
        import torch.nn as nn
        import torch.nn.functional as F
        from torch.nn.functional import conv_transpose2d as deconv

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(3, 2, 3, 3))
                self.line = nn.Parameter(torch.randn(2, 2, 4))

            def forward(self, x):
                y = F.conv_transpose2d(x, self.weight * 2, stride=2)
                y = y + deconv(x, weight=self.weight.flip(2, 3), stride=2)
                return torch.conv_transpose1d(y.flatten(2), self.line, None, 3)

        def get_inputs():
            return [torch.rand(1, 3, 4, 4)]
    """)
    model, candidate = seeded(theirs, "Model"), seeded(ours, "ModelNew")
    x = torch.randn(2, 3, 4, 4)
    close(candidate(x), model(x))
    assert len(ours["_RECORDED"]) == 2  # two of the three calls are the same layer


def test_model_by_inheritance_with_dataclass_arguments_and_annotations(both: Both) -> None:
    theirs, ours = both('''
        """A model."""

        from __future__ import annotations

        from dataclasses import dataclass

        import torch
        from torch import nn

        @dataclass
        class Options:
            channels: int = 3
            kernel: tuple[int, int] = (2, 3)

        class Base(nn.Module):
            def __init__(self, options: Options | None = None) -> None:
                super().__init__()
                options = options or Options()
                self.up = nn.ConvTranspose2d(options.channels, 4, options.kernel, stride=2)

            def forward(self, x):
                return self.up(x)

        class Model(Base):
            pass

        def get_inputs():
            return [torch.rand(1, 3, 4, 4)]
    ''')
    x = torch.randn(2, 3, 4, 4)
    close(seeded(ours, "ModelNew")(x), seeded(theirs, "Model")(x))
    assert ours["__doc__"] == "A model."


def test_float32_rounded_as_tf32(both: Both) -> None:
    _, ours = both(LAYER, "tf32")
    model = seeded(ours, "ModelNew")
    x = torch.randn(2, 4, 5, 5)

    def rounded(t: torch.Tensor) -> torch.Tensor:
        bits = t.detach().view(torch.int32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)

    exact = F.conv_transpose2d(x.double(), model.up.weight.double(), model.up.bias.double())
    of_rounded = F.conv_transpose2d(rounded(x).double(), rounded(model.up.weight).double(), model.up.bias.double())
    with torch.no_grad():
        got = model(x).double()
    torch.testing.assert_close(got, of_rounded, rtol=1e-6, atol=1e-6)
    assert (got - exact).abs().max() > 1e-4
