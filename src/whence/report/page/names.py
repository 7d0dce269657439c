"""Layer names on the page: without their common prefix, and with line breaks only at dots."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from whence.errors import need
from whence.numerals import number
from whence.report.record.common import Mark
from whence.report.record.convert import Rules, changed

R = TypeVar("R")
TOGETHER = re.compile(r"\b([np]) ([=≤]) (?=[\d.])")  # "n = 2,500", which is not broken
SHORT = 10  # characters of a name that fit next to numbers on a phone


def common_prefix(names: Iterable[str]) -> str:
    """The longest dotted prefix of all names, with its last dot; each name keeps at least its last part."""
    parts = [name.split(".")[:-1] for name in dict.fromkeys(names)]
    shared = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))
    return "".join(column[0] + "." for column in shared) if len(parts) > 1 else ""


def without_common(record: R) -> tuple[R, str]:
    """The record without the common prefix of its layer names, and that prefix."""
    names: list[str] = []
    changed(record, {Mark.LAYER: names.append})
    prefix = common_prefix(names)
    if not prefix:
        return record, ""
    in_sentence = re.compile(rf"(?<![\w.]){re.escape(prefix)}(?=\w)")

    def short(name: str) -> str:
        return name.removeprefix(prefix)

    def keys(numbers: Any) -> Any:
        return {short(key): keys(v) for key, v in numbers.items()} if isinstance(numbers, dict) else numbers

    def sentence(text: str) -> str:
        return in_sentence.sub("", text)

    rules: Rules = {Mark.LAYER: short, Mark.LABEL: short, Mark.NESTED: keys}
    return changed(record, {**rules, Mark.SENTENCE: sentence, Mark.MESSAGE: sentence}), prefix


def code(text: str) -> Any:
    """Mark up names between backticks as code."""
    safe = need("markupsafe", "report")
    parts = TOGETHER.sub("\\1\u00a0\\2\u00a0", text).split("`")
    if len(parts) % 2 == 0:
        return safe.escape("`".join(parts))
    tag = safe.Markup("<code>{}</code>")
    return safe.Markup("").join(tag.format(part) if i % 2 else part for i, part in enumerate(parts))


def spelt(text: str) -> str:
    """A number in the format of the page; other text as it is."""
    try:
        return number(float(text), 4)
    except ValueError:
        return text


def dotted(name: str) -> Any:
    """A name that may be broken after each of its dots, if it is long."""
    return need("markupsafe", "report").Markup(".<wbr>" if len(name) > SHORT else ".").join(name.split("."))
