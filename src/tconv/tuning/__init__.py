"""Kernels that the planner's models put in front, compiled, checked and timed on the GPU at hand.

`jobs` says what is tried for a model, `trials` compiles and calls one kernel, `measure` finds the fastest of a layer.
"""
