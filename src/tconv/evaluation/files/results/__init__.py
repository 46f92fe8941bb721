"""Whether the results of `ModelNew` are those of `Model`."""
