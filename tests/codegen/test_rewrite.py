"""The rewriter: what it redirects, what it leaves alone, and that the rest stays byte for byte."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tconv.codegen.rewrite import Rewritten, rewrite
from tconv.sandbox.model_file import ModelFileError

MODEL = "class Model(nn.Module):\n    pass\n"
MODEL_NEW = "@_cuda_model\nclass ModelNew(nn.Module):\n    pass\n"


def dedented(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def whole(result: Rewritten) -> str:
    return result.prologue + result.body


#: Import lines, a use, what becomes of it.
CONSTRUCTIONS = [
    ("import torch.nn as nn", "nn.ConvTranspose2d(3, 4, 2)", "CudaConvTranspose2d(3, 4, 2)"),
    ("from torch import nn", "nn.ConvTranspose1d(3, 4, 2)", "CudaConvTranspose1d(3, 4, 2)"),
    ("import torch", "torch.nn.ConvTranspose3d(3, 4, 2)", "CudaConvTranspose3d(3, 4, 2)"),
    ("import torch as t", "t.nn.ConvTranspose2d(3, 4, 2)", "CudaConvTranspose2d(3, 4, 2)"),
    ("import torch.nn", "torch.nn.modules.conv.ConvTranspose2d(3, 4, 2)", "CudaConvTranspose2d(3, 4, 2)"),
    ("from torch.nn import ConvTranspose2d as CT", "CT(3, 4, 2)", "CudaConvTranspose2d(3, 4, 2)"),
    ("from torch.nn.modules import ConvTranspose2d", "ConvTranspose2d(3, 4, 2)", "CudaConvTranspose2d(3, 4, 2)"),
    ("from torch.nn import *", "ConvTranspose2d(3, 4, 2)", "CudaConvTranspose2d(3, 4, 2)"),
    ("from torch.nn import *\nfrom torch.nn.functional import *", "ConvTranspose2d(1, 1)", "CudaConvTranspose2d(1, 1)"),
    ("import torch.nn as nn", "nn.LazyConvTranspose2d(4, 2)", "CudaLazyConvTranspose2d(4, 2)"),
    ("import torch.nn as nn", "nn . ConvTranspose2d (3, 4, 2)", "CudaConvTranspose2d (3, 4, 2)"),
    (
        "import torch.nn as nn",
        "f(nn.ConvTranspose2d(1, 1, 1), [nn.ConvTranspose1d(2, 2, 2)])",
        "f(CudaConvTranspose2d(1, 1, 1), [CudaConvTranspose1d(2, 2, 2)])",
    ),
    ("import torch.nn as nn", "nn.ConvTranspose2d.forward(layer, x)", "CudaConvTranspose2d.forward(layer, x)"),
    ("import torch.nn.functional as F", "F.conv_transpose2d(x, w)", "cuda_conv_transpose2d(x, w)"),
    ("from torch.nn import functional", "functional.conv_transpose1d(x, w)", "cuda_conv_transpose1d(x, w)"),
    ("from torch.nn.functional import conv_transpose2d", "conv_transpose2d(x, w)", "cuda_conv_transpose2d(x, w)"),
    ("import torch.nn as nn", "f'ä {nn.ConvTranspose1d(1)!r:>9} {{nn}}'", "f'ä {CudaConvTranspose1d(1)!r:>9} {{nn}}'"),
    ("import torch", "torch.conv_transpose3d(x, w)", "cuda_conv_transpose3d(x, w)"),
    ("import torch", "torch.nn.functional.conv_transpose2d(x, w)", "cuda_conv_transpose2d(x, w)"),
    ("import torch.nn.functional as F", "f(F.conv_transpose2d, stride=2)", "f(cuda_conv_transpose2d, stride=2)"),
]


@pytest.mark.parametrize(("imports", "use", "expected"), CONSTRUCTIONS, ids=[case[1] for case in CONSTRUCTIONS])
def test_redirects_every_import_form(imports: str, use: str, expected: str) -> None:
    result = rewrite(f"{imports}\n\ny = {use}\n\n{MODEL}")
    assert whole(result) == f"{imports}\n\ny = {expected}\n\n{MODEL_NEW}"
    assert [site.line for site in result.sites][:1] == [imports.count("\n") + 3]


#: What only looks like torch's, or mentions its class without making a layer.
LEFT_ALONE = [
    ("import torch.nn as nn", "isinstance(m, nn.ConvTranspose2d)"),
    ("import torch.nn as nn", "isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))"),
    ("import torch.nn as nn", "issubclass(kind, nn.ConvTranspose2d)"),
    ("import torch.nn as nn", "'nn.ConvTranspose2d(3, 4, 2)'"),
    ("import torch.nn as nn", "f'{x} nn.ConvTranspose2d(1)'"),
    ("import torch.nn as nn", "other.nn.ConvTranspose2d(3, 4, 2)"),
    ("import torch.nn as nn", "nn.Conv2d(3, 4, 2)"),
    ("import flax.linen as nn", "nn.ConvTranspose2d(3, 4, 2)"),
    ("from mine import ConvTranspose2d", "ConvTranspose2d(3, 4, 2)"),
    ("from .layers import *", "ConvTranspose2d(3, 4, 2)"),
    ("from torch.nn import *\nfrom mine import *", "ConvTranspose2d(3, 4, 2)"),
    ("from torch.nn import ConvTranspose2d\nfrom mine import ConvTranspose2d", "ConvTranspose2d(3, 4, 2)"),
    ("import torch.nn.functional as F", "F.conv2d(x, w)"),
    ("import torch.nn.functional as F", "(lambda F: F.conv_transpose2d(x, w))(other)"),
    ("import torch.nn.functional as F", "[F.conv_transpose2d(x, w) for F in others]"),
]


@pytest.mark.parametrize(("imports", "use"), LEFT_ALONE, ids=[" ".join(case) for case in LEFT_ALONE])
def test_leaves_alone(imports: str, use: str) -> None:
    result = rewrite(f"{imports}\ny = {use}\n{MODEL}")
    assert whole(result) == f"{imports}\ny = {use}\n{MODEL_NEW}"
    assert result.sites == ()


#: Tests of the very class are tests of equality afterwards, which hold for both.
TYPE_TESTS = [
    ("type(m) is nn.ConvTranspose2d", "type(m) == nn.ConvTranspose2d"),
    ("type(m) == nn.ConvTranspose2d", "type(m) == nn.ConvTranspose2d"),
    ("m.__class__ is not nn.ConvTranspose1d", "m.__class__ != nn.ConvTranspose1d"),
    ("nn.Sequential is type(m)", "nn.Sequential == type(m)"),
    ("type(m) is  not\\\n nn.Sequential", "type(m) !=\\\n nn.Sequential"),
    ("(kind  # is it\n is # not\n not\\\n (nn.Sequential))", "(kind  # is it\n != # not\n \\\n (nn.Sequential))"),
    ("(kind) is (nn.ConvTranspose2d)", "(kind) == (nn.ConvTranspose2d)"),
    ("x is None is nn.Sequential is not y", "x is None == nn.Sequential != y"),
    ("type(m) in (nn.Conv2d, nn.ConvTranspose2d)", "type(m) in (nn.Conv2d, nn.ConvTranspose2d)"),
    ("type(m) is nn.Conv2d", "type(m) is nn.Conv2d"),
    ("type(m) is int", "type(m) is int"),
    ("x.__class__ is None", "x.__class__ is None"),
    ("type(m) is kind", "type(m) == kind"),
    ("type(m) is type(n)", "type(m) == type(n)"),
    ("a.__class__ is not b.__class__", "a.__class__ != b.__class__"),
    ("a is b", "a is b"),
]


@pytest.mark.parametrize(("test", "expected"), TYPE_TESTS, ids=[case[0] for case in TYPE_TESTS])
def test_tests_of_classes_ask_for_equal_ones(test: str, expected: str) -> None:
    assert f"y = {expected}\n" in whole(rewrite(f"import torch.nn as nn\ny = {test}\n{MODEL}"))


def test_renames_what_means_the_model_and_nothing_else() -> None:
    source = dedented('''
        import torch.nn as nn

        class Base(nn.Module):
            Model = 1  # an attribute of its own

        @register
        @other(Model=3)
        class Model(Base):
            """Model of something; see Model."""

            def __init__(self, depth: "Model" = None):
                super(Model, self).__init__()
                self.Model = Model.create() if isinstance(depth, Model) else None

            @classmethod
            def create(cls):
                return Model()

        def build(Model):
            return Model()

        def make(n: int) -> Model:
            return [Model() for _ in range(n)] + [Model for Model in ()]

        name = "Model"
    ''')
    expected = dedented('''
        import torch.nn as nn

        class Base(nn.Module):
            Model = 1  # an attribute of its own

        @_cuda_model
        @register
        @other(Model=3)
        class ModelNew(Base):
            """Model of something; see Model."""

            def __init__(self, depth: "Model" = None):
                super(ModelNew, self).__init__()
                self.Model = ModelNew.create() if isinstance(depth, ModelNew) else None

            @classmethod
            def create(cls):
                return ModelNew()

        def build(Model):
            return Model()

        def make(n: int) -> ModelNew:
            return [ModelNew() for _ in range(n)] + [Model for Model in ()]

        name = "Model"
    ''')
    assert whole(rewrite(source)) == expected


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_class_with_private_names_keeps_its_own(end: str) -> None:
    """Python completes them by the class's name, and so a state's."""
    source = dedented("""
        import torch.nn as nn

        class Model(nn.Module):
            def __init__(self):
                super(Model, self).__init__()
                self.__up = nn.ConvTranspose2d(1, 1, 1)
    """).rstrip()
    expected = source.replace("class Model", "@_cuda_model\nclass Model").replace("nn.ConvT", "CudaConvT")
    assert whole(rewrite(source + end)) == f"{expected}\n\n\nModelNew = Model\n"


def test_redirects_base_classes_and_local_imports() -> None:
    source = dedented("""
        import torch.nn as nn

        class Up(Mixin, nn.ConvTranspose2d, metaclass=Kind):
            def forward(self, x):
                from torch.nn.functional import conv_transpose2d as deconv
                return deconv(x, self.weight) + super().forward(x)

        class Model(nn.Module):
            def __init__(self):
                import torch.nn as layers
                super().__init__()
                self.up = layers.ConvTranspose2d(1, 1, 1)
    """)
    text = whole(rewrite(source))
    assert "class Up(Mixin, _CudaForward, nn.ConvTranspose2d, metaclass=Kind):\n" in text
    assert "return cuda_conv_transpose2d(x, self.weight) + super().forward(x)\n" in text
    assert "self.up = CudaConvTranspose2d(1, 1, 1)\n" in text
    assert text.count("Cuda") == 2

    lazy = whole(rewrite(source.replace("nn.ConvTranspose2d,", "nn.LazyConvTranspose2d,")))
    assert "class Up(Mixin, CudaLazyConvTranspose2d, metaclass=Kind):\n" in lazy


def test_keeps_formatting_comments_line_ends_and_other_scripts() -> None:
    source = (
        "# Größe → Übergröße\r\nimport torch.nn as nn  # nn.ConvTranspose2d\r\n\r\n\tif_tab = 0\r\n".replace(
            "\tif_tab = 0\r\n", ""
        )
        + "class Model(nn.Module):\r\n    def __init__(self):\r\n        super().__init__()\r\n"
        "        größe = 'ß'; self.up = nn.ConvTranspose2d(  # nn.ConvTranspose2d\r\n"
        "            3,  4,\\\r\n            kernel_size = 2 )   \r\n\x0c\r\n"
    )
    expected = source.replace("self.up = nn.ConvTranspose2d", "self.up = CudaConvTranspose2d").replace(
        "class Model", "@_cuda_model\r\nclass ModelNew"
    )
    assert whole(rewrite(source)) == expected


def test_line_continuations_inside_a_name() -> None:
    source = "import torch\ny = (torch\n .nn  # .\n .ConvTranspose2d)(1, 1)\nclass \\\n  Model(torch.nn.Module): pass\n"
    assert whole(rewrite(source)) == (
        "import torch\ny = (CudaConvTranspose2d)(1, 1)\n@_cuda_model\nclass \\\n  ModelNew(torch.nn.Module): pass\n"
    )


@pytest.mark.parametrize(
    "prologue",
    [
        '"""Docs."""\n',
        "# a comment\n'''Docs\nin lines'''\n",
        "from __future__ import annotations\n",
        '"""Docs."""\n\nfrom __future__ import annotations\nfrom __future__ import division  # both\n',
    ],
)
def test_prologue_stays_first(prologue: str) -> None:
    result = rewrite(f"{prologue}import torch.nn as nn\n{MODEL}")
    assert result.prologue == prologue
    assert result.body == f"import torch.nn as nn\n{MODEL_NEW}"


def test_prologue_that_shares_its_line() -> None:
    result = rewrite(f"from __future__ import annotations; import torch.nn as nn\n{MODEL}")
    assert result.prologue == "from __future__ import annotations; "
    assert result.body == f"import torch.nn as nn\n{MODEL_NEW}"


def test_without_prologue() -> None:
    assert rewrite(f"import torch.nn as nn\n{MODEL}").prologue == ""


def test_main_blocks_and_nested_models_stay() -> None:
    source = dedented("""
        import torch.nn as nn
        if True:
            class Model(nn.Module):
                class Model:
                    pass

        if __name__ == "__main__":
            print(Model())
    """)
    expected = dedented("""
        import torch.nn as nn
        if True:
            @_cuda_model
            class ModelNew(nn.Module):
                class Model:
                    pass

        if __name__ == "__main__":
            print(ModelNew())
    """)
    assert whole(rewrite(source)) == expected


def test_kept_lines_keep_their_calls() -> None:
    lines = "a = F.conv_transpose2d(x, w)\nb = F.conv_transpose2d(x, w)\n"
    text = whole(rewrite(f"import torch.nn.functional as F, torch.nn as nn\n{lines}{MODEL}", keep_lines=[2]))
    assert "a = F.conv_transpose2d(x, w)\nb = cuda_conv_transpose2d(x, w)\n" in text


def test_another_name_of_a_class_stands_for_it() -> None:
    source = "import torch.nn as nn\n" + MODEL.replace("class Model", "class Up") + "Model = Up\n"
    rewritten = rewrite(source)
    assert rewritten.model == "Up" and "class ModelNew" in rewritten.body
    assert rewritten.body.endswith("Model = ModelNew\n") and "Up" not in rewritten.body


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (1,\n", "line 1"),
        ("import torch\n", "no class Model"),
        ("def Model():\n    return None\n", "no class statement"),
        ("from mine import Net as Model\n", "no class statement"),
        ("class A: pass\nclass B: pass\nModel = A\nModel = B\n", "no class statement; .*, or .* as --model A$"),
        ("class A: pass\nModel = A\nModel = print(A)\n", "no class statement; .*, or .* as --model A$"),
        ("def build():\n    class Model: pass\n", "no class Model"),
        ("class Model: pass\nclass ModelNew: pass\n", "ModelNew"),
        ("# generated by tconv 0.0.9\nclass ModelNew: pass\n", "the file that it was made from"),
    ],
)
def test_refuses(source: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as error:
        rewrite(source, "model.py")
    assert str(error.value).startswith("model.py") and "\n" not in str(error.value)


def test_result_is_python() -> None:
    for imports, use, _ in CONSTRUCTIONS:
        ast.parse(whole(rewrite(f"{imports}\ny = {use}\n{MODEL}")))
