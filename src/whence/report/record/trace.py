"""Where a record comes from: digests of what was audited and of the record itself, and the call that made it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from whence.engine.files import digest_of_values
from whence.report.record.common import Count

Sha256 = Annotated[str, ("pattern", "^[0-9a-f]{64}$")]
DataName = Literal["train", "validation", "test", "ood"]


@dataclass(frozen=True)
class DataDigest:
    """sha256 of the examples of a set that were read, in any order; None with the reason if there is none."""

    name: DataName
    sha256: Sha256 | None
    examples: Count | None
    targets: bool  # whether targets are part of it
    cut: bool  # whether the set has more examples, which were not read
    why: str | None = None  # why there is no digest

    @property
    def covers(self) -> str:
        """What the digest covers, in words."""
        if self.sha256 is None:
            return f"not computed: {self.why}"
        what = "inputs and targets" if self.targets else "inputs"
        more = "; the set has more, which were not read" if self.cut else ""
        return f"{what} of {self.examples:,} examples, in any order{more}"


@dataclass(frozen=True)
class Git:
    """The commit of the caller's working directory, and changes that are not in it; None if git did not tell."""

    commit: str
    changed: bool | None  # whether tracked files differ from the commit
    untracked: Count | None  # files that git neither tracks nor ignores

    @property
    def words(self) -> str:
        if self.changed is None:
            return f"{self.commit}; whether files were changed is not known"
        new = f", {self.untracked:,} untracked {'file' if self.untracked == 1 else 'files'}" if self.untracked else ""
        return f"{self.commit}; {'with uncommitted changes' if self.changed else 'tracked files unchanged'}{new}"


@dataclass(frozen=True)
class Trace:
    """Digests (sha256) and origin. ``record`` is that of the whole record without this field."""

    weights: tuple[Sha256, ...]  # one for each network behind the posterior
    tensors: Count  # in the state of the first
    data: tuple[DataDigest, ...]
    call: dict[str, str]  # arguments that differ from their defaults
    git: Git | None
    packages: dict[str, str]  # loaded packages other than those of run.versions
    record: str
    command: str | None = None  # the command line, if it was run by the command

    def data_of(self, name: str) -> DataDigest | None:
        return next((one for one in self.data if one.name == name), None)

    @property
    def call_words(self) -> str:
        """The call as code."""
        first = [value for name, value in self.call.items() if name in ("model", "train")]
        rest = [f"{name}={value}" for name, value in self.call.items() if name not in ("model", "train")]
        return f"whence.audit({', '.join([*first, *rest])})"


def record_digest(data: Mapping[str, Any]) -> str:
    """sha256 of a record's JSON without its own digest, by content.

    The order of keys, white space, and keys that are null or empty make no difference, so that a later version that
    adds such keys finds the same digest.
    """
    trace = data.get("trace")
    inside = {key: value for key, value in trace.items() if key != "record"} if isinstance(trace, Mapping) else trace
    return digest_of_values(_canonical({**data, "trace": inside}))


def _canonical(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict or isinstance(value, Mapping):
        parts = ((str(key), _canonical(item)) for key, item in value.items())
        return {key: item for key, item in parts if item is not None and item != [] and item != {}}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    whole = isinstance(value, float) and math.isfinite(value) and value.is_integer()
    return int(value) if whole else value  # 1.0 and 1 are the same number in JSON
