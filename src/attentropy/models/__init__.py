"""Models: watch their attention, diagnose it, steer it, calibrate it, monitor it in training."""
