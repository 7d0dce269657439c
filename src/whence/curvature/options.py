"""Options of the curvature, and which of them can be combined."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from whence.engine.options import Execution, Option
from whence.errors import BadOption, notice
from whence.likelihoods import Likelihood
from whence.linalg.structures import StructureKind
from whence.recording.blocks import MAX_FACTOR

RANK = 64
AUTO_OUTPUTS = 100  # number of outputs up to which "auto" is exact


class CurvatureKind(Option):
    """Which matrix approximates the Hessian of the loss."""

    AUTO = "auto"
    GGN = "ggn"
    MC = "mc"
    EMPIRICAL = "empirical"
    KFRA = "kfra"
    HESSIAN = "hessian"

    @property
    def noise_power(self) -> int:
        """The power p in H ∝ 1/σᵖ for a Gaussian with noise σ."""
        return 4 if self is CurvatureKind.EMPIRICAL else 2


class Sharing(Option):
    """Form of the Kronecker factors for weights that are used at several positions."""

    EXPAND = "expand"
    REDUCE = "reduce"


_ALL = (CurvatureKind.GGN, CurvatureKind.MC, CurvatureKind.EMPIRICAL)
SUPPORTED: dict[StructureKind, tuple[CurvatureKind, ...]] = {
    StructureKind.FULL: (*_ALL, CurvatureKind.HESSIAN),
    StructureKind.BLOCK: (*_ALL, CurvatureKind.HESSIAN),
    StructureKind.DIAG: (*_ALL, CurvatureKind.HESSIAN),
    StructureKind.KRON: (*_ALL, CurvatureKind.KFRA),
    StructureKind.EKFAC: _ALL,
    StructureKind.LOWRANK: (CurvatureKind.GGN, CurvatureKind.EMPIRICAL),
}


@dataclass(frozen=True)
class LabelDraws:
    """Label draws of a sampled Fisher. They depend on the example's index in the data, not on its batch."""

    seed: int = 0
    count: int = 1


@dataclass(frozen=True)
class FitOptions:
    """How a curvature is computed."""

    structure: StructureKind = StructureKind.KRON
    curvature: CurvatureKind = CurvatureKind.AUTO
    sharing: Sharing = Sharing.EXPAND
    draws: LabelDraws = field(default_factory=LabelDraws)
    rank: int = RANK
    passes: int = 1
    data_size: float | None = None
    progress: bool = True
    estimate_noise: bool = False  # estimate a Gaussian's noise from the training residuals
    first: int = 0  # index of the first example, for its label draws
    max_factor: int = MAX_FACTOR  # rows above which only the diagonal of a Kronecker factor is kept
    execution: Execution = field(default_factory=Execution)

    @property
    def fused_attention(self) -> bool:
        """Whether attention may use fused kernels, which allow a single backward pass."""
        return self.curvature in (CurvatureKind.MC, CurvatureKind.EMPIRICAL) and self.draws.count == 1

    def to_dict(self) -> dict[str, Any]:
        """The options as they are saved to files."""
        values = {key: value for key, value in vars(self).items() if key not in ("draws", "execution")}
        draws = {"seed": self.draws.seed, "count": self.draws.count}
        return {**values, "draws": draws, "cuda_graphs": self.execution.cuda_graphs, "offload": self.execution.offload}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FitOptions:
        kinds = {"structure": StructureKind, "curvature": CurvatureKind, "sharing": Sharing}
        given = {**values, **{key: kind(values[key]) for key, kind in kinds.items()}}
        run = Execution(given.pop("offload", False), given.pop("cuda_graphs", True))
        return cls(**{**given, "draws": LabelDraws(**values["draws"]), "execution": run})

    def resolved(self, likelihood: Likelihood, outputs: Tensor) -> FitOptions:
        """Resolve ``curvature="auto"``, and check that curvature and structure can be combined."""
        curvature = self.curvature
        if curvature is CurvatureKind.AUTO:
            width = likelihood.flatten(outputs)[0].numel()
            exact = width <= AUTO_OUTPUTS or self.structure is StructureKind.LOWRANK
            curvature = CurvatureKind.GGN if exact else CurvatureKind.MC
            if not exact:
                notice(
                    f"the network has {width:,} outputs per example, so the curvature is the sampled Fisher "
                    f"({self.draws.count} label draw per example; curvature='ggn' is exact and slower)."
                )
        allowed = SUPPORTED[self.structure]
        if curvature not in allowed:
            fits = [s for s, c in SUPPORTED.items() if curvature in c]
            raise BadOption(
                f"structure={self.structure!r} cannot be combined with curvature={curvature!r}. It supports "
                f"{', '.join(map(repr, allowed))}; {curvature!r} supports {', '.join(map(repr, fits))}."
            )
        return replace(self, curvature=curvature)

    def draws_labels(self, likelihood: Likelihood) -> bool:
        """Whether labels are drawn; gives a notice if ``draws`` was set and has no effect."""
        if self.draws.count > 1 and self.curvature is not CurvatureKind.MC:
            own = f" (the likelihood has {likelihood.fisher_draws} of its own)" if likelihood.fisher_draws else ""
            notice(f"draws={self.draws.count} applies only to curvature='mc', not to {self.curvature!r}{own}.")
        return self.curvature is CurvatureKind.MC or bool(likelihood.fisher_draws)
