"""Posteriors that are made from a Laplace posterior and the training data: without a structure, or refined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch

from whence.engine.contexts import full_precision
from whence.errors import explains_keywords
from whence.posteriors.base import WeightPosterior
from whence.predictive.predictions import P_co

if TYPE_CHECKING:
    from whence.posteriors.function_space import FunctionSpace
    from whence.posteriors.laplace.posterior import Laplace
    from whence.posteriors.unstructured import Unstructured


class FromTrainingData(WeightPosterior[P_co]):
    """The part of :class:`whence.Laplace` that makes them."""

    @full_precision()
    def unstructured(
        self,
        data: Any,
        *,
        num_samples: int = 16,
        tolerance: float = 1e-2,
        max_iterations: int = 200,
        preconditioner: Literal["prior", "structure"] = "prior",
        generator: torch.Generator | None = None,
        progress: bool = True,
    ) -> Unstructured:
        """Draws under the same prior, data scale and likelihood with the whole covariance: no structure is assumed.

        ``data`` are the training data, read once for each product with the curvature. Relative errors of the draws'
        outputs on them stay below ``tolerance``. See docs/unstructured.md.
        """
        from whence.posteriors.unstructured.front import unstructured

        return unstructured(
            cast("Laplace", self), data, num_samples, tolerance, max_iterations, preconditioner, generator, progress
        )

    @explains_keywords
    @full_precision()
    def refined(self, data: Any, *, tolerance: float = 0.01, max_steps: int = 50, progress: bool = True) -> Self:
        """The posterior at the optimum of the linearised model f*(x) + J(x) δ, fitted there.

        ``data`` are the training data, read once or twice for each product with the curvature; ``tolerance``: nats by
        which the loss may exceed its minimum, reached by Newton's method. Predictions are those of the linear model,
        their mean f*(x) + J(x) δ; :meth:`log_evidence` and :meth:`tune` without data use its loss and its weights
        θ* + δ. Calling it again starts at the present δ. See docs/function_space.md.
        """
        from whence.posteriors.laplace.refine import refined

        return cast("Self", refined(cast("Laplace", self), data, tolerance, max_steps, progress))

    @explains_keywords
    @full_precision()
    def function_space(
        self,
        data: Any,
        *,
        examples: int | None = None,
        generator: torch.Generator | None = None,
        progress: bool = True,
    ) -> FunctionSpace:
        """The Gaussian process that the linearised network is, given some training examples.

        Its kernel is J Δ⁻¹ Jᵀ. ``data`` are training data, of which ``examples`` are chosen at random (None: all); each
        stands for as many examples as were fitted for each of them. Given all of them, it is the posterior of
        ``structure="full"`` with the exact Gauss–Newton matrix. See docs/function_space.md.
        """
        from whence.posteriors.function_space.front import function_space

        return function_space(cast("Laplace", self), data, examples, generator, progress)
