"""One text or picture: what every head makes of each token, and where heads look."""
