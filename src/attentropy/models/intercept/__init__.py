"""Where the attention of a running model is seen and changed."""
