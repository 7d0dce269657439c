"""Base class of posteriors that are defined by draws.

Index legend: S draws, N examples.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.engine.files import digest, digest_of_values
from whence.engine.follow import is_followed
from whence.errors import BadOption, NotDefined, explains_keywords
from whence.functional import weights_hash
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior
from whence.predictive.dispatch import Method
from whence.predictive.predictions import Prediction
from whence.predictive.serving import SERVED_DRAWS, Members
from whence.predictive.sources import Drawn, Source
from whence.recording.independence import failures_explained

if TYPE_CHECKING:
    from whence.where.where import Where


@dataclass(frozen=True)
class State:
    """The contents of a posterior's file that are specific to its class: plain values, and tensors by name."""

    meta: dict[str, Any]
    tensors: dict[str, Tensor]


class DrawnPosterior(Posterior):
    """Prediction, serving and saving for posteriors that have draws and no closed form."""

    default_draws: ClassVar[int] = 100  # type: ignore[misc]

    @explains_keywords
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
        draws, x = self.draw(count, generator=generator), self.snapshots[0].only_inputs(x)
        with (
            failures_explained(self.snapshots[0], x),
            torch.set_grad_enabled(is_followed(x)),
        ):
            return draws.predict(x)

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        self._refuse_closed_forms(method, None, False)
        return Members(self.draw(num_samples or SERVED_DRAWS, generator=generator).modules())

    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        self._refuse_closed_forms(method, None, False)
        draws = self.draw(num_samples or self.default_draws, generator=generator)
        return [Drawn(draws, self.snapshots[0])]

    def fingerprint(self) -> str:
        tensors = sorted(self.state().tensors.items())
        found = [*map(weights_hash, self.networks()), *(f"{name} {digest([tensor])}" for name, tensor in tensors)]
        return digest_of_values(found)[:12]

    def _refuse_closed_forms(self, method: Any, link: Any, joint: bool) -> None:
        """Refuse options that need a Gaussian over the outputs."""
        kind = type(self).__name__
        if method not in (None, Method.SAMPLED):
            raise NotDefined(f"method={method!r} is not available for a {kind}, which predicts by draws.")
        if link is not None:
            raise NotDefined(
                f"link={link!r} turns a Gaussian over the outputs into probabilities; a {kind} predicts by draws and "
                "averages their probabilities. Omit link."
            )
        if joint:
            raise NotDefined(
                f"joint=True gives one Gaussian over all inputs, which a {kind} does not have: it predicts by draws. "
                "draw() returns functions that you can call on all inputs together."
            )

    @explains_keywords
    def where(
        self,
        x: Any = None,
        *,
        measure: Literal["variance"] = "variance",
        probes: Literal["auto"] = "auto",
        at: None = None,
    ) -> Where:
        """Where the uncertainty is, as far as that has a meaning for this posterior."""
        asked = {"measure": (measure, "variance"), "probes": (probes, "auto"), "at": (at, None)}
        for name, (value, default) in asked.items():
            if value is default or value == default:
                continue
            raise NotDefined(
                f"{name}={value!r} needs the closed forms of a Laplace posterior; a {type(self).__name__} has "
                "shares of the variance, by draws."
            )
        return self._where(x)

    def _where(self, x: Any) -> Where:
        """By draws with one layer random and the others at the mean; posteriors not over weights override this."""
        from whence.where.sampled import where_weights

        return where_weights(self, x)

    @abstractmethod
    def state(self) -> State:
        """For :func:`whence.io.save`."""

    @classmethod
    @abstractmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> DrawnPosterior:
        """The inverse of :meth:`state`; the models have been checked to match."""

    def save(self, path: str | Path) -> None:
        from whence.io import save_drawn

        save_drawn(self, path)
