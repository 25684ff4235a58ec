// A training run: the heatmap moves with the step, curves and alarms share the time axis.
