"""Attention that models compute by hand, met at its softmax."""
