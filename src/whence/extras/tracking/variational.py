"""One record of a variational training: the posterior that is being trained, without side effects on it."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from whence.curvature.result import FitRecord
from whence.engine.batches import PAIR_BATCH, Inputs, size_of, take
from whence.engine.files import digest_of_values
from whence.errors import BadOption, NotDefined, WhenceError
from whence.extras.tracking.measure import UNCERTAINTIES, plain_loss, undisturbed
from whence.extras.tracking.records import TrackedLayer
from whence.extras.tracking.subset import Subset, refused_probe
from whence.likelihoods import Likelihood
from whence.posteriors.variational import Variational, VariationalModule

TRIED = 8  # examples of the initial trial


def refuse_unused(given: dict[str, Any], plain: dict[str, Any]) -> None:
    """Refuse options of the Laplace posterior that differ from their default."""
    for name, value in given.items():
        if value is not plain[name] and value != plain[name]:
            raise BadOption(
                f"{name}={value!r} concerns the Laplace posterior of a plain network; a VariationalModule is tracked "
                "by its own posterior. Omit it."
            )


class VariationalTracker:
    """Describes a :class:`whence.VariationalModule` in training, with the same draws at every record."""

    def __init__(
        self,
        module: VariationalModule,
        subset: Subset,
        probe: tuple[Inputs, Tensor | None],
        likelihood: Likelihood,
        seed: int,
    ) -> None:
        self.module, self.subset, self.likelihood, self.seed = module, subset, likelihood, seed
        self.inputs, self.targets = probe

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def header(self) -> dict[str, Any]:
        """The header of a file; it must be the same when a file is resumed."""
        module = self.module
        options = {"family": module.family.value, "estimator": module.estimator, "likelihood": repr(self.likelihood)}
        counts = {"data_size": self.subset.size, "subset": len(self.subset.targets), "probe": size_of(self.inputs)}
        numbers = self.subset.fingerprint() + Subset(self.inputs, torch.zeros(0), 0).fingerprint()
        return {
            "network": f"{type(module.model).__name__}, variational",
            "options": {**options, **counts, "seed": self.seed},
            "fingerprint": digest_of_values(numbers)[:16],
        }

    def try_out(self, probe_given: bool) -> None:
        """Measure two inputs, so that errors appear before the training."""
        with undisturbed(self.module, self.seed):
            posterior, few = self._posterior(), take(self.inputs, slice(0, 2))
            try:
                with torch.no_grad():
                    outputs = posterior.network(few)
            except (RuntimeError, IndexError, WhenceError) as error:
                raise refused_probe(few, self.subset.inputs, error) from error
            if outputs.dim() != 2:
                raise NotDefined(
                    f"tracking needs outputs [N, C]; here one example has {list(outputs.shape[1:])}. The history of "
                    "whence.variational has the weights of every layer, and with probe= the uncertainties."
                )
            posterior.predict(few, num_samples=2)
            self._plain(posterior, *self.subset.first(TRIED))

    def measure(self) -> dict[str, Any]:
        """The contents of a record, except its step and times."""
        with undisturbed(self.module, self.seed):
            posterior = self._posterior()
            rows = [asdict(row) for row in posterior.where(self.inputs).layers]
            prediction = posterior.predict(self.inputs)
            found = {name: getattr(prediction, name, None) for name in UNCERTAINTIES}
            means = {name: None if v is None else float(v.double().mean()) for name, v in found.items()}
            loss, accuracy = self._plain(posterior, self.subset.inputs, self.subset.targets)
            probe_loss = plain_loss(posterior, self.inputs, self.targets)
        names = [f.name for f in fields(TrackedLayer)]
        layers = tuple(TrackedLayer(**{name: row[name] for name in names}) for row in rows)
        return {"layers": layers, "loss": loss, "accuracy": accuracy, "probe_loss": probe_loss, **means}

    def _posterior(self) -> Variational:
        return Variational.of(self.module, self.likelihood, data_size=self.subset.size)

    def _plain(self, posterior: Variational, inputs: Inputs, targets: Tensor) -> tuple[float | None, float | None]:
        """Mean negative log likelihood, and accuracy where there are labels, of the network at the mean."""
        network, likelihood = posterior.network, posterior.likelihood
        with torch.no_grad():
            outputs = torch.cat([network(piece) for piece in network.pieces(inputs, PAIR_BATCH)])
            sums = likelihood.quality(outputs, likelihood.check(outputs, targets.to(network.device)))
        found: dict[str, Any] = {name: float(value) for name, value in sums.items()}
        accuracy = FitRecord(**found).accuracy
        return plain_loss(posterior, inputs, targets), accuracy
