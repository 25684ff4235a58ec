"""doctor(): which kernel serves on this machine, and why."""

import os
from dataclasses import asdict, dataclass

from attentropy._version import __version__
from attentropy.kernels.fused import library
from attentropy.kernels.fused.build import ISAS, compiler, is_current, path_of
from attentropy.kernels.triton import kernel as triton

_LEAST_MAJOR = 8


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
        gpu: what serves on the GPU, and why; None without one.
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
    gpu: str | None
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
            f"GPU attention: {self.gpu or 'no CUDA device'}",
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
        gpu=_gpu() if torch.cuda.is_available() else None,
        versions={"attentropy": __version__, "torch": torch.__version__},
    )


def _gpu() -> str:
    """What serves on the first CUDA device, and with which tile sizes."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    card = f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
    if not triton.INSTALLED:
        return f"streaming serves on {card}; triton, which is faster, is not installed"
    if major < _LEAST_MAJOR:
        return f"triton serves on {card}, which is older than the cards it was written for (sm_80)"
    measured = os.environ.get("ATTENTROPY_TILES")
    tiles = f"measured tile sizes of {measured}" if measured else "tile sizes of the table"
    return (
        f"triton serves on {card}, in float16, bfloat16 and float32, heads up to "
        f"{triton.MAX_WIDTH} wide, with {tiles}; `attentropy bench --device cuda` compares"
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
