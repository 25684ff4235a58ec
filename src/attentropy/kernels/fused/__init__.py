"""The fused CPU kernel: Python beside its C++."""
