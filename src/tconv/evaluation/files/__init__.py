"""Whole files: somebody's `ModelNew` beside `Model`, each in a process of its own that the judge asks.

`judge` is the entry; a `side` of the judgement speaks to a `subject` in its process. `case` and `whole_model` compare
what comes back, `bench` has both files timed.
"""
