"""Ids of tokens as words and pieces of words that a person reads, for the tokenizers of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WORD_BEGINS = ("Ġ", "▁")  # before the first piece of a word: byte pairs, and sentencepiece
WORD_GOES_ON = "##"  # before all others: WordPiece
PIECE = "·"  # what both become: a piece that continues a word
UNREADABLE = "\ufffd"  # part of a letter


def is_tokenizer(given: Any) -> bool:
    """Whether it decodes ids, as the tokenizers of Hugging Face do."""
    return all(callable(getattr(given, name, None)) for name in ("convert_ids_to_tokens", "decode", "get_vocab"))


def words(tokenizer: Any) -> Callable[[list[int]], list[str]]:
    """A function from ids to what each of them says, one string for each.

    A piece that continues a word starts with ``·``, whatever the tokenizer writes there (``##ing``, or the lack of
    ``Ġ`` or ``▁``).
    """
    marks = any(str(token).startswith(WORD_BEGINS) for token in tokenizer.get_vocab())
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    apart = special | set(WORD_BEGINS)  # after which a word begins

    def read(ids: list[int]) -> list[str]:
        tokens = [str(one) for one in tokenizer.convert_ids_to_tokens(ids)]
        found = []
        for place, (index, token) in enumerate(zip(ids, tokens, strict=True)):
            if token in special:
                found.append(token)
                continue
            text = _text(tokenizer, index, token)
            inside = place > 0 and tokens[place - 1] not in apart and text[:1].isalnum()
            goes_on = token.startswith(WORD_GOES_ON) if not marks else inside and not token.startswith(WORD_BEGINS)
            found.append(PIECE + text if goes_on else text)
        return found

    return read


def _text(tokenizer: Any, index: int, token: str) -> str:
    if token.startswith(WORD_GOES_ON) and len(token) > len(WORD_GOES_ON):
        return token.removeprefix(WORD_GOES_ON)
    text = str(tokenizer.decode([index])).strip()
    return text if text and UNREADABLE not in text else token
