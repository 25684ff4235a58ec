"""The directory of a run: its plan, one file for each finished unit, then the results.

Every file is written under another name first and moved into place, so a run that is killed
leaves whole files only, and a directory never mixes two configurations.
"""

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

from attentropy.core.errors import AttentropyError
from attentropy.lab.harness.run_plan import RunPlan, Unit

PLAN, RESULTS, TABLE, SUMMARY = "config.json", "results.json", "results.csv", "summary.md"


class RunFolderError(AttentropyError):
    """This directory cannot hold the results of this run."""


class RunFolder:
    """The folder in which the results of a plan are kept.

    Args:
        path: of the folder.
        plan: what is run.
    """

    def __init__(self, path: Path, plan: RunPlan) -> None:
        self.path, self.plan = path, plan

    def open(self, *, resume: bool) -> None:
        """Make the folder, or check that it holds the same plan and may be continued.

        Args:
            resume: continues a run that is there.
        """
        stored = self.path / PLAN
        if not stored.exists():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise RunFolderError(f"{self.path} is not empty and holds no run of the lab")
            self._write(PLAN, _json(self.plan.record()))
            return
        differing = _differences(_read(stored), self.plan.record())
        if differing:
            raise RunFolderError(
                f"{self.path} holds another configuration ({'; '.join(differing)}): "
                "choose another directory"
            )
        if not resume:
            raise RunFolderError(
                f"{self.path} holds this run already: add --resume to complete it, "
                "or choose another directory"
            )

    def has(self, unit: Unit) -> bool:
        """True if the unit is finished.

        Args:
            unit: one seed of one condition.
        """
        return self._file(unit).exists()

    def save(self, unit: Unit, rows: list[dict[str, Any]]) -> None:
        """Keep the rows of a finished unit.

        Args:
            unit: one seed of one condition.
            rows: what was measured.
        """
        named = [{"condition": unit.condition, "seed": unit.seed, **row} for row in rows]
        self._write(f"units/{unit.name}.json", _json(named))

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the finished units, in the order of the plan."""
        done = [unit for unit in self.plan.units() if self.has(unit)]
        return [row for unit in done for row in _read(self._file(unit))]

    def about(self, machine: dict[str, Any]) -> dict[str, Any]:
        """The plan, how much of it is done, the command and the machine.

        Args:
            machine: what describe() gave.
        """
        units = self.plan.units()
        done = [sum(map(self.has, units)), len(units)]
        return {
            **self.plan.record(),
            "units": done,
            "command": self.plan.command(),
            "machine": machine,
        }

    def finish(self, machine: dict[str, Any]) -> None:
        """Write all rows as JSON and as CSV.

        Args:
            machine: what describe() gave.
        """
        rows = self.rows()
        self._write(RESULTS, _json({**self.about(machine), "rows": rows}))
        self._write(TABLE, _csv(rows))

    def write(self, name: str, text: str) -> None:
        """Write another file of the run.

        Args:
            name: of the file.
            text: its contents.
        """
        self._write(name, text)

    def _file(self, unit: Unit) -> Path:
        return self.path / "units" / f"{unit.name}.json"

    def _write(self, name: str, text: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _json(value: Any) -> str:
    return json.dumps(_finite(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """NaN and infinities become null, which every reader of JSON takes."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    flat_old, flat_new = ({**x, **x.get("config", {})} for x in (old, new))
    names = [n for n in {**flat_old, **flat_new} if n != "config"]
    return [
        f"{name} {flat_old.get(name)!r}, not {flat_new.get(name)!r}"
        for name in names
        if flat_old.get(name) != flat_new.get(name)
    ]
