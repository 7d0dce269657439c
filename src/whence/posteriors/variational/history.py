"""The record of a variational training: the bound, the weights of each layer, and uncertainties on a probe.

Index legend: S draws, P weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from whence.engine.randomness import derived_seed, preserved_random_state
from whence.errors import need
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import by_owner
from whence.posteriors.variational.module import VariationalModule
from whence.predictive.sampled import WeightDraws
from whence.tables import Table
from whence.training.loop import EpochRecord

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SORTED = 2**16  # entries of a layer that are sorted; of larger layers every k-th
PROBE_DRAWS = 16  # weight draws of the prediction on the probe


@dataclass(frozen=True)
class LayerQuantiles:
    """Quantiles of μ and σ over the weights of a layer, at the levels ``QUANTILES``."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class ElboEpoch(EpochRecord):
    """One epoch. ``nll`` is summed over the data set and ``kl`` over the weights; both are averaged over its steps."""

    epoch: int
    elbo: float  # −nll − kl, independent of the KL weight
    nll: float
    kl: float
    kl_weight: float
    lr: float
    validation: float | None  # mean negative log likelihood of the averaged prediction
    seconds: float = 0.0
    aleatoric: float | None = None  # means over the probe, at the end of the epoch
    epistemic: float | None = None
    layers: tuple[LayerQuantiles, ...] = ()  # at the end of the epoch

    def __post_init__(self) -> None:
        """Layers from a file are plain values."""
        layers: Any = self.layers
        read = [v if isinstance(v, LayerQuantiles) else LayerQuantiles(**v) for v in layers]
        exact = tuple(LayerQuantiles(v.name, tuple(v.mean), tuple(v.std)) for v in read)
        object.__setattr__(self, "layers", exact)

    def summary(self) -> str:
        checked = "" if self.validation is None else f", validation {self.validation:.4g}"
        return f"elbo {self.elbo:.5g}, kl {self.kl:.4g} × {self.kl_weight:.3g}{checked}"


@dataclass(frozen=True)
class History:
    """One record for each epoch."""

    rows: tuple[ElboEpoch, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ElboEpoch]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> ElboEpoch:
        return self.rows[index]

    def to_pandas(self) -> Any:
        """The records as a ``pandas.DataFrame``, one row for each epoch; ``layers`` has the quantiles."""
        columns = [f.name for f in fields(ElboEpoch) if f.name != "layers"]
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.rows], columns=columns)

    @property
    def layers(self) -> Table:
        """One row for each epoch and layer: quantiles of μ (``mean_q05`` …) and of σ (``std_q05`` …)."""
        pairs = [(row.epoch, layer) for row in self.rows for layer in row.layers]
        columns: dict[str, list[Any]] = {"epoch": [e for e, _ in pairs], "name": [layer.name for _, layer in pairs]}
        for what in ("mean", "std"):
            for i, level in enumerate(QUANTILES):
                columns[f"{what}_q{round(100 * level):02}"] = [getattr(layer, what)[i] for _, layer in pairs]
        return Table(columns)


@torch.no_grad()
def quantiles(module: VariationalModule) -> tuple[LayerQuantiles, ...]:
    """Of every layer; fixed entries (such as the padding row of an embedding) are left out."""
    means = module.mean()
    variances = {n: v for block in module.variational_blocks() for n, v in block.variance().items()}
    found = []
    for names in by_owner(module.names).values():
        mean = torch.cat([means[n].flatten() for n in names])
        std = torch.cat([variances[n].flatten() for n in names]).sqrt()
        free = std > 0
        found.append(torch.stack([_quantiles(values[free]) for values in (mean, std)]))
    values = torch.stack(found).double().tolist()
    pairs = zip(by_owner(module.names), values, strict=True)
    return tuple(LayerQuantiles(name, tuple(mean), tuple(std)) for name, (mean, std) in pairs)


def _quantiles(values: Tensor) -> Tensor:
    """Interpolated between neighbours, as ``torch.quantile``."""
    step = -(-len(values) // SORTED)
    return values[::step].quantile(values.new_tensor(QUANTILES))


@torch.no_grad()
def uncertainties(
    module: VariationalModule, probe: Any, likelihood: Likelihood, seed: int, draws: int = PROBE_DRAWS
) -> tuple[float | None, float | None]:
    """Mean aleatoric and epistemic uncertainty on the probe, by weight draws; None where a task does not have them."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "probe"))
    with preserved_random_state():
        functions = WeightDraws(Network(module.model), module.sample(draws, generator), likelihood)
        prediction = functions.predict(probe)
    found = [getattr(prediction, name, None) for name in ("aleatoric", "epistemic")]
    aleatoric, epistemic = (None if v is None else float(v.double().mean()) for v in found)
    return aleatoric, epistemic
