"""``whence.audit``: everything at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.auditing.comparing import comparison
from whence.auditing.context import Context, Options, check_classes
from whence.auditing.deferring import deferral
from whence.auditing.maps import maps
from whence.auditing.novel import novel
from whence.auditing.plain import typeset
from whence.auditing.profile import profile
from whence.auditing.quality import quality
from whence.auditing.ran import Log, ran
from whence.auditing.result import Audit
from whence.auditing.sets import Held, hold, shape_of, try_out
from whence.auditing.sharing import TRIED, profile_posterior
from whence.auditing.shown import inputs as shown
from whence.auditing.steps import Bar, kept_notices, now
from whence.auditing.subject import Subject
from whence.auditing.tables import answers, layers, pruning, sensitivity
from whence.auditing.verdict import verdict
from whence.batches import tensors_in
from whence.errors import BadData, BadOption, Notice, WhenceError, one_of
from whence.functional import Network
from whence.likelihoods import resolve
from whence.posteriors.base import Posterior
from whence.posteriors.front import laplace
from whence.posteriors.laplace import Laplace
from whence.priors import RELATIVE
from whence.randomness import resolve_seed

Section = Callable[[Context], Any]
WORDED = ("verdict", "quality", "deferral", "inputs", "novelty", "pruning", "answers")

SECTIONS: dict[str, Section] = {
    "quality": quality,
    "comparison": comparison,
    "deferral": deferral,
    "layers": layers,
    "profile": profile,
    "sensitivity": sensitivity,
    "maps": maps,
    "inputs": shown,
    "novelty": novel,
    "pruning": pruning,
    "answers": answers,
}


def audit(
    model: Any,
    train: Any = None,
    *,
    likelihood: Any = None,
    test: Any = None,
    validation: Any = None,
    ood: Any = None,
    classes: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    title: str | None = None,
    structure: str = "kron",
    curvature: str = "auto",
    layers: Any = None,
    prior_precision: Any = None,
    tune: bool = True,
    examples: int = 10_000,
    profiled: int = 1_000,
    inputs: int = 12,
    sections: Sequence[str] | None = None,
    methods: Mapping[str, Posterior] | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    on_step: Callable[[str, int, int], None] | None = None,
) -> Audit:
    """How uncertain is this network, how good is its uncertainty, and where in it does it sit? All at once.

    Args:
        model: a trained network, or a posterior that was made of one.
        train: the data it was trained on; may be left out where a posterior is given.
        likelihood: as for :func:`whence.laplace`; a posterior has its own.
        test: data to judge it on; bare inputs give the profile without the scores.
        validation: held-out data to tune on, to choose thresholds on, and against which novelty is held.
        ood: inputs from elsewhere, with or without targets.
        classes, features: names, for words and pictures.
        title: of the page.
        structure, curvature, layers: as for :func:`whence.laplace`.
        prior_precision: as for :func:`whence.laplace`; by default ``whence.Relative()``, or that of the posterior.
        tune: whether a posterior that was not tuned is tuned on ``validation``; False keeps the prior that it has.
        examples: at most so many of each of test, validation and ood are read, and held in memory.
        profiled: at most so many inputs stand behind shares, novelty, pruning and answers.
        inputs: how many of the most uncertain inputs are shown.
        sections: those to compute, of ``whence.auditing.SECTIONS``; all by default.
        methods: other posteriors by name, to be compared with this one on the same data.
        seed: of everything that is drawn (0); or a ``generator`` that one is drawn from.
        device: where to compute; by default where the model is.
        progress: whether to show a progress bar.
        on_step: called with the name of each step before it begins, its number, and the number of steps.

    A section that cannot be had is left out, and the record says why. Ctrl-C ends the audit and keeps what it finished,
    once there is a posterior.
    """
    seed = resolve_seed(seed, generator)
    chosen = _chosen(sections, bool(methods))
    _check_counts(examples=examples, profiled=profiled, inputs=inputs)
    log = Log()
    bar = Bar(_steps(chosen, validation is not None and tune), progress, on_step)
    with kept_notices(log), bar:
        with bar.step("data", log):
            sets = {
                "test": hold(test, "test", examples),
                "validation": hold(validation, "validation", examples),
                "ood": hold(ood, "ood", examples, targets=False),
            }
        made = _Fit(structure, curvature, layers, prior_precision, tune, seed, device, progress and on_step is None)
        posterior = made.posterior(model, train, likelihood, sets, bar, log)
        sets = _counted(posterior, sets)
        options = Options(
            classes=check_classes(classes, _outputs(posterior, sets), posterior.likelihood.task),
            features=_features(features, sets),
            profiled=profiled,
            inputs=inputs,
            seed=seed,
        )
        context = Context(posterior, train, sets, options, where_posterior=posterior, methods=dict(methods or {}))
        found = _sections(context, chosen, bar, log)
    return Audit(_record(context, found, log, title), posterior, context.where_posterior)


def _features(names: Sequence[str] | None, sets: dict[str, Held | None]) -> tuple[str, ...] | None:
    """One name for each column of tabular inputs."""
    if names is None:
        return None
    found = tuple(map(str, names))
    for held in sets.values():
        if held is not None and isinstance(held.inputs, Tensor) and held.inputs.dim() == 2:
            wide = held.inputs.shape[1]
            if len(found) != wide:
                raise BadOption(f"features= has {len(found)} names for {wide} columns of {held.name}.")
    return found


def _outputs(posterior: Any, sets: dict[str, Held | None]) -> int:
    """Number of classes, where it is a classification."""
    if isinstance(posterior, Laplace):
        return posterior.record.output_shape[0] if posterior.record.output_shape else 1
    held = next((h for h in sets.values() if h is not None), None)
    return 1 if held is None else try_out(Subject(posterior).network, held.inputs, held.name).shape[1]


def _chosen(sections: Sequence[str] | None, several: bool) -> list[str]:
    if sections is None:
        return [name for name in SECTIONS if several or name != "comparison"]
    if isinstance(sections, str):
        raise BadOption(f"sections={sections!r} is one name; pass a list: [{sections!r}].")
    names = [one_of(name, SECTIONS, "section") for name in sections]
    return [name for name in SECTIONS if name in names]


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "inputs" else 2
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadOption(f"{name}={value!r} must be a whole number, at least {least}.")


def _steps(chosen: list[str], tuned: bool) -> list[str]:
    return ["data", "fit", *(["tune"] if tuned else []), *chosen]


@dataclass(frozen=True)
class _Fit:
    structure: str
    curvature: str
    layers: Any
    prior_precision: Any
    tune: bool
    seed: int
    device: Any
    progress: bool

    def posterior(
        self, model: Any, train: Any, likelihood: Any, sets: dict[str, Held | None], bar: Bar, log: Log
    ) -> Any:
        """The one that was given, or a new one; tuned if there is validation data and it was not."""
        if isinstance(model, Posterior):
            self._check_given(model, likelihood)
            posterior: Any = model if self.device is None else model.to(self.device)
            _check_sets(Subject(posterior).network, sets, getattr(posterior, "probe", None))
            with bar.step("fit", log):
                pass
        else:
            posterior = self._fitted(model, train, likelihood, sets, bar, log)
        held = sets["validation"]
        if not isinstance(posterior, Laplace):
            return posterior
        if held is None or held.targets is None:
            if posterior.tuning is None:
                log.leave_out("tuning", "no validation data were given; the prior precision is as it was.")
            return posterior
        if not self.tune:
            if posterior.tuning is None:
                log.leave_out("tuning", "it was not asked for; the prior precision is as it was.")
            return posterior
        with bar.step("tune", log):
            if posterior.tuning is not None:
                return posterior
            method: Any = "linearised" if len(posterior.record.output_shape) == 1 else "sampled"
            return posterior.tune((held.inputs, held.targets), method=method, progress=self.progress)

    def _check_given(self, posterior: Posterior, likelihood: Any) -> None:
        """What a posterior has already cannot be asked for again."""
        asked = {"structure": self.structure != "kron", "curvature": self.curvature != "auto"}
        asked["layers"] = self.layers is not None
        asked["prior_precision"] = self.prior_precision is not None
        asked["likelihood"] = likelihood is not None and resolve(likelihood)[0] != posterior.likelihood
        if any(asked.values()):
            names = " and ".join(f"{name}=" for name, given in asked.items() if given)
            raise BadOption(f"{names}: a posterior was given, which has its own. Pass the network to fit another one.")

    def _fitted(self, model: Any, train: Any, likelihood: Any, sets: dict[str, Held | None], bar: Bar, log: Log) -> Any:
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
        del network
        with bar.step("fit", log):
            return laplace(
                model,
                train,
                likelihood=likelihood,
                structure=self.structure,  # type: ignore[arg-type]
                curvature=self.curvature,  # type: ignore[arg-type]
                layers=self.layers,
                prior_precision=RELATIVE if self.prior_precision is None else self.prior_precision,
                device=self.device,
                generator=torch.Generator().manual_seed(self.seed),
                progress=self.progress,
            )


def _check_sets(network: Network, sets: dict[str, Held | None], probe: Any) -> None:
    """Every set goes through the network, before the long work starts."""
    seen = "" if probe is None else ", ".join(str(list(t.shape[1:])) for t in tensors_in(probe[0]))
    for name, held in sets.items():
        if held is not None:
            if probe is not None and isinstance(held.inputs, Tensor) != isinstance(probe[0], Tensor):
                raise BadData(
                    f"{name}: its inputs are {_form(held.inputs)}, those of the training data {_form(probe[0])}. A "
                    "pair is always (inputs, targets): several inputs stand in a tuple of their own, ((a, b), targets)."
                )
            try_out(network, held.inputs, name, f"of shape {seen} each" if seen else "")


def _form(inputs: Any) -> str:
    return "one tensor" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__} of {len(inputs)}"


def _counted(posterior: Any, sets: dict[str, Held | None]) -> dict[str, Held | None]:
    """Sets without ignored labels; a label that the network has no output for is refused here."""
    found: dict[str, Held | None] = {}
    for name, held in sets.items():
        kept = None if held is None else held.counted(posterior.likelihood)
        if kept is not None and kept.targets is not None:
            one = try_out(Subject(posterior).network, kept.inputs, name).cpu()
            try:
                posterior.likelihood.check(one.expand(len(kept), *one.shape[1:]), kept.targets)
            except BadData as error:
                raise BadData(f"{name}: {str(error).removeprefix('batch 0: ')}") from error
        found[name] = kept
    return found


def _sections(context: Context, chosen: list[str], bar: Bar, log: Log) -> dict[str, Any]:
    """Each section that can be had; the reasons for the others are logged."""
    found: dict[str, Any] = dict.fromkeys(SECTIONS)
    try:
        _choose_profile(context)
        for name in chosen:
            with bar.step(name, log):
                try:
                    found[name] = SECTIONS[name](context)
                except WhenceError as error:
                    log.leave_out(name, str(error))
    except KeyboardInterrupt:
        log.interrupted = bar.steps[bar.done]
        for name in bar.steps[bar.done :]:
            log.leave_out(name, "the audit was interrupted before it was finished.")
        warnings.warn(f"interrupted during {log.interrupted!r}; what was finished is kept.", Notice, stacklevel=4)
    for name in SECTIONS:
        if name not in chosen and name != "comparison":
            log.leave_out(name, "it was not asked for.")
    return found


def _choose_profile(context: Context) -> None:
    held = context.sets.get("test") or context.sets.get("ood")
    if held is not None and context.subject.laplace:
        try:
            pair = profile_posterior(context.posterior, held.thinned(TRIED).inputs)
            context.where_posterior, context.where_note = pair
        except WhenceError:
            pass  # the sections that need shares will say why there are none


def _record(context: Context, found: dict[str, Any], log: Log, title: str | None) -> dict[str, Any]:
    subject = context.subject
    test = context.sets.get("test") or context.sets.get("ood")
    record = {
        "schema": Audit.schema,
        "created": now(),
        "title": title or f"{subject.kind}, {context.task}",
        "task": context.task,
        "classes": None if context.options.classes is None else list(context.options.classes),
        "network": {
            "kind": subject.kind,
            "parameters": subject.parameters,
            "bayesian": subject.bayesian,
            "layers": subject.layers,
        },
        "data": {
            "train": None if subject.examples is None else {"inputs": subject.examples},
            **{n: None if h is None else h.describe() for n, h in context.sets.items()},
            "input_shape": None if test is None else shape_of(test.inputs),
        },
        "verdict": verdict(context, found),
        **found,
        "run": ran(subject, log, context.options.seed),
    }
    if found["profile"] is not None:
        record["profile"] = found["profile"] | {key: typeset(found["profile"][key]) for key in ("words", "note")}
    return record | {key: typeset(record[key]) for key in WORDED if record[key] is not None}
