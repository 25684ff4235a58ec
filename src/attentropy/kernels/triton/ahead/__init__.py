"""Triton kernels compiled ahead of time, and what can be read off them without a GPU."""
