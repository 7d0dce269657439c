"""One record of a tracked training: the posterior of the network as it is, without disturbing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Inputs, size_of, take
from whence.engine.files import digest_of_values
from whence.errors import NotDefined, WhenceError, notice
from whence.functional import Network
from whence.posteriors.front import laplace
from whence.posteriors.laplace import Laplace
from whence.where.track_log import TrackedLayer
from whence.where.track_probe import look
from whence.where.track_subset import Sample, as_before, refuse_shape

TRIED = 8  # examples of the trial at the start
DRAWS = 10  # for each example of a sampled record
EXACT_OUTPUTS = 20  # "auto" sends one gradient backward for each output up to here, and draws beyond


class Recorder:
    """Fits the posterior of the network as it is, always on the same examples with the same draws."""

    def __init__(
        self,
        model: nn.Module,
        sample: Sample,
        probe: tuple[Inputs, Tensor | None],
        settings: dict[str, Any],
        seed: int,
    ) -> None:
        self.model, self.sample, self.settings, self.seed = model, sample, settings, seed
        self.inputs, self.targets = probe
        self.flat = True  # outputs are [N, C], and the probe can be looked at

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def header(self) -> dict[str, Any]:
        """What a file says of its records; one that is resumed must say the same."""
        shown = {key: _shown(value) for key, value in self.settings.items()}
        counts = {"subset": len(self.sample.targets), "probe": size_of(self.inputs) if self.flat else 0}
        numbers = self.sample.fingerprint() + Sample(self.inputs, torch.zeros(0), 0).fingerprint()
        return {
            "network": type(self.model).__name__,
            "options": {**shown, **counts, "seed": self.seed},
            "fingerprint": digest_of_values(numbers)[:16],
        }

    def try_out(self, given: bool) -> None:
        """Fit a few examples and look at two inputs, so that what cannot work is said before the training."""
        with _undisturbed(self.model, self.seed):
            self._choose_curvature()
            posterior = self._fit(self.sample.first(TRIED))
            posterior.where()
            shape = posterior.record.output_shape
            self.flat = len(shape) == 1
            if not self.flat:
                why = f"shares and uncertainties on a probe need outputs [N, C]; here one example has {list(shape)}"
                if given:
                    raise NotDefined(f"{why}. Leave the probe out: the layers' weights are tracked all the same.")
                notice(f"{why}, so only the layers' weights are tracked.")
                return
            few = take(self.inputs, slice(0, 2))
            try:
                with torch.no_grad():
                    posterior.network(few)
            except (RuntimeError, IndexError, WhenceError) as error:
                raise refuse_shape(few, self.sample.inputs, error) from error
            look(posterior, few, None if self.targets is None else self.targets[:2])

    def _choose_curvature(self) -> None:
        """Turn ``"auto"`` into a choice."""
        if self.settings["curvature"] != "auto":
            return
        network = Network.snapshot(self.model)
        with torch.no_grad():
            outputs = network(self.sample.first(TRIED)[0])[0].numel()
        exact = outputs <= EXACT_OUTPUTS or self.settings["structure"] == "lowrank"
        self.settings["curvature"] = "ggn" if exact else "mc"
        if not exact:
            notice(
                f"the network has {outputs} outputs for each example, so the curvature of a record is sampled "
                f"({self.settings['draws']} draws each; curvature='ggn' is exact and takes longer)."
            )

    def measure(self) -> dict[str, Any]:
        """What a record holds, but for its step and times."""
        with _undisturbed(self.model, self.seed):
            posterior = self._fit((self.sample.inputs, self.sample.targets))
            rows = [asdict(row) for row in posterior.where().layers]
            found: dict[str, Any] = {}
            if self.flat:
                seen = look(posterior, self.inputs, self.targets)
                rows = [row | asdict(share) for row, share in zip(rows, seen.shares, strict=True)]
                found = {**seen.uncertainty, "probe_loss": seen.loss}
        names = [f.name for f in fields(TrackedLayer)]
        layers = tuple(TrackedLayer(**{name: row[name] for name in names}) for row in rows)
        record = posterior.record
        return {"layers": layers, "loss": record.loss / record.data_size, "accuracy": record.accuracy, **found}

    def _fit(self, data: tuple[Inputs, Tensor]) -> Laplace:
        settings, generator = self.settings, torch.Generator().manual_seed(self.seed)
        if settings["curvature"] != "mc" and settings["draws"] == DRAWS:  # not asked for, and nothing is drawn
            settings = {**settings, "draws": 1}
        return laplace(self.model, data, **settings, generator=generator, progress=False)


@contextmanager
def _undisturbed(model: nn.Module, seed: int) -> Iterator[None]:
    """Outside, random numbers go on as if nothing had happened; inside, there is no automatic mixed precision."""
    device = next(model.parameters()).device
    with as_before(device, seed), torch.autocast(device.type, enabled=False):
        yield


def _shown(value: Any) -> Any:
    """An option as JSON: numbers, names and lists of names as they are, objects by what they print."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist() if value.numel() <= 1 else f"a tensor of shape {list(value.shape)}"
    return "a predicate" if callable(value) and not hasattr(value, "nll") else repr(value)
