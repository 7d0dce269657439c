"""The trace of an audit: digests of the network and the data, the call, and the commit of the caller."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from whence.auditing.data import Examples, source_of
from whence.engine.batches import as_source, as_targets, from_numpy, is_pair, split_batch
from whence.engine.content import ExamplesDigest, digest_of_state
from whence.errors import WhenceError
from whence.functional import tensors_of
from whence.posteriors.base import Posterior, is_posterior
from whence.report.record.audit import AuditRecord
from whence.report.record.convert import to_json
from whence.report.record.trace import DataDigest, DataName, Git, Trace, record_digest

NOT_SETTINGS = ("progress", "on_step", "on_left")  # arguments without influence on the record
LONGEST = 160  # letters of an argument
LISTED = 12  # items of a list that are written out
SECONDS = 10.0  # for a question to git
FITTED = "a fitted posterior was given, so this audit did not read the training data"
UNREAD = "the training data were not read to their end"
PACKAGES = {  # module → distribution
    "accelerate": "accelerate", "lightning": "lightning", "monai": "monai", "pandas": "pandas", "peft": "peft",
    "pytorch_lightning": "pytorch-lightning", "safetensors": "safetensors", "scipy": "scipy", "sklearn": "scikit-learn",
    "timm": "timm", "torchaudio": "torchaudio", "torchvision": "torchvision", "transformers": "transformers",
    "triton": "triton",
}  # fmt: skip
NOT_HASHABLE = (RuntimeError, TypeError, ValueError, NotImplementedError)  # sparse tensors, unknown types


class Tracer:
    """Collects the trace while an audit runs. ``train`` is the training data, hashed as they are first read."""

    def __init__(self, verb: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        self.call, self.git = call_of(verb, arguments), git_state()
        self.given = None if arguments["train"] is None else source_of(arguments["train"], arguments["model"])
        self._digest: Callable[[], DataDigest | None] = lambda: None
        self.train = self.given
        if self.given is not None:
            self.train, self._digest = _watched(self.given, is_posterior(arguments["model"]))
        self._sets: list[DataDigest] = []

    def read(self, sets: Mapping[str, Examples | None]) -> None:
        """Hash the sets that were read."""
        self._sets = [digest_of_examples(one) for one in sets.values() if one is not None]

    def traced(self, record: AuditRecord, posterior: Posterior) -> AuditRecord:
        """The record with its trace."""
        networks, train = posterior.networks(), self._digest()
        trace = Trace(
            tuple(map(weights_digest, networks)),
            len(tensors_of(networks[0])),
            (*([] if train is None else [train]), *self._sets),
            self.call,
            self.git,
            packages(),
            "",
        )
        return sealed(replace(record, trace=trace))


def sealed(record: AuditRecord) -> AuditRecord:
    """The record with its own digest, computed anew."""
    assert record.trace is not None
    return replace(record, trace=replace(record.trace, record=record_digest(to_json(record))))


def by_command(record: AuditRecord, line: str) -> AuditRecord:
    """The record with the command line that made it."""
    return record if record.trace is None else sealed(replace(record, trace=replace(record.trace, command=line)))


def weights_digest(model: nn.Module | Mapping[str, Any]) -> str:
    """The digest of a network's state (parameters and buffers), or of a state dict."""
    return digest_of_state(tensors_of(model) if isinstance(model, nn.Module) else model)


# Data


def digest_of_examples(found: Examples) -> DataDigest:
    name: DataName = found.name  # type: ignore[assignment]
    try:
        digest = ExamplesDigest().add(found.inputs, found.targets).hexdigest()
    except NOT_HASHABLE as error:
        return DataDigest(name, None, len(found), found.targets is not None, found.cut, _reason(error))
    return DataDigest(name, digest, len(found), found.targets is not None, found.cut)


def digest_of_train(source: Any) -> DataDigest:
    """The digest of training data that are read for it."""
    watched, digest = _watched(source, fitted=False)
    if not is_pair(as_source(source)):
        for _ in watched:
            pass
    return digest()


def _watched(source: Any, fitted: bool) -> tuple[Any, Callable[[], DataDigest]]:
    """The training data, and their digest: at once for tensors, after the first whole pass for a loader."""
    data = as_source(source)
    if is_pair(data):
        return source, functools.partial(digest_of_examples, Examples("train", data[0], data[1]))
    if fitted:
        return source, lambda: DataDigest("train", None, None, True, False, FITTED)
    if not isinstance(data, Iterable) or isinstance(data, Tensor) or iter(data) is data:
        return source, lambda: DataDigest("train", None, None, True, False, UNREAD)  # will be refused
    watch = _Watch()
    return watch.over(data), watch.digest


class _Watch:
    """Hashes the batches of the first pass that reaches its end."""

    def __init__(self) -> None:
        self.whole: ExamplesDigest | None = None
        self.why = UNREAD
        self.failed = False

    def over(self, data: Any) -> Any:
        """The same data, watched. A loader stays a loader, with its sampler and generator."""
        if not isinstance(data, DataLoader):
            return _WatchedBatches(data, self)
        found, kind = copy.copy(data), type(data)
        found.__class__ = type(kind.__name__, (kind,), {"__iter__": lambda loader: self.batches(kind.__iter__(loader))})
        return found

    def batches(self, passing: Iterable[Any]) -> Iterator[Any]:
        begun = None if self.whole or self.failed else ExamplesDigest()
        for index, batch in enumerate(passing):
            if begun is not None and not self.failed:
                self._add(begun, batch, index)
            yield batch
        if begun is not None and not self.failed:
            self.whole = self.whole or begun

    def _add(self, begun: ExamplesDigest, batch: Any, index: int) -> None:
        try:
            inputs, targets = split_batch(batch, index)
            begun.add(from_numpy(inputs), as_targets(targets, "train", index))
        except (*NOT_HASHABLE, WhenceError) as error:  # the fit raises what is an error of the data
            self.failed, self.why = True, _reason(error)

    def digest(self) -> DataDigest:
        if self.whole is None:
            return DataDigest("train", None, None, True, False, self.why)
        return DataDigest("train", self.whole.hexdigest(), len(self.whole), True, False)


class _WatchedBatches:
    """Any other iterable of batches, watched."""

    def __init__(self, data: Any, watch: _Watch) -> None:
        self._data, self._watch = data, watch

    def __iter__(self) -> Iterator[Any]:
        return self._watch.batches(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._data, name)


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"its contents could not be hashed ({first.rstrip('.')})"


# The call


def call_of(verb: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that differ from their defaults, as short texts."""
    found = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        value, default = arguments[name], parameter.default
        if name not in NOT_SETTINGS and value is not default and not (_plain(value) and value == default):
            found[name] = shown(value)
    return found


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)


def shown(value: Any) -> str:
    """A value of a call in one short line; data and networks by their kind and size."""
    if isinstance(value, Tensor):
        return f"<Tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}>"
    if isinstance(value, nn.Module):
        return f"<{type(value).__name__}, {sum(p.numel() for p in value.parameters()):,} parameters>"
    if isinstance(value, DataLoader):
        return f"<{type(value).__name__}{_length(value)}, batch size {value.batch_size}>"
    if isinstance(value, tuple | list):
        more = f", … {len(value):,} in all" if len(value) > LISTED else ""
        return _cut("({})" if isinstance(value, tuple) else "[{}]", ", ".join(map(shown, value[:LISTED])) + more)
    if isinstance(value, Mapping):
        return _cut("{{{}}}", ", ".join(f"{key!r}: {shown(item)}" for key, item in list(value.items())[:LISTED]))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__} {list(value.shape)} {value.dtype}>"
    if _plain(value) or isinstance(value, torch.device | torch.dtype):
        return _cut("{}", repr(value))
    if not type(value).__module__.startswith("whence") or is_posterior(value):
        return f"<{type(value).__name__}{_length(value)}>"
    return _cut("{}", " ".join(repr(value).split()))


def _length(value: Any) -> str:
    try:
        return f" of {len(value):,} {'batches' if isinstance(value, DataLoader) else 'items'}"
    except TypeError:
        return ""


def _cut(form: str, text: str) -> str:
    return form.format(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


# The surroundings


def git_state(folder: Path | None = None) -> Git | None:
    """The commit of a folder (the working directory), or None outside a repository."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    status = _git(folder, "status", "--porcelain")
    lines = None if status is None else status.splitlines()
    if lines is None:
        return Git(commit.strip(), None, None)
    new = sum(line.startswith("??") for line in lines)
    return Git(commit.strip(), len(lines) > new, new)


def _git(folder: Path | None, *question: str) -> str | None:
    """The answer of git, which writes nothing; None if there is none."""
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *question], cwd=folder, env=quiet, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def packages() -> dict[str, str]:
    """Versions of loaded packages that may change results, and of CUDA."""
    found = {}
    for module, name in PACKAGES.items():
        if module in sys.modules:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return found | ({"CUDA": torch.version.cuda} if torch.version.cuda and torch.cuda.is_available() else {})
