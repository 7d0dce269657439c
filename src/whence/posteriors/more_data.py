"""More data for the same network: update, and merge of two fits."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from whence.batches import Data
from whence.curvature.fit import Curvature, fit
from whence.curvature.selection import Mask, Names, Selection
from whence.errors import BadOption, NotDefined, Notice
from whence.likelihoods import Gaussian

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace


def update(posterior: Laplace, data: Any, progress: bool) -> Laplace:
    """See :meth:`whence.posteriors.laplace.Laplace.update`."""
    refuse_unless_additive(posterior)
    network = posterior.network
    options = replace(posterior.curvature.options, progress=progress, passes=1, data_size=None)
    loader = Data(data, network.device, network.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # said at the first fit
        chosen = fit(network, loader, posterior.likelihood, False, same_selection(posterior), options)
    return with_more(posterior, chosen.curvature)


def same_selection(posterior: Laplace) -> Selection:
    """The selection that a posterior was fitted with."""
    keep = posterior.curvature.keep
    if keep is None:
        return Names(posterior.names())
    flat = torch.zeros(sum(b.size for b in posterior.blocks), dtype=torch.bool, device=keep.device)
    flat[keep] = True
    pieces = flat.split([b.size for b in posterior.blocks])
    masks = {n: m for b, piece in zip(posterior.blocks, pieces, strict=True) for n, m in b.scatter(piece).items()}
    return Mask(masks)


def refuse_unless_additive(posterior: Laplace) -> None:
    kind = posterior.curvature.options.structure
    if not all(s.additive for s in posterior.curvature.structures):
        raise NotDefined(
            f"structure={kind!r} cannot take more data: its eigenvectors belong to the data they were computed from. "
            "Fit again on all the data, or use 'kron', 'diag', 'block' or 'full', whose curvature adds up."
        )
    if posterior.curvature.options.curvature == "kfra":
        raise NotDefined(
            "KFRA averages over each batch, so its result depends on the batches; fit again on all the data."
        )


def merge(posterior: Laplace, other: Laplace) -> Laplace:
    """Two fits of the same network on different data, as one fit on both.

    Hyperparameters (prior, data scale) are those of the first; the Gaussian noise, where it was estimated, is
    pooled.
    """
    from whence.posteriors.laplace import Laplace

    for one in (posterior, other):
        if not isinstance(one, Laplace):
            raise BadOption(f"merge takes two Laplace posteriors, not a {type(one).__name__}.")
        refuse_unless_additive(one)
    if posterior.network.hash != other.network.hash:
        raise BadOption(
            "the two posteriors belong to networks with different weights; only fits of the same one merge."
        )
    mine, theirs = posterior.likelihood, other.likelihood
    if isinstance(mine, Gaussian) and isinstance(theirs, Gaussian) and mine != theirs:
        return _pooled(posterior, other)
    if mine != theirs:
        raise BadOption(f"the likelihoods differ: {mine!r} and {theirs!r}.")
    _refuse_different_options(posterior, other)
    return with_more(posterior, other.curvature)


def _refuse_different_options(posterior: Laplace, other: Laplace) -> None:
    for option in ("structure", "curvature", "sharing"):
        mine = getattr(posterior.curvature.options, option)
        theirs = getattr(other.curvature.options, option)
        if mine != theirs:
            raise BadOption(f"the two fits differ in {option}: {mine!r} and {theirs!r}.")


def _pooled(posterior: Laplace, other: Laplace) -> Laplace:
    """Both at the noise of all residuals together."""
    if posterior.curvature.record.noise is None or other.curvature.record.noise is None:
        raise BadOption("the two fits differ in their vector of noise; fit both with the same Gaussian(noise=…).")
    _refuse_different_options(posterior, other)
    squares = posterior.record.squares + other.record.squares
    count = posterior.record.targets + other.record.targets
    noise = (squares / count) ** 0.5
    first = replace(
        posterior, curvature=posterior.curvature.with_noise(noise), likelihood=Gaussian(noise), _decompositions={}
    )
    return with_more(first, other.curvature.with_noise(noise))


def with_more(posterior: Laplace, curvature: Curvature) -> Laplace:
    """The posterior with some more curvature, decomposed anew."""
    mine = posterior.curvature
    if (
        mine.record.noise is not None
        and curvature.record.noise is not None
        and mine.record.noise != curvature.record.noise
    ):
        curvature = curvature.with_noise(mine.record.noise)
    return replace(posterior, curvature=mine.merged(curvature), tuning=None, _decompositions={})
