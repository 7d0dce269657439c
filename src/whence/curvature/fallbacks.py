"""One line on what did not get the structure that was asked for."""

from __future__ import annotations

from whence.curvature.blocks import Block
from whence.curvature.options import Options
from whence.errors import TooLarge, notice


def say_fallbacks(blocks: list[Block], options: Options) -> None:
    """Say which blocks have no Kronecker rule, which are too large for theirs, and which reach no output."""
    fallen = [b for b in blocks if b.source == "example" and b.reason != "it does not reach the output"]
    tied = [b for b in blocks if b.source == "rows" and b.structure == "diag" and options.structure != "diag"]
    exact = [b for b in fallen + tied if not b.by_call]
    if options.structure in ("kron", "ekfac") and exact:
        notice(
            f"no Kronecker rule for {_names(exact)}: an exact diagonal, computed per example, is used there "
            "(see posterior.structures)."
        )
    large = [b for b in blocks if b.by_call or b.thin_outputs or b.thin_inputs]
    if large and options.curvature == "kfra":
        raise TooLarge(f"KFRA passes whole factors back, and {_names(large)}: {large[0].reason}. Raise max_factor.")
    if large:
        notice(f"{_names(large)} got a structure that fits: {large[0].reason} (see posterior.structures).")
    unused = [b.name for b in blocks if b.reason == "it does not reach the output"]
    if unused:
        notice(f"{', '.join(unused[:4])} does not reach the output; its posterior is its prior.")


def _names(blocks: list[Block]) -> str:
    names = ", ".join(f"{b.name} ({b.kind})" for b in blocks[:4])
    return f"{names} and {len(blocks) - 4} more" if len(blocks) > 4 else names
