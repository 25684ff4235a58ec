"""doctor(): which kernel serves on this machine, and why."""

import os
from dataclasses import asdict, dataclass

from attentropy._version import __version__
from attentropy.kernels.fused import library
from attentropy.kernels.fused.build import ISAS, compiler, is_current, path_of


@dataclass(frozen=True)
class Health:
    """What was found on this machine.

    Attributes:
        kernel: the kernel that serves softmax attention on the CPU.
        reason: why it is that one.
        isa: the instruction set of the fused library that serves; None without one.
        builds: for each instruction set whether its library was built, and from which sources.
        threads: number of threads that torch uses.
        pool: whose threads they are.
        compiler: the command that would build the libraries; None if there is none.
        cuda: whether there is a CUDA device.
        versions: of attentropy and torch.
    """

    kernel: str
    reason: str
    isa: str | None
    builds: dict[str, str]
    threads: int
    pool: str
    compiler: str | None
    cuda: bool
    versions: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"attentropy {self.versions['attentropy']} on torch {self.versions['torch']}",
            f"CPU attention: {self.kernel}",
            f"  why: {self.reason}",
            "  builds: " + ", ".join(f"{isa} {state}" for isa, state in self.builds.items()),
            f"  threads: {self.threads}, {self.pool}",
            f"  compiler: {self.compiler or 'none found'}",
            f"GPU attention: {'CUDA is there' if self.cuda else 'no CUDA device'}",
        ]
        if self.kernel != "fused":
            lines.append("Statistics are the same with streaming; they cost more time.")
        return "\n".join(lines)


def doctor() -> Health:
    """Which kernel attend() uses for softmax attention on the CPU, and why.

    The fused kernel if a library was built for this CPU, else streaming. Single calls may need
    what fused lacks; `at.explain(q, k, v, ...)` tells for one call.
    """
    import torch

    found = library.serving
    command = compiler()
    return Health(
        kernel="streaming" if found is None else "fused",
        reason=_reason(found),
        isa=None if found is None else found.isa,
        builds={isa: _state(isa) for isa in ISAS},
        threads=torch.get_num_threads(),
        pool="torch's own pool" if library.pool().address else "started by the kernel",
        compiler=None if command is None else " ".join(command),
        cuda=torch.cuda.is_available(),
        versions={"attentropy": __version__, "torch": torch.__version__},
    )


def _reason(found: library.Library | None) -> str:
    if found is None:
        return f"the fused kernel cannot run: {library.missing}"
    if os.environ.get("ATTENTROPY_ISA"):
        return f"ATTENTROPY_ISA asks for {found.isa}"
    return f"{found.isa} is the best instruction set that this CPU has and that was built"


def _state(isa: str) -> str:
    built = "built" if is_current(isa) else "built from older sources"
    built = built if path_of(isa).exists() else "not built"
    return built if isa in library.runnable() else f"{built} (not on this CPU)"
