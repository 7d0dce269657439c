"""``whence.compare``: several posteriors on the same data, by the same metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.auditing.comparison_layers import MethodLayers, agreement, comparison_words, layers_of, side_by_side
from whence.auditing.comparison_scores import Predicted, method_scores
from whence.auditing.context import Context
from whence.auditing.data import Examples, plain_prediction, read_examples, try_out
from whence.auditing.results import Comparison
from whence.auditing.run import OnStep, Peak, Progress, now, progress_over
from whence.auditing.tasks import Task, task_of
from whence.engine.batches import tensors_in
from whence.engine.files import digest
from whence.engine.randomness import resolve_seed
from whence.engine.ranks import Ranks, on_all_ranks
from whence.errors import BadData, BadOption, NotDefined, WhenceError, explains_keywords
from whence.functional import Network
from whence.metrics.distance import total_variation, wasserstein
from whence.posteriors.base import Posterior, require_posterior
from whence.posteriors.laplace.on_ranks import refuse_part
from whence.predictive.dispatch import Method
from whence.report.record import comparison as record
from whence.report.record.common import Estimate
from whence.report.record.convert import tidied

PLAIN = "plain network"
PROFILED = 500  # inputs behind the layers
Measure = Callable[..., Any]


@explains_keywords
@on_all_ranks
def compare(
    posteriors: Mapping[str, Posterior],
    test: Any,
    *,
    ood: Any = None,
    plain: bool | nn.Module = True,
    reference: str | None = None,
    classes: Sequence[str] | None = None,
    title: str | None = None,
    examples: int = 10_000,
    profiled: int = PROFILED,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    process_group: Any = None,
    progress: bool = True,
    on_step: OnStep | None = None,
) -> Comparison:
    """Compare posteriors in one table and set of figures, by the same metrics.

    Args:
        posteriors: posteriors by display name, all for the same task.
        test: inputs and targets.
        ood: out-of-distribution inputs, with or without targets.
        plain: whether to include the trained network (of the first posterior that has one); or
            that network itself.
        reference: the method to whose predictive distribution distances are measured, for example
            HMC.
        classes, title: names for texts and figures.
        examples: largest number of examples read from each set.
        profiled: largest number of inputs for the layer tables.
        seed: seed of draws and intervals (0); or a ``generator`` to draw it from.
        process_group: a torch process group (or True for the default one) whose ranks divide the methods;
            each passes the same posteriors and data, and gets the same comparison.
        progress, on_step: as for :func:`whence.audit`.
    """
    seed = resolve_seed(seed, generator)
    task = _check(posteriors, reference)
    ranks: Ranks = process_group
    steps = ["data", *posteriors, "scores", "layers"]
    with progress_over(steps, progress and ranks.rank == 0, on_step) as log:
        with log.step("data"):
            one = next(iter(posteriors.values()))
            inside = read_examples(test, "test", examples, of=one)
            outside = read_examples(ood, "ood", examples, targets=False, of=one)
            if inside is None or inside.targets is None:
                raise BadData("test must be a pair (inputs, targets) or a loader of such batches; it has no targets.")
            network = _plain_network(posteriors, plain)
            _check_outputs(posteriors, task, inside, outside)
            options = (seed, reference, profiled, network is None)
            check_ranks(ranks, posteriors, (test, ood), (inside, outside), options)
        run = _Comparison(posteriors, network, inside, outside, seed)
        mine = list(posteriors)[ranks.rank :: ranks.size]
        methods = [run.plain()] if network is not None and ranks.rank == 0 else []
        for name in mine:
            with log.step(name):
                methods.append(run.method(name))
        methods = _gathered(ranks, methods, posteriors)
        with log.step("scores"):
            scores = method_scores(task, methods, inside, outside, seed) if ranks.rank == 0 else {}
        with log.step("layers"):
            inputs = inside.thinned(profiled).inputs
            met = ranks.synchronise("comparing layers", {name: layers_of(posteriors[name], inputs) for name in mine})
            layers = _layers(posteriors, methods, {name: one for some in met for name, one in some.items()}, log)
            distance = _distance(methods, reference, inside, log)
    _gather_log(ranks, log)
    if ranks.rank > 0:
        return Comparison(ranks.from_first(None, "sharing the comparison"), dict(posteriors))  # type: ignore[arg-type]
    found = record.ComparisonRecord(
        schema="whence.comparison/1",
        created=now(),
        title=title or f"{len(methods)} methods compared",
        task=task.name,
        classes=task.class_names(classes, task.outputs(methods[-1].inside)),
        data=record.ComparedData(inside.size, None if outside is None else outside.size),
        methods=tuple(method.described for method in methods),
        **scores,
        **layers,
        distance=distance,
        words=(),
        run=log.run(next(iter(posteriors.values())).snapshots[0].device, seed),
    )
    found = tidied(found)
    found = replace(found, words=tuple(comparison_words(found)))
    return Comparison(ranks.from_first(found, "sharing the comparison"), dict(posteriors))


def comparison(context: Context) -> record.ComparisonSection:
    """The section of an audit with other methods."""
    if not context.methods:
        raise NotDefined("no other methods were given.")
    context.need_targets("test")
    found = compare(
        {"Laplace": context.posterior, **context.methods},
        context.need("test").pair,
        ood=context.need("ood").pair if context.has("ood") else None,
        seed=context.seed,
        progress=False,
    ).results
    shared = {one.name: getattr(found, one.name) for one in fields(record.Compared)}
    return record.ComparisonSection(**shared, left_out=found.left_out)


# Checks


def _check(posteriors: Mapping[str, Posterior], reference: str | None) -> Task:
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise BadOption("compare takes a mapping from names to posteriors, with at least one entry.")
    for name, posterior in posteriors.items():
        require_posterior(posterior, repr(name))
        if name == PLAIN:
            raise BadOption(f"{PLAIN!r} is reserved for the trained network; give this posterior another name.")
    first, *others = ((name, task_of(posterior.likelihood)) for name, posterior in posteriors.items())
    for name, task in others:
        if task != first[1]:
            raise BadOption(
                f"{name!r} is for {task.name}, but {first[0]!r} for {first[1].name}: they cannot be compared."
            )
    if reference is not None and reference not in posteriors:
        raise BadOption(f"reference={reference!r} is not one of {', '.join(map(repr, posteriors))}.")
    return first[1]


def _plain_network(posteriors: Mapping[str, Posterior], plain: bool | nn.Module) -> Network | None:
    """The given network, or a posterior's: at the trained weights, otherwise at mean weights."""
    if isinstance(plain, nn.Module):
        return Network.snapshot(plain)
    single = [p for p in posteriors.values() if len(p.snapshots) == 1]
    ordered = sorted(single, key=lambda p: (not p.has_curvature, not p.at_trained_weights))
    return ordered[0].snapshots[0] if plain and ordered else None


def _check_outputs(posteriors: Mapping[str, Posterior], task: Task, inside: Examples, outside: Examples | None) -> None:
    """Check that every network accepts the data, and that outputs for labels have the same shape."""
    outputs: dict[tuple[int, ...], str] = {}
    for name, posterior in posteriors.items():
        for network in posterior.snapshots:
            for found in (inside, outside):
                if found is not None:
                    outputs.setdefault(tuple(try_out(network, found.inputs, found.name).shape[1:]), name)
    if len(outputs) > 1 and task.has_labels:
        (one, first), (other, second) = list(outputs.items())[:2]
        raise BadOption(
            f"{first!r} has outputs of shape {list(one)} per input and {second!r} {list(other)}: they cannot be "
            "compared."
        )


# Predictions


@dataclass(frozen=True)
class _Comparison:
    """The data and options that all methods share."""

    posteriors: Mapping[str, Posterior]
    network: Network | None
    test: Examples
    ood: Examples | None
    seed: int

    def plain(self) -> Predicted:
        network = self.network
        assert network is not None
        likelihood = next(iter(self.posteriors.values())).likelihood
        about = record.Method(PLAIN, "plain", "the network as it was trained", *_size([network]), None, None, None)
        return self._timed(about, lambda inputs: plain_prediction(network, likelihood, inputs), network.device)

    def method(self, name: str) -> Predicted:
        posterior = self.posteriors[name]
        drawn = posterior.usual_method is Method.SAMPLED
        about = record.Method(
            name,
            type(posterior).__name__,
            " ".join(repr(posterior).split())[:300],
            *_size(posterior.snapshots),
            seconds=None,
            memory=None,
            draws=posterior.default_draws if drawn else None,
        )

        def predict(inputs: Any) -> Any:
            generator = torch.Generator().manual_seed(self.seed) if drawn else None
            return posterior.predict(inputs, generator=generator)

        return self._timed(about, predict, posterior.snapshots[0].device)

    def _timed(self, about: record.Method, predict: Callable[[Any], Any], device: torch.device) -> Predicted:
        with Peak(device) as peak:
            start = time.perf_counter()
            inside = predict(self.test.inputs)
            seconds = time.perf_counter() - start
        outside = None if self.ood is None else predict(self.ood.inputs)
        return Predicted(replace(about, seconds=round(seconds, 4), memory=peak.bytes), inside, outside)


def _size(networks: Sequence[Network]) -> tuple[str, int]:
    """The class of the networks, and the number of their parameters."""
    modules = [network.module for network in networks]
    return type(modules[0]).__name__, sum(p.numel() for module in modules for p in module.parameters())


# Results


def _layers(
    posteriors: Mapping[str, Posterior], methods: Sequence[Predicted], found: Mapping[str, MethodLayers], log: Progress
) -> dict[str, Any]:
    """The fields of the record with layers and agreement."""
    order = [name for name, _ in next(iter(posteriors.values())).snapshots[0].module.named_modules()]
    layers = side_by_side([found.get(method.name, MethodLayers()) for method in methods], order)
    if layers is None:
        log.leave_out("layers", "no method has a layer table for these inputs.")
        return {"layers": None, "agreement": None}
    layers = tidied(layers)
    return {"layers": layers, "agreement": agreement([method.name for method in methods], layers)}


def _distance(
    methods: Sequence[Predicted], reference: str | None, test: Examples, log: Progress
) -> record.Distance | None:
    """Distance of every method's predictive distribution from that of the reference."""
    if reference is None:
        log.leave_out("distance", "no reference was named.")
        return None
    centre = next(method.inside for method in methods if method.name == reference)
    counted = test.counted_positions
    dense = counted is not None and test.targets is not None and test.targets.shape == counted.shape
    options = {"mask": counted} if dense else {}  # padded positions do not count

    def from_centre(measure: Measure) -> Iterator[Estimate | None]:
        for method in methods:
            try:
                yield Estimate.of(measure(method.inside, centre, **options))
            except WhenceError:
                yield None

    return record.Distance(reference, tuple(from_centre(total_variation)), tuple(from_centre(wasserstein)))


# Several processes


def check_ranks(
    ranks: Ranks,
    posteriors: Mapping[str, Posterior],
    given: tuple[Any, Any],
    read: tuple[Examples, Examples | None],
    options: Any,
) -> None:
    """Every rank must have the same methods, data and options."""
    if ranks.alone:
        return
    for name, data in zip(("test", "ood"), given, strict=True):
        refuse_part(data, ranks, name)
    data = [t for one in read if one is not None for t in tensors_in([one.inputs, one.targets])]
    signature = {
        "the set of methods": {name: " ".join(repr(p).split()) for name, p in posteriors.items()},
        "the digest of the methods": {name: p.fingerprint() for name, p in posteriors.items()},
        "the digest of the data": digest(data),
        "the options": options,
    }
    ranks.agree(signature, "comparing methods and data")


def _gathered(ranks: Ranks, methods: list[Predicted], posteriors: Mapping[str, Posterior]) -> list[Predicted]:
    """The methods of all ranks, on every rank: first the plain network, then in the order of the posteriors."""
    if ranks.alone:
        return methods
    sent = [replace(m, inside=_without_lazy(m.inside), outside=_without_lazy(m.outside)) for m in methods]
    found = {m.name: m for some in ranks.synchronise("gathering predictions", sent) for m in some}
    return [found[name] for name in (PLAIN, *posteriors) if name in found]


def _without_lazy(prediction: Any) -> Any:
    """A copy that can be sent to other ranks: on the CPU, without lazily computed parts."""
    if prediction is None:
        return None
    values = {one.name: getattr(prediction, one.name) for one in fields(prediction)}
    moved = {name: value.detach().cpu() for name, value in values.items() if isinstance(value, Tensor)}
    if "_lazy" in values:
        moved["_lazy"] = type(values["_lazy"])()
    return replace(prediction, **moved)


def _gather_log(ranks: Ranks, log: Progress) -> None:
    """Collect notices and times from all ranks."""
    if not ranks.alone:
        found = ranks.synchronise("gathering notices", (log.notices, log.seconds))
        log.notices = [notice for notices, _ in found for notice in notices]
        log.seconds = {name: seconds for _, times in reversed(found) for name, seconds in times.items()}
