"""Models past the length that they were trained at."""
