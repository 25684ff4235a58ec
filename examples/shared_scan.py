"""Scan a model with several processes: torchrun --nproc-per-node 2 examples/shared_scan.py.

Without torchrun it runs in one process, with the same numbers.
"""

import attentropy as at
from attentropy.distributed.launched import launched
from attentropy.lab.embedded import load_embedded

TEXT = "To be, or not to be, that is the question. " * 60

with launched() as team:
    found = at.scan(load_embedded(), TEXT, lengths=[64, 128], team=team)
    if team.is_first:
        for one in found.measures:
            print(f"length {one.length}: loss {one.loss:.4f}")
