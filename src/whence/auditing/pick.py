"""Which inputs are shown: the most uncertain ones."""

from __future__ import annotations

from dataclasses import dataclass

from whence.auditing.context import Context, uncertainty


@dataclass(frozen=True)
class Picked:
    """An input of one of the sets."""

    held: str  # name of the set
    index: int

    @property
    def key(self) -> str:
        """Of its view in the profile."""
        return f"input:{self.held}:{self.index}"


def picked(context: Context) -> list[Picked]:
    """The most uncertain test inputs, then half as many from elsewhere."""
    found = []
    for name, count in (("test", context.options.inputs), ("ood", context.options.inputs // 2)):
        if context.has(name) and count:
            order = uncertainty(context.prediction(name)).argsort(descending=True, stable=True)[:count]
            found += [Picked(name, int(i)) for i in order]
    return found
