"""attend() and related functions: resolve a call, choose a kernel, run it."""
