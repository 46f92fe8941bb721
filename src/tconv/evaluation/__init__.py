"""Equality, timing and verdicts, as plain data. `docs/evaluation.md` says what a verdict means.

`equality.check_layer` judges one transposed convolution inside this process: `draws` and `awkward` are its inputs,
`reference` and `comparison` what is right and how far off a result is, `tolerance` what is allowed, `rules` the checks.
`timing` and `stopwatch` time calls. `verdict` and `report` hold what was found out.

`files.judge.judge` judges a whole file of somebody's: in processes of its own, with a time limit.
"""
