"""A page that can be checked: it holds the trace of its record, and a digest of its own text."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from whence.errors import BadFile
from whence.report.record.convert import from_json
from whence.report.record.trace import Trace

EMPTY = "0" * 64  # stands for the digest while it is computed
META = re.compile(r'<meta name="whence-page-sha256" content="([0-9a-f]{64})">')
TRACE = re.compile(r'<script type="application/json" id="trace">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class SealedPage:
    """What a page says of itself: the digest that it states, the one that its text has, and its trace."""

    stated: str | None
    found: str
    trace: Trace | None


def sealed(page: str) -> str:
    """The page with the digest of its text, in which the digest itself is zeros."""
    found = META.search(page)
    if found is None or found[1] != EMPTY:
        return page
    return page[: found.start(1)] + _digest(page) + page[found.end(1) :]


def read_page(path: str | Path) -> SealedPage:
    """Read what a page says of itself."""
    try:
        page = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadFile(f"{path}: there is no such file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is not a page of whence ({error}).") from error
    meta, trace = META.search(page), TRACE.search(page)
    if meta is None:
        return SealedPage(None, _digest(page), None)
    plain = page[: meta.start(1)] + EMPTY + page[meta.end(1) :]
    try:
        told = None if trace is None else from_json(Trace, json.loads(trace[1]))
    except (ValueError, BadFile):
        told = None
    return SealedPage(meta[1], _digest(plain), told)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
