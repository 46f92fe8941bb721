"""What torch.compile sees of a generated file: one operator, of that file alone."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from codegen_helpers import Namespace, executed, generated_text
from torch import Tensor

from tconv.sandbox.emulated import install

pytestmark = pytest.mark.rotates(6)

MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Model(nn.Module):
        def __init__(self, bias=True):
            super().__init__()
            self.up = nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1, bias=bias)
            self.weight = nn.Parameter(torch.rand(4, 2, 2, 2))
        def forward(self, x):
            return F.conv_transpose2d(torch.relu(self.up(x)), self.weight, stride=2) + 1

    def get_inputs():
        return [torch.rand(2, 6, 5, 7)]
"""


@pytest.fixture
def text(model_file: Callable[[str], Path]) -> str:
    return generated_text(model_file(MODEL), families=("direct",))


@pytest.fixture
def file(text: str) -> Namespace:
    return _ready(text)


def _ready(text: str) -> Namespace:
    torch.compiler.reset()
    namespace = executed(text)
    install(namespace)
    return namespace


def _with_gradients(call: Callable[[Tensor], Tensor], model: torch.nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    own = x.clone().requires_grad_()
    y = call(own)
    y.square().sum().backward()
    return [y.detach(), own.grad, *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("bias", [True, False])
def test_the_whole_model_is_one_graph_with_the_same_results(file: Namespace, bias: bool) -> None:
    model, x = file["ModelNew"](bias), torch.rand(2, 6, 5, 7)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = _with_gradients(model, model, x)
    for got, right in zip(_with_gradients(compiled, model, x), expected, strict=True):
        assert torch.equal(got, right)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


def test_sizes_may_change(file: Namespace) -> None:
    model = file["ModelNew"]()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for sizes in ((2, 6, 5, 7), (3, 6, 8, 8), (1, 6, 2, 11)):
        x = torch.rand(sizes)
        assert torch.equal(compiled(x), model(x))


def test_it_sees_one_operator_for_each_layer(file: Namespace) -> None:
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    model = file["ModelNew"]()
    torch.compile(model, fullgraph=True, backend=backend)(torch.rand(2, 6, 5, 7))
    name = file["_OPERATOR"]._qualname.replace("::", ".")
    assert sum(name in target for target in seen) == 2
    assert not any("conv_transpose" in target and name not in target for target in seen)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_operator_keeps_what_compilers_take_for_granted(
    file: Namespace, memory_format: torch.memory_format
) -> None:
    x = torch.rand(2, 6, 5, 7).contiguous(memory_format=memory_format).requires_grad_()
    weight, bias = torch.rand(6, 2, 3, 3, requires_grad=True), torch.rand(4, requires_grad=True)
    for operands in ((x, weight, bias), (x, weight, None)):
        torch.library.opcheck(file["_OPERATOR"], (*operands, [2, 2], [1, 1], [1, 0], 2, [1, 1]))


def test_two_files_in_one_process_have_two(text: str, model_file: Callable[[str], Path]) -> None:
    other = generated_text(model_file(MODEL.replace("stride=2) + 1", "stride=2) + 2")), families=("direct",))
    first, second = _ready(text), _ready(other)
    assert first["_OPERATOR"]._qualname != second["_OPERATOR"]._qualname
    x = torch.rand(2, 6, 5, 7)
    for file in (first, second):
        model = file["ModelNew"]()
        assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


def _compiled(file: Namespace) -> Callable[[Tensor], Tensor]:
    return torch.compile(file["ModelNew"](), fullgraph=True, backend="aot_eager")


def _edited(text: str) -> str:
    """A copy as somebody changes it by hand, who leaves the name of its operator."""
    own = "    return _run(launch, x, weight, bias)\n"
    operator, found, rest = text[text.index("def _operator(") :].partition(own)
    assert found
    return text[: text.index("def _operator(")] + operator + own.replace("\n", " * 2\n") + rest


def test_each_load_of_a_file_has_an_operator_of_its_own(text: str) -> None:
    """PyTorch destroys an operator whose name is defined again, and its memory may become the new one's."""
    loads = [_ready(text) for _ in range(3)]
    names = [file["_OPERATOR"]._qualname for file in loads]
    first = re.fullmatch(r"(tconv_\w+::conv_transpose)(?:_(\d+))?", names[0])  # another test may have loaded it before
    assert first is not None
    number = int(first[2] or 1)
    assert names[1:] == [f"{first[1]}_{number + 1}", f"{first[1]}_{number + 2}"]
    x = torch.rand(2, 6, 5, 7)
    for file in loads:
        model = file["ModelNew"]()
        assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


@pytest.mark.parametrize("traced_before", [True, False])
def test_a_copy_edited_by_hand_leaves_the_first_file_its_own_code(text: str, traced_before: bool) -> None:
    file = _ready(text)
    model, x = file["ModelNew"](), torch.rand(2, 6, 5, 7)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    if traced_before:
        assert torch.equal(compiled(x), model(x))
    copy = _ready(_edited(text))  # forgets what was compiled
    other = copy["ModelNew"]()
    other.load_state_dict(model.state_dict())
    assert torch.equal(compiled(x), model(x))
    doubled = torch.compile(other, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(other(x), model(x)) and not torch.equal(doubled, other(x))
    torch.compiler.reset()
    assert torch.equal(compiled(x), model(x))


def test_a_model_outlives_the_reload_of_its_file(text: str) -> None:
    file = _ready(text)
    model, x = file["ModelNew"](), torch.rand(2, 6, 5, 7)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(model, (x,))
    expected = compiled(x)
    exec(compile(text, "<string>", "exec"), file)
    install(file)
    gc.collect()
    for again in (False, True):
        assert torch.equal(compiled(x), expected) and torch.equal(exported.module()(x), expected)
        if again:
            torch.compiler.reset()
    assert torch.equal(_compiled(file)(x).sign(), expected.sign())


def test_eager_calls_do_not_meet_it(file: Namespace) -> None:
    model, x = file["ModelNew"](), torch.rand(2, 6, 5, 7)
    expected = _with_gradients(model, model, x)

    def refused(*values: object) -> Tensor:
        raise AssertionError("an eager call went through the operator")

    file["_OPERATOR"] = refused
    for got, right in zip(_with_gradients(model, model, x), expected, strict=True):
        assert torch.equal(got, right)


def test_where_pytorch_has_no_such_operators_files_load(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "custom_op")
    file = _ready(text)
    assert file["_OPERATOR"] is None
    assert file["ModelNew"]()(torch.rand(2, 6, 5, 7)).shape == (2, 2, 20, 28)


def test_wrong_shapes_are_told_in_pytorchs_words(file: Namespace) -> None:
    model = file["ModelNew"]()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"expected input\[2, 5, 5, 7\] to have 6 channels"):
        model(torch.rand(2, 5, 5, 7))
    with pytest.raises(Exception, match=r"expected input\[2, 5, 5, 7\] to have 6 channels"):
        compiled(torch.rand(2, 5, 5, 7))
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input"):
        model(torch.rand(1, 2, 6, 5, 7))
