"""Equality, timing and verdicts, as plain data. `docs/evaluation.md` says what a verdict means.

`equality.check_layer` judges one transposed convolution inside this process. `draws` and `awkward` make its inputs.
`reference` computes the true result, `comparison` measures errors, `tolerance` bounds them, and `rules` has the checks.
`epilogues.check_program` judges a layer with an epilogue. `timing` and `stopwatch` time calls. `verdict` and `report`
hold the findings.

`files.judge.judge` judges a whole candidate file. It runs each file in a process of its own, with a time limit.
"""
