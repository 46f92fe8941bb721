"""Statements become a function only where nobody sees the difference, at whatever size: whatever does something with a
name is a use of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from fuse_helpers import FIRST_LINE, fused_of, programs_of, results, same, written

pytestmark = pytest.mark.rotates(12)

#: A forward pass, what its kernels compute behind `self.up`, and a part of what is said where nothing fuses, with lines
#: counted from the first one of the body. Inputs wider than the sample's take other branches.
BODIES: dict[str, tuple[str, list[str], str]] = {
    "del in a branch": (
        """
        y = self.up(x)
        z = F.silu(y)
        if z.shape[-1] > 12:
            del y
        return self.conv(z)
        """,
        [],
        "y is used in line +4, too",
    ),
    "del between": (
        """
        y = self.up(x)
        z = torch.relu(y)
        del y
        z = z + skip
        return self.conv(z)
        """,
        ["max(y, 0) + output0"],
        "",
    ),
    "del of two": (
        """
        y = self.up(x)
        z = torch.relu(y)
        a = z * 2
        del y, z
        return self.conv(a)
        """,
        ["max(y, 0) * 2"],
        "",
    ),
    "del of another": (
        """
        y = self.up(x)
        z = torch.relu(y)
        del y, x
        return self.conv(z)
        """,
        [],
        "y is used in line +3, too",
    ),
    "del at the end": ("y = self.up(x)\n        z = torch.relu(y)\n        del y\n        return z", ["max(y, 0)"], ""),
    "a global": (
        """
        global RAW
        RAW = self.up(x)
        z = torch.relu(RAW)
        return z if z.shape[-1] < 12 else z + globals()["RAW"]
        """,
        [],
        "RAW is no variable of this function alone",
    ),
    "another function's variable": (
        """
        raw = None
        def step():
            nonlocal raw
            raw = self.up(x)
            z = torch.relu(raw)
            return z * 2
        z = step()
        return z if z.shape[-1] < 12 else z + raw
        """,
        [],
        "raw is no variable of this function alone",
    ),
    "what runs later, above": (
        """
        def later():
            return y.mean()
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        return z if z.shape[-1] < 12 else z + later()
        """,
        [],
        "y is used in line +2, by what may run at another time",
    ),
    "a generator that runs later": (
        """
        y = skip
        sums = (y.mean() * k for k in (1, 2))
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        return z + sum(sums)
        """,
        [],
        "by what may run at another time",
    ),
    "a default argument": (
        """
        y = self.up(x)
        def crop(at, of=y):
            return of[..., :at]
        z = torch.relu(y)
        z = z * 2
        return z if z.shape[-1] < 12 else crop(3)
        """,
        [],
        "behind it stands `def crop",
    ),
    "a function's own variable of that name": (
        """
        def twice(y):
            z = y * 2
            return z
        y = self.up(x)
        z = torch.relu(y)
        a = z * 2
        return twice(a) + sum([y for y in (1, 2)])
        """,
        ["max(y, 0) * 2"],
        "",
    ),
    "a class's body": (
        """
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        if z.shape[-1] > 12:
            class Kept:
                raw = y
            z = z + Kept.raw
        return z
        """,
        [],
        "y is used in line +6, too",
    ),
    "a part in a lambda": (
        """
        y = self.up(x)
        head = lambda k: torch.relu(y) * k
        return head(2) + head(3)
        """,
        [],
        "behind it stands `head = lambda",
    ),
    "a part in a comprehension": (
        "y = self.up(x)\n        return [torch.relu(y) * k for k in (1.0, 2.0)]",
        [],
        "behind it stands",
    ),
    "a part in a generator": ("y = self.up(x)\n        return sum(torch.sin(y * k) for k in (1.0, 2.0))", [], "behind"),
    "a part of a conditional": (
        "y = self.up(x)\n        return torch.tanh(y) + skip if x.shape[-1] == 5 else skip",
        [],
        "behind it stands",
    ),
    "the test of a conditional": (
        "y = self.up(x)\n        return x if torch.tanh(y) is None else skip",
        ["tanh(y)"],
        "",
    ),
    "a part behind and": (
        "y = self.up(x)\n        return x.shape[-1] == 5 and torch.tanh(y) + skip",
        [],
        "behind it stands",
    ),
    "a part behind a walrus": (
        "y = self.up(x)\n        return (z := self.conv(skip)), torch.relu(y) + z",
        [],
        "behind it stands",
    ),
    "a part behind what changes its operand": (
        "y = self.up(x)\n        return self.conv(skip.mul_(2)), torch.relu(y) + skip",
        [],
        "behind it stands",
    ),
    "a part behind what it does not read": (
        "y = self.up(x)\n        return self.conv(x), torch.relu(self.norm(y)) * 2",
        ["max((y - channel0) * (channel2 * rsqrt(channel1 + 1e-05)) + channel3, 0) * 2"],
        "",
    ),
    "a part that draws, behind another draw": (
        "y = self.up(x)\n        return F.dropout(x, 0.5, self.training), torch.relu(self.drop(y))",
        [],
        "behind it stands",
    ),
    "a concatenation behind what changes its operand": (
        "y = self.up(x)\n        return self.conv(skip.mul_(2)), torch.cat([torch.relu(y), skip], 1)",
        ["max(y, 0)"],
        "",
    ),
    "match": (
        """
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        match z.shape[-1]:
            case 10:
                return z
            case _:
                return z + y
        """,
        [],
        "y is used in line +8, too",
    ),
    "an except that reads": (
        """
        try:
            y = self.up(x)
            y = y * 2
            y = y + skip
        except RuntimeError:
            y = y[..., :3]
        return y
        """,
        [],
        "it stands in the `try` of line +1",
    ),
    "an except, and what is bound before it": (
        """
        y = x
        try:
            y = self.up(y)
            y = torch.relu(y)
            y = y + skip
        except RuntimeError:
            pass
        return y
        """,
        [],
        "it stands in the `try` of line +2",
    ),
    "suppressed": (
        """
        import contextlib
        y = x
        with contextlib.suppress(RuntimeError):
            y = self.up(y)
            y = torch.relu(y)
            y = y + skip
        return y
        """,
        [],
        "suppressed by the `with` of line +3",
    ),
    "no_grad": (
        """
        with torch.no_grad():
            y = self.up(x)
            y = torch.relu(y)
            y = y * 2
        return y
        """,
        ["max(y, 0) * 2"],
        "",
    ),
    "finally": (
        """
        try:
            y = self.up(x)
            z = torch.relu(y)
            return z * 2
        finally:
            self.seen.append(float(y.mean()))
        """,
        [],
        "it stands in the `try` of line +1",
    ),
    "finally, of another name": (
        """
        try:
            y = self.up(x)
            z = torch.relu(y)
            return z * 2
        finally:
            self.seen.append(1)
        """,
        ["max(y, 0) * 2"],
        "",
    ),
    "break before it is bound anew": (
        """
        for number in range(2):
            y = self.up(x)
            z = torch.relu(y)
            z = z * 2
            if z.shape[-1] > 12:
                break
            y = z
        return y
        """,
        [],
        "y is used in line +8, too",
    ),
    "continue before it is bound anew": (
        """
        total, y = 0, None
        for number in range(3):
            if y is not None:
                total = total + y.mean()
            y = self.up(x)
            z = torch.relu(y)
            z = z * 2
            total = total + z
            if number > 1 or z.shape[-1] > 12:
                continue
            y = None
        return total
        """,
        [],
        "y is used in line +3, too",
    ),
    "bound anew in any case": (
        """
        for number in range(2):
            y = self.up(x)
            z = torch.relu(y)
            z = z * 2
            y = self.conv(z)
        return y
        """,
        ["max(y, 0) * 2"],
        "",
    ),
    "a return before": (
        """
        if x.shape[-1] < 6:
            y = self.up(x)
            z = torch.relu(y)
            return z * 2
        y = self.conv(x)
        z = torch.tanh(y)
        return z
        """,
        ["max(y, 0) * 2"],
        "",
    ),
    "locals": (
        """
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        return z if z.shape[-1] < 12 else z + locals()["y"]
        """,
        [],
        "locals in line +4 may read any name",
    ),
    "eval": (
        "y = self.up(x)\n        z = torch.relu(y)\n        z = z * 2\n        return eval('z + y')",
        [],
        "eval in line",
    ),
    "annotations alone": (
        """
        y: torch.Tensor = self.up(x)
        skip: torch.Tensor
        z: torch.Tensor
        z = y + skip
        other: torch.Tensor
        return torch.tanh(z) * 2
        """,
        ["tanh(y + output0) * 2"],
        "",
    ),
    "an annotation of what the rest reads": (
        """
        y = self.up(x)
        y = torch.relu(y)
        skip: torch.Tensor
        return self.conv(y + skip)
        """,
        ["max(y, 0) + output0"],
        "",
    ),
    "a frame": (
        """
        import inspect
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        return z if z.shape[-1] < 12 else z + inspect.currentframe().f_locals["y"]
        """,
        [],
        "currentframe in line +5 may read any name",
    ),
    "an f-string": (
        '''
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        if z.shape[-1] > 12:
            self.seen.append(f"""
                {float(y.mean()):.3f}
            """)
        return z
        ''',
        [],
        "y is used in line",
    ),
    "augmented": (
        """
        y = self.up(x)
        z = torch.relu(y)
        z = z * 2
        if z.shape[-1] > 12:
            y += 1
        return z
        """,
        [],
        "y is used in line +5, too",
    ),
    "read by its own statement": (
        """
        y = skip
        h = self.up(x)
        y = y + h
        y = torch.tanh(y)
        return y
        """,
        ["tanh(output0 + y)"],
        "",
    ),
    "read by its own statement in a loop": (
        """
        y = skip
        for number in range(2):
            h = self.up(x)
            y = y + h * self.scale
            y = F.relu(y)
            y = y * 0.5
        return y
        """,
        ["max(output1 + y * channel0, 0) * 0.5"],
        "",
    ),
    "the layer's own name, beside it": (
        """
        for number in range(1):
            skip = self.up(x) + skip
            skip = torch.tanh(skip)
        return skip * 2
        """,
        ["tanh(y + output0)"],
        "",
    ),
    "read, and bound later": (
        """
        y = self.up(x)
        z = y + skip
        skip = z * 2
        z = skip + z
        return z, x
        """,
        ["t0 = y + output0; t0 * 2 + t0"],
        "",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_taken_means_the_same_at_any_size(name: str, tmp_path: Path) -> None:
    body, programs, said = BODIES[name]
    if name == "match" and sys.version_info < (3, 10):
        pytest.skip("no match statements")
    path = written(tmp_path, body)
    fused = fused_of(path)
    for training in (False, True):
        assert same(results(path, fused.text, training), results(path, None, training)), fused.text
    assert programs_of(fused) == programs, fused.text
    assert (fused.text is None) == (not programs)
    said = re.sub(r"line \+(\d+)", lambda line: f"line {FIRST_LINE + int(line[1]) - 1}", said)
    if said:
        assert any(said in each for each in fused.apart), fused.apart


def test_tabs_stay(tmp_path: Path) -> None:
    path = written(tmp_path, BODIES["read by its own statement"][0])
    path.write_text(path.read_text().replace("    ", "\t"))
    fused = fused_of(path)
    assert fused.text is not None and "\tdef epilogue(h, y=y):\n\t\t\ty = y + h\n" in fused.text
    assert same(results(path, fused.text, False), results(path, None, False))
