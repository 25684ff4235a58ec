"""From the attention calls of a model to numbers per head."""
