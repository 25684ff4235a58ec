"""Commands that follow a training run."""
