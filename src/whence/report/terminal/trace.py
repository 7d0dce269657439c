"""The trace of a record in the terminal."""

from __future__ import annotations

from rich.text import Text

from whence.report.record.trace import Trace

Facts = list[tuple[str | Text, str | Text]]


def trace_facts(trace: Trace | None) -> Facts:
    """Digests, the call, and the commit."""
    if trace is None:
        return []
    many = len(trace.weights) > 1
    found: Facts = [("record", trace.record)]
    found += [(f"weights {i + 1}" if many else "weights", one) for i, one in enumerate(trace.weights)]
    for one in trace.data:
        found.append((one.name, f"{one.sha256}\n{one.covers}" if one.sha256 else one.covers))
    found.append(("call", trace.command or trace.call_words))
    found.append(("git", trace.git.words if trace.git else "the working directory is not in a git repository"))
    packages = ", ".join(f"{name} {version}" for name, version in trace.packages.items())
    return [*found, *([("also loaded", packages)] if packages else [])]  # type: ignore[list-item]
