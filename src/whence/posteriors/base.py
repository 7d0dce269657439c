"""What every posterior can be asked, whatever it was inferred by.

Audits, comparisons, figures and the command use only what is declared here. A posterior that cannot answer refuses
with ``NotDefined`` and the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs
from whence.errors import BadOption, NotDefined, explains_keywords
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.predictive.dispatch import Method
from whence.predictive.predictions import JointPrediction, P_co
from whence.predictive.sampled import FunctionDraws
from whence.predictive.serving import ServedModule
from whence.predictive.sources import Source
from whence.recording.blocks import Block, GradientSource, Param, owner_of
from whence.tables import SHORT, html, number
from whence.vocabulary import ATTRIBUTES

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace
    from whence.where.attribution import Attribution
    from whence.where.novelty import Reference
    from whence.where.where import Where


PERMUTED = (
    "the {members} have no common weight coordinates (units may be permuted), so there is no table of weights, units "
    "or shares; ask .activations."
)
COMPARED = 20  # draws whose layers are compared with each other


@dataclass(frozen=True)
class LayerStructure:
    """How a layer's covariance is kept, and why; one entry of ``posterior.structures``."""

    kind: str  # class of the module
    parameters: int
    structure: str
    reason: str = ""  # why it is not the one that was asked for; empty where it is
    memory: int = 0  # bytes of its sums and their decomposition, where it is a Laplace posterior


@dataclass(frozen=True)
class Summary:
    """A posterior in a few plain values, for tables and records; None where it has no such thing."""

    structure: str | None = None
    curvature: str | None = None
    prior_precision: float | None = None
    prior: str | None = None
    data_scale: float | None = None
    tuned_on: str = "nothing"
    log_evidence: float | None = None
    examples: float | None = None  # training inputs, and how well it fits them
    accuracy: float | None = None
    confidence: float | None = None


class Posterior(ABC, Generic[P_co]):
    """A distribution over functions; nothing that is asked of it changes it."""

    kind: ClassVar[str]  # in files
    over_weights: ClassVar[bool] = False  # whether weights have a mean and a variance
    at_trained_weights: ClassVar[bool] = True  # whether ``snapshots`` have the weights that were given
    has_curvature: ClassVar[bool] = False  # whether shares, novelty and evidence have closed forms
    probe: tuple[Inputs, Tensor] | None = None  # one training example, where it is kept
    reference: Reference | None = None  # inputs that novelty is measured relative to, from tuning

    if TYPE_CHECKING:  # fields or properties of every posterior

        @property
        def likelihood(self) -> Likelihood: ...

        @property
        def output_shape(self) -> tuple[int, ...] | None:
            """Of one example; None before any input was seen."""

        @property
        def default_draws(self) -> int:
            """Draws behind a sampled prediction."""

    if not TYPE_CHECKING:  # otherwise every attribute would pass

        def __getattr__(self, name: str) -> Any:
            """Say what an attribute of another library's posterior is called here."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raised NotDefined does so again
            hint = f": {ATTRIBUTES[name]}." if name in ATTRIBUTES else "."
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}{hint}")

    # What it is

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """The plain networks that a file belongs to: one, or the members of an ensemble."""

    @property
    @abstractmethod
    def snapshots(self) -> tuple[Network, ...]:
        """The networks that it predicts with: one, at the mean of the weights, or the members."""

    @abstractmethod
    def layers(self) -> dict[str, list[str]]:
        """Layer → its parameters that the posterior is over, in the network's order."""

    @property
    def structures(self) -> dict[str, LayerStructure]:
        """How the covariance of each layer is kept, and why."""
        return layer_structures(self.snapshots[0], self.layers(), lambda _: self.kind)

    def names(self) -> list[str]:
        """Parameters that the posterior is over, in the network's order."""
        chosen = {name for names in self.layers().values() for name in names}
        return [name for name in self.snapshots[0].params if name in chosen]

    @property
    def parameters(self) -> int:
        """Number of weights that the posterior is over."""
        params = self.snapshots[0].params
        return sum(params[name].numel() for name in self.names())

    @property
    def default_method(self) -> Literal["linearised", "sampled"]:
        """How it predicts unless asked otherwise."""
        return "sampled"

    @property
    def usual_method(self) -> Method:
        """``default_method`` as a member of the enum."""
        return Method(self.default_method)

    def summary(self) -> Summary:
        """In a few values."""
        return Summary()

    @abstractmethod
    def fingerprint(self) -> str:
        """Tells posteriors apart that read the same."""

    # What it answers

    @abstractmethod
    def predict(
        self,
        x: Any,
        *,
        method: Any = None,
        link: Any = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> P_co | JointPrediction:
        """The prediction for inputs or a loader; what a posterior cannot answer is refused with ``NotDefined``."""

    @abstractmethod
    def where(self, x: Any = None, *, measure: Any = "variance", probes: Any = "auto", at: Any = None) -> Where:
        """Where in the network the uncertainty is, as far as that has a meaning for this posterior."""

    @explains_keywords
    def attribute(
        self,
        x: Any,
        *,
        of: Literal["epistemic", "aleatoric", "total"] = "epistemic",
        method: Literal["integrated", "gradient"] = "integrated",
        baseline: Any = None,
        steps: int = 32,
        at: Any = None,
        to: Any = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Attribution:
        """Which pixels, columns or tokens of each input its uncertainty comes from, by gradients.

        ``"integrated"`` gradients add up to the uncertainty minus that of the ``baseline`` (zeros; a number, an input,
        or a token id); ``"gradient"`` is that at the input (for tokens times the embedding). ``at`` selects outputs, a
        pixel or a token; ``to`` one of several inputs. ``num_samples`` as in :meth:`predict`, whose
        usual method is used; ``generator`` seeds draws that are the same for every input and point of the path.
        """
        from whence.where.attribution import attribute

        return attribute(self, x, of, method, baseline, steps, at, to, num_samples, generator)

    @abstractmethod
    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> FunctionDraws:
        """Functions x → raw outputs."""

    @abstractmethod
    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        """Draws of the outputs, fixed once, whose average ``predict`` gives with the same options."""

    def comparable(self) -> list[nn.Module]:
        """Plain networks whose layers can be compared: the members of an ensemble, or some draws."""
        return self.draw(COMPARED, generator=torch.Generator().manual_seed(0)).modules()

    def as_laplace(self, what: str) -> Laplace[P_co]:
        """Itself, where it is a Laplace posterior; ``what`` needs one."""
        raise NotDefined(f"{what} needs the curvature of a Laplace posterior; this is a {type(self).__name__}.")

    def as_weights(self, what: str) -> WeightPosterior[P_co]:
        """Itself, where it is a posterior over weights; ``what`` needs one."""
        raise NotDefined(
            f"{what} needs a posterior over weights, and this is a {type(self).__name__}: {self.no_weights}"
        )

    # Weights

    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Parameter name → draws [S, *shape]."""
        raise NotDefined(self.no_weights)

    def mean(self) -> dict[str, Tensor]:
        """Parameter name → mean."""
        raise NotDefined(self.no_weights)

    def variance(self) -> dict[str, Tensor]:
        """Parameter name → marginal variance."""
        raise NotDefined(self.no_weights)

    def covariance(self) -> Tensor:
        """Dense, in the order of ``torch.nn.utils.parameters_to_vector``."""
        raise NotDefined(self.no_weights)

    def prior_variance(self) -> dict[str, Tensor]:
        """Parameter name → variance under the prior; refused where there is no Gaussian prior."""
        raise NotDefined(f"a {type(self).__name__} has no Gaussian prior over its weights.")

    @property
    def no_weights(self) -> str:
        """Why there is no distribution of weights; empty where there is one."""
        return ""

    # Keeping

    @explains_keywords
    def as_module(
        self,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        check: Any = None,
        defer: Any = None,
        novelty: Any = None,
    ) -> ServedModule:
        """A module of fixed draws that returns (mean, uncertainty, epistemic), for export.

        ``method``: ``"linearised"`` serves f(x) ± J(x) z along drawn directions z, ``"sampled"`` networks with drawn
        weights; None is how the posterior predicts. ``check``: inputs on which the module is compared with
        :meth:`predict`; the result is its ``difference`` (None: training inputs, where some are kept).
        ``defer``: a threshold of the uncertainty, or a rule that has one. ``novelty``: reference inputs that were not
        trained on, for a novelty score. See docs/serving.md.
        """
        from whence.posteriors.serving import as_module

        return as_module(self, num_samples, generator, method, check, defer, novelty)

    @abstractmethod
    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        """A module x → fixed draws of the raw outputs [S, N, …]; ``example`` has inputs to trace the network on."""

    @property
    def example(self) -> Inputs | None:
        """Some training inputs, where they are kept."""
        return None if self.probe is None else self.probe[0]

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write it to one safetensors file."""

    @abstractmethod
    def to(self, *args: Any, **kwargs: Any) -> Posterior[P_co]:
        """A copy on another device or in another floating-point type."""

    def _repr_html_(self) -> str:
        """For notebooks: the repr, and how each layer is kept."""
        kept = self.structures
        some = list(kept.items())[:SHORT]
        reasons = ["why"] * any(s.reason for _, s in some)
        rows = [[name, s.kind, s.structure, *[s.reason] * len(reasons), number(s.parameters)] for name, s in some]
        head = ["layer", "kind", "structure", *reasons, "weights"]
        return html(head, rows, repr(self), left=len(head) - 1, more=len(kept) - SHORT)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies go through the file format, beside the plain networks."""
        from whence.io import from_bytes, to_bytes

        return from_bytes, (to_bytes(self), self.networks(), self.likelihood)


class WeightPosterior(Posterior[P_co]):
    """A posterior over the weights of one network."""

    over_weights: ClassVar[bool] = True
    network: Network  # the snapshot, at the mean

    @property
    def snapshots(self) -> tuple[Network, ...]:
        return (self.network,)

    def as_weights(self, what: str) -> WeightPosterior[P_co]:
        return self

    @abstractmethod
    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Parameter name → draws [S, *shape]."""

    @abstractmethod
    def variance(self) -> dict[str, Tensor]:
        """Parameter name → marginal variance."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Dense, in the order of ``torch.nn.utils.parameters_to_vector``."""

    def mean(self) -> dict[str, Tensor]:
        shift = self.network.shift or {}
        values = {name: self.network.params[name].detach().clone() for name in self.names()}
        return {name: value + shift[name] if name in shift else value for name, value in values.items()}


def is_posterior(value: object) -> bool:
    return isinstance(value, Posterior)


def require_posterior(value: Any, what: str) -> Posterior:
    """What a user passed as a posterior."""
    if not isinstance(value, Posterior):
        fit = " Fit one: whence.laplace(model, data, likelihood=…)." if isinstance(value, nn.Module) else ""
        raise BadOption(f"{what} is a {type(value).__name__}, not a posterior.{fit}")
    return value


def by_owner(names: list[str]) -> dict[str, list[str]]:
    """Parameters by the module that holds them; one of the network itself stands alone."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return found


def layer_structures(network: Network, layers: dict[str, list[str]], structure: Any) -> dict[str, LayerStructure]:
    """One entry for each layer; ``structure`` gives that of a parameter."""
    modules = dict(network.module.named_modules())
    found = {}
    for layer, names in layers.items():
        kinds = ", ".join(dict.fromkeys(structure(name) for name in names))
        size = sum(network.params[name].numel() for name in names)
        found[layer] = LayerStructure(type(modules.get(layer, network.module)).__name__, size, kinds)
    return found


def layer_blocks(network: Network, names: Sequence[str]) -> list[Block]:
    """One block for each layer, in the network's order; a parameter of the network itself stands alone."""
    found = []
    for layer, own in by_owner(list(names)).items():
        kind = type(network.module.get_submodule(owner_of(own[0]))).__name__
        found.append(Block(layer, kind, params_of(network, own), GradientSource.EXAMPLE))
    return found


def joint_block(network: Network, names: Sequence[str]) -> Block:
    """Parameters ↔ vectors [..., P], by ``gather`` and ``scatter``."""
    return Block("all", type(network.module).__name__, params_of(network, names), GradientSource.EXAMPLE)


def params_of(network: Network, names: Sequence[str]) -> tuple[Param, ...]:
    return tuple(Param(n, tuple(network.params[n].shape)) for n in names)
