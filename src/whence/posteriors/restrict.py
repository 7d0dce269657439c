"""A posterior over some of its layers, the others fixed at the trained weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whence.curvature.plan import Plan
from whence.errors import NotDefined, NothingSelected, one_of
from whence.posteriors.laplace import Laplace


def restricted(posterior: Laplace, layers: Sequence[str]) -> Laplace:
    """The same Gaussians over the named layers alone; for structures that do not correlate layers."""
    if posterior.curvature.joint or posterior.curvature.keep is not None:
        raise NotDefined("a posterior that correlates layers cannot be restricted to some; fit it with layers=[…].")
    names = [b.name for b in posterior.blocks]
    chosen = {one_of(layer, names, "layer") for layer in layers}
    if not chosen:
        raise NothingSelected(f"no layer was named; there are {', '.join(names)}.")
    kept = [i for i, name in enumerate(names) if name in chosen]
    blocks = [posterior.blocks[i] for i in kept]
    known = posterior.curvature.signals
    curvature = replace(
        posterior.curvature,
        blocks=blocks,
        structures=[posterior.curvature.structures[i] for i in kept],
        signals={b.name: known[b.name] for b in blocks if b.name in known},
    )
    parameters = {p.name for b in blocks for p in b.params}
    mean = posterior.prior_mean
    place = {old: new for new, old in enumerate(kept)}
    return replace(
        posterior,
        plan=Plan(posterior.network, blocks, posterior.plan.inspection),
        curvature=curvature,
        prior=posterior.prior.restricted(blocks),
        prior_mean={n: v for n, v in mean.items() if n in parameters} if isinstance(mean, dict) else mean,
        tuning=None,
        reference=None,
        _decompositions={(place[i], r): s for (i, r), s in posterior._decompositions.items() if i in place},
    )
