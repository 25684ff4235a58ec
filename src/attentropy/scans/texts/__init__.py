"""One text or picture: statistics of each token in every head, and where heads look."""
