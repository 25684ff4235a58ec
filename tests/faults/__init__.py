"""attentropy under fire: processes that are killed, disks that are full, files that are damaged."""
