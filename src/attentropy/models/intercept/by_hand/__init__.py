"""Attention that models compute by hand: intercepted at its softmax."""
