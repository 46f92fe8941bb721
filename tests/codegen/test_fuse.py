"""The epilogues of layers becomes a function in the file's text: what is taken, and that it means the same."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
from codegen_helpers import workshop
from fuse_helpers import MODEL, fused_of, programs_of, results, same, written

from tconv.sandbox.trace import trace

pytestmark = pytest.mark.rotates(12)

#: A forward pass, and what its kernels compute behind layers, in the order of the text.
BODIES: dict[str, tuple[str, list[str]]] = {
    "an expression": ("return torch.relu(self.up(x)) + skip", ["max(y, 0) + output0"]),
    "branches for training and for evaluation": (
        """
        if self.training:
            return torch.tanh(self.conv(self.up(x)))
        else:
            x = self.up(x)
            return torch.tanh(self.norm(x))
        """,
        ["tanh((y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3)"],
    ),
    "an expression in parentheses over some lines": (
        """
        x = (
            self.up(x)
            * self.scale
        )
        x = torch.tanh(x)
        return (
            x
            + skip
        )
        """,
        ["tanh(y * channel0) + output1"],
    ),
    "a part in parentheses over some lines": (
        """
        y = self.up(x)
        return self.conv(
            torch.relu(y)
            + skip
        )
        """,
        ["max(y, 0) + output0"],
    ),
    "annotations": (
        """
        y: torch.Tensor = self.up(x)
        z: torch.Tensor = torch.relu(y)
        return z + skip
        """,
        ["max(y, 0) + output0"],
    ),
    "statements": (
        """
        y = self.up(x)  # larger
        # a comment
        y = y * self.scale

        y = self.act(y)
        return y + skip
        """,
        ["t0 = y * channel0; where(t0 > 0, t0, t0 * 0.1) + output1"],
    ),
    "a value that is returned, too": (
        """
        y = self.up(x)
        z = torch.relu(y)
        return y, z
        """,
        [],
    ),
    "a value that is read later": (
        """
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        return self.pool(z) + y.mean()
        """,
        [],
    ),
    "a value that is read later, and bound anew before": (
        """
        y = self.up(x)
        z = torch.relu(y)
        y = self.conv(z)
        return y + z
        """,
        ["max(y, 0)"],
    ),
    "in place": (
        """
        y = self.up(x)
        y += 1
        y.mul_(2).clamp_(min=0)
        y = F.relu(y, inplace=True)
        y -= skip
        return y
        """,
        ["max(max((y + 1) * 2, 0), 0) - output0"],
    ),
    "in place, by another name": (
        """
        y = self.up(x)
        z = y
        y += 1
        return y * z
        """,
        ["t0 = y + 1; t0 * t0"],
    ),
    "a copy of it": (
        """
        y = self.up(x)
        before = y.clone().detach()
        y += skip
        return y * before
        """,
        ["(y + output0) * y"],
    ),
    "an operand that is bound anew": (
        """
        held = skip
        y = self.up(x)
        y = y + held
        held = y * 2
        return held
        """,
        ["(y + output0) * 2"],
    ),
    "an operand of the result's name": (
        "y = skip\n        y = self.up(x) + y\n        return y * 2",
        ["(y + output0) * 2"],
    ),
    "an operand that is computed": ("return self.up(x) + self.conv(skip)", []),
    "an operand that is viewed": (
        "return self.up(x) * self.scale.view(1, -1, 1, 1) + self.scale[None]",
        ["y * channel0 + channel1"],
    ),
    "numbers": ("return self.up(x) * math.sqrt(2) / (1 - self.factor)", ["y * 1.4142135623730951 / 0.5"]),
    "tensors of a number": (
        """
        y = self.up(x) + 0.5
        y = torch.min(y, torch.tensor(0.0, device=y.device))
        y += torch.tensor(self.factor)
        return torch.where(y < 0.1, y, torch.tensor(2, dtype=y.dtype, device=y.device))
        """,
        ["t0 = min(y + 0.5, 0) + 0.5; where(t0 < 0.1, t0, 2)"],
    ),
    "a tensor of several numbers": (
        "return torch.relu(self.up(x)) * torch.tensor([0.1, 0.2, 0.3], device=x.device).view(1, -1, 1, 1)",
        ["max(y, 0)"],
    ),
    "a tensor of a number that asks for gradients": (
        "return torch.relu(self.up(x)) * torch.tensor(0.5, requires_grad=True)",
        ["max(y, 0)"],
    ),
    "arithmetic with a tensor of a number": ("return self.up(x) * (torch.tensor(0.5) * 2)", []),
    "what a tensor of a number finds": ("return self.up(x) * self.scale[torch.tensor(0)]", []),
    "a tensor of what is computed": ("return self.up(x) * torch.tensor(skip.shape[0] + len(skip))", []),
    "modules in a list": (
        """
        for up, norm in zip(self.ups, self.norms):
            x = up(x)
            x = self.act(norm(x))
        return x
        """,
        ["t0 = (y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3; where(t0 > 0, t0, t0 * 0.1)"],
    ),
    "a value that the next turn of a loop reads": (
        """
        z = 0
        for up in self.ups:
            x = x + z
            y = up(x)
            z = torch.relu(y)
            z = z.mean() + y.mean()
        return z
        """,
        [],
    ),
    "by index": ("return F.silu(self.norms[0](self.ups[1](x)))", None),  # type: ignore[dict-item]
    "a part of a statement": (
        """
        y = self.up(x)
        y = y * 2
        return self.pool(torch.tanh(y))
        """,
        ["tanh(y * 2)"],
    ),
    "a part of a statement that also reads another value": (
        """
        y = self.up(x)
        z = y * 2
        return self.pool(torch.tanh(z)) + y.mean()
        """,
        [],
    ),
    "a branch": (
        """
        y = self.up(x)
        if self.factor > 0:
            y = self.sequence[0](x)
            y = torch.sigmoid(y)
            return y
        return y
        """,
        ["sigmoid(y)"],
    ),
    "a branch behind it": (
        """
        y = self.up(x)
        y = torch.sigmoid(y)
        if self.factor > 0:
            y = y * 2
        return y
        """,
        ["sigmoid(y)"],
    ),
    "more than one statement in a line": ("y = self.up(x); y = torch.relu(y)\n        return y", []),
    "a statement in the line of its head": ("if True: y = torch.relu(self.up(x))\n        return y", []),
    "two layers in a statement": ("return torch.relu(self.up(x)) + torch.relu(self.sequence[0](x))", []),
    "a layer in a layer's call": (
        "return torch.tanh(self.sequence[0](torch.relu(self.up(x)))) * 2",
        ["tanh(y) * 2"],
    ),
    "a comprehension": ("return torch.stack([torch.relu(up(x)) for up in self.ups])", []),
    "a condition": ("return torch.relu(self.up(x) if self.factor else x)", []),
    "concatenation": ("return torch.cat([self.up(x), skip], 1)", [""]),
    "concatenation inside": ("return self.conv(torch.cat((skip, self.up(x)), dim=1)[:, :3])", [""]),
    "concatenation by statements": (
        """
        y = self.up(x)
        y = torch.cat([skip, y, skip], 1)
        return self.conv(y[:, 1:4]) + y[:, 1:4]
        """,
        [""],
    ),
    "concatenation that is returned": (
        """
        y = self.norm(self.up(x))
        y = self.act(y)
        return torch.cat([y, skip], axis=1)
        """,
        ["t0 = (y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3; where(t0 > 0, t0, t0 * 0.1)"],
    ),
    "concatenation in a larger statement": (
        """
        y = self.up(x) * 2
        z = y + 1
        return self.conv(torch.cat([skip, torch.relu(z)], 1)[:, 2:5]) + skip
        """,
        ["max(y * 2 + 1, 0)"],
    ),
    "concatenation of both": ("y = self.up(x)\n        return torch.cat([y, y * 2], 1)", []),
    "concatenation along another axis": ("return torch.cat([self.up(x), skip], 2)", []),
    "concatenation of what is computed": ("return torch.cat([self.up(x), self.conv(skip)], 1)", []),
    "concatenation, and a value that is read later": (
        """
        y = self.up(x)
        z = torch.cat([y, skip], 1)
        return z, y
        """,
        [],
    ),
    "concatenation of its epilogue": ("return torch.cat([torch.relu(self.up(x)), skip], 1)", ["max(y, 0)"]),
    "a function": (
        """
        y = F.conv_transpose2d(
            x,  # the input
            self.weight,
            stride=(2, 2),
        )
        y = torch.where(y > 0, y, y * self.factor)
        return y
        """,
        ["where(y > 0, y, y * 0.5)"],
    ),
    "arguments in a tuple": (
        """
        arguments = (x, self.weight, None, 2)
        return F.gelu(F.conv_transpose2d(*arguments), approximate="tanh")
        """,
        ["0.5 * y * (1 + tanh(0.7978845608028654 * (y + 0.044715 * (y * y * y))))"],
    ),
    "an output size": ("return torch.relu(self.up(x, output_size=(8, 9)))", ["max(y, 0)"]),
    "a print between": (
        """
        y = self.up(x)
        self.seen.append(y)
        return torch.relu(y)
        """,
        [],
    ),
    "a function in it": (
        """
        y = self.up(x)
        z = torch.relu(y)

        def later():
            return y.sum()

        return z + later()
        """,
        [],
    ),
    "a walrus": ("return torch.relu(y := self.up(x)) + y.mean()", []),
    "several targets": ("y = z = self.up(x)\n        return torch.relu(y) + z.mean()", []),
    "names that are taken": (
        """
        y, epilogue = skip, 2.0
        z = self.up(x) + y
        z = z * epilogue
        return z
        """,
        ["(y + output0) * 2"],
    ),
    "modules in a row": (
        """
        y = self.norm(self.up(x))
        # a comment
        y = self.act(y)
        return self.pool(self.drop(y))
        """,
        ["t0 = (y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3; where(t0 > 0, t0, t0 * 0.1)"],
    ),
    "modules in no row": (
        """
        y = self.norm(self.up(x))
        z = self.act(y)
        z = self.drop(y)
        return z
        """,
        ["t0 = (y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3; where(t0 > 0, t0, t0 * 0.1)"],
    ),
    "a sequence": ("return self.sequence(x)", ["(y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3"]),
    "a copy, and lines of its own behind it": (
        """
        y = self.up(x)
        z = y
        y = self.conv(x)
        return y.mean() + z
        """,
        [],
    ),
    "a module that does nothing": ("return self.same(self.up(x))", []),
    "copies before a concatenation": ("y = self.up(x)\n        z = y\n        return torch.cat([z, skip], 1)", [""]),
    "dropout": ("return torch.relu(self.drop(self.same(self.up(x))))", ["max(y, 0)"]),
    "a maximum along an axis": ("return self.up(x).max(1)", []),
    "a sum of a comparison": ("return self.up(x) * (skip > 0)", []),
    "a method of the model's own": ("return self.own(self.up(x))\n\n    def own(self, y):\n        return y + 1", []),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_taken_means_the_same(name: str, tmp_path: Path) -> None:
    body, programs = BODIES[name]
    path = written(tmp_path, body)
    fused = fused_of(path)
    text = fused.text
    if programs is not None:
        assert programs_of(fused) == programs or (name == "a sequence" and programs_of(fused)[0].startswith("max"))
    for training in (False, True):
        assert same(results(path, text, training), results(path, None, training)), text
    assert text is None or ("cuda_fused(" in text) == (name != "a sequence")


@pytest.mark.parametrize("tabs", [False, True])
def test_a_long_call_takes_several_lines(tabs: bool, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "\n        y = self.up(x)\n        y = y * self.scale + skip\n        y = self.act(y)\n        return y",
    )
    long = path.read_text().replace(
        "self.scale", "self.what_scales_each_channel_of_what_the_layer_gives_here_and_there"
    )
    path.write_text(long.replace("    ", "\t") if tabs else long)
    text = fused_of(path).text
    assert text is not None and re.search(r"y = cuda_fused\(\n\t*\s+self\.up,\n\s+x,\n\s+epilogue=epilogue,\n", text)
    assert same(results(path, text, False), results(path, None, False))


def test_lines_end_as_they_did(tmp_path: Path) -> None:
    path = written(tmp_path, BODIES["statements"][0], crlf=True)
    text = fused_of(path).text
    assert text is not None and text.count("\n") == text.count("\r\n")
    assert same(results(path, text, False), results(path, None, False))


def test_the_text_says_what_is_computed(tmp_path: Path) -> None:
    text = fused_of(written(tmp_path, BODIES["statements"][0])).text
    assert text is not None
    assert textwrap.dedent(text.partition("def forward(self, x, skip):\n")[2].partition("\ndef ")[0]).strip() == (
        textwrap.dedent("""
            def epilogue(y):
                # a comment
                y = y * self.scale

                y = self.act(y)
                return y + skip

            # larger
            # In one kernel: t0 = y * channel0; where(t0 > 0, t0, t0 * 0.1) + output1
            return cuda_fused(self.up, x, epilogue=epilogue, modules=[self.act], reads=[self.scale, skip], site=0)
        """).strip()
    )


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("return torch.relu(self.up(x))", "reads=[], site=0"),
        ("return torch.relu(self.up(x) * self.scale) + skip - self.scale", "reads=[self.scale, skip], site=0"),
        ("return F.leaky_relu(self.up(x), self.slope if False else 0.1)", None),
        ("return F.leaky_relu(self.up(x), float(self.slope) * 2 - LIMIT)", "reads=[self.slope, LIMIT], site=0"),
        ("return self.up(x) * self.deep.inner.number", "reads=[self.deep.inner.number], site=0"),
        ("return F.dropout(self.up(x), 0.5, self.training)", "reads=[self.training], site=0"),
        (
            "return torch.min(self.up(x), torch.tensor(self.slope, device=x.device))",
            "reads=[self.slope, x.device], site=0",
        ),
        (
            "y = self.up(x)\nreturn torch.min(y, torch.tensor(0.5, device=y.device, dtype=torch.float32))",
            "reads=[], site=0",
        ),
        ("return self.act(self.up(x)) + skip", "reads=[skip], site=0"),
        ("return self.up(x) + skip[:, :, :8]", "reads=[skip[:, :, :8]], site=0"),
        ("return self.up(x) + skip[:, :, : LIMITS[1]]", "reads=[skip[:, :, : LIMITS[1]]], site=0"),
        ("return self.up(x) + self.scale.view(1, -1, 1, 1)", "reads=[self.scale.view(1, -1, 1, 1)], site=0"),
        ("return self.up(x) * LIMITS[0] + skip.detach()", "reads=[LIMITS[0], skip.detach()], site=0"),
        (
            "skip = torch.relu(self.up(x) * skip)\nskip = skip - 1 if skip.dim() else x\nreturn skip",
            "reads=[skip], site=0",
        ),
        ("skip = self.up(x) * skip\nreturn torch.relu(skip)", "reads=[skip], site=0"),
        ("y = self.up(x)\ny = torch.relu(y)\nskip = y + skip\nreturn skip * 2", "reads=[skip], site=0"),
        ("return self.act(self.up(x))", ""),  # of modules in a row all is known
    ],
)
def test_what_a_epilogue_reads_is_handed_over(tmp_path: Path, body: str, reads: str | None) -> None:
    """Names and attributes, numbers and tensors: by them it is known again."""
    path = written(tmp_path, "\n        ".join(["", *body.split("\n")]))
    text = path.read_text().replace(
        "class Model", "LIMIT, LIMITS = 0.1, [0.1, 8]\n\n\nclass Deep(nn.Module):\n    number = 2.0\n\n\nclass Model", 1
    )
    text = text.replace(
        "        self.scale",
        "        self.deep, self.slope = Deep(), 0.3\n        self.deep.inner = Deep()\n        self.scale",
        1,
    )
    path.write_text(text)
    fused = fused_of(path)
    if reads is None:
        assert fused.text is None or "cuda_fused" not in fused.text
        return
    assert fused.text is not None, fused.apart
    (call,) = (line for line in fused.text.splitlines() if "cuda_fused(" in line)
    assert call.endswith(f", {reads})") if reads else "reads" not in call and "site" not in call, call


def test_what_is_another_number_each_time_it_is_read_stays(tmp_path: Path) -> None:
    path = written(tmp_path, "\n        return self.up(x) * self.counted")
    counted = """
    @property
    def counted(self):
        self.count = getattr(self, "count", 0) + 1
        return float(self.count)

    def forward"""
    path.write_text(path.read_text().replace("\n    def forward", counted, 1))
    fused = fused_of(path)
    assert "cuda_fused" not in (fused.text or "")
    assert any("nothing that it reads tells what it calls" in reason for reason in fused.apart), fused.apart


def test_lines_are_the_users(tmp_path: Path) -> None:
    """A call of a function is named by its line in the user's file."""
    body = """
        y = self.up(x)
        y = y * 2
        y = y + 1
        y = self.conv(y)
        return F.conv_transpose2d(y, self.weight)
    """
    path = written(tmp_path, body)
    plain, fused = trace(path, workshop=workshop()), fused_of(path)
    assert [layer.name for layer in fused.trace.layers] == [layer.name for layer in plain.layers]
    number = fused.trace.layers[1].line
    assert fused.text is not None and number is not None
    assert "F.conv_transpose2d" in fused.text.splitlines()[number - 1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return torch.cat([self.up(x), skip], 2)", "around it stands `torch.cat([self.up(x), skip], 2)`"),
        ("y = self.up(x)\n        return self.pool(y)", "behind it stands `return self.pool(y)`"),
        ("return self.up(x) + torch.relu(skip[..., :1])", "around it stands"),
        ("return self.up(x) * skip[..., :1]", "has not one value for each output"),
        ("if (y := self.up(x)) is not None:\n            return torch.tanh(y)", "it stands inside `if (y := "),
        ("return torch.relu(torch.stack([self.up(part[None]) for part in x]))", "it stands inside `return torch.relu("),
        ("y = self.up(x)\n        z = y\n        return self.pool(z)", "behind it stands `return self.pool(z)`"),
        ("return self.same(self.up(x))", "nothing is computed behind it"),
        ("return torch.relu(nn.ConvTranspose2d.forward(self.up, x))", "is no call of the layer itself"),
    ],
)
def test_what_is_not_taken_is_explained(body: str, reason: str, tmp_path: Path) -> None:
    fused = fused_of(written(tmp_path, body))
    assert fused.text is None and len(fused.apart) == 1 and reason in fused.apart[0], fused.apart
    line = MODEL.partition("{forward}")[0].count("\n") + 2
    assert fused.apart[0].startswith(f"line {line}: ")


def test_a_decorated_function_stays_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, "return self.up(x).relu()")
    text = path.read_text().replace("    def forward", "    @torch.jit.export\n    def forward")
    path.write_text(text)
    fused = fused_of(path)
    assert fused.text is None and [each.partition(": ")[2] for each in fused.apart] == [
        "forward is decorated with `torch.jit.export`"
    ]


def test_what_the_text_does_not_show_is_explained(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(
        """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 3, 2, 2)
    def forward(self, x):
        return self.up(x).relu()
"""
    )
    path = written(tmp_path, "return self.sequence(self.block(x)).relu()")
    layers = "self.sequence = nn.Sequential(nn.ConvTranspose2d(3, 3, 2, 2), nn.Conv2d(3, 3, 1))"
    text = path.read_text().replace("self.sequence = nn.Sequential(*layers)", f"{layers}; self.block = Block()")
    path.write_text("from neighbour import Block\n" + text)
    assert fused_of(path).apart == (
        "block.up: it is called in neighbour.py, line 9, which stays as it is",
        "sequence.0: behind it stands sequence.1, a Conv2d",
    )


SEQUENCES = """
class Block(nn.Sequential):
    pass

class Own(nn.Sequential):
    def forward(self, x):
        for module in self:
            x = module(x)
        return x

class Model"""


@pytest.mark.parametrize(
    ("kind", "behind", "body", "said"),
    [
        ("nn.Sequential", "nn.ReLU()", "return self.block(x)", ()),
        ("nn.Sequential", "nn.Softmax2d()", "for each in self.block: x = each(x)\n        return x", ()),
        ("Block", "nn.ELU()", "return self.block(x)", ("block.1: it is called by Block, a subclass of nn.Sequential",)),
        ("Own", "nn.Softmax2d()", "return self.block(x)", ()),
    ],
)
def test_of_sequences_only_what_is_true_is_said(
    kind: str, behind: str, body: str, said: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing of one whose own forward does not run, of a layer that stands last, and of modules with hooks."""
    last = f"self.block = {kind}(nn.Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 3, 2, 2)"
    hooked = f"{last}, {behind}); self.block[2].register_forward_hook(lambda *_: None)"
    for made, expected in ((hooked, said), (f"{last})", ())):
        path = written(tmp_path, body)
        text = path.read_text().replace("self.sequence = nn.Sequential(*layers)", made)
        path.write_text(text.replace("\nclass Model", SEQUENCES))
        of_modules = tuple(each for each in fused_of(path).apart if not each.startswith("line "))
        assert of_modules == expected


def test_every_text_is_python(tmp_path: Path) -> None:
    for body, _ in list(BODIES.values())[::7]:
        text = fused_of(written(tmp_path, body)).text
        assert text is None or ast.parse(text)


def test_a_epilogue_that_does_not_run_costs_no_other(tmp_path: Path) -> None:
    """Nothing in the text tells that its operand is read in `forward` alone."""
    body = """
        y = self.up(x)
        y = torch.relu(y) * odd.factor
        z = self.ups[0](x)
        z = torch.tanh(z)
        w = F.relu(self.ups[1](x)) + odd.factor
        return y, z, w
    """
    odd = """
        class Odd:
            @property
            def factor(self):
                caller = getattr(__import__("sys"), "_get" "frame")(1).f_code.co_name
                if caller != "forward":
                    raise RuntimeError(f"read in {caller}")
                return 2.0


        odd = Odd()
    """
    path = written(tmp_path, body)
    path.write_text(path.read_text().replace("class Model", textwrap.dedent(odd).strip() + "\n\n\nclass Model", 1))
    fused = fused_of(path)
    assert programs_of(fused) == ["tanh(y)"] and fused.text is not None and fused.text.count("cuda_fused(") == 1
    (first, second) = fused.apart
    for apart in (first, second):
        assert "the file does not run with its epilogue: RuntimeError: read in " in apart, apart
    assert same(results(path, None, False), results(path, fused.text, False))
