"""laplace-torch's common path, computed by whence: fit, marginal likelihood, tuning, predictions, samples.

``from whence.compat.laplace_torch import Laplace`` in place of ``from laplace import Laplace``. Like there, an object
is changed by ``fit`` and ``optimize_prior_precision``; ``.posterior`` is the :class:`whence.Laplace` inside, which
never changes. What has no equal here is refused with its whence equivalent. See docs/coming_from.md.

Index legend: N inputs, C outputs, S samples, P weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.options import Option
from whence.errors import BadOption, NotDefined, one_of
from whence.likelihoods import Gaussian
from whence.posteriors.laplace.evidence import best_precision
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace as Posterior
from whence.predictive.links import Link

STRUCTURES = ("full", "kron", "diag", "lowrank")
ELSEWHERE = {
    "gp": "posterior.function_space(data, examples=…)",
    "subnetwork": "whence.laplace(…, layers=whence.subnetwork(…), structure='full')",
    "reward_modeling": "a whence.Likelihood of your own",
}


class Task(Option):
    """``likelihood``."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"


class Subset(Option):
    """``subset_of_weights``."""

    LAST_LAYER = "last_layer"
    ALL = "all"


class Predictive(Option):
    """``pred_type``."""

    GLM = "glm"
    NN = "nn"


class TunedBy(Option):
    """``method`` of ``optimize_prior_precision``."""

    MARGLIK = "marglik"
    GRIDSEARCH = "gridsearch"


class PriorStructure(Option):
    """``prior_structure``; for one value per weight there is ``posterior.with_prior``."""

    SCALAR = "scalar"
    LAYERWISE = "layerwise"


class Laplace:
    """The object that ``laplace.Laplace(…)`` returns.

    Args:
        model: the trained network; copied by ``fit``, never changed.
        likelihood: ``"classification"`` or ``"regression"``.
        subset_of_weights: ``"last_layer"`` (there the default, and here) or ``"all"``.
        hessian_structure: ``"full"``, ``"kron"``, ``"diag"`` or ``"lowrank"``.
        sigma_noise: of regression.
        prior_precision: a number, or one for each layer as a tensor.
        prior_mean: of all weights.
        temperature: divides the curvature: whence's data scale is its inverse.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str,
        subset_of_weights: str = "last_layer",
        hessian_structure: str = "kron",
        *,
        sigma_noise: float | Tensor = 1.0,
        prior_precision: float | Tensor = 1.0,
        prior_mean: float = 0.0,
        temperature: float = 1.0,
        **others: Any,
    ) -> None:
        for given in (likelihood, subset_of_weights, hessian_structure):
            if str(given) in ELSEWHERE:
                raise NotDefined(f"{given!r} is not in this shim; in whence it is {ELSEWHERE[str(given)]}.")
        self.likelihood = Task.parse(str(likelihood), "likelihood")
        self.subset_of_weights = Subset.parse(str(subset_of_weights), "subset_of_weights")
        self.hessian_structure = one_of(str(hessian_structure), STRUCTURES, "hessian_structure")
        if others:
            raise BadOption(
                f"{', '.join(sorted(others))}: backends and their options have no part here; whence computes the "
                "Gauss–Newton matrix itself. Leave them out."
            )
        self.model, self.temperature, self.prior_mean = model, float(temperature), float(prior_mean)
        self._sigma_noise = float(sigma_noise)
        self._prior: float | Tensor = prior_precision
        self._posterior: Posterior | None = None

    # Fitting

    def fit(self, train_loader: Any, override: bool = True, progress_bar: bool = False) -> None:
        """Sum the curvature over the data; without ``override`` add it to what was fitted before."""
        if not override and self._posterior is not None:
            self._posterior = self._posterior.update(train_loader, progress=progress_bar)
            return
        likelihood: Any = "classification" if self._classifies else Gaussian(self._sigma_noise)
        options: dict[str, Any] = {
            "structure": self.hessian_structure,
            "curvature": "ggn",
            "layers": "last" if self.subset_of_weights is Subset.LAST_LAYER else None,
            "prior_precision": 1.0,
            "prior_mean": self.prior_mean,
        }
        found = laplace(self.model, train_loader, likelihood=likelihood, progress=progress_bar, **options)
        self._posterior = found.with_data_scale(1 / self.temperature)
        self.prior_precision = self._prior

    @property
    def _classifies(self) -> bool:
        return self.likelihood is Task.CLASSIFICATION

    @property
    def posterior(self) -> Posterior:
        """The posterior inside, for everything that laplace-torch does not have."""
        if self._posterior is None:
            raise BadOption("call fit(train_loader) first.")
        return self._posterior

    @property
    def prior_precision(self) -> float | Tensor:
        return self._prior

    @prior_precision.setter
    def prior_precision(self, value: float | Tensor) -> None:
        self._prior = value
        if self._posterior is not None:
            self._posterior = self._under(value)

    def _under(self, value: float | Tensor) -> Posterior:
        posterior = self.posterior
        flat = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        if len(flat) == 1:
            return posterior.with_prior(float(flat))
        names = [b.name for b in posterior.blocks]
        if len(flat) == len(names):
            return posterior.with_prior(dict(zip(names, flat.tolist(), strict=True)))
        raise BadOption(
            f"prior_precision has {len(flat)} values for {len(names)} layers; weight and bias of a layer have one "
            "here. For one value per weight use posterior.with_prior({parameter: tensor})."
        )

    @property
    def sigma_noise(self) -> Tensor:
        found = self._sigma_noise
        if self._posterior is not None and isinstance(self._posterior.likelihood, Gaussian):
            found = float(self._posterior.likelihood.noise)
        return torch.tensor(found)

    @property
    def n_data(self) -> int:
        return round(self.posterior.record.data_size)

    @property
    def n_params(self) -> int:
        return self.posterior.parameters

    @property
    def n_outputs(self) -> int:
        return math.prod(self.posterior.record.output_shape)

    @property
    def mean(self) -> Tensor:
        """The trained weights, [P]."""
        return torch.cat([v.flatten() for v in self.posterior.mean().values()])

    @property
    def posterior_covariance(self) -> Tensor:
        """Dense, [P, P]."""
        return self.posterior.covariance()

    # Marginal likelihood and tuning

    def log_marginal_likelihood(
        self, prior_precision: float | Tensor | None = None, sigma_noise: float | Tensor | None = None
    ) -> Tensor:
        """Under the present hyperparameters, or others; those that are passed are kept, as in laplace-torch."""
        if sigma_noise is not None:
            if self._classifies:
                raise BadOption("sigma_noise is for regression.")
            self._sigma_noise = float(sigma_noise)
            self._posterior = self.posterior.with_noise(self._sigma_noise)
        if prior_precision is not None:
            self.prior_precision = prior_precision
        return self.posterior.log_evidence()

    def optimize_prior_precision(
        self,
        pred_type: str = "glm",
        method: str = "marglik",
        *,
        prior_structure: str = "scalar",
        val_loader: Any = None,
        progress_bar: bool = False,
        **others: Any,
    ) -> None:
        """By the marginal likelihood, or with ``method="gridsearch"`` by the log loss on validation data.

        whence searches as finely as it needs; ``n_steps``, ``lr``, ``grid_size`` and bounds are not taken.
        """
        if others:
            raise BadOption(f"{', '.join(sorted(others))}: whence chooses its own steps. Leave them out.")
        per_layer = PriorStructure.parse(str(prior_structure), "prior_structure") is PriorStructure.LAYERWISE
        if not per_layer and self.posterior.prior.number is None:
            self.prior_precision = 1.0  # one number, whatever it was before
        if TunedBy.parse(str(method), "method") is TunedBy.MARGLIK:
            tuned = best_precision(self.posterior, per_layer)
        elif val_loader is None:
            raise BadOption("method='gridsearch' needs val_loader=….")
        else:
            by: Any = "sampled" if _by_weights(pred_type) else "linearised"
            tuned = self.posterior.tune(
                val_loader, per_layer=per_layer, method=by, data_scale=False, progress=progress_bar
            )
        self._posterior = tuned
        given = tuned.prior_precision
        self._prior = given if isinstance(given, float) else self._by_layer(tuned)

    def _by_layer(self, posterior: Posterior) -> Tensor:
        values = [float(posterior.prior.flat(list(b.params))[0]) for b in posterior.blocks]
        return torch.tensor(values)

    # Predictions

    def __call__(
        self,
        x: Any,
        pred_type: str = "glm",
        joint: bool = False,
        link_approx: str = "probit",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Probabilities [N, C]; for regression means [N, C] and variances of the outputs [N, C, C], without noise."""
        if diagonal_output:
            raise NotDefined("diagonal_output: whence takes the whole covariance of the outputs.")
        sampled, posterior = _by_weights(pred_type), self.posterior
        if self._classifies:
            link = Link.parse(str(link_approx), "link_approx")
            drawn: dict[str, Any] = {"num_samples": n_samples, "generator": generator}
            how = {"method": "sampled", **drawn} if sampled else {"link": link, **(drawn if link is Link.MC else {})}
            prediction: Any = posterior.predict(x, **how)
            return prediction.probs
        if joint:
            found = posterior.predict(x, joint=True)
            return found.mean.flatten(), found.covariance
        if sampled:
            outputs = posterior.draw(n_samples, generator=generator).outputs(x)
            return outputs.mean(0), outputs.var(0)
        prediction = posterior.predict(x)
        return prediction.mean, prediction.covariance

    def predictive_samples(
        self, x: Any, pred_type: str = "glm", n_samples: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        """Outputs of regressions, probabilities of classifications, [S, N, C]."""
        posterior = self.posterior
        if _by_weights(pred_type):
            outputs = posterior.draw(n_samples, generator=generator).outputs(x)
        else:
            joint = self._moments(x)
            noise = torch.randn(n_samples, *joint[0].shape, generator=generator).to(joint[0])
            outputs = joint[0] + torch.einsum("ncd,snd->snc", joint[1], noise)
        return outputs.softmax(-1) if self._classifies else outputs

    def _moments(self, x: Any) -> tuple[Tensor, Tensor]:
        """Mean of the outputs, and a root of their covariance."""
        from whence.linalg.dense import psd_root

        found: Any = self.posterior.predict(x)
        if self._classifies:
            return found.logit_mean, psd_root(found.logit_cov)
        return found.mean, psd_root(found.covariance)

    def sample(self, n_samples: int = 100, generator: torch.Generator | None = None) -> Tensor:
        """Weights, [S, P]."""
        drawn = self.posterior.sample(n_samples, generator=generator)
        return torch.cat([v.flatten(1) for v in drawn.values()], 1)

    def __repr__(self) -> str:
        inside = "not fitted" if self._posterior is None else repr(self._posterior)
        return f"whence.compat.laplace_torch.Laplace({inside})"


def _by_weights(pred_type: str) -> bool:
    return Predictive.parse(str(pred_type), "pred_type") is Predictive.NN
