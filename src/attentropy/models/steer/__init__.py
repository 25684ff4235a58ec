"""Changes of a model's attention that hold until they are undone."""
