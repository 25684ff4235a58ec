"""Every checkable statement of the five source documents, each with a measurement.

>>> CLAIMS["001-(61)"].measure().verdict
'false'
"""

from importlib import import_module

from attentropy.lab.claims.registry import MEANINGS, Claim, ClaimResult, run, table

_FILES = (
    "d000_noise",
    "d000_entropy",
    "d000_geometry",
    "d000_heads",
    "d001_derivation",
    "d001_asymptotics",
    "d001_practice",
    "d002",
    "d003",
    "d004",
    "identities",
    "rem",
)
for _name in _FILES:
    import_module(f"attentropy.lab.claims.documents.{_name}")

CLAIMS: dict[str, Claim] = table()
"""Claims by the id they have in the audit of the documents."""

__all__ = ["CLAIMS", "MEANINGS", "Claim", "ClaimResult", "find", "run"]


def find(ids: tuple[str, ...] = (), sources: tuple[str, ...] = ()) -> list[Claim]:
    """Claims that have one of the ids and one of the sources.

    Args:
        ids: ids of the audit, in which a hyphen may stand for a dash; all if empty.
        sources: "000" to "004", "ID" or "REM"; all if empty.
    """
    wanted = {_spelling(id_) for id_ in ids}
    unknown = wanted - {_spelling(id_) for id_ in CLAIMS}
    if unknown:
        raise KeyError(f"no claim with id {', '.join(sorted(unknown))}")
    chosen = [c for c in CLAIMS.values() if not wanted or _spelling(c.id) in wanted]
    return [c for c in chosen if not sources or c.source in sources]


def _spelling(id_: str) -> str:
    return id_.replace("–", "-").replace("section", "§").replace(" ", "")
