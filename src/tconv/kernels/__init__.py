"""The CUDA kernels: hand-written headers, one file a family, and the text that instantiates them."""
