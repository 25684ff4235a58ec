"""What a kernel is: a module of this package that has these names.

`attentropy.attention.choice.KERNELS` lists the kernels, and mypy checks each of them against
`Kernel` there. Kernels never import one another; `reference` is the specification.
"""

from typing import Protocol

from torch import Tensor

from attentropy.core.call import Call, Rows


class Kernel(Protocol):
    """An implementation of attention."""

    @property
    def name(self) -> str:
        """The name by which `kernel=` asks for it."""
        ...

    def lacks(self, call: Call) -> str | None:
        """What keeps the kernel from serving the call, in words; None if it can serve it.

        Args:
            call: a resolved call.
        """
        ...

    def attend(self, call: Call) -> Rows:
        """Output and statistics of every row, without the sink; differentiable.

        Args:
            call: a resolved call.
        """
        ...

    def key_mass(self, call: Call) -> Tensor:
        """sum_i w_ij, what each key receives in each query head, [B,H,K]; without gradients.

        The sink takes its share of every row. The values of the call play no part.

        Args:
            call: a resolved call.
        """
        ...
