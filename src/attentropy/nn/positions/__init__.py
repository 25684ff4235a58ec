"""Ways to tell attention where a token stands."""
