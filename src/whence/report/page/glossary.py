"""Which terms a page explains: those that it uses."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

Terms = Mapping[str, tuple[str, ...]]  # name, explanation, and perhaps a pattern; "" if only links count
TAGS = re.compile(r"<[^>]*>")


def used(terms: Terms, body: str) -> dict[str, tuple[str, str]]:
    """The terms that the page links to or names, and those in the explanations of these, in their order."""
    text = " ".join(html.unescape(TAGS.sub(" ", str(body))).split())
    found = {key for key in terms if f'href="#term-{key}"' in body}
    new = set(terms)
    while new:
        new = {key for key, one in terms.items() if key not in found and _is_named(one, text)}
        found |= new
        text = " ".join(terms[key][1] for key in new)
    return {key: (one[0], one[1]) for key, one in terms.items() if key in found}


def _is_named(one: tuple[str, ...], text: str) -> bool:
    pattern = one[2] if len(one) > 2 else "|".join(map(re.escape, one[0].split(", ")))
    return bool(pattern) and re.search(rf"(?<!\w)(?:{pattern})s?(?!\w)", text, re.IGNORECASE) is not None
