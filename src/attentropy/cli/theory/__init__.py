"""Commands of theory and experiments."""
