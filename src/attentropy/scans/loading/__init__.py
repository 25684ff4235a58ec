"""Models and texts, loaded with care."""
