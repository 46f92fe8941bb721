"""The classes of a generated file, as those ask for them who know torch's: by type, as keys of tables, by pickle."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from codegen_helpers import fused_text
from torch import nn

from tconv.sandbox.emulated import install

pytestmark = pytest.mark.rotates(4)  # each takes seconds

BLOCKS = """
    import abc
    import copyreg
    from torch import nn

    class Kind(type):
        pass

    class Up(nn.ConvTranspose2d):
        def forward(self, x):
            return super().forward(x)[..., 1:]

    class Abstract(nn.ConvTranspose2d, abc.ABC):
        pass

    class Slotted(nn.ConvTranspose2d, metaclass=Kind):
        def __init__(self, channels):
            super().__init__(channels, channels, 2, 2)
            self.channels = channels
        def __reduce__(self):
            return Slotted, (self.channels,), self.__dict__

    class Stateful(nn.ConvTranspose2d):
        def __getstate__(self):
            return {**self.__dict__, "seen": 1}
        def __setstate__(self, state):
            self.told = state.pop("seen")
            super().__setstate__(state)

    def draw(model):
        for m in model.modules():
            TABLE.get(type(m), lambda m: None)(m)

    def ones(m):
        nn.init.ones_(m.weight)

    TABLE = {nn.Conv2d: ones, nn.ConvTranspose2d: ones}
"""
MODEL = """
    import abc
    import functools
    import torch
    from torch import nn
    import blocks

    class Registered(type):
        pass

    class Own(nn.ConvTranspose2d, metaclass=Registered):
        pass

    class Interface(abc.ABC):
        pass

    class Both(nn.ConvTranspose2d, Interface):
        pass

    @functools.singledispatch
    def scaled(m):
        return 1

    @scaled.register
    def _(m: nn.ConvTranspose2d):
        return 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = nn.ConvTranspose2d(4, 4, 2, 2)
            self.blocks = nn.ModuleList([
                blocks.Up(4, 4, 3, 2), blocks.Abstract(4, 4, 2, 2), blocks.Slotted(4), blocks.Stateful(4, 4, 2, 2)
            ])
            self.own, self.both = Own(4, 4, 1), Both(4, 4, 1)
            self.sequence = nn.Sequential(nn.ConvTranspose2d(4, 4, 1), nn.ReLU())
            self.copied = self.plain.__class__(4, 4, 1)
            blocks.draw(self)

        def forward(self, x):
            counts = {nn.ConvTranspose2d: 3, nn.Sequential: 5}
            x = self.plain(x) * counts[type(self.plain)] * counts.get(self.sequence.__class__, 0)
            for block in self.blocks:
                x = block(x)
            kinds = [type(m) is nn.ConvTranspose2d for m in self.modules()].count(True)
            kinds += [type(m) in (nn.ConvTranspose2d, nn.Sequential) for m in self.modules()].count(True)
            kinds += sum(map(scaled, self.modules()))
            if type(self.sequence) is not nn.Sequential or type(self.own) is nn.ConvTranspose2d:
                raise TypeError("others")
            return self.copied(self.sequence(self.both(self.own(x)))) * kinds

    def get_inputs():
        return [torch.rand(1, 4, 3, 3)]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The model file and the one that is written of it, both imported as modules, the latter in the emulator."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in (("as_it_is", MODEL), ("blocks", BLOCKS)):
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    (folder / "as_written.py").write_text(fused_text(folder / "as_it_is.py", ("direct",)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        modules = importlib.import_module("as_it_is"), importlib.import_module("as_written")
        install(modules[1].__dict__)
        yield modules
        for name in ("as_it_is", "as_written", "blocks"):
            sys.modules.pop(name, None)


def built(files: tuple[ModuleType, ModuleType]) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    model = files[0].Model().eval()
    torch.manual_seed(3)
    return model, files[1].ModelNew().eval(), files[0].get_inputs()[0]


def test_types_are_equal_and_tables_find_them(files: tuple[ModuleType, ModuleType]) -> None:
    model, ours, x = built(files)
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert float((ours(x) - model(x)).norm() / model(x).norm()) < 2e-3  # operands are rounded to TF32
    kind = type(ours.plain)
    assert kind is not nn.ConvTranspose2d and kind == nn.ConvTranspose2d == kind
    assert hash(kind) == hash(nn.ConvTranspose2d) and kind != nn.ConvTranspose1d and kind != nn.Conv2d
    assert {nn.ConvTranspose2d: 1}[kind] == 1 and kind in {nn.ConvTranspose2d} and {kind: 1}[nn.ConvTranspose2d] == 1
    assert not {type(ours.own), type(ours.both), type(ours.blocks[0])} & {nn.ConvTranspose2d}
    assert {type(each) for each in ours.blocks} == {type(each) for each in model.blocks}
    assert repr(ours) == repr(model).replace("Model(", "ModelNew(", 1)
    assert all(isinstance(m, files[1]._CudaForward) for m in ours.modules() if isinstance(m, nn.ConvTranspose2d))


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_whole_models_are_pickled(files: tuple[ModuleType, ModuleType], protocol: int) -> None:
    """Also layers of imported classes, of which the file has subclasses of its own, by those imported ones."""
    _, ours, x = built(files)
    file = io.BytesIO()
    torch.save(ours, file, pickle_protocol=protocol)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    again = pickle.loads(pickle.dumps(loaded, protocol))
    with torch.no_grad():
        for model in (loaded, again, copy.deepcopy(ours), copy.deepcopy(again)):
            assert [type(m) for m in model.modules()] == [type(m) for m in ours.modules()]
            assert torch.equal(model(x), ours(x))
    assert again.blocks[3].told == 1 and not hasattr(ours.blocks[3], "told")


def test_replicas_run_their_own_weights(files: tuple[ModuleType, ModuleType]) -> None:
    """As `nn.DataParallel` makes them: by the dictionary of a module."""
    _, ours, x = built(files)
    replica = ours.sequence._replicate_for_data_parallel()
    replica._modules = {name: copy.deepcopy(module) for name, module in ours.sequence._modules.items()}
    with torch.no_grad():
        replica._modules["0"].weight.mul_(2)
        assert not torch.equal(replica(x), ours.sequence(x))


def test_two_files_in_one_process_pickle_by_their_own(files: tuple[ModuleType, ModuleType]) -> None:
    written = Path(str(files[1].__file__))
    written.with_name("other.py").write_text(written.read_text())
    other: Any = importlib.import_module("other")
    install(other.__dict__)
    loaded = pickle.loads(pickle.dumps(other.ModelNew()))
    sys.modules.pop("other")
    assert isinstance(loaded.blocks[0], other._CudaForward) and not isinstance(loaded.blocks[0], files[1]._CudaForward)
