"""What a generated file records of the epilogues of its layers."""
# mypy: ignore-errors

from collections import namedtuple

# ---- copied from here on

# What each program reads.
_PROGRAMS = {}
# The epilogues of layers, in PyTorch's operators: for gradients of gradients.
_AGAIN = ()

# What is known of a layer's epilogue:
#   program    what the layer's kernel computes of the layer's result
#   operands   which of the tensors that it reads are the program's
#   again      the same in PyTorch's operators
# and of gradients, where the one of its result is given:
#   backward   the program of the gradient of the layer's result: of some of the operands, `reads`, and the given one
#   slope      the same, as a function of the given one and of what forward gave; that is kept if it `keeps` it
#   sources    of what the gradient of each operand is the sum. ("layer", 2.0): of twice the layer's; ("given", 1.0): of
#              the given one; or of what another program like `backward` gives, and what that reads. None: it has none;
#              "again": PyTorch tells it
#   wide       some of it autocast computes in float32
#   types      of the results for which it holds; empty for all
_Known = namedtuple(
    "_Known",
    "program operands again sources backward reads slope keeps wide types",
    defaults=((), None, (), "", (), None, False, False, ()),
)
# By what it reads, as `_Epilogue.read` says that.
_EPILOGUES = {}
# Classes of modules that are called there, with what their results depend on: numbers and such, and tensors.
_POINTWISE = {}
