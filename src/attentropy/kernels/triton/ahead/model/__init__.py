"""A speed model of one multiprocessor: compiled code in, predicted share of the peak out."""
