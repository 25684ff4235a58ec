"""attend() and its kin: resolve a call, choose a kernel, run it."""
