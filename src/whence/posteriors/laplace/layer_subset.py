"""A posterior over some of its layers, the others fixed at the trained weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whence.errors import NotDefined, NothingSelected, one_of
from whence.posteriors.laplace.posterior import Laplace
from whence.recording.plan import Plan


def restricted_to_layers(posterior: Laplace, layers: Sequence[str]) -> Laplace:
    """The same Gaussians over only the named layers; for structures that do not correlate layers."""
    if posterior.curvature.joint or posterior.curvature.keep is not None:
        raise NotDefined("a posterior with correlated layers cannot be restricted to some; fit it with layers=[…].")
    names = [b.name for b in posterior.blocks]
    chosen = {one_of(layer, names, "layer") for layer in layers}
    if not chosen:
        raise NothingSelected(f"no layer was named; the layers are {', '.join(names)}.")
    kept = [i for i, name in enumerate(names) if name in chosen]
    blocks = tuple(posterior.blocks[i] for i in kept)
    known = posterior.curvature.signals
    curvature = replace(
        posterior.curvature,
        blocks=blocks,
        structures=tuple(posterior.curvature.structures[i] for i in kept),
        signals={b.name: known[b.name] for b in blocks if b.name in known},
    )
    parameters = {p.name for b in blocks for p in b.params}
    mean = posterior.prior_mean
    return replace(
        posterior,
        plan=Plan(posterior.network, blocks, posterior.plan.inspection),
        curvature=curvature,
        prior=posterior.prior.restricted(blocks),
        spectra=tuple(posterior.spectra[i] for i in kept),
        prior_mean={n: v for n, v in mean.items() if n in parameters} if isinstance(mean, dict) else mean,
        tuning=None,
        reference=None,
    )
