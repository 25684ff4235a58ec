"""The experiments, one file each. A file holds EXPERIMENT."""
