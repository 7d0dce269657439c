"""One record of a tracked training: the posterior of the current network, without side effects on it.

Index legend: N inputs, C outputs, B blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.batches import PAIR_BATCH, Inputs, size_of, take
from whence.engine.files import digest_of_values
from whence.engine.randomness import Points
from whence.errors import NotDefined, WhenceError, notice
from whence.extras.tracking.records import TrackedLayer
from whence.extras.tracking.subset import Subset, as_before, refused_probe
from whence.functional import Network
from whence.linalg.structures import StructureKind
from whence.posteriors.base import WeightPosterior
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace
from whence.predictive import linearised
from whence.predictive.links import LINK_POINTS, OutputGaussian, predict_gaussian
from whence.predictive.predictions import Prediction
from whence.predictive.project import project
from whence.where.one_pass import shares
from whence.where.shares import BlockShares

TRIED = 8  # examples of the initial trial
DRAWS = 10  # label draws per example of a sampled record
EXACT_OUTPUTS = 20  # number of outputs up to which "auto" is exact
UNCERTAINTIES = ("entropy", "variance", "aleatoric", "epistemic")


class Tracker:
    """Fits the posterior of the current network, always on the same examples with the same draws."""

    def __init__(
        self,
        model: nn.Module,
        subset: Subset,
        probe: tuple[Inputs, Tensor | None],
        settings: dict[str, Any],
        seed: int,
    ) -> None:
        self.model, self.subset, self.settings, self.seed = model, subset, settings, seed
        self.inputs, self.targets = probe
        self.flat = True  # whether outputs are [N, C], so that shares on the probe are defined

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def header(self) -> dict[str, Any]:
        """The header of a file; it must be the same when a file is resumed."""
        options = {key: _as_json(value) for key, value in self.settings.items()}
        counts = {"subset": len(self.subset.targets), "probe": size_of(self.inputs) if self.flat else 0}
        numbers = self.subset.fingerprint() + Subset(self.inputs, torch.zeros(0), 0).fingerprint()
        return {
            "network": type(self.model).__name__,
            "options": {**options, **counts, "seed": self.seed},
            "fingerprint": digest_of_values(numbers)[:16],
        }

    def try_out(self, probe_given: bool) -> None:
        """Fit a few examples and measure two inputs, so that errors appear before the training."""
        with undisturbed(self.model, self.seed):
            self._choose_curvature()
            posterior = self._fit(self.subset.first(TRIED))
            posterior.where()
            shape = posterior.record.output_shape
            self.flat = len(shape) == 1
            if not self.flat:
                why = f"shares and uncertainties on a probe need outputs [N, C]; here one example has {list(shape)}"
                if probe_given:
                    raise NotDefined(f"{why}. Omit the probe: the layers' weights are still tracked.")
                notice(f"{why}, so only the layers' weights are tracked.")
                return
            few = take(self.inputs, slice(0, 2))
            try:
                with torch.no_grad():
                    posterior.network(few)
            except (RuntimeError, IndexError, WhenceError) as error:
                raise refused_probe(few, self.subset.inputs, error) from error
            probe_shares(posterior, few)
            plain_loss(posterior, few, None if self.targets is None else self.targets[:2])

    def _choose_curvature(self) -> None:
        """Resolve ``"auto"``."""
        if self.settings["curvature"] != "auto":
            return
        network = Network.snapshot(self.model)
        with torch.no_grad():
            outputs = network(self.subset.first(TRIED)[0])[0].numel()
        exact = outputs <= EXACT_OUTPUTS or self.settings["structure"] == StructureKind.LOWRANK
        self.settings["curvature"] = "ggn" if exact else "mc"
        if not exact:
            notice(
                f"the network has {outputs:,} outputs per example, so the curvature of a record is sampled "
                f"({self.settings['draws']} draws each; curvature='ggn' is exact and slower)."
            )

    def measure(self) -> dict[str, Any]:
        """The contents of a record, except its step and times."""
        with undisturbed(self.model, self.seed):
            posterior = self._fit((self.subset.inputs, self.subset.targets))
            rows = [asdict(row) for row in posterior.where().layers]
            found: dict[str, Any] = {}
            if self.flat:
                sums, found = probe_shares(posterior, self.inputs)
                found["probe_loss"] = plain_loss(posterior, self.inputs, self.targets)
                for name in ("variance_share", "prior_share", "explained"):
                    for row, value in zip(rows, getattr(sums, name).tolist(), strict=True):
                        row[name] = value
        names = [f.name for f in fields(TrackedLayer)]
        layers = tuple(TrackedLayer(**{name: row[name] for name in names}) for row in rows)
        record = posterior.record
        return {"layers": layers, "loss": record.loss / record.data_size, "accuracy": record.accuracy, **found}

    def _fit(self, data: tuple[Inputs, Tensor]) -> Laplace:
        settings, generator = self.settings, torch.Generator().manual_seed(self.seed)
        if settings["curvature"] != "mc" and settings["draws"] == DRAWS:  # the default, and nothing is drawn
            settings = {**settings, "draws": 1}
        return laplace(self.model, data, **settings, generator=generator, progress=False)


@contextmanager
def undisturbed(model: nn.Module, seed: int) -> Iterator[None]:
    """Restore the random state afterwards, and switch off automatic mixed precision inside."""
    device = next(model.parameters()).device
    with as_before(device, seed), torch.autocast(device.type, enabled=False):
        yield


def _as_json(value: Any) -> Any:
    """An option as JSON: numbers, names and lists of names unchanged, objects by their repr."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist() if value.numel() <= 1 else f"a tensor of shape {list(value.shape)}"
    return "a predicate" if callable(value) and not hasattr(value, "nll") else repr(value)


# The probe


@torch.inference_mode(False)
def probe_shares(posterior: Laplace, inputs: Inputs) -> tuple[BlockShares, dict[str, float | None]]:
    """Each layer's share of the variance, and mean uncertainties of the prediction, from one set of gradients.

    As in ``posterior.where(inputs)`` and ``posterior.predict(inputs)``; None for values that a task does not have.
    """
    size = size_of(inputs)
    if posterior.curvature.joint:
        prediction = posterior.predict(inputs, method="linearised")
        means = _sums(prediction, size)  # type: ignore[arg-type]
        return shares(posterior, inputs).over_inputs(), _divided(means, size)
    traces = torch.zeros(len(posterior.blocks), 2, dtype=torch.float64)
    totals: dict[str, float] = {}
    for piece in linearised.pieces(posterior, inputs):
        for cov, mean, found in linearised.fitting(posterior, partial(_moments, posterior), piece, "tracking"):
            traces += found
            points = Points(LINK_POINTS)
            prediction = predict_gaussian(posterior.likelihood, OutputGaussian(mean, cov, points))
            for name, value in _sums(prediction, len(mean)).items():
                totals[name] = totals.get(name, 0.0) + value
    return BlockShares(traces[:, 0], traces[:, 1]), _divided(totals, size)


def _moments(posterior: Laplace, piece: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Covariance [N, C, C] and mean [N, C] of the outputs, and Σₓ tr V by block, posterior and prior [B, 2]."""
    mean, grads = linearised.differentiate(posterior, piece)
    centred = posterior.likelihood.shift_invariant
    total, found = None, []
    for gaussian, blocks in posterior.gaussians():
        projection = project(gaussian, blocks, grads, None)
        weights, alone = gaussian.weights()
        own = projection.weighted(weights, alone)
        prior = projection.weighted(alone.expand_as(weights), alone)
        total = own if total is None else total + own
        found.append(torch.stack([_trace(own, centred), _trace(prior, centred)]))
    assert total is not None
    return total, mean, torch.stack(found).cpu()


def _trace(cov: Tensor, centred: bool) -> Tensor:
    """Σₙ tr V, optionally of centred outputs."""
    trace = cov.diagonal(dim1=-2, dim2=-1).double().sum()
    return trace - cov.double().sum() / cov.shape[-1] if centred else trace


def _sums(prediction: Prediction, size: int) -> dict[str, float]:
    """Sums over the inputs of means over the outputs, of the prediction's uncertainties."""
    found = {name: getattr(prediction, name, None) for name in UNCERTAINTIES}
    return {n: float(v.double().mean()) * size for n, v in found.items() if v is not None}


def _divided(sums: dict[str, float], size: int) -> dict[str, Any]:
    return {name: sums[name] / size if name in sums else None for name in UNCERTAINTIES}


def plain_loss(posterior: WeightPosterior, inputs: Inputs, targets: Tensor | None) -> float | None:
    """Mean negative log likelihood of the network alone; None without targets."""
    if targets is None:
        return None
    network, likelihood = posterior.snapshots[0], posterior.likelihood
    with torch.no_grad():
        outputs = torch.cat([network(piece) for piece in network.pieces(inputs, PAIR_BATCH)])
        targets = targets.to(network.device)
        counted = likelihood.counts(targets)
        if counted is not None and len(counted) == len(outputs) and not bool(counted.all()):
            which = counted.nonzero().squeeze(1)
            outputs, targets = outputs[which], targets[which]
        checked = likelihood.check(outputs, targets)
        return float(likelihood.nll(outputs, checked).double().mean()) if len(outputs) else None
