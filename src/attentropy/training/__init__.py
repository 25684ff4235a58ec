"""Attention while a model trains: monitor, alarms, run store, loggers, callbacks."""
