"""The whole job of `tconv optimize`: a model file in, a file with `ModelNew` out, checked and in its place.

`run.optimize` has the sandbox trace the file, `pipeline` plans and has `tconv.codegen` write the text, `check` judges
and times each kernel in it, `outcome` is what was found out, `output` puts the file in its place.
"""
