"""Experiments that check, on small models, what the library claims."""
