"""Whether kernels run in Triton's interpreter: decided before Python starts."""

import os


def interpreting() -> bool:
    """Whether TRITON_INTERPRET=1 is set."""
    return os.environ.get("TRITON_INTERPRET") == "1"
