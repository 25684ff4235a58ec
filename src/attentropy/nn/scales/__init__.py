"""Scales that are trained, or that find the entropy they are asked for."""
