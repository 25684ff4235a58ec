"""Temperatures and frequencies that are fitted to a calibration text."""
