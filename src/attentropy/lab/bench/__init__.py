"""Named contenders on the same tensors, interleaved in one run; ratios, memory, JSON."""
