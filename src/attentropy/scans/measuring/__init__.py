"""One model at several lengths, as numbers."""
