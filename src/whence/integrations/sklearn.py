"""scikit-learn estimators: a network, its Laplace posterior, and both tuned on a part of the training data.

Index legend: N examples, C classes, O targets.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from whence.auditing import Audit, audit
from whence.errors import Notice, need, one_of
from whence.likelihoods import Gaussian
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace
from whence.priors import RELATIVE, Relative
from whence.training.settings import Settings
from whence.training.supervised import train
from whence.zoo.networks.sequential import mlp

need("sklearn", "sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data  # noqa: E402

Array = np.ndarray[Any, Any]
Network = nn.Module | Callable[[int, int], nn.Module] | None
DTYPES = {"float64": torch.float64, "float32": torch.float32}
FEW = 10  # examples below which nothing is put aside for validation


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    network_: nn.Module
    posterior_: Laplace

    def __init__(
        self,
        network: Network = None,
        *,
        hidden: Sequence[int] = (64, 64),
        epochs: int = 200,
        batch_size: int = 32,
        lr: float = 3e-3,
        weight_decay: float = 0.0,
        patience: int | None = 20,
        validation_fraction: float = 0.2,
        structure: Literal["full", "block", "kron", "ekfac", "diag", "lowrank"] = "kron",
        prior_precision: float | Relative | None = None,
        standardise: bool = True,
        dtype: Literal["float64", "float32"] = "float64",
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.network = network
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.structure = structure
        self.prior_precision = prior_precision
        self.standardise = standardise
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    # Fitting

    def _fitted(self, inputs: Array, targets: Tensor, outputs: int, classes: Tensor | None) -> Self:
        """Train on some of the examples, and tune on the others."""
        one_of(self.dtype, DTYPES, "dtype")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._scales(inputs)
        x, targets = self._inputs(inputs, torch.float32), _as_float32(targets)
        held, kept = self._parts(len(x), classes, np.random.RandomState(seed))
        self.network_ = self._made(x, outputs, seed)
        settings = Settings(
            epochs=self.epochs, batch_size=min(self.batch_size, len(kept)), optimiser="adam", lr=self.lr,
            weight_decay=self.weight_decay, patience=self.patience if len(held) else None,
        )  # fmt: skip
        validation = (x[held], targets[held]) if len(held) else None
        options: dict[str, Any] = {"validation": validation, "seed": seed, "device": self.device, "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            self.history_ = train(self.network_, (x[kept], targets[kept]), settings, **options).history
            self.network_.to("cpu", self._dtype)
            x, targets = self._inputs(inputs), targets.to(self._dtype) if targets.is_floating_point() else targets
            self.posterior_ = self._posterior((x[kept], targets[kept]), (x[held], targets[held]) if len(held) else None)
        return self

    @property
    def _dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def _parts(self, count: int, classes: Tensor | None, random: np.random.RandomState) -> tuple[Array, Array]:
        """Indices for validation and for training; every class stays in the training part."""
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction={self.validation_fraction} must be at least 0 and below 1.")
        order = random.permutation(count)
        wanted = int(self.validation_fraction * count) if count >= FEW else 0
        if classes is None or not wanted:
            return order[:wanted], order[wanted:]
        left = np.bincount(classes.numpy())
        held: list[int] = []
        for index in order:
            if len(held) < wanted and left[classes[index]] > 1:
                left[classes[index]] -= 1
                held.append(index)
        return np.array(held, dtype=int), np.setdiff1d(order, held)

    def _made(self, x: Tensor, outputs: int, seed: int) -> nn.Module:
        if isinstance(self.network, nn.Module):
            return copy.deepcopy(self.network)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if self.network is not None:
                return self.network(x[0].numel(), outputs)
            return mlp(x[0].numel(), outputs, hidden=tuple(self.hidden))

    @abstractmethod
    def _posterior(self, data: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor] | None) -> Laplace:
        """Of the trained network."""

    def _laplace(self, data: Any, validation: Any, likelihood: Any) -> Laplace:
        generator = torch.Generator().manual_seed(0)
        return laplace(
            self.network_, data, likelihood=likelihood, structure=self.structure, validation=validation,
            prior_precision=RELATIVE if self.prior_precision is None else self.prior_precision, generator=generator,
            progress=False,
        )  # fmt: skip

    # Inputs

    def _scales(self, inputs: Array) -> None:
        spread = inputs.std(0) if self.standardise else np.ones_like(inputs[0])
        self.mean_ = inputs.mean(0) if self.standardise else np.zeros_like(inputs[0])
        self.scale_ = np.where(spread > 1e-12 * (1 + np.abs(self.mean_)), spread, 1.0)

    def _inputs(self, inputs: Array, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy((inputs - self.mean_) / self.scale_).to(dtype or self._dtype)

    def _checked(self, X: Any) -> Tensor:  # noqa: N803
        """Inputs of a prediction."""
        check_is_fitted(self, "posterior_")
        return self._inputs(validate_data(self, X, reset=False, dtype=np.float64, allow_nd=True))

    def where(self, X: Any = None) -> Any:  # noqa: N803
        """Where in the network the uncertainty is: :meth:`whence.Laplace.where`."""
        return self.posterior_.where(None if X is None else self._checked(X))

    def audit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        train: Any = None,
        validation: Any = None,
        ood: Any = None,
        **options: Any,
    ) -> Audit:
        """:func:`whence.audit` of the posterior, with inputs and targets as :meth:`fit` takes them.

        Args:
            X: inputs of the test data.
            y: their targets.
            train: the pair ``(X, y)`` that ``fit`` was given; some detectors of novel inputs need it.
            validation: a pair that ``fit`` has not seen, for deferral, prediction sets and the reference of novelty.
            ood: inputs that are unlike the training data.
            options: as for :func:`whence.audit`. Names of features are those of the data frame that ``fit`` was given.
        """
        pairs = {"test": (X, y), "train": train, "validation": validation}
        given: dict[str, Any] = {
            name: (self._checked(pair[0]), self._targets(pair[1])) for name, pair in pairs.items() if pair is not None
        }
        if hasattr(self, "feature_names_in_"):
            options = {"features": list(self.feature_names_in_)} | options
        novel = None if ood is None else self._checked(ood)
        return audit(self.posterior_, **given, ood=novel, **self._words(), **options)

    @abstractmethod
    def _targets(self, y: Any) -> Tensor:
        """Targets as the posterior has them."""

    @abstractmethod
    def _words(self) -> dict[str, Any]:
        """What an audit calls the outputs."""


class WhenceClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A network with a Laplace posterior, as a scikit-learn classifier.

    Args:
        network: a module, copied and trained further; a function ``(inputs, outputs) -> module``; None is a perceptron
            with ``hidden`` layers.
        hidden: widths of the hidden layers of that perceptron.
        epochs: at most so many; training stops ``patience`` epochs after the best validation loss.
        batch_size: of training.
        lr: learning rate of Adam.
        weight_decay: as in :class:`whence.zoo.Settings`.
        patience: None trains for all epochs.
        validation_fraction: of the training data; for early stopping, and to tune prior and data scale.
        structure: of the posterior, as for :func:`whence.laplace`.
        prior_precision: where tuning starts: a number, or ``whence.Relative(τ)``; None is ``Relative(1)``.
        standardise: whether inputs are brought to mean 0 and standard deviation 1.
        dtype: of the posterior and its predictions; training is in float32.
        device: to train on.
        random_state: of the split, the initial weights and the order of examples.

    Attributes: ``posterior_`` (a :class:`whence.Laplace`), ``network_``, ``classes_``, ``history_``.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train, fit the posterior and tune it."""
        X, y = validate_data(self, X, y, dtype=np.float64, allow_nd=True)  # noqa: N806
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least 2 classes; the data have {len(self.classes_)} class.")
        targets = torch.from_numpy(labels.astype(np.int64))
        return self._fitted(X, targets, len(self.classes_), targets)

    def _posterior(self, data: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor] | None) -> Laplace:
        return self._laplace(data, validation, "classification")

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Probabilities of the posterior predictive, [N, C]."""
        probs = self._prediction(X).probs.double()
        return (probs / probs.sum(1, keepdim=True)).numpy()

    def predict_log_proba(self, X: Any) -> Array:  # noqa: N803
        return np.log(np.clip(self.predict_proba(X), np.finfo(float).tiny, None))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Most probable classes, [N]."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def epistemic(self, X: Any) -> Array:  # noqa: N803
        """Mutual information between label and weights, in nats: what more data could remove, [N]."""
        return self._prediction(X).epistemic.double().numpy()

    def _targets(self, y: Any) -> Tensor:
        labels = np.asarray(y)
        places = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        if unknown := sorted(set(labels[self.classes_[places] != labels].tolist())):
            raise ValueError(
                f"y has labels that fit has not seen: {unknown[:5]}; it saw {self.classes_.tolist()[:20]}."
            )
        return torch.from_numpy(places.astype(np.int64))

    def _words(self) -> dict[str, Any]:
        return {"classes": [str(name) for name in self.classes_]}

    def _prediction(self, X: Any) -> Any:  # noqa: N803
        x = self._checked(X)
        return self.posterior_.predict(x)


class WhenceRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A network with a Laplace posterior, as a scikit-learn regressor; the options are those of the classifier.

    Targets are standardised for training. The noise is the root mean square of the residuals on the validation part.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train, fit the posterior and tune it."""
        wanted: dict[str, Any] = {"dtype": np.float64, "allow_nd": True, "multi_output": True, "y_numeric": True}
        X, y = validate_data(self, X, y, **wanted)  # noqa: N806
        self._flat = y.ndim == 1
        values = y.reshape(len(y), -1).astype(np.float64)
        spread = values.std(0)
        self.target_mean_, self.target_scale_ = values.mean(0), np.where(spread > 0, spread, 1.0)
        return self._fitted(X, self._targets(y).float(), values.shape[1], None)

    def _posterior(self, data: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor] | None) -> Laplace:
        x, y = data if validation is None else validation
        with torch.no_grad():
            squares = (self.network_.eval()(x) - y).square()
        noise = max(math.sqrt(float(squares.mean())), 1e-4)
        return self._laplace(data, validation, Gaussian(noise=noise))

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """Means, and with ``return_std`` the standard deviations, noise included."""
        prediction: Any = self._prediction(X)
        mean = self._scaled(prediction.mean, self.target_mean_)
        return (mean, self._scaled(prediction.variance.sqrt())) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:  # noqa: N803
        """Central interval of the predictive distribution: (low, high)."""
        low, high = self._prediction(X).interval(level)
        return self._scaled(low, self.target_mean_), self._scaled(high, self.target_mean_)

    def epistemic(self, X: Any) -> Array:  # noqa: N803
        """Standard deviation without the noise: what more data could remove."""
        return self._scaled(self._prediction(X).epistemic.sqrt())

    def _targets(self, y: Any) -> Tensor:
        values = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        return torch.from_numpy((values - self.target_mean_) / self.target_scale_)

    def _words(self) -> dict[str, Any]:
        return {"unit": "standard deviations of the training targets"}

    def _prediction(self, X: Any) -> Any:  # noqa: N803
        x = self._checked(X)
        return self.posterior_.predict(x)

    def _scaled(self, values: Tensor, shift: Any = 0.0) -> Array:
        found = values.double().numpy() * self.target_scale_ + shift
        return found[:, 0] if self._flat else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _as_float32(targets: Tensor) -> Tensor:
    return targets.float() if targets.is_floating_point() else targets
