"""Whole files: somebody's `ModelNew` beside `Model`, each in a process of its own that the judge asks.

`judge` is the entry, `levels` the list of what it looks at, in two levels. The folders, as a judgement walks:

- `sides`: what both files are given, how their processes are asked, and what their calls show
- `process`: what runs in such a process
- `results`: whether results are those of `Model`
- `replacement`: whether gradients, other weights and other inputs are
- `timing`: how long both take
"""
