"""Scales that are trained, or that reach a target entropy."""
