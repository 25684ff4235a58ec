"""Longer contexts for a trained model: candidates, trials, the choice, and its export."""
