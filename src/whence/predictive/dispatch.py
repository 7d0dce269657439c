"""The front door of prediction: options checked once, pieces put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import tensors_in
from whence.errors import BadOption, NotDefined, one_of
from whence.predictive import linearised
from whence.predictive.links import LINKS, Link, predict_gaussian
from whence.predictive.predictions import JointPrediction, Prediction, _Lazy
from whence.randomness import Points, seed_from

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

LINK_POINTS = 256
WEIGHT_DRAWS = 100
KEEP_COVARIANCE = 64 * 2**20  # bytes of output covariance that a prediction keeps; beyond, it is computed again


@torch.inference_mode(False)
def predict(
    posterior: Laplace,
    x: Any,
    method: str | None,
    link: Link,
    num_samples: int | None,
    generator: torch.Generator | None,
    joint: bool,
) -> Prediction | JointPrediction:
    """See :meth:`whence.posteriors.laplace.Laplace.predict`."""
    one_of(link, LINKS, "link")
    if num_samples is not None and num_samples < 1:
        raise BadOption(f"num_samples={num_samples} is not positive.")
    if method is None:
        method = "linearised" if joint or len(posterior.record.output_shape) == 1 else "sampled"
    one_of(method, ("linearised", "sampled"), "method")
    if method == "sampled":
        if joint:
            raise BadOption("joint=True is for the linearised predictive; draws are joint by nature: see draw().")
        if link != "mc":
            raise BadOption(f"link={link!r} is for the linearised predictive; weight draws need no link.")
        draws = posterior.draw(num_samples or WEIGHT_DRAWS, generator=generator)
        wanted = any(t.requires_grad for t in tensors_in(x))
        with torch.set_grad_enabled(wanted):
            return draws.predict(x)
    if joint:
        return linearised.joint(posterior, x)
    seed = None if generator is None else seed_from(generator)
    return _linearised(posterior, x, link, Points(num_samples or LINK_POINTS, seed))


def _linearised(posterior: Laplace, x: Any, link: Link, points: Points) -> Prediction:
    found: list[Prediction] = []
    kept: list[Tensor] = []
    size = 0
    for piece in linearised.pieces(posterior, x):
        m = linearised.moments(posterior, piece)
        size += m.cov.numel() * m.cov.element_size()
        if size <= KEEP_COVARIANCE:
            kept.append(m.cov)
        found.append(predict_gaussian(posterior.likelihood, m.mean, m.cov, link, points, _replaced))

    def covariance() -> Tensor:
        if size <= KEEP_COVARIANCE:
            return torch.cat(kept)
        if not isinstance(x, (Tensor, tuple, Mapping)):
            raise NotDefined(
                f"the covariance of so many outputs ({size / 2**20:.0f} MiB) is not kept, and a loader cannot be "
                "relied on to give the same inputs again. Predict from a tensor, or batch by batch."
            )
        return torch.cat([linearised.moments(posterior, piece).cov for piece in linearised.pieces(posterior, x)])

    return joined(found, posterior, covariance, link, points)


def _replaced() -> Tensor:
    raise AssertionError("the covariance of a piece is asked of the whole")


def joined(parts: list[Prediction], posterior: Laplace, covariance: Any, link: Link, points: Points) -> Prediction:
    """Predictions of consecutive pieces as one."""
    first = parts[0]
    values: dict[str, Any] = {}
    for f in fields(first):
        value = getattr(first, f.name)
        if isinstance(value, Tensor):
            dim = 1 if f.name in ("samples", "noise_samples") else 0
            values[f.name] = torch.cat([getattr(p, f.name) for p in parts], dim=dim)
        elif f.name != "_lazy":
            values[f.name] = value
    if hasattr(first, "_lazy"):
        lazy: _Lazy = first._lazy
        samples = None
        if lazy.samples is not None:
            mean = values["logit_mean"]

            def samples() -> Tensor:
                again = predict_gaussian(posterior.likelihood, mean, covariance(), link, points, covariance)
                return again.samples  # type: ignore[union-attr, return-value]

        values["_lazy"] = _Lazy(covariance, samples, lazy.why_not)
    return type(first)(**values)
