"""Whole files: compares a candidate's `ModelNew` with `Model`. Each runs in a process of its own, asked by the judge.

`judge` is the entry. `levels` lists the checks, in two levels. The folders, in the order of a judgement:

- `sides`: the inputs of both files, calls to their processes, and side effects of these calls
- `process`: the code that runs in these processes
- `results`: checks that results equal `Model`'s
- `replacement`: checks of gradients, changed weights and other inputs
- `timing`: the times of both files
"""
