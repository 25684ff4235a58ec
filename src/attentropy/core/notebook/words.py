"""Numbers in sentences."""


def plural(count: int, noun: str) -> str:
    """The count with its noun.

    Args:
        count: how many there are.
        noun: what they are, in the singular.

    >>> plural(1, "head"), plural(1200, "head")
    ('1 head', '1,200 heads')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
