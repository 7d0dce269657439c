"""A Laplace posterior around each member of an ensemble, weighted by evidence (MacKay 1992; Ritter et al. 2018, §6).

Index legend: M members, S draws, N examples.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, check_finite
from whence.engine.files import digest_of_values, read_tensors, write_tensors
from whence.engine.follow import is_followed
from whence.engine.options import Option
from whence.errors import BadOption, explains_keywords, notice, one_of
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood, LikelihoodName
from whence.linalg.dense import widened
from whence.posteriors.drawn import State
from whence.posteriors.ensembles.mixture import allotted, check_weights, mixture
from whence.posteriors.ensembles.posterior import MemberPosterior, check_output_shapes, members_of
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace
from whence.predictive.dispatch import Method
from whence.predictive.linearised_draws import pairs_for
from whence.predictive.links import LinkName, predict_draws
from whence.predictive.predictions import Prediction
from whence.predictive.sampled import FunctionDraws, WeightDraws
from whence.predictive.serving import Joined
from whence.predictive.sources import Source
from whence.priors import Relative
from whence.training.checkpoint import part_of


class Weighting(Option):
    """Where the weights of the members come from."""

    EVIDENCE = "evidence"
    EQUAL = "equal"
    GIVEN = "given"

    @classmethod
    def asked(cls, weights: str) -> Weighting:
        """What a caller may ask for by name."""
        return cls(one_of(weights, (cls.EVIDENCE.value, cls.EQUAL.value), "weights"))


WEIGHTS = 8  # of members that a repr shows
ALONE = 0.99  # weight above which a notice says that one member dominates


@explains_keywords
def laplace_ensemble(
    models: Any,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    weights: Literal["evidence", "equal"] = "evidence",
    **options: Any,
) -> LaplaceEnsemble:
    """A mixture of Laplace posteriors, one around each network.

    Args:
        models: trained networks, also of different architectures, or an :class:`Ensemble`.
        data: the training data; read once for each network.
        likelihood: as for :func:`whence.laplace`; with ``"regression"`` each member has the noise of its residuals.
        weights: ``"evidence"``, each member by its Laplace evidence p(D | M); or ``"equal"``.
        **options: as for :func:`whence.laplace`. With ``weights="evidence"`` the prior is isotropic (1.0 unless given):
            the evidence under a relative one cannot be compared between networks.
    """
    weighting = Weighting.asked(weights)
    if weighting is Weighting.EVIDENCE and isinstance(options.setdefault("prior_precision", 1.0), Relative):
        raise BadOption(
            "weights='evidence' compares networks by their evidence, which a relative prior does not allow: its scales "
            "come from each network's own weights. Pass weights='equal', or an isotropic prior (prior_precision=1.0)."
        )
    fitted = [
        laplace(model, data, likelihood=likelihood, **_of_member(options, index))
        for index, model in enumerate(members_of(models))
    ]
    return of_members(fitted, weighting)


def _of_member(options: dict[str, Any], index: int) -> dict[str, Any]:
    """The options, with a separate checkpoint for each member."""
    execution = options.get("execution")
    if execution is None or execution.checkpoint is None:
        return options
    path = Path(execution.checkpoint)
    own = replace(execution, checkpoint=path.with_name(f"{path.stem}.member{index}{path.suffix}"))
    return options | {"execution": own}


def of_members(members: Sequence[Laplace], weighting: Weighting) -> LaplaceEnsemble:
    """The mixture; members that predict different things are refused."""
    check_output_shapes({index: member.output_shape for index, member in enumerate(members)})
    if weighting is Weighting.EQUAL:
        equal = torch.full((len(members),), 1 / len(members)).double()
        return LaplaceEnsemble(tuple(members), equal, weighting)
    logs = evidences(members)
    weights = check_weights((logs - logs.max()).exp(), len(members))
    assert weights is not None
    heaviest = int(weights.argmax())
    if len(members) > 1 and float(weights[heaviest]) > ALONE:
        others = logs[torch.arange(len(members)) != heaviest]
        notice(
            f"member {heaviest} has {float(weights[heaviest]):.2%} of the weight: its log evidence is "
            f"{float(logs[heaviest] - others.max()):.1f} above the next, so the others hardly count. Laplace evidences "
            "of networks differ by more than their predictions do; weights='equal' uses them all."
        )
    return LaplaceEnsemble(tuple(members), weights, weighting)


def evidences(members: Sequence[Laplace]) -> Tensor:
    """log p(D | M) of each member, at a data scale of 1 (a tuned scale is ignored), [M]."""
    return torch.stack([replace(m, data_scale=1.0).log_evidence().double().cpu() for m in members])


@dataclass(frozen=True, eq=False)
class LaplaceEnsemble(MemberPosterior):
    """Made by :func:`whence.laplace_ensemble`: Σ_m w_m N(θ_m, Σ_m)."""

    members: tuple[Laplace, ...]
    weights: Tensor  # [M], float64, sum 1
    weighting: Weighting

    kind: ClassVar[str] = "laplace_ensemble"

    def __len__(self) -> int:
        return len(self.members)

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """The members' likelihood; if their noises differ, with the weighted root mean square."""
        first = self.members[0].likelihood
        if not isinstance(first, Gaussian) or all(m.likelihood == first for m in self.members):
            return first
        squares: Any = sum(
            float(w) * m.likelihood.noise.square()
            for w, m in zip(self.weights, self.members, strict=True)
            if isinstance(m.likelihood, Gaussian)
        )
        return Gaussian(squares.sqrt())

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.members[0].record.output_shape

    @property
    def default_method(self) -> Literal["linearised", "sampled"]:
        return self.members[0].default_method

    def log_evidences(self) -> Tensor:
        """log p(D | M) of each member, [M]."""
        return evidences(self.members)

    def log_evidence(self) -> Tensor:
        """log of the members' mean evidence: the evidence of the mixture with equal prior odds."""
        return self.log_evidences().logsumexp(0) - math.log(len(self))

    @explains_keywords
    def predict(  # type: ignore[override]
        self,
        x: Any,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        link: LinkName = "mc",
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction:
        """The weighted mixture of the members' predictions; the options are those of :meth:`Laplace.predict`."""
        if joint:
            self._refuse_closed_forms(None, None, joint)
        if method is not None and Method.parse(method, "method") is Method.SAMPLED:
            return super().predict(x, num_samples=num_samples, generator=generator)
        parts: list[Any] = []
        for member, weight in zip(self.members, self.weights, strict=True):
            if float(weight) > 0 or not parts:
                parts.append(
                    (
                        weight,
                        member.predict(x, method=method, link=link, num_samples=num_samples, generator=generator),
                    )
                )
        weights = torch.stack([w for w, _ in parts])
        return mixture([p for _, p in parts], weights / weights.sum())

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> LaplaceEnsembleDraws:
        """Draws in proportion: each member ⌊S w⌋ or ⌈S w⌉ times, with weights drawn from its Gaussian."""
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        which = allotted(self.weights, num_samples, generator)
        counts = {m: which.count(m) for m in sorted(set(which))}
        drawn = [self.members[m].weight_draws(count, generator) for m, count in counts.items()]
        return LaplaceEnsembleDraws(drawn, self.likelihood)

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        """Directions of the members in proportion to their weights."""
        if method is Method.SAMPLED:
            return super().served_outputs(method, num_samples, generator, example)
        from whence.posteriors.serving import fixed

        which = allotted(self.weights, pairs_for(num_samples), fixed(generator, torch.device("cpu")))
        pairs = [(self.members[m], which.count(m)) for m in sorted(set(which))]
        return Joined([m.served_outputs(method, 2 * count, generator, example) for m, count in pairs])

    @property
    def example(self) -> Inputs | None:
        return self.members[0].example

    def tune(self, data: Any = None, **options: Any) -> LaplaceEnsemble:
        """Tune each member as in :meth:`Laplace.tune`.

        With validation data the weights do not change: a prior chosen for predictions does not maximise the evidence.
        Without, each prior maximises the evidence, and evidence weights are computed again.
        """
        tuned = tuple(m.tune(data, **options) for m in self.members)
        if data is None and self.weighting is Weighting.EVIDENCE:
            return of_members(tuned, self.weighting)
        return replace(self, members=tuned)

    def with_weights(self, weights: Any) -> LaplaceEnsemble:
        """The same members by ``"evidence"``, ``"equal"``, or with given weights."""
        if isinstance(weights, str):
            return of_members(self.members, Weighting.asked(weights))
        checked = check_weights(weights, len(self))
        if checked is None:
            return of_members(self.members, Weighting.EQUAL)
        return replace(self, weights=checked, weighting=Weighting.GIVEN)

    @property
    def snapshots(self) -> tuple[Network, ...]:
        return tuple(m.network for m in self.members)

    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        if method is not None and Method.parse(method, "method") is Method.SAMPLED:
            return super().sources(method, num_samples, generator)
        pairs = zip(self.members, self.weights.tolist(), strict=True)
        chosen = [member.sources(method, num_samples, generator, share) for member, share in pairs if share > 0]
        return [source for sources in chosen for source in sources]

    def fingerprint(self) -> str:
        return digest_of_values([member.fingerprint() for member in self.members])[:12]

    def state(self) -> State:
        """The files of the members, each under its own prefix."""
        tensors: dict[str, Tensor] = {}
        metas = []
        with tempfile.TemporaryDirectory(prefix="whence-") as folder:
            for index, member in enumerate(self.members):
                path = Path(folder) / f"{index}.safetensors"
                member.save(path)
                own, meta = read_tensors(path)
                metas.append(meta)
                tensors |= {f"member.{index}.{key}": value for key, value in own.items()}
        return State({"members": metas, "weights": self.weights.tolist(), "weighting": self.weighting.value}, tensors)

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> LaplaceEnsemble:
        from whence.io import load
        from whence.likelihoods import from_spec

        members = []
        with tempfile.TemporaryDirectory(prefix="whence-") as folder:
            for index, (meta, model) in enumerate(zip(state.meta["members"], models, strict=True)):
                path = Path(folder) / f"{index}.safetensors"
                write_tensors(path, part_of(state.tensors, f"member.{index}"), meta)
                users = None if from_spec(meta["likelihood"]) is not None else likelihood
                members.append(load(path, model, likelihood=users))
        weights = torch.tensor(state.meta["weights"], dtype=torch.float64)
        return cls(tuple(members), weights, Weighting(state.meta["weighting"]))

    def to(self, *args: Any, **kwargs: Any) -> LaplaceEnsemble:
        return replace(self, members=tuple(m.to(*args, **kwargs) for m in self.members))

    def __repr__(self) -> str:
        shown = ", ".join(f"{w:.3g}" for w in self.weights[:WEIGHTS].tolist()) + ", …" * (len(self) > WEIGHTS)
        return f"LaplaceEnsemble({len(self)} members, weights by {self.weighting}: {shown}; {self.likelihood!r})"


class LaplaceEnsembleDraws(FunctionDraws):
    """Weight draws of several members; each counts equally."""

    def __init__(self, parts: list[WeightDraws], likelihood: Likelihood) -> None:
        self.parts, self.likelihood = parts, likelihood

    @property
    def _places(self) -> list[tuple[int, int]]:
        """Member and draw of each function, in order."""
        return [(m, s) for m, part in enumerate(self.parts) for s in range(len(part))]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: Any) -> Any:
        places = self._places[index]
        if isinstance(places, tuple):
            function: Callable[[Any], Tensor] = self.parts[places[0]][places[1]]
            return function
        chosen = []
        for m, part in enumerate(self.parts):
            rows = [s for member, s in places if member == m]
            if rows:
                chosen.append(WeightDraws(part.network, {n: p[rows] for n, p in part.params.items()}, part.likelihood))
        return LaplaceEnsembleDraws(chosen, self.likelihood)

    def outputs(self, x: Any) -> Tensor:
        wanted = torch.is_grad_enabled() and is_followed(x)
        with torch.set_grad_enabled(wanted):
            return torch.cat([part.outputs(x) for part in self.parts])

    def modules(self) -> list[nn.Module]:
        return [module for part in self.parts for module in part.modules()]

    def predict(self, x: Any) -> Prediction:
        """Each member's draws under its own likelihood, in proportion to their number."""
        outputs = widened(self.outputs(x)).split([len(part) for part in self.parts])
        check_finite(list(outputs), "the outputs under the weight draws", 0)
        found = [predict_draws(part.likelihood, out) for part, out in zip(self.parts, outputs, strict=True)]
        return mixture(found, torch.tensor([len(p) / len(self) for p in self.parts], dtype=torch.float64))
