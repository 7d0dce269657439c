"""What an audit asks of any posterior, whatever it was inferred by."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from whence.auditing.plain import cleaned, number
from whence.errors import WhenceError
from whence.functional import Network
from whence.posteriors.laplace import Laplace

TUNED = {"evidence": "evidence", "validation": "validation data"}


@dataclass(frozen=True)
class Subject:
    """A posterior, and the networks behind it."""

    posterior: Any

    @property
    def laplace(self) -> bool:
        """Whether shares, novelty and pruning have their closed forms."""
        return isinstance(self.posterior, Laplace)

    @functools.cached_property
    def networks(self) -> list[Network]:
        own = getattr(self.posterior, "network", None)
        return [own] if isinstance(own, Network) else [Network(module) for module in self.posterior.networks()]

    @property
    def network(self) -> Network:
        """The plain one that the posterior is held against; of an ensemble its first member."""
        return self.networks[0]

    @property
    def kind(self) -> str:
        return type(self.network.module).__name__

    @property
    def parameters(self) -> int:
        return sum(p.numel() for network in self.networks for p in network.params.values())

    @property
    def bayesian(self) -> int:
        """Weights that the posterior is over."""
        if self.laplace:
            return int(self.posterior.parameters)
        if hasattr(self.posterior, "names"):
            return sum(self.network.params[name].numel() for name in self.posterior.names())
        return self.parameters

    @property
    def layers(self) -> int:
        if self.laplace:
            return len(self.posterior.blocks)
        return len(self.posterior.layers()) if hasattr(self.posterior, "layers") else 0

    @property
    def dense(self) -> bool:
        """Whether Laplace's prediction must be by draws, outputs being more than a vector."""
        return self.laplace and len(self.posterior.record.output_shape) != 1

    @property
    def examples(self) -> int | None:
        """Training inputs behind it, where it knows."""
        return int(self.posterior.record.data_size) if self.laplace else None

    def structure(self, layer: str) -> str:
        """How the covariance of a layer is kept."""
        return str(self.posterior.structures[layer].structure) if self.laplace else type(self.posterior).__name__

    def structures(self) -> list[dict[str, Any]]:
        if not self.laplace:
            return []
        return [
            {"name": n, "kind": s.kind, "parameters": s.parameters, "structure": s.structure, "reason": s.reason}
            for n, s in self.posterior.structures.items()
        ]

    def describe(self) -> dict[str, Any]:
        """The posterior in a few values."""
        precision = getattr(self.posterior, "prior_precision", None)
        found: dict[str, Any] = {
            "kind": type(self.posterior).__name__,
            "describe": " ".join(repr(self.posterior).split())[:300],
            "structure": None,
            "curvature": None,
            "prior_precision": number(precision) if isinstance(precision, float) else None,
            "prior": None,
            "data_scale": None,
            "tuned_on": "nothing",
            "log_evidence": None,
            "training": None,
        }
        return found | (self._of_laplace() if self.laplace else {})

    def _of_laplace(self) -> dict[str, Any]:
        posterior = self.posterior
        try:
            evidence = number(posterior.log_evidence())
        except WhenceError:
            evidence = None
        options, record = posterior.curvature.options, posterior.record
        return {
            "structure": options.structure,
            "curvature": options.curvature,
            "prior": posterior.prior.describe(),
            "data_scale": number(posterior.data_scale),
            "tuned_on": "nothing" if posterior.tuning is None else TUNED[posterior.tuning.criterion],
            "log_evidence": evidence,
            "training": cleaned(
                {"examples": record.data_size, "accuracy": record.accuracy, "confidence": record.mean_confidence}
            ),
        }

    def not_covered(self) -> list[str]:
        """Weights outside the posterior, and what the numbers do not speak of."""
        found = []
        chosen = {p.name for b in self.posterior.blocks for p in b.params} if self.laplace else self._names()
        outside = {n: p.numel() for n, p in self.network.params.items() if n not in chosen}
        if outside:
            names = ", ".join(list(outside)[:4]) + (f" and {len(outside) - 4} more" if len(outside) > 4 else "")
            found.append(f"{sum(outside.values()):,} of {self.parameters:,} weights are not Bayesian: {names}.")
        if self.laplace:
            slow = [n for n, s in self.posterior.structures.items() if s.structure == "diag" and s.reason]
            if slow:
                found.append(f"Correlations between the weights of {', '.join(slow[:4])} are not kept.")
            if not self.posterior.curvature.joint:
                found.append("Correlations between layers are not kept.")
        found.append(
            "Uncertainty about the architecture, the training procedure and the data themselves is not covered."
        )
        return found

    def _names(self) -> set[str]:
        return set(self.posterior.names()) if hasattr(self.posterior, "names") else set(self.network.params)
