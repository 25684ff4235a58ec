"""From the rows of a kernel to what attend() returns."""

from attentropy.core.call import Call, Rows
from attentropy.core.results import Attended, Stats
from attentropy.core.states import with_sink
from attentropy.core.weights import Kernelised


def attended(call: Call, rows: Rows) -> Attended:
    """Rows as attend() returns them, with the sink merged in.

    Args:
        call: a resolved call.
        rows: what a kernel returned for it.
    """
    features = isinstance(call.weights, Kernelised)  # divided by their size: there are no logits
    stats = Stats(
        entropy=rows.entropy,
        lse=rows.lse,
        max_logit=None if features else rows.max_logit,
        argmax=rows.argmax,
        collision=rows.collision,
        visible=call.visible.expand(call.q.shape[:3]),
        mass=None if features else rows.mass,
        varentropy=rows.varentropy,
    )
    found = Attended(rows.out, stats)
    if call.sink is not None:
        found = with_sink(found, call.sink.view(1, -1, 1), log_l=rows.log_l)
    return Attended(found.out, found.stats.only(call.asked))
