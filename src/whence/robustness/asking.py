"""Whatever predicts, as an averaged prediction with its draws settled once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from whence.errors import BadOption, NotDefined, one_of
from whence.functional import Network, full_precision
from whence.likelihoods import Categorical, Likelihood
from whence.posteriors.base import Posterior
from whence.posteriors.drawn import DrawnPosterior
from whence.posteriors.ensembles import Ensemble, LaplaceEnsemble, ensemble
from whence.posteriors.ensembles.posterior import EnsembleDraws
from whence.posteriors.laplace import Laplace
from whence.posteriors.unstructured import Unstructured
from whence.predictive.dispatch import LINK_POINTS, WEIGHT_DRAWS
from whence.randomness import Points, seed_from
from whence.robustness.averaged import Averaged
from whence.robustness.sources import Antithetic, Drawn, Linearised, Source


def averaged(
    posterior: Posterior | nn.Module,
    likelihood: Likelihood | str | None,
    method: str | None,
    num_samples: int | None,
    generator: torch.Generator | None,
) -> Averaged:
    """The prediction that ``posterior.predict`` gives with the same options; of a module its own."""
    with torch.inference_mode(False):
        found = _posterior(posterior, likelihood)
    labels = categorical(found.likelihood)
    if method is not None:
        one_of(method, ("linearised", "sampled"), "method")
    if num_samples is not None and not (isinstance(num_samples, int) and num_samples >= 1):
        raise BadOption(f"num_samples={num_samples!r} is not a positive whole number; leave it out for the default.")
    with torch.inference_mode(False), torch.no_grad(), full_precision():
        return Averaged(_sources(found, method, num_samples, generator), labels)


def _posterior(posterior: Any, likelihood: Any) -> Posterior:
    if isinstance(posterior, Posterior):
        if likelihood is not None:
            raise BadOption(f"a posterior has its likelihood ({posterior.likelihood!r}); leave likelihood out.")
        return posterior
    if not isinstance(posterior, nn.Module):
        raise BadOption(
            f"an attack needs a posterior, such as whence.laplace gives, or a torch.nn.Module, not a "
            f"{type(posterior).__name__}."
        )
    if likelihood is None:
        raise BadOption(f"a plain network ({type(posterior).__name__}) needs likelihood='classification'.")
    return ensemble([posterior], likelihood=likelihood)


def categorical(likelihood: Likelihood) -> Categorical:
    if isinstance(likelihood, Categorical):
        return likelihood
    hint = " Two classes can be had as two logits with Categorical()." if likelihood.task == "binary" else ""
    raise NotDefined(
        f"attacks move an input away from one class or towards another, so they need likelihood=Categorical(); "
        f"this posterior has {likelihood!r}.{hint}"
    )


def _sources(posterior: Any, method: str | None, count: int | None, generator: torch.Generator | None) -> list[Source]:
    if isinstance(posterior, Laplace):
        return [_laplace(posterior, method, count, generator)]
    if isinstance(posterior, LaplaceEnsemble) and method == "sampled":
        draws = posterior.draw(count or posterior.default_draws, generator=generator)
        return [Drawn(draws, posterior.members[0].network)]
    if isinstance(posterior, LaplaceEnsemble):
        pairs = zip(posterior.members, posterior.weights.tolist(), strict=True)
        return [_laplace(member, method, count, generator, share) for member, share in pairs if share > 0]
    if isinstance(posterior, Unstructured):
        return [_unstructured(posterior, method, count, generator)]
    if method == "linearised":
        raise NotDefined(f"method='linearised' is not there for a {type(posterior).__name__}, which predicts by draws.")
    if isinstance(posterior, Ensemble):
        return [_ensemble(posterior, count, generator)]
    default = posterior.default_draws if isinstance(posterior, DrawnPosterior) else WEIGHT_DRAWS
    draws = posterior.draw(count or default, generator=generator)
    return [Drawn(draws, _network(posterior))]


def _laplace(
    posterior: Laplace, method: str | None, count: int | None, generator: torch.Generator | None, share: float = 1.0
) -> Source:
    if (method or ("linearised" if len(posterior.record.output_shape) == 1 else "sampled")) == "linearised":
        seed = None if generator is None else seed_from(generator)
        return Linearised(posterior, Points(count or LINK_POINTS, seed), share)
    return Drawn(posterior.draw(count or WEIGHT_DRAWS, generator=generator), posterior.network, share=share)


def _unstructured(
    posterior: Unstructured, method: str | None, count: int | None, generator: torch.Generator | None
) -> Source:
    if method == "sampled":
        return Drawn(posterior.draw(count or len(posterior), generator=generator), posterior.network)
    return Antithetic(replace(posterior, deviations=posterior.chosen(count, generator)))


def _ensemble(posterior: Ensemble, count: int | None, generator: torch.Generator | None) -> Source:
    """Members that count; all together where they weigh the same."""
    draws, network = posterior.draw(count, generator=generator), posterior.members[0]
    if draws.weights is None:
        return Drawn(draws, network)
    pairs = [(m, w) for m, w in zip(draws.which, draws.weights.tolist(), strict=True) if w > 0]
    weights = torch.tensor([w for _, w in pairs], dtype=torch.float64)
    return Drawn(EnsembleDraws(posterior, [m for m, _ in pairs], None), network, weights)


def _network(posterior: Any) -> Network:
    network = getattr(posterior, "network", None)
    if not isinstance(network, Network):
        raise NotDefined(f"a {type(posterior).__name__} has no network that an attack could differentiate.")
    return network
