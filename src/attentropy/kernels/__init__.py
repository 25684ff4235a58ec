"""The implementations of attention; none imports another. reference is the specification."""
