"""Records of a tracked training, and their file: JSON lines, with a header and one line per record."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from whence.errors import BadFile, BadOption, notice

KIND, VERSION = "whence track", 1


@dataclass(frozen=True)
class TrackedLayer:
    """One layer in one record; the columns are those of :class:`whence.where.layer_rows.LayerRow`."""

    name: str
    kind: str
    parameters: int
    std: float
    identified: float | None  # not known of a variational posterior whose prior is a mixture
    effective_parameters: float | None  # not of variational posteriors
    signal_to_noise: float | None
    variance_share: float | None = None
    prior_share: float | None = None
    explained: float | None = None
    curvature: float | None = None  # not in files of older versions
    relative_curvature: float | None = None


@dataclass(frozen=True)
class TrackRecord:
    """The network at one step. Uncertainties are means over the probe; None if the task does not have them."""

    step: int
    label: str = ""
    layers: tuple[TrackedLayer, ...] = ()
    loss: float | None = None  # mean negative log likelihood of the network alone on the subset
    accuracy: float | None = None
    entropy: float | None = None
    variance: float | None = None
    aleatoric: float | None = None
    epistemic: float | None = None
    probe_loss: float | None = None  # the loss on the probe, if its targets are known
    seconds: float = 0.0  # time of recording
    loop_seconds: float = 0.0  # time of the loop since the last record (or the start)
    error: str = ""  # why the other values are missing

    @property
    def overhead(self) -> float | None:
        """Seconds of recording per second of the loop."""
        return self.seconds / self.loop_seconds if self.loop_seconds > 0 else None


class TrackFile:
    """The file; a record is on disk when ``append`` returns, so that an interruption can damage only the last line."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size

    @classmethod
    def start(cls, path: str | Path, header: dict[str, Any]) -> TrackFile:
        """A new file with its header."""
        file = cls(Path(path), 0)
        file._write({"kind": KIND, "version": VERSION, **header})
        return file

    def append(self, record: TrackRecord) -> None:
        """Write a record. A full disk does not end the training: a notice is given, and the record stays in memory."""
        try:
            self._write(asdict(record))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self.size)
            notice(f"step {record.step} could not be written to {self.path}: {error}. It is kept in memory only.")

    def _write(self, entry: dict[str, Any]) -> None:
        line = (json.dumps(_finite(entry), ensure_ascii=False, allow_nan=False) + "\n").encode()
        with self.path.open("ab") as file:
            file.write(line)
        self.size += len(line)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None, since JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def read(path: str | Path) -> tuple[dict[str, Any], list[TrackRecord], int]:
    """Header, records, and their size in bytes; an incomplete last line is ignored."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"the track {path} could not be read: {error}.") from error
    whole = content[: content.rfind(b"\n") + 1]
    entries = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise BadFile(
                f"line {number} of {path} is not JSON ({error}); the file was changed or is not a track."
            ) from error
    if not entries or not isinstance(entries[0], dict) or entries[0].get("kind") != KIND:
        raise BadFile(f"{path} is not a track: its first line is not the header that whence.track writes.")
    if entries[0]["version"] != VERSION:
        raise BadFile(f"{path} is a track of version {entries[0]['version']}; this whence reads version {VERSION}.")
    try:
        records = [_record(entry) for entry in entries[1:]]
    except (TypeError, KeyError, AttributeError) as error:
        raise BadFile(f"{path} contains a line that is not a record ({error}); the file was changed.") from error
    return entries[0], records, len(whole)


def _record(entry: dict[str, Any]) -> TrackRecord:
    layers = []
    for row in entry.pop("layers"):
        gone = [f.name for f in fields(TrackedLayer) if f.type == "float" and row[f.name] is None]
        row.update(dict.fromkeys(gone, float("nan")))
        layers.append(TrackedLayer(**row))
    return TrackRecord(layers=tuple(layers), **entry)


def opened(path: str | Path | None, header: dict[str, Any], resume: bool) -> tuple[list[TrackRecord], TrackFile | None]:
    """The existing records in ``path``, and the file for new ones."""
    if path is None:
        if resume:
            raise BadOption("resume=True continues a file; pass path= as well.")
        return [], None
    path = Path(path)
    if not path.parent.is_dir():
        raise BadFile(f"path={str(path)!r}: there is no folder {str(path.parent)!r}; create it first.")
    if path.is_dir():
        raise BadFile(f"path={str(path)!r} is a folder; name a file in it, such as {str(path / 'track.jsonl')!r}.")
    if not path.exists() or (resume and b"\n" not in path.read_bytes()[:100_000]):  # killed inside the header
        path.unlink(missing_ok=True)
        return [], TrackFile.start(path, header)
    if not resume:
        raise BadOption(f"path={str(path)!r} exists. Pass resume=True to continue it, or another path.")
    before, records, size = read(path)
    _check_same(before, header, path)
    os.truncate(path, size)
    return records, TrackFile(path, size)


def _check_same(before: dict[str, Any], header: dict[str, Any], path: Path) -> None:
    old, new = before["options"], _finite(header["options"])
    for name in new:
        if old.get(name) != new[name]:
            raise BadOption(
                f"{path} was made with {name}={old.get(name)!r}, not {new[name]!r}, so records are not comparable. "
                "Resume with the same options, or start another file."
            )
    if before.get("fingerprint") != header["fingerprint"]:
        notice(f"the examples or the probe differ from those in {path}: its columns may jump here.")


def merged(records: Sequence[TrackRecord]) -> list[TrackRecord]:
    """Sort by step; of records with the same step and label keep the latest (the training was restarted)."""
    latest = {(r.step, r.label): r for r in records}
    return sorted(latest.values(), key=lambda r: r.step)
