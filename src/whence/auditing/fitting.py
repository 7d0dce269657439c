"""The posterior of an audit: the one that is given, or a new fit, tuned if there is validation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.auditing.data import Examples, several_sets, try_out
from whence.auditing.estimate import AuditSize, expected_seconds
from whence.auditing.run import Progress
from whence.curvature.options import CurvatureKind
from whence.engine.batches import size_of, tensors_in
from whence.engine.options import Execution
from whence.errors import BadData, BadOption
from whence.functional import Network
from whence.likelihoods import resolve
from whence.linalg.structures import StructureKind
from whence.posteriors.base import Posterior, is_posterior
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace
from whence.posteriors.laplace.tuning import tuned_by
from whence.priors import RELATIVE

StructureName = Literal["full", "block", "kron", "ekfac", "diag", "lowrank"]
CurvatureName = Literal["auto", "ggn", "mc", "empirical", "kfra", "hessian"]
Sets = Mapping[str, Examples | None]


@dataclass(frozen=True)
class Fitted:
    """The posterior of an audit, and its prediction of the validation inputs if tuning has computed it."""

    posterior: Posterior
    validation: Any = None


@dataclass(frozen=True)
class FitOptions:
    """Options for fitting and tuning the posterior."""

    structure: StructureName
    curvature: CurvatureName
    layers: Any
    prior_precision: Any
    tune: bool
    seed: int
    device: Any
    execution: Execution | None
    progress: bool
    profiled: int  # inputs of each set behind shares and novelty
    tuned: int | None = None  # validation inputs for tuning; None: all

    @property
    def _curvature(self) -> CurvatureKind:
        return CurvatureKind.parse(self.curvature, "curvature")

    def posterior(self, model: Any, train: Any, likelihood: Any, sets: Sets, log: Progress) -> Fitted:
        """The given posterior or a new one, tuned if there is validation data and it was not yet."""
        if is_posterior(model):
            self._check_given(model, likelihood)
            found: Posterior = model if self.device is None else model.to(self.device)
            _check_sets(found.snapshots[0], sets, found.probe)
            if found.has_curvature:
                self._estimate(found.snapshots[0], None, sets, log)
            with log.step("fit"):
                pass
        else:
            found = self._fitted(model, train, likelihood, sets, log)
        if not found.has_curvature:
            return Fitted(found)
        return self._tuned(found.as_laplace("tuning"), sets["validation"], log)

    def _check_given(self, posterior: Posterior, likelihood: Any) -> None:
        """Refuse options that a given posterior already determines."""
        asked = {
            "structure": StructureKind.parse(self.structure, "structure") is not StructureKind.KRON,
            "curvature": self._curvature is not CurvatureKind.AUTO,
            "layers": self.layers is not None,
            "execution": self.execution is not None,
            "prior_precision": self.prior_precision is not None,
            "likelihood": likelihood is not None and resolve(likelihood)[0] != posterior.likelihood,
        }
        if any(asked.values()):
            names = " and ".join(f"{name}=" for name, given in asked.items() if given)
            raise BadOption(f"{names}: a posterior was given, which has its own. Pass the network to fit another one.")

    def _fitted(self, model: Any, train: Any, likelihood: Any, sets: Sets, log: Progress) -> Laplace:
        if not isinstance(model, nn.Module):
            raise BadOption(f"the model is a {type(model).__name__}; pass a torch.nn.Module, or a posterior.")
        if train is None:
            raise BadOption("train= is needed to fit a posterior: the data that the network was trained on.")
        if likelihood is None:
            raise BadOption("likelihood= is needed: 'classification', 'binary', 'regression', or a whence.Likelihood.")
        network = Network.snapshot(model)
        network = network if self.device is None else network.to(self.device)
        data = network.read(train, "train")
        data.require_passes(2, "an audit")
        first = next(iter(data))
        try_out(network, first.inputs, "train")
        _check_sets(network, sets, (first.inputs, first.targets))
        batches = data.length()
        examples = None if batches is None else batches * size_of(first.inputs)
        self._estimate(network, examples, {"train": Examples("train", first.inputs, None, False), **sets}, log)
        del network
        with log.step("fit"):
            return laplace(
                model,
                train,
                likelihood=likelihood,
                structure=self.structure,
                curvature=self.curvature,
                layers=self.layers,
                prior_precision=RELATIVE if self.prior_precision is None else self.prior_precision,
                device=self.device,
                execution=self.execution,
                generator=torch.Generator().manual_seed(self.seed),
                progress=self.progress,
            )

    def _estimate(self, network: Network, examples: int | None, sets: Sets, log: Progress) -> None:
        """Tell how long the audit will probably take; ``examples`` are those to be fitted."""
        known = {name: len(one) for name, one in sets.items() if one is not None and name != "train"}
        some = next((one for one in sets.values() if one is not None), None)
        if some is None:
            return
        outputs = try_out(network, some.inputs, some.name)
        held = known.get("validation", 0)
        size = AuditSize(
            outputs=int(outputs[:1].numel()),
            train=examples,
            sets=known,
            profiled=self.profiled,
            tuned=min(held, self.tuned or held) if self.tune else 0,
            sampled=self._curvature not in (CurvatureKind.AUTO, CurvatureKind.GGN),
        )
        log.expect(expected_seconds(network, some.inputs, size))

    def _tuned(self, posterior: Laplace, validation: Examples | None, log: Progress) -> Fitted:
        given = validation is not None and validation.targets is not None
        if validation is None or not given or not self.tune:
            if posterior.tuning is None:
                reason = "it was not requested" if given else "no validation data were given"
                log.leave_out("tuning", f"{reason}; the prior precision is unchanged.")
            return Fitted(posterior)
        with log.step("tune"):
            if posterior.tuning is not None:
                return Fitted(posterior)
            some = validation if self.tuned is None else validation.thinned(self.tuned)
            tuned = tuned_by(posterior, some.pair, method=posterior.default_method, progress=self.progress)
            whole = len(some) == len(validation)
            return Fitted(tuned.posterior, tuned.prediction(validation.inputs) if whole else None)


def _check_sets(network: Network, sets: Sets, probe: Any) -> None:
    """Run one example of every set through the network before the long work starts."""
    seen = "" if probe is None else ", ".join(str(list(t.shape[1:])) for t in tensors_in(probe[0]))
    for name, found in sets.items():
        if found is not None:
            if probe is not None and isinstance(found.inputs, Tensor) != isinstance(probe[0], Tensor):
                raise BadData(
                    f"{name}: its inputs are {_form(found.inputs)}, those of the training data {_form(probe[0])}. "
                    f"{_remedy(name, found.inputs)}"
                )
            try_out(network, found.inputs, name, f"of shape {seen} each" if seen else "")


def _remedy(name: str, inputs: Any) -> str:
    if isinstance(inputs, Mapping):
        return several_sets(name, inputs)
    return "A pair is always (inputs, targets): pass several inputs as a tuple of their own, ((a, b), targets)."


def _form(inputs: Any) -> str:
    if isinstance(inputs, Mapping):
        return f"a mapping of {len(inputs)}"
    return "one tensor" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__} of {len(inputs)}"
