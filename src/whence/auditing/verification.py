"""Whether a record or a page is unchanged, and belongs to a network and to data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from whence.auditing.data import read_examples
from whence.auditing.tracing import digest_of_examples, digest_of_train, weights_digest
from whence.copies import gathered, is_sharded, unwrap
from whence.errors import BadOption
from whence.posteriors.base import is_posterior
from whence.report.record.trace import DataDigest, Trace

SETS = {"train": "training data", "validation": "validation data", "test": "test data", "ood": "OOD data"}
NO_TRACE = "it holds no digests: it was written by a version of whence without them"
SHORT = 12  # digits of a digest in a message
WRAPPERS = ("module.", "_orig_mod.", "model.", "network.")  # prefixes that wrappers add to names


@dataclass(frozen=True)
class Check:
    """One check: what was compared, whether it agrees (None: it could not be compared), and the message."""

    what: str
    passed: bool | None
    words: str

    def __str__(self) -> str:
        sign = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return f"{self.what}: {sign}. {self.words}"


NO_SIGNATURE = (
    "A digest is not a signature: it shows whether something was changed since it was written, not who wrote it."
)


@dataclass(frozen=True)
class Verification:
    """Made by :meth:`whence.Audit.verify`. True only if every check that was asked for passed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), NO_SIGNATURE])

    __repr__ = __str__


def verify(
    trace: Trace | None,
    unchanged: Check,
    model: Any = None,
    data: Mapping[str, Any] | None = None,
    digest: str | None = None,
) -> Verification:
    """Compare a trace with a network (or its state dict; several for an ensemble) and with data, by name."""
    given = {name: source for name, source in (data or {}).items() if source is not None}
    if trace is None:
        asked = ["weights"] * (model is not None) + [SETS[name] for name in given]
        return Verification((unchanged, *(Check(what, None, f"{NO_TRACE}.") for what in asked)))
    checks = [unchanged]
    if digest is not None:
        checks.append(_expected(trace, digest))
    if model is not None:
        checks.append(_weights(trace, model))
    checks += [_data(trace, name, source) for name, source in given.items()]
    return Verification(tuple(checks))


def unchanged(what: str, found: str, stored: str | None) -> Check:
    """Whether the digest that was computed is the one that is stored."""
    if stored is None:
        return Check(what, None, f"{NO_TRACE}.")
    if found == stored:
        return Check(what, True, f"Its contents match the digest in it ({found[:SHORT]}…).")
    return Check(
        what,
        False,
        f"Its contents have the digest {found[:SHORT]}…, but it states {stored[:SHORT]}…: it was changed after it was "
        "written.",
    )


def _expected(trace: Trace, digest: str) -> Check:
    """Compare with a digest from another source; its first digits are enough."""
    wanted = digest.strip().lower().removeprefix("sha256:").rstrip("…")
    if len(wanted) < SHORT or any(letter not in "0123456789abcdef" for letter in wanted):
        raise BadOption(f"digest={digest!r}: expected at least {SHORT} hexadecimal digits of a SHA-256.")
    if trace.record.startswith(wanted):
        return Check("digest", True, f"It is the record {wanted[:SHORT]}… that was expected.")
    return Check("digest", False, f"It is the record {trace.record[:SHORT]}…, not {wanted[:SHORT]}….")


def _weights(trace: Trace, model: Any) -> Check:
    states = [_state(one) for one in (model if isinstance(model, list | tuple) else _networks(model))]
    if len(states) != len(trace.weights):
        came, wanted = len(states), len(trace.weights)
        return Check("weights", False, f"{came} given, but {wanted} networks are behind the audited posterior.")
    for place, (state, stored) in enumerate(zip(states, trace.weights, strict=True)):
        found = _matching(state, stored)
        if found != stored:
            which = f"Network {place + 1} of {len(states)} has" if len(states) > 1 else "They have"
            count = "" if len(state) == trace.tensors else f" ({len(state):,} tensors instead of {trace.tensors:,})"
            return Check(
                "weights", False, f"{which} the digest {found[:SHORT]}…, but {stored[:SHORT]}… was audited{count}."
            )
    return Check("weights", True, f"They are those that were audited ({trace.weights[0][:SHORT]}…).")


def _networks(model: Any) -> Sequence[Any]:
    return model.networks() if is_posterior(model) else [model]


def _state(model: Any) -> Mapping[str, Any]:
    if isinstance(model, nn.Module):
        plain = unwrap(model)
        return dict((gathered(plain) if is_sharded(plain) else plain).state_dict())
    if isinstance(model, Mapping):
        return model
    raise BadOption(f"the model is a {type(model).__name__}; pass a torch.nn.Module, its state dict, or a posterior.")


def _matching(state: Mapping[str, Any], stored: str) -> str:
    """The digest of the state; without the prefix of a wrapper, if it matches then."""
    first = weights_digest(state)
    for prefix in WRAPPERS:
        if first != stored and state and all(name.startswith(prefix) for name in state):
            other = weights_digest({name.removeprefix(prefix): value for name, value in state.items()})
            if other == stored:
                return other
    return first


def _data(trace: Trace, name: str, source: Any) -> Check:
    what, stored = SETS[name], trace.data_of(name)
    if stored is None:
        return Check(what, False, f"The audit had no {what}.")
    if stored.sha256 is None:
        return Check(what, None, f"The audit holds no digest of them: {stored.why}.")
    found = _digest(name, source, stored)
    if found.sha256 is None:
        return Check(what, None, f"{found.why}.")
    if found.sha256 == stored.sha256:
        return Check(what, True, f"They are those that were audited: {stored.covers} ({stored.sha256[:SHORT]}…).")
    many = "" if found.examples == stored.examples else f" ({found.examples:,} examples instead of {stored.examples:,})"
    hint = (
        " The audit read only part of this set; pass it in the same form (loader or tensors) and order."
        if stored.cut
        else ""
    )
    return Check(
        what, False, f"They have the digest {found.sha256[:SHORT]}…, not {stored.sha256[:SHORT]}…{many}.{hint}"
    )


def _digest(name: str, source: Any, stored: DataDigest) -> DataDigest:
    """The digest of data that are read as the audit read them."""
    if name == "train":
        return digest_of_train(source)
    most = stored.examples if stored.cut and stored.examples else sys.maxsize
    examples = read_examples(source, name, most, targets=stored.targets)
    assert examples is not None
    return digest_of_examples(examples)
