"""The variational posterior: a Gaussian over weights that maximises the ELBO."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.engine.batches import Inputs, to_device
from whence.errors import BadData, BadOption, NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import LayerStructure, Summary, by_owner, layer_blocks, layer_structures
from whence.posteriors.drawn import State
from whence.posteriors.gaussian import Covariance, GaussianPosterior
from whence.posteriors.laplace.covariance import refuse_dense
from whence.posteriors.variational.blocks import VariationalBlock
from whence.posteriors.variational.elbo import KlWeight
from whence.posteriors.variational.history import ElboEpoch, History
from whence.posteriors.variational.module import VariationalModule
from whence.posteriors.variational.parameters import Family
from whence.posteriors.variational.priors import ScaleMixture, WeightPrior
from whence.predictive.sampled import WeightDraws
from whence.priors import ByParameter
from whence.recording.blocks import Block
from whence.training.checkpoint import part_of, prefixed


@dataclass(frozen=True)
class Elbo:
    """An estimate of the evidence lower bound, with its Monte Carlo standard error."""

    value: float
    standard_error: float
    log_likelihood: float  # expected, summed over the data
    kl: float  # summed over the weights


@dataclass(frozen=True, eq=False)
class Variational(GaussianPosterior):
    """Made by :func:`whence.variational`, or by :meth:`of` from a module that you trained."""

    kind: ClassVar[str] = "variational"
    at_trained_weights: ClassVar[bool] = False

    network: Network  # at the mean
    origin: nn.Module  # the network as it was given
    parts: nn.ModuleList  # VariationalBlock modules, frozen
    likelihood: Likelihood
    prior: WeightPrior
    family: Family
    estimator: str
    kl_weight: KlWeight
    history: History
    best_epoch: int | None = None  # the epoch that early stopping returned to
    data_size: int | None = None
    output_shape: tuple[int, ...] | None = None  # of one example
    rank: int = 8
    l1: float = 0.0  # factor of Σ|μ| in the training, beside the bound
    probe: tuple[Inputs, Tensor] | None = field(default=None, repr=False)  # training examples; not in files

    @classmethod
    def of(
        cls,
        module: VariationalModule,
        likelihood: Likelihood,
        *,
        kl_weight: KlWeight | None = None,
        history: History | None = None,
        best_epoch: int | None = None,
        data_size: int | None = None,
        output_shape: tuple[int, ...] | None = None,
        l1: float = 0.0,
        probe: tuple[Inputs, Tensor] | None = None,
    ) -> Variational:
        """The current posterior of a trained :class:`VariationalModule`; later training does not change it."""
        if not isinstance(module, VariationalModule):
            raise BadData(f"Variational.of needs a VariationalModule, not a {type(module).__name__}.")
        if not isinstance(likelihood, Likelihood):
            raise BadOption(f"likelihood must be a whence.Likelihood, such as Categorical(), not {likelihood!r}.")
        for name, p in module.named_parameters():
            if not bool(torch.isfinite(p).all()):
                raise BadData(f"the variational parameter {name!r} contains NaN or infinite values.")
        parts = copy.deepcopy(module.blocks).requires_grad_(False)
        return cls(
            network=at_mean(module.model, parts),
            origin=copy_module(module.model),
            parts=parts,
            likelihood=likelihood,
            prior=module.prior,
            family=module.family,
            estimator=module.estimator,
            kl_weight=kl_weight or KlWeight(),
            history=history or History(),
            best_epoch=best_epoch,
            data_size=data_size,
            output_shape=output_shape,
            rank=module.rank,
            l1=l1,
            probe=probe,
        )

    # Description

    def _parts(self) -> Sequence[VariationalBlock]:
        return list(self.parts)  # type: ignore[arg-type]

    def names(self) -> list[str]:
        found = {n for part in self._parts() for n in part.names}
        return [n for n in self.network.params if n in found]

    def layers(self) -> dict[str, list[str]]:
        return by_owner(self.names())

    @property
    def blocks(self) -> list[Block]:
        """The Bayesian parameters by layer."""
        return layer_blocks(self.network, self.names())

    @property
    def structures(self) -> dict[str, LayerStructure]:
        found = {n: part.structure for part in self._parts() for n in part.names}
        return layer_structures(self.network, self.layers(), found.__getitem__)

    def summary(self) -> Summary:
        precision = None if isinstance(self.prior, ScaleMixture) else self.prior.given()
        return Summary(
            structure=self.family,
            prior_precision=precision if isinstance(precision, float) else None,
            prior=self.prior.describe(),
            examples=self.data_size,
        )

    @property
    def prior_precision(self) -> float | dict[str, float | Tensor]:
        """One number if all weights share it, else by parameter."""
        if isinstance(self.prior, ScaleMixture):
            raise NotDefined(f"a {self.prior.describe()} has no precision; see .prior.")
        return self.prior.given()  # type: ignore[no-any-return]

    def prior_variance(self) -> dict[str, Tensor]:
        if isinstance(self.prior, ScaleMixture):
            raise NotDefined(f"a {self.prior.describe()} prior is not Gaussian; see .prior.")
        return self.prior.variances(self.mean())

    @property
    def parameters(self) -> int:
        """Number of Bayesian weights."""
        return sum(part.size for part in self._parts())

    # Weights

    @torch.no_grad()
    def variance(self) -> dict[str, Tensor]:
        found = {n: v for part in self._parts() for n, v in part.variance().items()}
        return {n: found[n] for n in self.names()}

    def signal_to_noise(self) -> dict[str, Tensor]:
        """|μ| / σ of every weight: Blundell et al. (2015), section 5.1."""
        variance = self.variance()
        return {n: mean.abs() / variance[n].sqrt() for n, mean in self.mean().items()}

    @torch.no_grad()
    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        found: dict[str, Tensor] = {}
        for part in self._parts():
            found.update(part.sample(num_samples, generator))
        return {n: found[n] for n in self.names()}

    @torch.no_grad()
    def log_prob(self, values: dict[str, Tensor]) -> Tensor:
        """log q of draws by parameter, [S, *shape] each: [S]."""
        self._check_draws(values)
        return torch.stack([part.log_prob(values) for part in self._parts()]).sum(0)

    def _check_draws(self, values: Any) -> None:
        """Check for one tensor per Bayesian parameter, with the same number of draws."""
        if not isinstance(values, Mapping):
            raise BadData(f"log_prob needs draws by parameter name, as from sample(), not a {type(values).__name__}.")
        counts = set()
        for name in self.names():
            value, shape = values.get(name), list(self.network.params[name].shape)
            if not isinstance(value, Tensor):
                raise BadData(f"log_prob was given no tensor for {name!r}; pass draws as returned by sample().")
            given = list(value.shape)
            if value.dim() != len(shape) + 1 or given[1:] != shape:
                raise BadData(f"the draws of {name!r} have shape {given}; pass any number of draws of shape {shape}.")
            counts.add(len(value))
        if len(counts) > 1:
            raise BadData(f"the parameters have different numbers of draws: {sorted(counts)}.")

    @torch.no_grad()
    def parts_of_covariance(self) -> Covariance:
        found = [part.parts_of_covariance() for part in self._parts()]
        return Covariance(
            {n: v for each in found for n, v in each.variance.items()},
            tuple(pair for each in found for pair in each.pairs),
            {n: c for each in found for n, c in each.columns.items()},
        )

    @torch.no_grad()
    def covariance(self) -> Tensor:
        refuse_dense(self.parameters)
        total = torch.block_diag(*(part.covariance() for part in self._parts()))
        starts: dict[str, Tensor] = {}
        start = 0
        for part in self._parts():
            for p in part.params:
                starts[p.name] = torch.arange(start, start + p.numel, device=total.device)
                start += p.numel
        order = torch.cat([starts[n] for n in self.names()])
        return total[order][:, order]

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """Functions x → raw outputs, each with its own weights, shared across the batch."""
        return WeightDraws(self.network, self.sample(num_samples, generator), self.likelihood)

    # The bound

    @torch.no_grad()
    def kl(self, num_samples: int = 100, generator: torch.Generator | None = None) -> Tensor:
        """KL(q ‖ p) summed over weights: closed-form, or for a mixture the mean over ``num_samples`` draws."""
        return self._kl(num_samples, generator).mean()

    def _kl(self, count: int, generator: torch.Generator | None) -> Tensor:
        """The KL as one value, or one per draw."""
        if isinstance(self.prior, ScaleMixture):
            prior = self.prior
            return torch.stack([part.kl_by_draws(prior, count, generator) for part in self._parts()]).sum(0)
        return torch.stack([part.kl(self.prior) for part in self._parts()]).sum().reshape(1)

    @torch.no_grad()
    def elbo(self, data: Any, num_samples: int = 32, generator: torch.Generator | None = None) -> Elbo:
        """E_q[log p(D | w)] − KL(q ‖ p) by weight draws over all of ``data``, at temperature 1."""
        if num_samples < 2:
            raise BadOption(f"num_samples={num_samples}: a standard error needs at least 2 draws.")
        draws = self.draw(num_samples, generator)
        sums = torch.zeros(num_samples, dtype=torch.float64)
        for batch in self.network.read(data):
            for s, outputs in enumerate(draws.outputs(batch.inputs)):
                targets = self.likelihood.check(outputs, batch.targets, batch.index)
                sums[s] -= float(self.likelihood.nll(outputs, targets).double().sum())
        kls = self._kl(num_samples, generator).double().cpu()
        spread = sums.var() / num_samples + (kls.var() / len(kls) if len(kls) > 1 else 0.0)
        likelihood, kl = float(sums.mean()), float(kls.mean())
        return Elbo(likelihood - kl, math.sqrt(float(spread)), likelihood, kl)

    # Saving

    def networks(self) -> list[nn.Module]:
        return [self.origin]

    def state(self) -> State:
        given, parts = self.prior, self.parts.state_dict()
        prior = {"mixture": asdict(given)} if isinstance(given, ScaleMixture) else {"values": given.spec()}
        tensors = prefixed(parts=parts, prior={} if isinstance(given, ScaleMixture) else given.tensors())
        meta = {
            "names": self.names(),
            "family": self.family,
            "estimator": self.estimator,
            "rank": self.rank,
            "prior": prior,
            "kl_weight": asdict(self.kl_weight),
            "history": [asdict(row) for row in self.history],
            "best_epoch": self.best_epoch,
            "data_size": self.data_size,
            "output_shape": None if self.output_shape is None else list(self.output_shape),
            "l1": self.l1,
        }
        return State(meta, tensors)

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Variational:
        meta, tensors = state.meta, state.tensors
        estimator = meta["estimator"]
        with torch.random.fork_rng([]):
            module = VariationalModule(
                models[0], family=meta["family"], estimator=estimator, rank=meta["rank"], _names=meta["names"]
            )
        module.blocks.load_state_dict(part_of(tensors, "parts"))
        module.prior = _prior(meta["prior"], tensors)
        shape = meta["output_shape"]
        return cls.of(
            module,
            likelihood,
            kl_weight=KlWeight(**meta["kl_weight"]),
            history=History(tuple(ElboEpoch(**row) for row in meta["history"])),
            best_epoch=meta["best_epoch"],
            data_size=meta["data_size"],
            output_shape=None if shape is None else tuple(shape),
            l1=meta.get("l1", 0.0),  # not in files of older versions
        )

    def to(self, *args: Any, **kwargs: Any) -> Variational:
        """A copy on another device or in another floating-point dtype."""
        parts = copy.deepcopy(self.parts).to(*args, **kwargs)
        origin = copy_module(self.origin)
        network = at_mean(origin.to(*args, **kwargs), parts)
        probe = None if self.probe is None else to_device(self.probe, network.device, network.dtype)
        return replace(self, network=network, parts=parts, probe=probe)

    def __repr__(self) -> str:
        prior = self.prior.describe() if isinstance(self.prior, ScaleMixture) else f"precision {self.prior.describe()}"
        last = f"; {len(self.history)} epochs, ELBO {self.history[-1].elbo:.6g}" if len(self.history) else ""
        tempered = self.kl_weight.describe(self.history[-1].kl_weight if len(self.history) else None)
        cold = f"; {tempered}" if tempered else ""
        cold += f"; L1 penalty {self.l1:g} on the means" if self.l1 else ""
        return (
            f"Variational({self.family}, {self.estimator}; {self.parameters:,} weights in {len(self.layers())} layers; "
            f"{self.likelihood!r}; prior {prior}{last}{cold})"
        )


def at_mean(model: nn.Module, parts: nn.ModuleList) -> Network:
    """A copy of the network with the variational means as its weights; exactly those require gradients."""
    network = Network.snapshot(model)
    means: dict[str, Tensor] = {}
    for part in parts:
        means.update(part.mean())  # type: ignore[operator]
    network.overwrite(means)
    network.select(list(means))
    return network


def _prior(spec: dict[str, Any], tensors: dict[str, Tensor]) -> WeightPrior:
    if "mixture" in spec:
        return ScaleMixture(**spec["mixture"])
    return ByParameter({n: tensors[f"prior.{n}"] if v is None else v for n, v in spec["values"].items()})
