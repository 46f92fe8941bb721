"""Model file in, self-contained file with `ModelNew` out.

`run.optimize` is the whole job: `trace` finds the transposed convolutions, `pipeline` plans and generates (`rewrite`
edits the user's text, `generate` puts `runtime` and the kernels before it), `cut` takes what the written file would
launch out of it again, `check` judges and times that, `output` puts the file in its place.
"""
