"""Sequences that several processes share: groups, layouts, transport, exact reduction."""
