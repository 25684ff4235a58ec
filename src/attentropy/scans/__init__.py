"""Scans: a model watched at several lengths, kept in one documented file."""
