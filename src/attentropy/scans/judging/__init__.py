"""What the numbers of a scan mean, in words."""
