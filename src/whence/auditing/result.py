"""What an audit returns: one record, shown as a page, as JSON, or in the terminal."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from whence.engine.files import write_text
from whence.errors import BadFile, BadOption, one_of


@dataclass(frozen=True)
class Recorded:
    """A record of plain JSON, shown as a page, as a file, or in the terminal."""

    record: dict[str, Any] = field(repr=False)
    kind: ClassVar[str]  # what it is, in words
    schema: ClassVar[str]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """From a file that :meth:`json` wrote."""
        path = Path(path)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise BadFile(f"{path}: there is no such file.") from error
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BadFile(f"{path} is no {cls.kind}: it is not JSON ({error}).") from error
        found = record.get("schema") if isinstance(record, dict) else None
        if found != cls.schema:
            came = f"its schema is {found!r}" if found else "it has no schema"
            raise BadFile(f"{path} is no {cls.kind} that this version reads: {came}, not {cls.schema!r}.")
        return cls(record)

    def html(self, path: str | Path) -> Path:
        """Write one self-contained page; it opens from disk and asks nothing of the network."""
        from whence.report.page import render

        return write(path, render(self.record))

    def json(self, path: str | Path) -> Path:
        """Write the record; :func:`whence.auditing.schema` describes it."""
        return write(path, json.dumps(self.record, ensure_ascii=False, allow_nan=False, indent=1) + "\n")

    def show(self) -> None:
        """Print it in the terminal."""
        from whence.report.terminal import show_record

        show_record(self.record)


@dataclass(frozen=True)
class Audit(Recorded):
    """Made by :func:`whence.audit`. Everything that is shown stands in ``record``, which is plain JSON.

    ``posterior`` predicts; ``profile_posterior`` is the one that the profile and the layers are of, which differs
    where the tuned prior drowns the data. Both are ``None`` for an audit that was read from a file.
    """

    posterior: Any = field(default=None, repr=False)
    profile_posterior: Any = field(default=None, repr=False)
    kind: ClassVar[str] = "audit"
    schema: ClassVar[str] = "whence.audit/1"

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its end."""
        return self.record["run"]["interrupted"] is not None

    @property
    def verdict(self) -> str:
        """One paragraph."""
        return str(self.record["verdict"]["words"])

    def _repr_markdown_(self) -> str:
        return f"**{self.record['title']}** — {self.verdict}"

    def __str__(self) -> str:
        points = "\n".join(f"  {p['label']}: {p['words']}" for p in self.record["verdict"]["points"])
        stopped = f"\nStopped during {self.record['run']['interrupted']}." if self.interrupted else ""
        return f"{self.record['title']}\n{points}{stopped}"

    __repr__ = __str__


def write(path: str | Path, text: str) -> Path:
    """A file that is whole or not there."""
    path = Path(path)
    if path.is_dir():
        raise BadOption(f"{path} is a folder; pass the name of a file in it.")
    return write_text(path, text)


def schema(of: str = "audit") -> dict[str, Any]:
    """The JSON schema of a record, ``"audit"`` or ``"comparison"`` (draft 2020-12)."""
    name = {"audit": "schema.json", "comparison": "comparison.json"}[one_of(of, ("audit", "comparison"), "schema")]
    text = importlib.resources.files("whence.auditing").joinpath(name).read_text(encoding="utf-8")
    return dict(json.loads(text))
