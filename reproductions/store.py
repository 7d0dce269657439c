"""Results that survive: every unit of work is written when it is done, and never done twice."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

import whence

Values = dict[str, Any]


class OutOfTime(Exception):
    """The time that was allowed is over; the next run goes on from here."""


class OtherConfig(Exception):
    """The results file was made with another configuration."""


class Results:
    """Units of work by name, in one file; ``value`` of each is plain JSON."""

    def __init__(
        self, path: Path, experiment: str, config: Values, device: str, *, quick: bool = False,
        limit: float = math.inf, only: str | Sequence[str] = "*", on_unit: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.device = path, device
        self.only = (only,) if isinstance(only, str) else tuple(only)
        self._until = time.monotonic() + limit
        self._on_unit = on_unit
        head = {"experiment": experiment, "quick": quick, "config": json.loads(json.dumps(config))}
        self.content: Values = read(path) if path.exists() else head | {"units": {}}
        self._check(path, self.content, head)

    def merge(self, path: Path, order: list[str]) -> int:
        """Take what another file of the same configuration has beyond this one; how many units that is."""
        other = read(path)
        self._check(path, other, {name: value for name, value in self.content.items() if name != "units"})
        units = self.content["units"]
        new = {name: unit for name, unit in other["units"].items() if name not in units}
        place = {name: i for i, name in enumerate(order)}
        both = (units | new).items()
        self.content["units"] = dict(sorted(both, key=lambda item: place.get(item[0], len(place))))
        self._write()
        return len(new)

    @staticmethod
    def _check(path: Path, content: Values, head: Values) -> None:
        for name, mine in head.items():
            if content[name] != mine:
                raise OtherConfig(
                    f"{path} was made with another {name}:\n{_difference(content[name], mine)}\n"
                    "Remove it, or write elsewhere with --out."
                )

    def unit(self, name: str, work: Callable[[], Values]) -> Values:
        """The value of a unit: read if it is there, else computed and written; empty if it is none of ``only``."""
        units = self.content["units"]
        if name not in units and not any(fnmatchcase(name, pattern) for pattern in self.only):
            return {}
        if name not in units:
            if time.monotonic() > self._until:
                raise OutOfTime(name)
            start = time.perf_counter()
            value = work()
            units[name] = {"value": value, "seconds": round(time.perf_counter() - start, 2), **self._where()}
            self._write()
        if self._on_unit is not None:
            self._on_unit(name)
        found: Values = units[name]["value"]
        return found

    def _where(self) -> Values:
        device = (
            torch.cuda.get_device_name()
            if self.device.startswith("cuda")
            else f"CPU, {torch.get_num_threads()} threads"
        )
        return {
            "device": device,
            "date": datetime.date.today().isoformat(),
            "versions": {"whence": whence.__version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        content = self.content | {"units": rounded(self.content["units"])}  # the configuration as it is
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        os.replace(beside, self.path)


def read(path: Path) -> Values:
    found: Values = json.loads(path.read_text())
    return found


def values(content: Values) -> Values:
    """Units' values by name."""
    return {name: unit["value"] for name, unit in content["units"].items()}


def rounded(value: Any) -> Any:
    """Six digits are enough for every figure here, and keep the files readable."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a result is not finite")
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def _difference(old: Any, new: Any) -> str:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return f"  {old!r} there, {new!r} here"
    keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
    return "\n".join(f"  {key}: {old.get(key)!r} there, {new.get(key)!r} here" for key in sorted(keys))
