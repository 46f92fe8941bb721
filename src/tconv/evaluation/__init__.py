"""Equality, timing and verdicts, as plain data. `docs/evaluation.md` says what a verdict means.

`verdict` holds the data, `equality.check_layer` judges one transposed convolution inside this process, and
`judge.judge` a whole file of somebody's: in processes of its own, with a time limit.
"""
