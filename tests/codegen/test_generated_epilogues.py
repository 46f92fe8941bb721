"""Files whose kernels compute the epilogues of layers, in the emulator: when they do, and that all else stays."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from codegen_helpers import Namespace, fused_text, kernels_of, silent, told
from epilogue_files import BLOCK, CONSTANTS, JOINED, SEQUENCE, TYPES, File, Made, close, inputs, maker, same_state
from torch import Tensor, nn

pytestmark = pytest.mark.rotates(12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return maker(tmp_path_factory.mktemp("epilogues"))


def test_one_kernel_computes_all_of_it(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    with torch.no_grad(), silent():
        assert close(ours(*inputs()), theirs(*inputs()))
    (program,) = file.programs
    assert "rsqrt(channel1 + 1e-05)" in program and program.endswith("* sample5 + output6")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rows", [1, 7])
def test_other_sizes(made: Made, batch: int, rows: int) -> None:
    """In a batch of one sample, what each sample has looks like what all have."""
    file = made(BLOCK)
    ours, theirs = file.models()
    with torch.no_grad(), silent():
        assert close(ours(*inputs(batch, rows=rows)), theirs(*inputs(batch, rows=rows)))
    assert all(file.programs) and len(file.programs) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(made: Made, dtype: torch.dtype) -> None:
    """Each has kernels with the same program, where it was asked for."""
    file = made(BLOCK, TYPES)
    ours, theirs = file.models()
    ours.to(dtype)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float64: 1e-10}[dtype]
    with torch.no_grad():
        expected = theirs.double()(*(t.double() for t in inputs(dtype=dtype)))
        with silent():
            assert close(ours(*inputs(dtype=dtype)), expected, tolerance)
    assert all(file.programs) and len(file.programs) == 1
    assert file.launches[0].kernel.name.startswith(f"conv_up_{str(dtype)[6:]}_then_1")


def test_types_without_kernels_are_pytorchs(made: Made) -> None:
    """The layer and its epilogue."""
    file = made(BLOCK)
    ours, theirs = file.models()
    with torch.no_grad(), told() as said:
        given = inputs(dtype=torch.float64)
        assert torch.equal(ours.double()(*given), theirs.double()(*given))
    assert not file.launches and len(said) == 1 and "for float32, not for float64" in said[0]


def test_operands_of_other_strides(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    x, skip, gate = inputs()
    given = [x, skip.transpose(2, 3).contiguous().transpose(2, 3), gate[:1].expand(2, -1, -1, -1)]
    with torch.no_grad():
        assert close(ours(*given), theirs(*given))
        last = [t.contiguous(memory_format=torch.channels_last) for t in inputs()]
        assert close(ours(*last), theirs(*last))
        assert ours(*last).is_contiguous(memory_format=torch.channels_last)
    assert all(file.programs) and len(file.programs) == 3


def test_operands_that_begin_anywhere_in_their_storage(made: Made) -> None:
    """Kernels read several of their elements at once, from multiples of 16 bytes on."""
    file = made(BLOCK)
    ours, theirs = file.models()
    x, skip, gate = inputs(rows=4)
    given = [x]
    for tensor in (skip, gate):
        given.append(torch.empty(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor))
    assert given[1].data_ptr() % 16 and given[1].is_contiguous()
    run, addresses = file.ours["_launch"], []

    def seen(launch: Any, *tensors: Any) -> None:
        addresses.extend(operand.data_ptr() % 16 for operand in tensors[4:])
        run(launch, *tensors)

    file.ours["_launch"] = seen
    with torch.no_grad(), silent():
        assert close(ours(*given), theirs(*given))
    assert all(file.programs) and len(addresses) == 7 and not any(addresses)


def test_training_is_as_it_was(made: Made) -> None:
    """Statistics of the batch, and gradients: of what the lines say, through PyTorch's own."""
    file = made(BLOCK)
    ours, theirs = file.models(training=True)
    for module in (ours, theirs):
        module(*inputs()).square().mean().backward()
    assert file.programs == [""]
    assert same_state(ours, theirs)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None and close(mine.grad, other.grad, 1e-2)
    with torch.no_grad():
        assert close(ours(*inputs()), theirs(*inputs()))
    assert file.programs == ["", ""] and same_state(ours, theirs)


def test_other_arguments_of_the_constructor(made: Made) -> None:
    """Another number is another program, which the file does not have: the lines say what it is."""
    file = made(BLOCK)
    for arguments in ({"slope": 0.7}, {"act": nn.Sigmoid}, {"act": Own}):
        ours, theirs = file.models(**arguments)
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert close(ours(*inputs()), theirs(*inputs()))
        words = [str(each.message) for each in caught if "tconv optimize makes one" in str(each.message)]
        assert len(words) == ("slope" in arguments), arguments
    assert file.programs == ["", "", ""]
    ours, theirs = file.models(padding=0)
    with torch.no_grad(), told() as said:
        x, skip, gate = inputs()
        skip = torch.randn(2, 6, 10, 12)
        assert close(ours(x, skip, gate), theirs(x, skip, gate))
    assert len(file.programs) == 3 and len(said) == 1 and "none was made for these arguments" in said[0]


class Own(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y.abs() if y.isfinite().all() else y


def test_hooks_are_called_once_with_tensors(made: Made) -> None:
    for place in ("up", "norm", "act"):
        file = made(BLOCK)
        ours, theirs = file.models()
        seen: list[Any] = []

        def hook(module: nn.Module, given: Any, result: Any, seen: list[Any] = seen) -> None:
            seen.append(result)

        for module in (ours, theirs):
            getattr(module, place).register_forward_hook(hook)
        with torch.no_grad():
            assert close(ours(*inputs()), theirs(*inputs()))
        assert len(seen) == 2 and all(isinstance(result, Tensor) for result in seen)
        assert close(seen[0], seen[1]) and file.programs == [""]
    file = made(BLOCK)
    ours, theirs = file.models()
    ours.up.register_forward_pre_hook(lambda module, given: (given[0] * 2,))  # before the layer: no matter
    with torch.no_grad():
        x, *others = inputs()
        assert close(ours(x, *others), theirs(x * 2, *others))
    assert all(file.programs)


#: How each kind of hook is put on a module, or on all of them: it keeps what it sees.
HOOKS: dict[str, Callable[[nn.Module, Callable[..., None]], Any]] = {
    "forward": lambda module, keep: module.register_forward_hook(lambda _, given, result: keep(given, result)),
    "forward with keywords": lambda module, keep: module.register_forward_hook(
        lambda _, given, named, result: keep(given, named, result), with_kwargs=True
    ),
    "forward always": lambda module, keep: module.register_forward_hook(
        lambda _, given, result: keep(given, result), always_call=True
    ),
    "before": lambda module, keep: module.register_forward_pre_hook(lambda _, given: keep(given)),
    "before with keywords": lambda module, keep: module.register_forward_pre_hook(
        lambda _, given, named: keep(given, named), with_kwargs=True
    ),
    "backward": lambda module, keep: module.register_full_backward_hook(lambda _, into, out: keep(into, out)),
    "before backward": lambda module, keep: module.register_full_backward_pre_hook(lambda _, out: keep(out)),
    "old backward": lambda module, keep: module.register_backward_hook(lambda _, into, out: keep(into, out)),
    "every forward": lambda _, keep: nn.modules.module.register_module_forward_hook(
        lambda module, given, result: keep(type(module).__name__.removeprefix("Cuda"), given, result)
    ),
    "before every forward": lambda _, keep: nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: keep(type(module).__name__.removeprefix("Cuda"), given)
    ),
    "every backward": lambda _, keep: nn.modules.module.register_module_full_backward_hook(
        lambda module, into, out: keep(type(module).__name__.removeprefix("Cuda"), into, out)
    ),
    "before every backward": lambda _, keep: nn.modules.module.register_module_full_backward_pre_hook(
        lambda module, out: keep(type(module).__name__.removeprefix("Cuda"), out)
    ),
}


@pytest.mark.rotates(24)
@pytest.mark.parametrize(("text", "place"), [(BLOCK, "up"), (BLOCK, "act"), (SEQUENCE, "up.0")])
@pytest.mark.parametrize(
    ("kind", "gradients"), [*((kind, True) for kind in HOOKS), *((kind, False) for kind in HOOKS if "back" not in kind)]
)
def test_hooks_see_what_they_see_of_the_model(made: Made, kind: str, text: str, place: str, gradients: bool) -> None:
    given = inputs() if text is BLOCK else [torch.randn(3, 5, 4, 4)]
    text = text.replace("inplace=True", "inplace=False")  # which PyTorch refuses behind hooks on every gradient
    seen = []
    for model in made(text).models():
        found: list[Any] = []

        def keep(*values: Any, found: list[Any] = found) -> None:
            found.append(values)

        owned = [tensor.clone().requires_grad_(gradients) for tensor in given]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old backward hooks
            handle = HOOKS[kind](model.get_submodule(place), keep)
            try:
                with torch.set_grad_enabled(gradients):
                    result = model(*owned)
                if gradients:
                    result.square().sum().backward()
            finally:
                handle.remove()
        seen.append((found, result, [tensor.grad for tensor in owned]))
    assert seen[1][0] and alike(*seen), seen


def alike(ours: Any, theirs: Any) -> bool:
    """Whether tensors, names and None stand at the same places, the tensors close."""
    if isinstance(theirs, Tensor):
        return isinstance(ours, Tensor) and ours.shape == theirs.shape and close(ours, theirs, 2e-2)
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict) and list(ours) == list(theirs) and alike(list(ours.values()), list(theirs.values()))
        )
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return bool(ours == theirs) or {ours, theirs} == {"Model", "ModelNew"}


def test_modules_that_are_compiled_by_themselves(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    ours.norm.compile(backend="eager")  # type: ignore[union-attr, operator]
    with torch.no_grad():
        assert close(ours(*inputs()), theirs(*inputs()))
    assert file.programs == [""]


def test_parameters_are_followed(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    with torch.no_grad():
        ours(*inputs())
        for module in (ours, theirs):
            module.norm.running_var.mul_(3)
            module.norm.weight.data.add_(0.5)
            module.gate.copy_(torch.full((6, 1, 1), 0.7))
        assert close(ours(*inputs()), theirs(*inputs()))
    assert all(file.programs) and len(file.programs) == 2


def test_values_that_are_not_finite(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    x, skip, gate = inputs()
    skip[0, 1, 2, 3], skip[1, 2, 3, 4], gate[1, 3] = float("inf"), float("nan"), float("-inf")
    with torch.no_grad():
        mine, other = ours(x, skip, gate), theirs(x, skip, gate)
    assert torch.allclose(mine, other, rtol=2e-3, atol=2e-3, equal_nan=True) and all(file.programs)


def test_tensors_of_a_number(made: Made) -> None:
    file = made(CONSTANTS, TYPES)
    ours, theirs = file.models()
    x = torch.randn(2, 5, 3, 4)
    with torch.no_grad(), silent():
        assert close(ours(x), theirs(x))
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
            mine, other = ours.to(dtype)(x.to(dtype)), theirs.double()(x.to(dtype).double())
            assert mine.dtype == dtype and close(mine, other, tolerance)
    assert file.programs == ["min(y + 0.5, 0.25) * 2"] * 4


def test_tensors_of_another_number(made: Made) -> None:
    """The lines say what it is, at each call."""
    file = made(CONSTANTS)
    ours, theirs = file.models()
    x = torch.randn(2, 5, 3, 4)
    for bound, program in ((0.25, True), (-0.5, False), (0.25, True), ([0.25], False)):
        ours.bound = theirs.bound = bound  # type: ignore[assignment]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert close(ours(x), theirs(x))
        assert bool(file.programs[-1]) == program
    mine, other = ours(x), theirs(x)
    mine.sum().backward()
    other.sum().backward()
    assert close(mine, other) and not file.programs[-1]
    for one, another in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None and another.grad is not None and close(one.grad, another.grad, 1e-2)


def test_sequences(made: Made) -> None:
    file = made(SEQUENCE)
    ours, theirs = file.models()
    x = torch.randn(3, 5, 4, 4)
    with torch.no_grad(), silent():
        assert close(ours(x), theirs(x))
    assert [bool(program) for program in file.programs] == [True, True]
    assert repr(ours).replace("ModelNew", "Model") == repr(theirs) and list(ours.state_dict()) == list(
        theirs.state_dict()
    )
    for training in (True, False):
        torch.manual_seed(1)
        mine = ours.train(training)(x)
        torch.manual_seed(1)
        assert close(mine, theirs.train(training)(x)) and same_state(ours, theirs)
    # Statistics of the batch, and dropout, are no programs.
    assert list(map(bool, file.programs[2:])) == [False, True, True, True]
    assert isinstance(ours.up[:2], nn.Sequential) and close(ours.up[:2](x), theirs.up[:2](x))


def test_modules_that_compute_nothing(made: Made) -> None:
    file = made(SEQUENCE.replace("nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout()", "nn.Identity()"))
    ours, theirs = file.models()
    x = torch.randn(2, 5, 3, 4)
    with torch.no_grad(), silent():
        assert close(ours(x), theirs(x))
    assert file.programs == ["", "tanh(y)"]


def test_epilogues_of_layers_that_are_left_to_pytorch(model_file: Callable[[str], Path]) -> None:
    """The text hands them over all the same; where the file has no program, no kernel takes one."""
    path = model_file(
        BLOCK.replace("return self.act(y)", "return self.last(self.act(y)")
        .replace("* gate + skip", ")")
        .replace("self.up =", "self.last = nn.ConvTranspose2d(6, 6, 1)\n            self.up =")
    )
    file = File(path, fused_text(path, ("direct", "mma"), left=["up"]))
    ours, theirs = file.models()
    for up in (ours.up, ours.up.__class__(5, 6, 3, 2, 1, 1)):
        up.load_state_dict(theirs.up.state_dict())
        ours.up = up
        with torch.no_grad(), told() as said:
            assert close(ours(*inputs()), theirs(*inputs()))
        # One that is made later is not left, and there is no kernel for it.
        assert len(said) == (up is not theirs.up and not up._left)
    assert "_PROGRAMS" not in file.ours
    assert [launch.kernel.name for launch in file.launches] == ["conv_last"] * 2


def test_copies_and_pickles(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(SEQUENCE)
    module = ModuleType("written_file")
    vars(module).update(file.ours)
    monkeypatch.setitem(sys.modules, "written_file", module)
    for name in ("ModelNew", "CudaSequential", "CudaConvTranspose2d"):
        monkeypatch.setattr(file.ours[name], "__module__", "written_file")
    ours, theirs = file.models()
    x = torch.randn(1, 5, 3, 3)
    stored = io.BytesIO()
    torch.save(ours, stored)
    stored.seek(0)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(stored, weights_only=False)):
        with torch.no_grad():
            assert close(other(x), theirs(x))
    assert len(file.programs) == 6 and all(file.programs)


def test_which_kernels_there_are(made: Made) -> None:
    """Of each layer the one without an epilogue first: for training, and where PyTorch runs the epilogue."""
    file = made(SEQUENCE)
    of_layers = [[kernel.program for kernel in kernels] for kernels in file.ours["_RECORDED"].values()]
    first, last = (list(dict.fromkeys(programs)) for programs in of_layers)
    assert first[0] == "" and len(first) == 2 and "rsqrt" in first[1] and last == ["", "tanh(y)"]
    backward = made(
        SEQUENCE.replace("nn.Tanh", "nn.Mish")
    )  # that of tanh follows from its result, that of mish does not
    names = [kernel.name for kernel in kernels_of(backward.ours)]
    assert names == ["conv_up_0", "conv_up_0_then_1", "conv_last_0", "conv_last_0_then_1", "conv_last_0_backward_2"]
    names = [kernel.name for kernel in kernels_of(file.ours)]
    assert len(set(names)) == len(names) and {"conv_up_0", "conv_up_0_then_1"} <= set(names)
    joined = made(JOINED)  # where results are written is no part of a kernel
    names = [kernel.name for kernel in kernels_of(joined.ours)]
    assert "conv_first" in names and "conv_first_then_1" not in names


def test_one_family_is_built_for_all_of_them(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made(JOINED).ours
    built: list[str] = []
    ours["_extension"] = lambda family, capability: built.append(family)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    ours["ModelNew"]()
    assert set(built) == {kernel.family for kernel in kernels_of(ours)} == set(ours["_CUDA"])


def test_compilers_see_the_lines(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert close(compiled(*inputs()), theirs(*inputs()))
    assert file.programs == [""]


def test_concatenation(made: Made) -> None:
    file = made(JOINED)
    ours, theirs = file.models()
    for batch in (1, 3):
        x, skip = torch.randn(batch, 5, 4, 5), torch.randn(batch, 3, 9, 11)
        with torch.no_grad(), silent():
            assert all(map(close, ours(x, skip), theirs(x, skip)))
    assert file.widths == [10, 0, 10, 0] and all(file.programs[1::2]) and not any(file.programs[::2])


def test_concatenation_that_no_kernel_writes(made: Made) -> None:
    """Gradients, other formats and other types beside the result: PyTorch concatenates."""
    file = made(JOINED)
    ours, theirs = file.models()
    x, skip = torch.randn(2, 5, 4, 5), torch.randn(2, 3, 9, 11)
    for given in ((x, skip.clone().requires_grad_()), (x, skip)):
        found = [module(*given)[0] for module in (ours, theirs)]
        gradients = [
            torch.autograd.grad(y.square().sum(), module.first.weight)[0]
            for y, module in zip(found, (ours, theirs), strict=True)
        ]
        assert close(*found) and close(*gradients, 1e-2)
    with torch.no_grad():
        last = [t.contiguous(memory_format=torch.channels_last) for t in (x, skip)]
        mine, other = ours(*last)[0], theirs(*last)[0]
        assert close(mine, other) and mine.stride() == other.stride()
        theirs.double(), ours.double()
        assert close(ours(x.double(), skip)[0], theirs(x.double(), skip)[0])
        with pytest.raises(RuntimeError):
            ours.float()(x, skip[:1])
    assert 10 not in file.widths


def test_unbatched(made: Made) -> None:
    file = made(BLOCK)
    ours, theirs = file.models()
    ours.norm = theirs.norm = nn.Identity()
    x, skip, gate = (t[0] for t in inputs())
    with torch.no_grad():
        assert close(ours(x, skip, gate), theirs(x, skip, gate))
    assert file.programs == [""]


def test_a_file_without_epilogues_knows_nothing_of_them(made: Made) -> None:
    text = SEQUENCE.replace(", nn.Tanh()", "").replace(
        "nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout()", "nn.PixelShuffle(1)"
    )
    file: Namespace = made(text).ours
    assert not {"_Notes", "cuda_fused", "CudaSequential", "_PROGRAMS"} & set(file)
    assert "epilogue" not in file["_conv_transpose"].__code__.co_varnames
