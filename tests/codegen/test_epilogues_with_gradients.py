"""Files whose kernels compute the epilogues of layers, where gradients are asked for: in the emulator."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from codegen_helpers import silent
from epilogue_files import BLOCK, CONSTANTS, JOINED, SEQUENCE, File, Made, close, inputs, maker, same_state
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.rotates(16)

#: What is behind the layer reads what was computed of its input, and twice the same tensor.
OF_ITS_INPUT = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 3, 1)
            self.scale = nn.Parameter(torch.rand(1))
        def forward(self, x):
            y = self.up(x)
            return torch.tanh(y) * x + torch.sigmoid(y * x) * self.scale

    def get_inputs():
        return [torch.rand(2, 3, 4, 5)]
"""
#: One of each kind of kink, of slopes that differ on its sides.
KINKS = {
    "torch.relu(y)": [0.0],
    "F.relu6(y)": [0.0, 6.0],
    "y.clamp(0, 1)": [0.0, 1.0],
    "torch.clamp(y, min=-0.5)": [-0.5],
    "F.leaky_relu(y, 0.25)": [0.0],
    "F.leaky_relu_(y, 0.25)": [0.0],
    "F.hardtanh(y, -2.0, 0.5)": [-2.0, 0.5],
    "F.hardswish(y)": [-3.0, 3.0],
    "F.hardsigmoid(y)": [-3.0, 3.0],
    "torch.maximum(y, self.bound)": [0.5],
    "torch.abs(y)": [0.0],
    "F.elu(y)": [0.0],
    "y.relu_()": [0.0],
    "F.softplus(y, 1, 2)": [2.0],
    "torch.where(y > 0.5, y * 2, y)": [0.5],
    "1.5 - y * 3 / 2": [0.5],
}
#: Epilogues whose gradients are known: what the programs have that the file launches in a backward pass.
KNOWN: dict[str, list[str]] = {
    "F.mish(self.up(x) + self.shift) * 2 + skip": ["exp"],
    "torch.clamp(self.up(x) * gate, min=-0.5) / 2": ["* sample0", "* y"],
    "F.prelu(self.up(x), self.shift.flatten())": ["y > 0, output1", "output0 * y"],
    "torch.sigmoid(self.up(x)) * skip * self.all": [
        "* ((1 - t0) * t0)",
        "* scalar0 * sigmoid(y)",
        "* (sigmoid(y) * output0)",
    ],
    "torch.clamp(self.up(x) - skip, min=-0.5) / 2": ["where"],
    "F.gelu(torch.clamp(self.up(x) + 0.5, max=0.7)) * 2": ["erf"],
    "F.leaky_relu(self.up(x) + gate, 0.2)": ["where"],
    "torch.relu(self.up(x) * 0.5 + self.shift + skip)": [],
    "torch.tanh(gate - self.up(x))": [],
    "torch.sigmoid(self.up(x) + self.all)": [],
    "self.up(x) * 3 + skip": [],
}
OF_KNOWN = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(5, 6, 3, 2, 1, 1)
            self.shift, self.all = nn.Parameter(torch.rand(6, 1, 1)), nn.Parameter(torch.rand(1))
        def forward(self, x, skip, gate):
            return BODY

    def get_inputs():
        return [torch.rand(2, 5, 4, 5), torch.rand(2, 6, 8, 10), torch.rand(2, 6, 1, 1)]
"""
#: All that is read asks for gradients when the file is written.
OF_LEARNED = OF_KNOWN.replace("def forward", "    self.one = nn.Parameter(torch.ones(1))\n        def forward").replace(
    "return BODY", "skip, gate = skip * self.one, gate * self.one\n            return BODY"
)
#: A layer whose results are its bias.
OF_BIAS = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(2, 16, 1)
            self.register_buffer("bound", torch.tensor(0.5))
        def forward(self, x):
            y = self.up(x)
            return BODY

    def get_inputs():
        return [torch.rand(1, 2, 2, 2)]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return maker(tmp_path_factory.mktemp("gradients"))


def pair(file: File, given: list[Tensor], dtype: torch.dtype = torch.float64) -> list[tuple[nn.Module, list[Tensor]]]:
    """Both models with copies of the inputs, all of which ask for gradients."""
    return [
        (module.to(dtype), [each.to(dtype).requires_grad_() for each in map(Tensor.clone, given)])
        for module in file.models()
    ]


def wanted(module: nn.Module, given: list[Tensor]) -> list[Tensor]:
    return [*given, *module.parameters()]


def weighted(result: Any) -> Tensor:
    """A sum in which each element counts otherwise."""
    results = [result] if isinstance(result, Tensor) else list(result)
    weights = (torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape) for y in results)
    return torch.stack([(y * weight).sum() for y, weight in zip(results, weights, strict=True)]).sum()


GIVEN: dict[str, Callable[[], list[Tensor]]] = {
    BLOCK: inputs,
    CONSTANTS: lambda: [torch.randn(2, 5, 3, 4)],
    SEQUENCE: lambda: [torch.randn(2, 5, 3, 4)],
    OF_ITS_INPUT: lambda: [torch.randn(2, 3, 4, 5)],
    JOINED: lambda: [torch.randn(2, 5, 4, 5), torch.randn(2, 3, 9, 11)],
}
#: Whether what backward launches computes something behind the layer.
BACKWARD = {BLOCK: [False], CONSTANTS: [True], SEQUENCE: [False], OF_ITS_INPUT: [False], JOINED: [False]}
IDS = ["block", "constants", "sequence", "of its input", "joined"]


@pytest.mark.parametrize("text", GIVEN, ids=IDS)
def test_gradients_are_pytorchs(made: Made, text: str) -> None:
    file = made(text, ("float64",))
    found, launches = [], [0]
    for module, given in pair(file, GIVEN[text]()):
        with silent():
            result = module(*given)
        launches.append(len(file.launches))
        found.append((result, torch.autograd.grad(weighted(result), wanted(module, given), allow_unused=True)))
    forward, backward = file.programs[: launches[1]], file.programs[launches[1] :]
    assert any(forward), "the kernel computes what is behind the layer"
    # What is behind it in evaluation alone, and of what asked for none when the file was written, PyTorch tells.
    assert [bool(program) for program in backward] == BACKWARD[text]
    (mine, ours), (other, theirs) = found
    assert close(weighted(mine), weighted(other), 1e-9)
    for one, another in zip(ours, theirs, strict=True):
        assert (one is None) == (another is None) and (one is None or close(one, another, 1e-8))


def both(file: File, given: list[Tensor], dtype: torch.dtype = torch.float64) -> list[list[Tensor | None]]:
    """The gradients of both models, of inputs and parameters; of our own model first."""
    found = []
    for module, values in pair(file, given, dtype):
        gradients = torch.autograd.grad(weighted(module(*values)), wanted(module, values), allow_unused=True)
        found.append(list(gradients))
    return found


def assert_close(ours: list[Tensor | None], theirs: list[Tensor | None], tolerance: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None), (one, other)
        if one is not None and other is not None:
            assert close(one, other, tolerance) and (one.shape, one.dtype) == (other.shape, other.dtype)


@pytest.mark.parametrize("body", KNOWN)
def test_known_gradients_are_those_of_a_kernel_or_of_the_result(made: Made, body: str) -> None:
    file = made(OF_LEARNED.replace("BODY", body), ("float64",))
    assert_close(*both(file, inputs()), 1e-9)
    forward, *backward = file.programs
    assert forward
    assert all(word in program for word, program in zip(KNOWN[body], backward, strict=True)), backward


@pytest.mark.parametrize("body", KNOWN)
def test_known_gradients_of_other_memory(made: Made, body: str) -> None:
    """Channels_last tensors, a gradient that is one number expanded, and one with gaps."""
    file = made(OF_LEARNED.replace("BODY", body), ("float64",))
    for change in (Tensor.sum, lambda y: weighted(y.transpose(2, 3)[:, ::2])):
        found = []
        for module, given in pair(file, inputs()):
            values = [each.to(memory_format=torch.channels_last) for each in given]
            found.append(torch.autograd.grad(change(module(*values)), wanted(module, given), allow_unused=True))
        assert_close(*map(list, found), 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_known_gradients_in_16_bits_are_as_near_as_pytorchs(made: Made, dtype: torch.dtype) -> None:
    for body in KNOWN:
        file = made(OF_LEARNED.replace("BODY", body), ("float16", "bfloat16", "float64"))
        given = [each.to(dtype) for each in inputs()]
        ours, theirs = both(file, given, dtype)
        for module in file.models():
            module.to(dtype)
        exact = both(file, given)[1]
        for mine, other, right in zip(ours, theirs, exact, strict=True):
            if mine is not None and other is not None and right is not None:
                assert mine.dtype == dtype
                allowed = 2 * (other - right).square().mean() + torch.finfo(dtype).eps ** 2 * right.square().mean()
                assert (mine - right).square().mean() <= allowed, body


def test_what_is_summed_is_computed_in_slices_of_the_batch(made: Made) -> None:
    file = made(OF_LEARNED.replace("BODY", "F.mish(self.up(x)) * self.all * skip * gate * self.shift"), ("float64",))
    file.ours["_SUMMED_BYTES"] = 2 * 6 * 8 * 10 * 8
    assert_close(*both(file, [torch.cat([each, each, each[:1]]) for each in inputs()]), 1e-9)
    batches = [launch.batch for launch in file.launches]
    assert sorted(batches) == sorted([5, 5, 5] + 3 * [2, 2, 1]), "forward, the layer's and the skip's; others in slices"


def test_gradients_that_are_the_same_sum_lie_apart(made: Made) -> None:
    """An optimizer that changes one in place leaves the others as they are."""
    file = made(OF_LEARNED.replace("BODY", "F.mish(self.up(x) + self.shift)"), ("float64",))
    module, given = pair(file, inputs())[0]
    weighted(module(*given)).backward()
    of_shift, of_bias = module.shift.grad, module.up.bias.grad
    torch.testing.assert_close(of_shift.flatten(), of_bias)
    assert of_shift.untyped_storage().data_ptr() != of_bias.untyped_storage().data_ptr()


def test_of_what_asked_for_no_gradient_pytorch_tells_it(made: Made) -> None:
    """There is no kernel for it: that of the layer alone runs. Where it does not ask, the kernels run."""
    file = made(OF_KNOWN.replace("BODY", "torch.clamp(self.up(x) * gate, min=-0.5) / 2"), ("float64",))
    assert_close(*both(file, inputs()), 1e-9)
    assert [bool(program) for program in file.programs] == [True, False]
    found = []
    for module, given in pair(file, inputs()):
        result = module(*given[:2], given[2].detach())
        found.append(list(torch.autograd.grad(weighted(result), [given[0], module.up.weight])))  # type: ignore[union-attr]
    assert_close(*found, 1e-9)  # type: ignore[arg-type]
    assert [bool(program) for program in file.programs[2:]] == [True, True]


def test_only_wanted_gradients_are_computed(made: Made) -> None:
    """Of what the epilogue reads alone, where the layer is frozen; of the weight alone."""
    added = made(OF_KNOWN.replace("BODY", "F.mish(self.up(x) + self.shift) * 2 + skip"), ("float64",))
    scaled = made(OF_KNOWN.replace("BODY", "F.prelu(self.up(x), self.shift.flatten())"), ("float64",))
    for file, wanted_names, launched in (
        (added, ["shift"], 1),
        (added, ["up.weight"], 1),
        (added, ["up.bias"], 1),
        (added, ["up.bias", "shift"], 1),
        (scaled, ["shift"], 1),
        (scaled, ["up.bias"], 1),
        (scaled, ["up.bias", "shift"], 2),
    ):
        before = len(file.launches)
        found = []
        for module, given in pair(file, inputs()):
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name in wanted_names)
            of = [dict(module.named_parameters())[name] for name in wanted_names]
            values = [each.detach() for each in given]
            found.append(list(torch.autograd.grad(weighted(module(*values)), of)))
        assert_close(*found, 1e-9)
        assert len(file.launches) - before == 1 + launched


def test_a_result_that_is_written_to_is_refused_where_its_gradient_follows_from_it(made: Made) -> None:
    """As by PyTorch, which keeps the same."""
    for module in made(OF_KNOWN.replace("BODY", "torch.tanh(gate - self.up(x))")).models():
        result = module(*inputs())
        with torch.no_grad():
            result.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_a_result_that_no_gradient_needs_may_be_written_to(made: Made) -> None:
    """Nor is it kept."""
    found = []
    for module, given in pair(made(OF_KNOWN.replace("BODY", "self.up(x) * 3 + skip"), ("float64",)), inputs()):
        result = module(*given).relu_()
        found.append(list(torch.autograd.grad(weighted(result), wanted(module, given), allow_unused=True)))
    assert_close(*found, 1e-9)


@pytest.mark.parametrize("text", GIVEN, ids=IDS)
def test_second_gradients(made: Made, text: str) -> None:
    """Of a penalty on the first ones, as a critic has."""
    found = []
    for module, given in pair(made(text, ("float64",)), GIVEN[text]()):
        of = wanted(module, given)
        first = torch.autograd.grad(weighted(module(*given)), of, create_graph=True, allow_unused=True)
        penalty = sum(((each * each).sum() for each in first if each is not None), torch.zeros((), dtype=torch.float64))
        found.append(torch.autograd.grad(penalty, of, allow_unused=True))
    for one, another in zip(*found, strict=True):
        assert (one is None) == (another is None) and (one is None or close(one, another, 1e-7))


@pytest.mark.parametrize("body", KNOWN)
def test_second_gradients_of_known_ones(made: Made, body: str) -> None:
    found = []
    for module, given in pair(made(OF_LEARNED.replace("BODY", body), ("float64",)), inputs()):
        of = wanted(module, given)
        first = torch.autograd.grad(weighted(module(*given)), of, create_graph=True, allow_unused=True)
        penalty = sum(((each * each).sum() for each in first if each is not None), torch.zeros((), dtype=torch.float64))
        found.append(list(torch.autograd.grad(penalty, of, allow_unused=True)))
    assert_close(*found, 1e-7)


@pytest.mark.parametrize("body", KINKS)
def test_gradients_at_and_around_kinks(made: Made, body: str) -> None:
    """The layer gives exactly these numbers: PyTorch's slope counts at each.

    That of NaN hangs on the instructions that PyTorch finds.
    """
    file = made(OF_BIAS.replace("BODY", body))
    kinks = torch.tensor(KINKS[body])
    values = torch.cat([kinks, torch.nextafter(kinks, kinks + 1), torch.nextafter(kinks, kinks - 1)])
    values = torch.cat([values, torch.tensor([-7.0, 7.0, float("inf"), float("-inf"), float("nan")])])
    values = torch.cat([values, torch.zeros(16 - len(values))])
    found = []
    for module in file.models():
        with torch.no_grad():
            module.up.weight.zero_()  # type: ignore[union-attr, operator]
            module.up.bias.copy_(values)  # type: ignore[union-attr, operator]
        result = module(torch.ones(1, 2, 2, 2))
        found.append((result, *torch.autograd.grad(result, module.up.bias, torch.ones_like(result))))
    (result, ours), (expected, theirs) = found
    assert file.programs[0] and torch.allclose(result, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    numbers = ~values.isnan()
    assert torch.allclose(ours[numbers], theirs[numbers], rtol=1e-6, atol=0, equal_nan=True), (values, ours, theirs)


def test_modules_in_a_row(made: Made) -> None:
    file, x = made(SEQUENCE), torch.randn(2, 5, 3, 4)
    for calls in (1, 2):
        found = [torch.autograd.grad(weighted(module(x)), list(module.parameters())) for module in file.models()]
        assert all(close(mine, other, 1e-2) for mine, other in zip(*found, strict=True))
        assert len(file.programs) == 3 * calls


@pytest.mark.parametrize("given", range(3))
def test_some_ask_for_gradients(made: Made, given: int) -> None:
    """An input alone: of the layer, or one that what is behind it reads."""
    file, found = made(BLOCK), []
    for module in file.models():
        module.requires_grad_(False)
        values = inputs()
        values[given].requires_grad_()
        found.append(torch.autograd.grad(weighted(module(*values)), values[given])[0])
    assert close(*found) and file.programs[0]


def test_nothing_that_is_set_after_the_call_counts(made: Made) -> None:
    """Numbers and modes are those of the call; statistics stay as they are."""
    for text, change in (
        (BLOCK, lambda module: setattr(module, "slope", 0.9)),
        (BLOCK, lambda module: module.train()),
        (CONSTANTS, lambda module: setattr(module, "bound", -3.0)),
    ):
        file, found, values = made(text), [], GIVEN[text]()
        models = file.models()
        for module in models:
            given = [each.clone().requires_grad_() for each in values]
            result = module(*given)
            change(module)
            found.append(torch.autograd.grad(weighted(result), wanted(module, given)))
        assert file.programs[0] and all(close(*each, 1e-2) for each in zip(*found, strict=True))
        assert same_state(*models)


def test_a_tensor_that_is_written_to_in_between_is_refused(made: Made) -> None:
    ours, _ = made(BLOCK).models()
    given = inputs()
    result = ours(*given)
    given[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_gradients_add_up_and_are_taken_twice(made: Made) -> None:
    ours, theirs = made(BLOCK).models()
    for module in (ours, theirs):
        result = weighted(module(*inputs()))
        result.backward(retain_graph=True)
        result.backward()
        weighted(module(*inputs(3))).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None and close(mine.grad, other.grad, 1e-2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(made: Made, reentrant: bool) -> None:
    found = []
    for module in made(BLOCK).models():
        given = [each.requires_grad_() for each in inputs()]
        weighted(checkpoint(module, *given, use_reentrant=reentrant)).backward()
        found.append([each.grad for each in wanted(module, given)])
    assert all(close(mine, other, 1e-2) for mine, other in zip(*found, strict=True))


def test_nothing_is_kept_behind_the_call(made: Made) -> None:
    """What is saved goes with the result."""
    ours, _ = made(BLOCK).models()
    given = [each.requires_grad_() for each in inputs()]
    gates = [weakref.ref(each) for each in given]
    result = ours(*given)
    del given
    assert any(gate() is not None for gate in gates)
    result.sum().backward()
    del result
    gc.collect()
    assert all(gate() is None for gate in gates)


def test_a_model_learns_as_pytorchs_does(made: Made) -> None:
    models = made(OF_ITS_INPUT, ("float64",)).models()
    curves = []
    for module in models:
        module = copy.deepcopy(module).double()
        optimizer = torch.optim.Adam(module.parameters(), 0.05)
        generator = torch.Generator().manual_seed(0)
        curve = []
        for _ in range(30):
            x = torch.rand(2, 3, 4, 5, generator=generator, dtype=torch.float64)
            loss = (module(x) - x.flip(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    assert torch.allclose(*curves, rtol=1e-9) and curves[0][-1] < 0.8 * curves[0][0]


def test_autocast_is_off_behind_the_layer(made: Made) -> None:
    """Backward may run where autocast is on: types are those of forward."""
    found = []
    for module in made(BLOCK).models():
        given = [each.requires_grad_() for each in inputs()]
        result = weighted(module(*given))
        with torch.autocast("cpu", torch.bfloat16):
            found.append(torch.autograd.grad(result, wanted(module, given)))
    assert all(mine.dtype == torch.float32 and close(mine, other, 1e-2) for mine, other in zip(*found, strict=True))


def test_distributed_data_parallel(made: Made, tmp_path: Path) -> None:
    """One process with gloo: gradients are put together as they become known."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = []
        file = made(OF_KNOWN.replace("BODY", "F.mish(self.up(x) + self.shift) * 2 + self.all"), ("float64",))
        for module, given in pair(file, inputs()):
            parallel = nn.parallel.DistributedDataParallel(module)
            for _ in range(2):
                weighted(parallel(*given)).backward()
            found.append([each.grad for each in module.parameters()])
            # Its reducer must not be the last to hold the group: that waits for threads which may want the interpreter.
            del parallel
            gc.collect()
    finally:
        torch.distributed.destroy_process_group()
    assert_close(*found, 1e-9)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="older PyTorch scales on a GPU alone")
def test_a_scaler(made: Made) -> None:
    """A loss that is scaled, and gradients that overflow: the step is left out."""
    ours, theirs = made(OF_KNOWN.replace("BODY", "F.leaky_relu(self.up(x) + gate, 0.2) * 2 + self.shift")).models()
    for large in (1.0, 1e36, 2.0):
        for module in (ours, theirs):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
            optimizer = torch.optim.SGD(module.parameters(), 1e-3)
            scaler.scale(weighted(module(*inputs())) * large).backward()
            scaler.step(optimizer)
            scaler.update()
            assert (scaler.get_scale() < 2.0**12) == (large > 2)
            optimizer.zero_grad()
    assert same_state(ours, theirs)


@pytest.mark.parametrize("body", ["F.mish(self.up(x) * 0.5) * 2 - 0.25", "torch.relu(self.up(x) + gate)"])
def test_under_autocast(made: Made, body: str) -> None:
    """Results and gradients as of autocast by PyTorch, in its types.

    Rounded to bfloat16, some results fall on the other side of relu's kink: by which, the processor decides.
    """
    file = made(OF_KNOWN.replace("BODY", body), ("bfloat16",))
    ours, theirs = file.models()
    found = []
    for module in (ours, theirs):
        x, skip, gate = inputs()
        given = [x.requires_grad_(), skip.requires_grad_(), gate.bfloat16().requires_grad_()]
        with torch.autocast("cpu", torch.bfloat16):
            result = module(*given)
        of = [*given, *module.parameters()]
        gradients = torch.autograd.grad(weighted(result.float()), of, allow_unused=True)
        found.append([result, *gradients])
    assert file.programs[0] and found[0][0].dtype == torch.bfloat16
    for mine, other in zip(*found, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.dtype == other.dtype and (mine - other).square().mean() <= 5e-3 * other.square().mean() + 1e-6


@pytest.mark.parametrize(
    "body",
    [
        "torch.exp(self.up(x) * 0.1)",  # float32 under autocast
        "1 / (self.up(x) + 9)",
        "F.softplus(self.up(x))",
        "(self.up(x) + 9) ** 2",
    ],
)
def test_what_autocast_gives_in_float32_is_pytorchs(made: Made, body: str) -> None:
    file = made(OF_KNOWN.replace("BODY", body), ("bfloat16",))
    ours, _ = file.models()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cpu", torch.bfloat16):  # which stands for CUDA's in the emulator
            ours(*inputs())
    assert file.programs == [""]
