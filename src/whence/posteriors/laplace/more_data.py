"""More data for the same network: update, and merge of two fits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from whence.curvature.fit import fit_more
from whence.curvature.options import CurvatureKind
from whence.curvature.result import Curvature
from whence.engine.options import Execution
from whence.engine.ranks import on_all_ranks
from whence.errors import BadOption, NotDefined
from whence.likelihoods import Gaussian
from whence.posteriors.laplace.on_ranks import open_checkpoint, signature
from whence.priors import resolve_prior
from whence.recording.selection import Mask, Names, Selection

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


@torch.inference_mode(False)
@on_all_ranks
def update(
    posterior: Laplace,
    data: Any,
    progress: bool,
    execution: Execution,
    *,
    process_group: Any = None,
) -> Laplace:
    """See :meth:`whence.posteriors.laplace.posterior.Laplace.update`."""
    refuse_unless_additive(posterior)
    if posterior.network.shift is not None:
        raise NotDefined("a refined posterior cannot be updated: update the one before, and refine it again.")
    network, ranks = posterior.network, process_group
    file = open_checkpoint(execution, False, ranks)
    ranks.check_device(network.device)
    seen = posterior.curvature.record.seen
    options = replace(posterior.curvature.options, progress=progress, passes=1, data_size=None, first=seen)
    loader = network.read(data)
    before = {"the fit so far": posterior.curvature.record.to_dict()}
    ranks.agree(signature(network, data, posterior.likelihood, options) | before, "comparing networks and options")
    more = fit_more(
        network, loader, posterior.likelihood, same_selection(posterior), options, ranks=ranks, checkpoint=file
    )
    if file is not None:
        ranks.synchronise("completing the fit")
        file.remove()
    if noise_is_estimated(posterior):
        return _pooled(posterior, more)
    return with_more(posterior, more)


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


def refuse_unless_additive(posterior: Laplace, what: str = "updated") -> None:
    kind = posterior.curvature.options.structure
    if not all(s.additive for s in posterior.curvature.structures):
        raise NotDefined(
            f"structure={kind!r} cannot be {what}: its eigenvectors depend on the data they were computed from. "
            "Fit again on all the data, or use 'kron', 'diag', 'block' or 'full', whose curvature is additive."
        )
    if posterior.curvature.options.curvature is CurvatureKind.KFRA:
        raise NotDefined(
            "KFRA averages over each batch, so its result depends on the batches; fit again on all the data."
        )


def merge(posterior: Laplace, other: Laplace) -> Laplace:
    """Two fits of the same network on different data, as one fit on both.

    Hyperparameters (prior, data scale) are those of the first. A Gaussian noise that was estimated from the
    residuals in both is estimated from all of them; a given or tuned noise must be the same in both.
    """
    from whence.posteriors.laplace.posterior import Laplace

    for one in (posterior, other):
        if not isinstance(one, Laplace):
            raise BadOption(f"merge takes two Laplace posteriors, not a {type(one).__name__}.")
        refuse_unless_additive(one)
        if one.network.shift is not None:
            raise NotDefined("refined posteriors cannot be merged: merge the ones before, and refine the result.")
    if posterior.network.hash != other.network.hash:
        raise BadOption(
            "the two posteriors belong to networks with different weights; only fits of the same network can be merged."
        )
    _refuse_different_options(posterior, other)
    if noise_is_estimated(posterior) and noise_is_estimated(other):
        return _pooled(posterior, other.curvature)
    if posterior.likelihood != other.likelihood:
        raise BadOption(
            f"the likelihoods differ: {posterior.likelihood!r} and {other.likelihood!r}. Fit both with the same one."
        )
    return with_more(posterior, other.curvature)


def _refuse_different_options(posterior: Laplace, other: Laplace) -> None:
    for option in ("structure", "curvature", "sharing"):
        mine = getattr(posterior.curvature.options, option)
        theirs = getattr(other.curvature.options, option)
        if mine != theirs:
            raise BadOption(f"the two fits differ in {option}: {mine!r} and {theirs!r}.")


def noise_is_estimated(posterior: Laplace) -> bool:
    """Whether the noise is still the one estimated from the training residuals."""
    record = posterior.curvature.record
    likelihood = posterior.likelihood
    if not posterior.curvature.options.estimate_noise or not isinstance(likelihood, Gaussian):
        return False
    return record.noise is not None and likelihood.number == record.noise


def _pooled(posterior: Laplace, more: Curvature) -> Laplace:
    """Both curvatures, with the noise set to the root mean square of all residuals."""
    mine = posterior.curvature
    noise = ((mine.record.squares + more.record.squares) / (mine.record.targets + more.record.targets)) ** 0.5
    first = replace(posterior, curvature=mine.with_noise(noise), likelihood=Gaussian(noise))
    return with_more(first, more.with_noise(noise))


def with_more(posterior: Laplace, curvature: Curvature) -> Laplace:
    """The posterior with more curvature, decomposed again."""
    mine = posterior.curvature
    if (
        mine.record.noise is not None
        and curvature.record.noise is not None
        and mine.record.noise != curvature.record.noise
    ):
        curvature = curvature.with_noise(mine.record.noise)
    merged = mine.merged(curvature)
    prior = resolve_prior(posterior.prior.given(), merged.blocks, posterior.network, merged.signals)  # data-dependent
    return type(posterior).make(
        posterior.plan,
        merged,
        posterior.likelihood,
        prior,
        prior_mean=posterior.prior_mean,
        data_scale=posterior.data_scale,
        damping=posterior.damping,
        probe=posterior.probe,
    )
