"""Experiments on small models, measured claims, the embedded model, and benchmarks."""
