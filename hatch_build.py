"""Build hook: compile the fused kernel if there is a compiler, else ship the package without."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FusedKernelHook(BuildHookInterface):
    """Adds the libraries to the wheel, which then is for one platform and any Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; with no library the wheel stays pure and attention runs on torch."""
        builder = _builder(Path(self.root))
        built, problem = builder.build()
        if problem:
            self.app.display_warning(f"fused kernel: {problem}")
        if not built:
            return
        build_data["artifacts"].append("src/attentropy/kernels/fused/_lib/*" + builder.SUFFIX)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{builder.platform_tag()}"


def _builder(root: Path) -> Any:
    """src/attentropy/kernels/fused/build.py, which the package uses too; not importable yet."""
    path = root / "src" / "attentropy" / "kernels" / "fused" / "build.py"
    spec = importlib.util.spec_from_file_location("attentropy_build", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
