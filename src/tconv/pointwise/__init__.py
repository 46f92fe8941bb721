"""The arithmetic behind a transposed convolution: a small language, and its programs on tensors."""
