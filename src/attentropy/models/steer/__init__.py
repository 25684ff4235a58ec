"""Changes of a model's attention that last until they are undone."""
