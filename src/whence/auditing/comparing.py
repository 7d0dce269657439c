"""``whence.compare``: several posteriors on the same data, by the same metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.auditing.comparison import Comparison
from whence.auditing.comparison_words import comparison_words
from whence.auditing.context import UNCERTAINTY, Context, check_classes, uncertainty
from whence.auditing.layerwise import Layers, agreement, layers_of, layerwise
from whence.auditing.memory import Peak
from whence.auditing.plain import estimate, typeset
from whence.auditing.ran import Log, environment
from whence.auditing.scoring import (
    METRICS,
    curve_of,
    losses_of,
    not_worse,
    paired,
    reliability_of,
    scores_of,
    sorted_values,
)
from whence.auditing.sets import Held, hold, outputs_of, try_out
from whence.auditing.spread import check_ranks, dealt, gather_log, gathered
from whence.auditing.steps import Bar, kept_notices, now
from whence.auditing.subject import Subject
from whence.curvature.distributed import together
from whence.errors import BadData, BadOption, NotDefined, WhenceError
from whence.functional import Network
from whence.metrics.distance import total_variation, wasserstein
from whence.posteriors.base import Posterior
from whence.predictive.links import predict_draws
from whence.randomness import resolve_seed

PLAIN = "plain network"
DISTANCES = {"total_variation": total_variation, "wasserstein": wasserstein}
SHARING = "sharing the comparison"
SHARED = 500  # inputs behind the layers


@dataclass(frozen=True)
class Method:
    """One row: its predictions, and what they took."""

    name: str
    posterior: Any  # None for the plain network
    inside: Any
    outside: Any
    seconds: float
    memory: int | None

    def describe(self, network: Network | None) -> dict[str, Any]:
        module = getattr(getattr(self.posterior, "network", None), "module", None)
        if module is None and self.posterior is None and network is not None:
            module = network.module
        members = self.posterior.networks() if module is None and hasattr(self.posterior, "networks") else [module]
        return {
            "name": self.name,
            "kind": "plain" if self.posterior is None else type(self.posterior).__name__,
            "describe": "the network as it was trained" if self.posterior is None else _one_line(self.posterior),
            "network": type(members[0]).__name__ if members and members[0] is not None else None,
            "parameters": sum(p.numel() for m in members if m is not None for p in m.parameters()),
            "seconds": round(self.seconds, 4),
            "memory": self.memory,
            "draws": getattr(self.posterior, "default_draws", None),
        }


def _one_line(posterior: Any) -> str:
    return " ".join(repr(posterior).split())[:300]


@together
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
    profiled: int = SHARED,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    process_group: Any = None,
    progress: bool = True,
    on_step: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """One table, one set of figures, the same metrics for every method.

    Args:
        posteriors: by the name that each is shown under; all for the same task.
        test: inputs and targets.
        ood: inputs from elsewhere, with or without targets.
        plain: whether the network as it was trained stands beside them (of the first posterior that has one); or that
            network itself.
        reference: the name of the method that others are measured from, HMC for instance; adds the distance between
            predictive distributions.
        classes, title: names, for words and pictures.
        examples: at most so many of each set are read.
        profiled: at most so many inputs stand behind the layers.
        seed: of draws and intervals (0); or a ``generator`` that one is drawn from.
        process_group: a torch process group (or True for the default one) whose ranks share out the methods; each
            passes the same posteriors and data, and gets the same comparison.
        progress, on_step: as for :func:`whence.audit`.
    """
    seed = resolve_seed(seed, generator)
    likelihood = _check(posteriors, reference)
    ranks, log = process_group, Log()
    steps = ["data", *posteriors, "scores", "layers"]
    with kept_notices(log), Bar(steps, progress and ranks.rank == 0, on_step) as bar:
        with bar.step("data", log):
            inside, outside = hold(test, "test", examples), hold(ood, "ood", examples, targets=False)
            if inside is None or inside.targets is None:
                raise BadData("test is a pair (inputs, targets), or a loader of such batches; there are no targets.")
            network = _beside(posteriors, plain)
            _check_sets(posteriors, inside, outside)
            check_ranks(ranks, posteriors, (test, ood), (inside, outside), (seed, reference, profiled, network is None))
        methods = [] if network is None or ranks.rank else [_plain(network, likelihood, inside, outside)]
        own = dealt(ranks, list(posteriors))
        for name in own:
            with bar.step(name, log):
                methods.append(_method(name, posteriors[name], inside, outside, seed))
        methods = gathered(ranks, methods, posteriors, PLAIN)
        with bar.step("scores", log):
            found = scored(methods, inside.targets, likelihood, seed) if ranks.rank == 0 else {}
        with bar.step("layers", log):
            inputs = inside.thinned(profiled).inputs
            layers = {name: layers_of(posteriors[name], inputs) for name in own}
            layers = {name: one for some in ranks.meet("comparing layers", layers) for name, one in some.items()}
            found |= _layers(methods, layers, inputs, log)
            found["distance"] = _distance(methods, reference, log)
    gather_log(ranks, log)
    if ranks.rank > 0:
        return Comparison(ranks.from_first({}, SHARING), dict(posteriors))
    outputs = methods[-1].inside
    shape = getattr(outputs, "probs", getattr(outputs, "mean", None))
    wide = 1 if shape is None else shape.shape[-1]
    record = {
        "schema": Comparison.schema,
        "created": now(),
        "title": title or f"{len(methods)} methods compared",
        "task": likelihood.task,
        "classes": _listed(check_classes(classes, wide, likelihood.task)),
        "data": {"test": inside.describe(), "ood": None if outside is None else outside.describe()},
        "methods": [method.describe(network) for method in methods],
        **found,
    }
    record["words"] = typeset(comparison_words(record))
    record["run"] = environment(_device(posteriors), log, seed)
    return Comparison(ranks.from_first(record, SHARING), dict(posteriors))


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _check(posteriors: Mapping[str, Posterior], reference: str | None) -> Any:
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise BadOption("compare takes a mapping from names to posteriors, with one entry at least.")
    for name, posterior in posteriors.items():
        if not isinstance(posterior, Posterior):
            raise BadOption(f"{name!r} is a {type(posterior).__name__}, not a posterior.")
        if name == PLAIN:
            raise BadOption(
                f"{PLAIN!r} is the name of the network as it was trained; call this posterior something else."
            )
    first = next(iter(posteriors.values())).likelihood
    for name, posterior in posteriors.items():
        if posterior.likelihood.task != first.task:
            raise BadOption(
                f"{name!r} is for {posterior.likelihood.task}, and {next(iter(posteriors))!r} for {first.task}: they "
                "cannot be compared."
            )
    if reference is not None and reference not in posteriors:
        raise BadOption(f"reference={reference!r} is none of {', '.join(map(repr, posteriors))}.")
    return first


def _beside(posteriors: Mapping[str, Any], plain: bool | nn.Module) -> Network | None:
    """The plain network, if there is to be one."""
    if isinstance(plain, nn.Module):
        return Network.snapshot(plain)
    return _network(posteriors) if plain else None


def _network(posteriors: Mapping[str, Any]) -> Network | None:
    """Of Laplace first, which keeps the trained weights; a variational mean is another network."""
    ordered = sorted(posteriors.values(), key=lambda p: not hasattr(p, "curvature"))
    found = next((p for p in ordered if isinstance(getattr(p, "network", None), Network)), None)
    return None if found is None else found.network


def _device(posteriors: Mapping[str, Any]) -> torch.device:
    network = _network(posteriors)
    if network is not None:
        return network.device
    first: Any = next(iter(posteriors.values()))
    return next((p.device for m in first.networks() for p in m.parameters()), torch.device("cpu"))


def _check_sets(posteriors: Mapping[str, Any], inside: Held, outside: Held | None) -> None:
    outputs: dict[tuple[int, ...], str] = {}
    for name, posterior in posteriors.items():
        for network in Subject(posterior).networks:
            for held in (inside, outside):
                if held is not None:
                    outputs.setdefault(tuple(try_out(network, held.inputs, held.name).shape[1:]), name)
    task = next(iter(posteriors.values())).likelihood.task
    if len(outputs) > 1 and task in ("classification", "binary"):
        (one, first), (other, second) = list(outputs.items())[:2]
        raise BadOption(
            f"{first!r} gives outputs of shape {list(one)} for each input and {second!r} {list(other)}: they cannot be "
            "compared."
        )


def _plain(network: Network, likelihood: Any, inside: Held, outside: Held | None) -> Method:
    def predict(held: Held) -> Any:
        return predict_draws(likelihood, outputs_of(network, held.inputs)[None])

    return _timed(PLAIN, None, predict, inside, outside, network.device)


def _method(name: str, posterior: Any, inside: Held, outside: Held | None, seed: int) -> Method:
    def predict(held: Held) -> Any:
        drawn = not hasattr(posterior, "curvature") or len(posterior.record.output_shape) != 1
        generator = torch.Generator().manual_seed(seed) if drawn else None
        return posterior.predict(held.inputs, generator=generator)

    device = posterior.network.device if isinstance(getattr(posterior, "network", None), Network) else None
    return _timed(name, posterior, predict, inside, outside, device)


def _timed(
    name: str, posterior: Any, predict: Callable[[Held], Any], inside: Held, outside: Held | None, device: Any
) -> Method:
    with Peak(device) as peak:
        start = time.perf_counter()
        first = predict(inside)
        seconds = time.perf_counter() - start
    return Method(name, posterior, first, None if outside is None else predict(outside), seconds, peak.bytes)


def scored(methods: list[Method], targets: Tensor, likelihood: Any, seed: int) -> dict[str, Any]:
    """Metrics, reliability, the spread of uncertainty, and error against rejection."""
    scores = [scores_of(m.inside, targets, m.outside, seed) for m in methods]
    rows = []
    for name, (label, better, about) in METRICS.items():
        values = [s.get(name) for s in scores]
        if all(value is None for value in values):
            continue
        losses = [losses_of(name, m.inside, targets) for m in methods]
        rows.append(
            {
                "name": name,
                "label": label,
                "better": better,
                "about": about,
                "values": [estimate(value) for value in values],
                "best": not_worse(values, losses, better, seed),
                "difference": _from_first(losses, seed),
            }
        )
    labels = likelihood.task in ("classification", "binary")
    return {
        "metrics": rows,
        "reliability": [reliability_of(m.inside, targets) for m in methods] if labels else None,
        "uncertainty": _spread(methods, likelihood.task),
        "rejection": [curve_of(m.inside, targets) for m in methods] if labels else None,
    }


def _from_first(losses: list[Tensor | None], seed: int) -> list[dict[str, Any] | None]:
    first = losses[0]
    return [None if first is None or other is None else estimate(paired(other - first, seed)) for other in losses]


def _spread(methods: list[Method], task: str) -> dict[str, Any]:
    name, label = UNCERTAINTY[task]
    outside = None if methods[0].outside is None else [sorted_values(uncertainty(m.outside)) for m in methods]
    return {
        "name": name,
        "label": label,
        "test": [sorted_values(uncertainty(m.inside)) for m in methods],
        "ood": outside,
    }


def _layers(methods: list[Method], layers: dict[str, Layers], inputs: Any, log: Log) -> dict[str, Any]:
    found = layerwise([(m.posterior, layers.get(m.name) or layers_of(None, inputs)) for m in methods])
    if found is None:
        log.leave_out("layers", "no method has a layer table for these inputs.")
        return {"layers": None, "agreement": None}
    return {"layers": found, "agreement": agreement([m.name for m in methods], found)}


def _distance(methods: list[Method], reference: str | None, log: Log) -> dict[str, Any] | None:
    """Of every method's predictive distribution from the reference's."""
    if reference is None:
        log.leave_out("distance", "no reference was named.")
        return None
    centre = next(m for m in methods if m.name == reference).inside
    found: dict[str, Any] = {"reference": reference, "total_variation": [], "wasserstein": []}
    for method in methods:
        for name in DISTANCES:
            found[name].append(_apart(DISTANCES[name], method.inside, centre))
    return found


def _apart(measure: Any, one: Any, other: Any) -> dict[str, Any] | None:
    try:
        return estimate(measure(one, other))
    except WhenceError:
        return None


def comparison(context: Context) -> dict[str, Any]:
    """The section of an audit that was given other methods."""
    if not context.methods:
        raise NotDefined("no other methods were given.")
    test, ood = context.need("test", targets=True), context.sets.get("ood")
    found = compare(
        {"Laplace": context.posterior, **context.methods},
        test.pair,
        ood=None if ood is None else ood.pair,
        seed=context.options.seed,
        progress=False,
    )
    kept = {key: value for key, value in found.record.items() if key not in ("schema", "created", "title", "run")}
    return kept | {"left_out": found.record["run"]["left_out"]}
