"""One line on what did not get the structure that was asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whence.curvature.blocks import UNREACHED, Block
from whence.curvature.options import Options
from whence.errors import TooLarge, notice


def say_fallbacks(blocks: list[Block], options: Options, unused: Collection[str]) -> None:
    """Say which parameters have no Kronecker rule, which are too large for theirs, and which reach no output."""
    fallen = [b for b in blocks if b.source == "example" and b.reason != UNREACHED]
    tied = [b for b in blocks if b.source == "rows" and b.structure == "diag" and options.structure != "diag"]
    exact = [b for b in fallen + tied if not b.by_call]
    if options.structure in ("kron", "ekfac") and exact:
        names = [p.name for b in exact for p in b.params if p.name not in unused]
        how = ", computed per example," if any(b.source == "example" for b in exact) else ""
        notice(f"no Kronecker rule for {_some(names)}: an exact diagonal{how} is used there (posterior.structures).")
    large = [b for b in blocks if b.by_call or b.thin_outputs or b.thin_inputs]
    if large and options.curvature == "kfra":
        raise TooLarge(f"KFRA passes whole factors back, and {_layers(large)}: {large[0].reason}. Raise max_factor.")
    if large:
        notice(f"{_layers(large)} got a structure that fits: {large[0].reason} (posterior.structures).")
    unreached = [p.name for b in blocks for p in b.params if p.name in unused]
    if unreached:
        many = "do not reach the output: the data say nothing about them"
        one = "does not reach the output: the data say nothing about it"
        notice(f"{_some(unreached)} {one if len(unreached) == 1 else many}.")


def _layers(blocks: list[Block]) -> str:
    return _some([f"{b.name} ({b.kind})" for b in blocks])


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
