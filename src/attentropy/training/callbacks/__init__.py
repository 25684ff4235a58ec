"""Where other tools are met: trainers and sinks. Each is imported only when it is used."""
