"""Somebody's program, run in a process of its own that is limited, watched and never believed.

`worker.Workshop` starts such processes; `conversation` and `exchange` carry questions, plain values and tensors,
`digest` tells whether another process changed these.
`model_file` loads a file there and blames it for what goes wrong, `recording` sees which convolutions it runs, `trace`
tells them of a whole model. `cut` and `emulated` are for files that tconv wrote: somebody's program, too.
"""
