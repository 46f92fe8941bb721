"""The whole job on a GPU: built by load_inline, judged, timed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from codegen_helpers import DENSE, EXAMPLES, PREPARED

from tconv.rewriter.outcome import Request
from tconv.rewriter.run import optimize
from tconv.sandbox.emulated import install
from tconv.sandbox.model_file import CANDIDATE, load
from tconv.sandbox.worker import own_tools_on_path

pytestmark = pytest.mark.gpu

MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Model(nn.Module):
        def __init__(self, channels=8):
            super().__init__()
            self.up = nn.ConvTranspose2d(4, channels, 3, stride=2, padding=1, output_padding=1)
            self.norm = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(channels, 6, 4, stride=2))
            self.weight = nn.Parameter(torch.randn(6, 2, 3))

        def forward(self, x):
            return F.conv_transpose1d(self.norm(self.up(x).flatten(2)), self.weight, groups=2)

    def get_inputs():
        return [torch.rand(3, 4, 9, 7)]
"""


def candidate_of(model_file: Callable[[str], Path]) -> tuple[Path, Path]:
    own_tools_on_path()
    model = model_file(MODEL)
    output = model.with_name("out.py")
    outcome = optimize(Request(model, output, types=("float16",)))
    assert outcome.reasons == () and outcome.equal and outcome.written
    assert outcome.load_inline == "built" and outcome.speedup is not None
    assert outcome.timing is not None and outcome.timing.as_called is not None, outcome.timing
    assert "#   as called " in output.read_text(encoding="utf-8")
    assert all(check.time is not None and check.time.ours > 0 for check in outcome.layers)
    return model, output


@pytest.mark.parametrize(("text", "prepares_inputs"), [(DENSE, False), (PREPARED, True)])
def test_hoppers_kernels_are_built_for_any_size_and_two_types(
    text: str, prepares_inputs: bool, model_file: Callable[[str], Path]
) -> None:
    if shutil.which("nvcc") is None or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs nvcc and a GPU of compute capability 9.0")
    own_tools_on_path()
    model = model_file(text)
    types = ("float32", "float16", "bfloat16")
    outcome = optimize(Request(model, model.with_name("out.py"), bench=False, types=types))
    (layer,) = outcome.layers
    assert outcome.reasons == () and outcome.written and outcome.load_inline == "built"
    assert layer.layer.plan.kernel.family == "wgmma" and layer.equal
    assert len(layer.layer.groups) == 3
    assert (layer.layer.plan.inputs is not None) == prepares_inputs
    file = load(outcome.request.output, CANDIDATE)
    theirs, ours = load(model).construct(0).cuda(), file.construct(0).cuda()
    ours.load_state_dict(theirs.state_dict())
    channels = theirs.up.in_channels
    # Rows of another width, three types, and weights that begin where copies cannot.
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        x = torch.randn(2, channels, 17, 33, dtype=dtype, device="cuda")
        torch.testing.assert_close(ours(x).float(), theirs(x).float(), rtol=3e-2, atol=3e-2)
    odd = torch.randn(theirs.up.weight.numel() + 1, dtype=dtype, device="cuda")[1:].view_as(theirs.up.weight)
    with torch.no_grad():
        got = vars(file.namespace)["_conv_transpose"](2, x, odd, None, 2, 1)
        torch.testing.assert_close(
            got.float(), torch.nn.functional.conv_transpose2d(x, odd, None, 2, 1).float(), rtol=3e-2, atol=0.5
        )


def test_built_equal_and_timed(model_file: Callable[[str], Path]) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    model, output = candidate_of(model_file)
    theirs, ours = load(model).construct(0).cuda(), load(output, CANDIDATE).construct(0).cuda()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 4, 9, 7, device="cuda")
    for dtype, tolerance in ((torch.float32, 2e-3), (torch.float16, 2e-2)):
        got = ours.to(dtype)(x.to(dtype))
        torch.testing.assert_close(got, theirs.to(dtype)(x.to(dtype)), rtol=tolerance, atol=tolerance)
    with pytest.warns(UserWarning, match="its kernels are for float32, float16, not for float64"):
        got = ours.double()(x.double())
    torch.testing.assert_close(got, theirs.double()(x.double()), rtol=1e-10, atol=1e-10)
    ours, theirs = ours.float(), theirs.float()
    with torch.autocast("cuda", torch.float16):
        got = ours(x)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), theirs(x), rtol=5e-2, atol=5e-2)
    for name, parameter in theirs.named_parameters():
        (expected,) = torch.autograd.grad(theirs(x).square().sum(), parameter)
        (found,) = torch.autograd.grad(ours(x).square().sum(), dict(ours.named_parameters())[name])
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        beside = ours(x)
    stream.synchronize()
    assert torch.equal(beside, ours(x).detach())
    compiled = torch.compile(ours, fullgraph=True)
    torch.testing.assert_close(compiled(x), ours(x), rtol=1e-5, atol=1e-5)


def test_epilogues_are_built_and_equal(model_file: Callable[[str], Path]) -> None:
    """Programs and a part of a concatenation, under both settings of gradients, in a CUDA graph, and to a compiler."""
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    path = model_file("""
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.wide, self.last = nn.ConvTranspose2d(64, 64, 4, 2, 1), nn.ConvTranspose2d(72, 3, 3, 2)
                self.norm, self.scale = nn.BatchNorm2d(64), nn.Parameter(torch.rand(64, 1, 1))
            def forward(self, x, skip, residual):
                y = self.norm(self.wide(x))
                y = F.gelu(y) * self.scale
                up = F.relu(self.wide(x))
                z = self.last(torch.cat([skip, up], 1))
                return y + residual, torch.tanh(z)

        def get_inputs():
            return [torch.rand(4, 64, 24, 40), torch.rand(4, 8, 48, 80), torch.rand(4, 64, 48, 80)]
    """)
    output = path.with_name("out.py")
    outcome = optimize(Request(path, output, bench=False, types=("bfloat16",)))
    assert outcome.written and outcome.equal and outcome.mistakes == (), outcome.reasons
    assert sum(bool(each.program) for layer in outcome.layers for each in layer.layer.kernel_epilogues) == 3
    theirs, ours = load(path).construct(0).cuda().eval(), load(output, CANDIDATE).construct(0).cuda().eval()
    ours.load_state_dict(theirs.state_dict())
    given = [t.cuda() for t in load(path).make_inputs(1)]
    for dtype, tolerance in ((torch.float32, 5e-3), (torch.bfloat16, 5e-2)):
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        tensors = [t.to(dtype) for t in given]
        with torch.no_grad():
            fused = ours(*tensors)
            for mine, other in zip(fused, theirs(*tensors), strict=True):
                torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
        for mine, other in zip(ours(*tensors), fused, strict=True):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
    ours = ours.float()
    with torch.no_grad():
        expected = ours(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours(*given)
        graph.replay()
        compiled = torch.compile(ours, fullgraph=True)(*given)
    for mine, other, third in zip(captured, expected, compiled, strict=True):
        assert torch.equal(mine, other)
        torch.testing.assert_close(third, other, rtol=5e-3, atol=5e-3)


def test_gradients_behind_layers_are_kernels(model_file: Callable[[str], Path]) -> None:
    """One by the kernel that computes the layer again, one from its result."""
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    path = model_file("""
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.wide, self.last = nn.ConvTranspose2d(64, 64, 4, 2, 1), nn.ConvTranspose2d(64, 3, 3, 2)
                self.shift = nn.Parameter(torch.rand(64, 1, 1))
            def forward(self, x, residual):
                y = F.mish(self.wide(x) + self.shift) * 2 + residual
                return torch.tanh(self.last(y))

        def get_inputs():
            return [torch.rand(4, 64, 24, 40), torch.rand(4, 64, 48, 80)]
    """)
    output = path.with_name("out.py")
    outcome = optimize(Request(path, output, bench=False, types=("bfloat16",)))
    assert outcome.written and outcome.equal and outcome.mistakes == (), outcome.reasons
    assert sum(each.backward for layer in outcome.layers for each in layer.layer.kernel_epilogues) == 1
    theirs, ours = load(path).construct(0).cuda(), load(output, CANDIDATE).construct(0).cuda()
    ours.load_state_dict(theirs.state_dict())
    given = [t.cuda() for t in load(path).make_inputs(1)]

    def gradients(model: torch.nn.Module, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        of = [t.to(dtype).requires_grad_() for t in given]
        result = model.to(dtype)(*of)
        incoming = torch.linspace(-1, 2, result.numel(), device="cuda").view(result.shape).to(dtype)
        return torch.autograd.grad(result, [*of, *model.parameters()], incoming)

    for dtype, tolerance in ((torch.float32, 5e-3), (torch.bfloat16, 6e-2)):
        for mine, other in zip(gradients(ours, dtype), gradients(theirs, dtype), strict=True):
            assert (mine - other).square().mean() <= tolerance**2 * other.square().mean()


def test_without_nvcc_the_kernels_run_all_the_same(model_file: Callable[[str], Path]) -> None:
    model = model_file(MODEL)
    missing = ("nvcc not found: install it",)
    outcome = optimize(Request(model, model.with_name("out.py"), missing=missing))
    assert outcome.equal and outcome.written and outcome.load_inline == "not built"
    assert outcome.report is None and outcome.speedup is not None


def test_the_emulator_agrees_bit_for_bit_on_integers(model_file: Callable[[str], Path]) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    path = EXAMPLES / "generated" / "strided_dilated_new.py"
    own_tools_on_path()
    file = load(path, CANDIDATE)
    model = file.construct(0, *file.init_args, **file.init_kwargs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape).float())
        x = torch.randint(-4, 5, (2, 32, 9, 11)).float()
        on_gpu = model.cuda()(x.cuda()).cpu()
        install(file.namespace)
        in_emulator = model.cpu()(x)
    assert torch.equal(on_gpu, in_emulator)
    assert sys.modules[file.namespace.__name__] is file.namespace
