"""Posteriors that are known by their draws: what they share.

Index legend: S draws, N examples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.batches import check_finite, tensors_in
from whence.curvature.jacobian import widened
from whence.errors import BadOption, NotDefined
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior
from whence.predictive.links import predict_draws
from whence.predictive.predictions import Prediction

if TYPE_CHECKING:
    from whence.where.others import Spread


class FunctionDraws(Sequence[Callable[[Any], Tensor]]):
    """A fixed set of functions x → raw outputs."""

    likelihood: Likelihood

    @abstractmethod
    def outputs(self, x: Any) -> Tensor:
        """Raw outputs of every draw, [S, N, …]."""

    @abstractmethod
    def modules(self) -> list[nn.Module]:
        """One plain network for each draw, in evaluation mode, for serving."""

    def predict(self, x: Any) -> Prediction:
        """Predict with exactly these draws."""
        outputs = widened(self.outputs(x))
        check_finite(outputs, "the outputs under the draws", 0)
        return predict_draws(self.likelihood, outputs)


@dataclass(frozen=True)
class State:
    """What a posterior's file holds beside what all files hold: plain values, and tensors by name."""

    meta: dict[str, Any]
    tensors: dict[str, Tensor]


class DrawnPosterior(Posterior):
    """Prediction, serving and saving for posteriors that have draws and no closed form."""

    kind: ClassVar[str]  # in files
    default_draws: ClassVar[int] = 100

    def predict(
        self,
        x: Any,
        *,
        method: Literal["sampled"] | None = None,
        link: None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction:
        """The prediction for inputs or a loader: an average over ``num_samples`` draws."""
        self._refuse_closed_forms(method, link, joint)
        count = self.default_draws if num_samples is None else num_samples
        if count < 1:
            raise BadOption(f"num_samples={count} is not positive.")
        draws: Any = self.draw(count, generator=generator)
        with torch.set_grad_enabled(any(t.requires_grad for t in tensors_in(x))):
            return draws.predict(x)  # type: ignore[no-any-return]

    def as_module(self, num_samples: int = 20, generator: torch.Generator | None = None) -> nn.Module:
        """A module of fixed draws that returns (mean, uncertainty, epistemic)."""
        from whence.predictive.serving import served

        draws: Any = self.draw(num_samples, generator=generator)
        return served(self.likelihood, draws.modules())

    def _refuse_closed_forms(self, method: Any, link: Any, joint: bool) -> None:
        """Of what is asked, that which needs a Gaussian over the outputs."""
        kind = type(self).__name__
        if method not in (None, "sampled"):
            raise NotDefined(f"method={method!r} is not there for a {kind}, which predicts by draws.")
        if link is not None:
            raise NotDefined(
                f"link={link!r} turns a Gaussian over the outputs into probabilities; a {kind} predicts by draws, and "
                "averages their probabilities. Leave link out."
            )
        if joint:
            raise NotDefined(
                f"joint=True gives one Gaussian over all inputs, which a {kind} does not have: it predicts by draws. "
                "draw() gives functions that can be asked for all inputs together."
            )

    def where(self, x: Any = None, *, measure: Literal["variance"] = "variance") -> Spread:
        """Where the uncertainty is, as far as that has a meaning for this posterior."""
        from whence.where.others import where

        if measure != "variance":
            raise NotDefined(
                f"measure={measure!r} needs the closed forms of a Laplace posterior; a {type(self).__name__} has "
                "shares of the variance, by draws."
            )
        return where(self, x)

    @abstractmethod
    def state(self) -> State:
        """For :func:`whence.io.save`."""

    @classmethod
    @abstractmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> DrawnPosterior:
        """The inverse of :meth:`state`; the models were checked to be those it was made from."""

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """The plain networks that a file belongs to: one, or the members of an ensemble."""

    def save(self, path: str | Path) -> None:
        from whence.io import save_drawn

        save_drawn(self, path)
