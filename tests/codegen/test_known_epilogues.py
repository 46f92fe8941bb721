"""A written file knows what its epilogues compute by what they read: whatever of that changes is seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from epilogue_files import Made, close, maker
from torch import Tensor, nn

from tconv.codegen import runtime

pytestmark = pytest.mark.rotates(6)

MODEL = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = nn.ConvTranspose2d(5, 6, 3, 2, 1, 1), nn.BatchNorm2d(6)
            self.slope, self.low, self.p = 1.0, 0.0, 0.5
            self.gate = nn.Parameter(torch.rand(6, 1, 1))
            self.register_buffer("shift", torch.rand(6, 1, 1))
        def forward(self, x, skip):
            y = self.up(x)
            y = F.leaky_relu(self.norm(y), self.slope) * self.gate
            y = torch.clamp(y, self.low, None) / skip
            y = F.dropout(y, self.p, self.training)
            return torch.max(y, torch.tensor(self.low, device=y.device)) + self.shift

    def get_inputs():
        return [torch.rand(2, 5, 4, 5), torch.rand(2, 6, 8, 10)]
"""
Change = Callable[[Any], None]


def set_to(name: str, value: Any) -> Change:
    def change(module: Any) -> None:
        *path, last = name.split(".")
        for each in path:
            module = getattr(module, each)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and last in module._parameters:
            del module._parameters[last]
        setattr(module, last, value)

    return change


def same_tensor_twice(module: Any) -> None:
    del module._parameters["gate"]
    module.gate = module.shift


def a_function_for_a_module(module: Any) -> None:
    del module.norm
    module.norm = torch.abs


#: What may be set between two calls, and whether the file's kernel still computes it.
CHANGES: dict[str, tuple[Change, bool]] = {
    "nothing": (lambda module: None, True),
    "a number": (set_to("slope", 0.75), False),
    "an integer": (set_to("slope", 1), False),
    "a truth value": (set_to("slope", True), False),
    "a limit": (set_to("low", -0.5), False),
    "a limit of another sign": (set_to("low", -0.0), False),
    "a number that plays no part in evaluation": (set_to("p", 0.75), False),
    "another tensor": (set_to("gate", nn.Parameter(torch.rand(6, 1, 1))), True),
    "a tensor that is no parameter": (set_to("gate", torch.rand(6, 1, 1)), True),
    "a tensor of another kind": (set_to("gate", torch.rand(1, 1, 1)), False),
    "a tensor of the result's shape": (set_to("gate", torch.rand(2, 6, 8, 10)), False),
    "a tensor of another type": (set_to("shift", torch.rand(6, 1, 1).double()), False),
    "one tensor twice": (same_tensor_twice, False),
    "a number for a tensor": (set_to("gate", torch.tensor(2.0)), False),
    "the mode of all": (lambda module: module.train(), False),
    "the mode of a module": (lambda module: module.norm.train(), False),
    "the mode of the model alone": (set_to("training", True), False),
    "a module's number": (set_to("norm.eps", 0.5), False),
    "a module's tensor": (set_to("norm.weight", None), False),
    "a module's statistics": (set_to("norm.running_mean", torch.rand(6)), True),
    "a hook": (lambda module: module.norm.register_forward_hook(lambda module, given, y: y * 2), False),
    "another module": (set_to("norm", nn.Identity()), False),
    "a function for a module": (a_function_for_a_module, False),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return maker(tmp_path_factory.mktemp("known"))


def call(module: nn.Module, given: list[Tensor]) -> Tensor:
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no kernel computes the new one
        result: Tensor = module(*given)
    return result


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_between_calls_is_seen(made: Made, name: str, gradients: bool) -> None:
    file, (change, fused) = made(MODEL), CHANGES[name]
    ours, theirs = file.models()
    given = [torch.randn(2, 5, 4, 5), torch.rand(2, 6, 8, 10) + 0.5]
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            assert close(call(ours, given), call(theirs, given))
        assert all(file.programs), "computed in the kernel each time"
        torch.manual_seed(2)
        change(ours)
        torch.manual_seed(2)
        change(theirs)
        for _ in range(2):
            assert close(call(ours, given), call(theirs, given)), name
        assert bool(file.programs[-1]) == fused


def test_other_inputs_are_other_epilogues(made: Made) -> None:
    """One sample's values may be one for each channel; a skip that is broadcast is of another kind."""
    file = made(MODEL)
    ours, theirs = file.models()
    for x, skip, fused in (
        ((2, 6, 5), (6, 12, 10), True),
        ((1, 6, 5), (6, 12, 10), True),
        ((2, 6, 5), (6, 1, 1), False),
        ((2, 4, 5), (6, 8, 10), True),
    ):
        given = [torch.randn(x[0], 5, *x[1:]), torch.rand(x[0], *skip) + 0.5]
        with torch.no_grad():
            assert close(call(ours, given), call(theirs, given))
        assert bool(file.programs[-1]) == fused


TWO_SITES = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.ConvTranspose2d(3, 3, 1), nn.ConvTranspose2d(3, 3, 1)
            self.gate = nn.Parameter(torch.rand(3, 1, 1))
        def forward(self, x):
            y = torch.relu(self.first(x) + self.gate)
            return torch.tanh(self.second(y) + self.gate)

    def get_inputs():
        return [torch.rand(2, 3, 4, 5)]
"""


def test_two_epilogues_that_read_the_same(made: Made) -> None:
    file, x = made(TWO_SITES), torch.randn(2, 3, 4, 5)
    ours, theirs = file.models()
    with torch.no_grad():
        assert close(call(ours, [x]), call(theirs, [x]))
    assert file.programs == ["max(y + channel0, 0)", "tanh(y + channel0)"]


def test_names_that_the_user_has_are_left_to_him(made: Made) -> None:
    theirs = "_PROGRAM_1, _epilogue_1 = 'mine', 'mine too'\n\n    class Model"
    file, x = made(TWO_SITES.replace("class Model", theirs)), torch.randn(2, 3, 4, 5)
    ours, other = file.models()
    found = [torch.autograd.grad(call(each, [x]).sum(), each.gate, create_graph=True)[0] for each in (ours, other)]  # type: ignore[arg-type]
    assert close(*found) and file.programs[:2] == ["max(y + channel0, 0)", "tanh(y + channel0)"]
    assert (file.ours["_PROGRAM_1"], file.ours["_epilogue_1"]) == ("mine", "mine too")


CHANGING_PLACES = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.a, self.b = nn.ConvTranspose2d(3, 3, 1), 0.5, torch.tensor([[[0.25]], [[2.0]], [[-1.0]]])
        def forward(self, x):
            return self.up(x) * self.a + self.b

    def get_inputs():
        return [torch.rand(2, 3, 4, 5)]
"""


def test_a_number_and_a_tensor_change_places(made: Made) -> None:
    ours, theirs = made(CHANGING_PLACES).models()
    x = torch.randn(2, 3, 4, 5)
    for _ in range(2):
        assert close(call(ours, [x]), call(theirs, [x]))
    for module in (ours, theirs):
        module.a, module.b = module.b, module.a  # type: ignore[assignment]
    for _ in range(2):
        assert close(call(ours, [x]), call(theirs, [x]))


VIEWS = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.scale = nn.ConvTranspose2d(3, 4, 3), nn.Parameter(torch.rand(2, 4))
        def forward(self, x, skip):
            y = self.up(x) * self.scale[0].view(1, -1, 1, 1)
            y = torch.relu(y + skip[:, 1:5]) * self.scale[1, :, None, None]
            return y

    def get_inputs():
        return [torch.rand(2, 3, 4, 5), torch.rand(2, 6, 6, 7)]
"""


def test_parts_and_views_are_read_at_each_call(made: Made) -> None:
    file = made(VIEWS, ("float64",))
    ours, theirs = (module.double() for module in file.models())
    given = [torch.randn(2, 3, 4, 5).double(), torch.randn(2, 6, 6, 7).double()]
    found = []
    for module in (ours, theirs):
        result = call(module, given)
        found.append([result, *torch.autograd.grad(result.square().sum(), list(module.parameters()))])
    assert all(close(one, other, 1e-9) for one, other in zip(*found, strict=True))
    assert all(file.programs), "forward and backward"
    for module in (ours, theirs):
        module.scale = nn.Parameter(torch.ones(2, 4).double())  # type: ignore[assignment]
    assert close(call(ours, given), call(theirs, given), 1e-9) and file.programs[-1]


IN_A_LOOP = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.ups = nn.ModuleList(nn.ConvTranspose2d(3, 3, 1) for _ in range(2))
        def forward(self, x):
            for up in self.ups:
                x = torch.relu(up(x) * x)
            return x

    def get_inputs():
        return [torch.rand(2, 3, 4, 5)]
"""


def test_a_call_in_a_loop_is_known_by_all_that_it_was(made: Made) -> None:
    """What it reads asks for a gradient the second time alone."""
    file, x = made(IN_A_LOOP, ("float64",)), torch.randn(2, 3, 4, 5).double()
    found = []
    for module in (each.double() for each in file.models()):
        result = call(module, [x])
        found.append([result, *torch.autograd.grad(result.square().sum(), list(module.parameters()))])
    assert all(close(one, other, 1e-9) for one, other in zip(*found, strict=True))
    assert len(file.programs) == 5 and all(file.programs)


BOUND_AGAIN = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 3, 1)
        def forward(self, x):
            y = self.up(x)
            y = torch.relu(y)
            x = y + x
            return x * 2

    def get_inputs():
        return [torch.rand(2, 3, 4, 5)]
"""


def test_a_name_that_is_bound_again_is_read_before(made: Made) -> None:
    file = made(BOUND_AGAIN)
    ours, theirs = file.models()
    x = torch.randn(2, 3, 4, 5)
    assert close(call(ours, [x]), call(theirs, [x])) and file.programs == ["(max(y, 0) + output0) * 2"]


#: Of what an epilogue reads, what may not be left out.
PLANTED = {
    "equal numbers": (
        "repr(value))  #",
        "str(abs(value) if isinstance(value, float) else value))  #",
        "a limit of another sign",
    ),
    "types of numbers": ("repr(value))  #", "str(value and float(value)))  #", "an integer"),
    "types of tensors": ("or value.dtype not in types ", "", "a tensor of another type"),
    "kinds of tensors": ('f"{kind}{places[0]}"', 'f"channel{places[0]}"', "a tensor of another kind"),
    "one tensor twice": ("if tensor is value]", "if False]", "one tensor twice"),
    "numbers of modules": ("repr(getattr(module, name)) for", "'' for", "a module's number"),
    "who reads": ("[self.site], [], []", "[0], [], []", ""),
}


@pytest.mark.rotates(6)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong, change = PLANTED[name]
    text = runtime.part("epilogues")
    assert text.count(right) == 1
    of_part = runtime.part
    monkeypatch.setattr(
        runtime, "part", lambda name: text.replace(right, wrong) if name == "epilogues" else of_part(name)
    )
    planted = maker(tmp_path)
    with pytest.raises((AssertionError, RuntimeError)):
        if change:
            test_what_is_changed_between_calls_is_seen(planted, change, False)
        else:
            test_two_epilogues_that_read_the_same(planted)
