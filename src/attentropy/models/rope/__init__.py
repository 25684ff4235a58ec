"""Rotary positions of models of transformers: settings, and how a model takes them."""
