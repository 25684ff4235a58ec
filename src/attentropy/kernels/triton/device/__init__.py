"""Functions that run on the GPU."""
