"""How experiments are planned, run, stored and shown."""
