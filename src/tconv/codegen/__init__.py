"""Plans and a model file's text in, the text of a self-contained file with `ModelNew` out; nothing is run.

`rewrite` edits the user's text, `generate` puts `runtime` and the kernels before it.
"""
