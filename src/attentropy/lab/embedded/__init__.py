"""The embedded model: a small byte-level language model to scan, watch and steer at once.

    >>> from attentropy.lab.embedded import load_embedded, sample_bytes

`python -m attentropy.lab.embedded` trains it again; `--evaluate` prints what it can do.
"""

from attentropy.lab.embedded.model import EmbeddedModel as EmbeddedModel
from attentropy.lab.embedded.model import embedded_notes as embedded_notes
from attentropy.lab.embedded.model import load_embedded as load_embedded
from attentropy.lab.embedded.model import sample_bytes as sample_bytes
