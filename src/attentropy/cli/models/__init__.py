"""Commands that look at a model."""
