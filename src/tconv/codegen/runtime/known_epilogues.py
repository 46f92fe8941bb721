"""Records of the epilogues of a generated file's layers."""
# mypy: ignore-errors

from collections import namedtuple

# ---- copied from here on

# The operands of each program, by name.
_PROGRAMS = {}
# Functions that compute epilogues by PyTorch's operators, which can be differentiated.
_AGAIN = ()

# The record of an epilogue:
#   program    the text that the layer's kernel computes on the layer's result
#   operands   which of the tensors that the epilogue reads are operands of the program
#   again      a function that computes the epilogue by PyTorch's operators
#   wide       whether autocast computes some of it in float32
#   types      types of the result for which the record holds; empty for all
#   promotes   operands that make a 16-bit result float32 if they are float32 and have axes
#   from_type  the layer's 16-bit type, where they do
# Backward is given the gradient of the epilogue's result. With L the gradient of the layer's result:
#   backward   the program that computes L from the operands `reads` and the given gradient
#   slope      a function that computes L from the given gradient and the result; forward keeps the result if `keeps`
#   sources    what is summed for the gradient of each operand. ("layer", 2.0): 2 L; ("given", 1.0): the given gradient;
#              (program, reads): the result of another program; "again": PyTorch computes it; None: it has no gradient
_Known = namedtuple(
    "_Known",
    "program operands again sources backward reads slope keeps wide types promotes from_type",
    defaults=((), None, (), "", (), None, False, False, (), (), None),
)
# Records by the words of `_Epilogue.read`.
_EPILOGUES = {}
# Classes of the modules that epilogues call, with the attributes that decide results: numbers and such, and tensors.
_POINTWISE = {}
