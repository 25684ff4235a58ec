"""Positional encodings: how attention knows where a token stands."""
