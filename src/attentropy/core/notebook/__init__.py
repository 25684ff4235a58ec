"""How values show themselves in notebooks."""
