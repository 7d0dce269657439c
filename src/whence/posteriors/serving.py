"""The front door of serving: options become objects, and the module is compared with the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.batches import bare
from whence.engine.contexts import full_precision
from whence.errors import NotDefined, UnsupportedLayer, notice
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior, WeightPosterior
from whence.predictive.difference import difference
from whence.predictive.dispatch import Method, check_count
from whence.predictive.linearised_draws import LinearisedDraws, pairs_for
from whence.predictive.sampled import BATCH
from whence.predictive.serving import SERVED_DRAWS, Members, ServedModule, combined, threshold_of, with_more

ONE_TENSOR = "as_module() serves networks that take one tensor; use draw() for several inputs."


@full_precision()
@torch.inference_mode(False)
def as_module(
    posterior: Posterior,
    num_samples: int | None,
    generator: torch.Generator | None,
    method: str | None,
    check: Any,
    defer: Any,
    novelty: Any,
) -> ServedModule:
    """See :meth:`whence.Posterior.as_module`."""
    chosen = Method.parse(method or posterior.default_method, "method")
    check_count(num_samples)
    build, threshold = combined(posterior.likelihood), threshold_of(defer)
    given = bare(check)
    inputs = posterior.example if given is None else given
    if inputs is not None and given is None and not isinstance(inputs, Tensor):
        raise NotDefined(ONE_TENSOR)
    network = posterior.snapshots[0]
    example = None if inputs is None else next(_tensors(network, inputs))
    inner = build(_outputs(posterior, method is None, chosen, num_samples, generator, example))
    scored = None if novelty is None else _scored(posterior, novelty, example)
    module = with_more(inner, threshold, scored)
    module.requires_grad_(False).eval()
    if inputs is not None:
        repeatable = posterior.usual_method is Method.LINEARISED  # also without a generator
        own = None if repeatable else torch.Generator(network.device).manual_seed(0)
        predict = lambda x: posterior.predict(x, generator=own)  # noqa: E731
        module.difference = difference(module, _tensors(network, inputs), predict, threshold)
    return module


def _outputs(
    posterior: Posterior,
    by_default: bool,
    method: Method,
    num_samples: int | None,
    generator: torch.Generator | None,
    example: Tensor | None,
) -> nn.Module:
    """Draws of the outputs; weight draws where the linearised predictive is only the default and cannot be traced."""
    try:
        return posterior.served_outputs(method, num_samples, generator, example)
    except (UnsupportedLayer, NotDefined) as error:
        if not by_default or method is Method.SAMPLED:
            raise
        notice(
            f"weight draws are served instead of the linearised predictive: {error} Weight draws predict something "
            "else; module.difference says by how much."
        )
        return posterior.served_outputs(Method.SAMPLED, num_samples, generator, example)


def _tensors(network: Network, inputs: Any) -> Iterator[Tensor]:
    for piece in network.pieces(inputs, BATCH):
        if not isinstance(piece, Tensor):
            raise NotDefined(ONE_TENSOR)
        yield piece


def _scored(posterior: Posterior, novelty: Any, example: Tensor | None) -> nn.Module:
    from whence.where.served_novelty import served_novelty

    return served_novelty(posterior.as_laplace("a novelty score"), novelty, example)


def gaussian_outputs(
    posterior: WeightPosterior,
    deviations: Callable[[int, torch.Generator | None], dict[str, Tensor]],
    method: Method,
    num_samples: int | None,
    generator: torch.Generator | None,
    example: Tensor | None,
) -> nn.Module:
    """Draws of the outputs under a Gaussian over weights, from its draws minus the mean."""
    network = posterior.network
    if method is Method.SAMPLED:
        return Members(posterior.draw(num_samples or SERVED_DRAWS, generator=generator).modules())
    directions = deviations(pairs_for(num_samples), fixed(generator, network.device))
    return linearised_outputs(network, directions, posterior.likelihood, example)


def linearised_outputs(
    network: Network, directions: dict[str, Tensor], likelihood: Likelihood, example: Tensor | None
) -> nn.Module:
    """f(x) ± J(x) z along directions z, by the network's graph."""
    if example is None:
        raise NotDefined(
            "the linearised predictive is served by the network's graph, which is traced on example inputs, and this "
            "posterior keeps none; pass check=inputs (or method='sampled')."
        )
    return LinearisedDraws(network, directions, likelihood).module(example)


def fixed(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """The directions of a prediction, which are the same every time unless a generator is passed."""
    return torch.Generator(device).manual_seed(0) if generator is None else generator
