"""How often the verdict of an audit is wrong: predictions and networks that are known to be good or bad.

``python -m benchmarks.verdicts`` writes ``results/verdicts.json`` and the table of docs/metrics.md; ``--cases 20`` is
a quick look. Predictions are simulated and judged by the code of the audit; networks are trained and audited.

Index legend: N inputs, C classes.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks.report import between
from whence.auditing.context import Kind
from whence.auditing.data import Examples
from whence.auditing.quality import quality
from whence.auditing.tasks import task_of
from whence.auditing.units import TARGET
from whence.auditing.verdict import judged
from whence.errors import Notice
from whence.likelihoods import Likelihood
from whence.predictive.links import predict_draws
from whence.report.record.audit import AuditRecord, Elements, TrainingFit
from whence.report.record.common import SetSize
from whence.report.record.verdict import Overlap, VerdictRules

RESULTS = Path(__file__).parent / "results" / "verdicts.json"
PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
RULES = VerdictRules()
TESTED = 1000  # test inputs of a trained network


# Simulated predictions


class Simulated:
    """Stands in for the context of an audit: outputs of a network and targets, without the network."""

    def __init__(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, outside: Tensor | None = None) -> None:
        self.task, self.classes, self.seed, self.baseline = task_of(likelihood), None, 0, None
        self.likelihood, self.targets, self.sets, self.training = likelihood, targets, {}, None
        self.raw = {"test": outputs, "ood": outside}
        self.outputs, self.positive, self.posterior = TARGET, 1, SimpleNamespace(has_curvature=False)

    @property
    def elements(self) -> Elements | None:
        return self.task.elements(self.targets)

    @property
    def uncertainty_label(self) -> str:
        return self.outputs.uncertainty_label(self.task, self.elements)

    def need_targets(self, _: str) -> Tensor:
        return self.targets

    def need(self, name: str) -> Examples:
        outputs = self.raw[name]
        assert outputs is not None
        return Examples(name, outputs, None)

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    @functools.cache  # noqa: B019
    def prediction(self, name: str, _: Kind = Kind.BAYESIAN) -> Any:
        outputs = self.raw[name]
        assert outputs is not None
        return predict_draws(self.likelihood, outputs[None])

    def uncertainty(self, name: str, _: Kind = Kind.BAYESIAN) -> Tensor:
        return self.task.uncertainty(self.prediction(name))

    def profiled_uncertainties(self, kind: Kind) -> tuple[Tensor, Tensor] | None:
        return (self.uncertainty("test", kind), self.uncertainty("ood", kind)) if self.has("ood") else None

    def class_name(self, index: int) -> str:
        return str(index)


@functools.cache
def template() -> AuditRecord:
    """A record whose sections are replaced by simulated ones."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found = whence.audit(
            nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), likelihood="classification", sections=[], progress=False
        ).results
    training = replace(found.run.posterior, training=None)
    return replace(found, run=replace(found.run, posterior=training))


def record_of(context: Simulated) -> AuditRecord:
    """The simulated predictions as an audit that has its quality section alone."""
    made = template()
    size = SetSize(len(context.targets), False)
    given: Any = context
    return replace(made, quality=quality(given), data=replace(made.data, test=size, elements=context.elements))


def logits_of(n: int, seed: int, classes: int = 5, sharp: float = 2.5) -> tuple[Tensor, torch.Generator]:
    gen = torch.Generator().manual_seed(seed)
    return sharp * torch.randn(n, classes, generator=gen, dtype=torch.float64), gen


def drawn(logits: Tensor, gen: torch.Generator) -> Tensor:
    """Labels with the probabilities that the logits state."""
    return torch.multinomial(logits.softmax(1), 1, generator=gen).squeeze(1)


def classes_case(n: int, seed: int, change: Callable[[Tensor, Tensor, torch.Generator], Tensor]) -> AuditRecord:
    """Right labels of some logits; the network's outputs are these logits, changed."""
    logits, gen = logits_of(n, seed)
    labels = drawn(logits, gen)
    return record_of(Simulated(whence.Categorical(), change(logits, labels, gen), labels))


def as_it_is(logits: Tensor, labels: Tensor, gen: torch.Generator) -> Tensor:
    return logits


def permuted(logits: Tensor, labels: Tensor, gen: torch.Generator) -> Tensor:
    return logits[torch.randperm(len(logits), generator=gen)]


def never_the_last(logits: Tensor, labels: Tensor, gen: torch.Generator) -> Tensor:
    """As if the last class had hardly been in the training data."""
    return logits - 6.0 * (torch.arange(logits.shape[1]) == logits.shape[1] - 1)


def flat_and_permuted(logits: Tensor, labels: Tensor, gen: torch.Generator) -> Tensor:
    return 0.1 * permuted(logits, labels, gen)


def sharp_answers(logits: Tensor, labels: Tensor, gen: torch.Generator) -> Tensor:
    """Answers of the first class state too much, and only those."""
    first = logits.argmax(1, keepdim=True) == 0
    return torch.where(first, 4 * logits, logits)


def unrelated_confidence(logits: Tensor, labels: Tensor, gen: torch.Generator) -> Tensor:
    """The right answers, each with the confidence of another input."""
    top = logits.argmax(1)
    other = permuted(logits, labels, gen).sort(descending=True).values
    place = torch.arange(logits.shape[1]).expand_as(logits).clone()
    moved = torch.zeros_like(logits)
    order = torch.cat([top.unsqueeze(1), place[place != top.unsqueeze(1)].reshape(len(logits), -1)], 1)
    return moved.scatter(1, order, other)


def shifted_case(n: int, seed: int, factor: float) -> AuditRecord:
    """Labels whose first class is ``factor`` times as likely as the network has learnt."""
    logits, gen = logits_of(n, seed)
    truth = logits.clone()
    truth[:, 0] += math.log(factor)
    return record_of(Simulated(whence.Categorical(), logits, drawn(truth, gen)))


def rare_case(n: int, seed: int, weight: float) -> AuditRecord:
    """A label of about 5%, predicted by a network that was trained with ``pos_weight``."""
    gen = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(n, 1, generator=gen, dtype=torch.float64) - 4.3
    labels = (torch.rand(n, 1, generator=gen, dtype=torch.float64) < logits.sigmoid()).long()
    return record_of(Simulated(whence.Bernoulli(), logits + math.log(weight), labels))


def numbers_case(n: int, seed: int, stated: float) -> AuditRecord:
    """Errors of standard deviation 1 around a signal, with a stated standard deviation."""
    gen = torch.Generator().manual_seed(seed)
    signal, noise = (torch.randn(n, 1, generator=gen, dtype=torch.float64) for _ in range(2))
    return record_of(Simulated(whence.Gaussian(noise=stated), 2 * signal, 2 * signal + noise))


def shifted_numbers(n: int, seed: int, shift: float) -> AuditRecord:
    """Predictions that are too high by ``shift`` standard deviations, whose stated width is that of their errors."""
    gen = torch.Generator().manual_seed(seed)
    signal, noise = (torch.randn(n, 1, generator=gen, dtype=torch.float64) for _ in range(2))
    stated = math.sqrt(1 + shift**2)
    return record_of(Simulated(whence.Gaussian(noise=stated), 2 * signal + shift, 2 * signal + noise))


def skewed_numbers(n: int, seed: int) -> AuditRecord:
    """Errors that are exponential, minus their mean, with the right standard deviation."""
    gen = torch.Generator().manual_seed(seed)
    signal = torch.randn(n, 1, generator=gen, dtype=torch.float64)
    noise = -torch.rand(n, 1, generator=gen, dtype=torch.float64).log() - 1
    return record_of(Simulated(whence.Gaussian(noise=1.0), signal, signal + noise))


def pixels_case(n: int, seed: int, factor: float) -> AuditRecord:
    """Images of 8 × 8 pixels with three classes, some images harder than others; logits times ``factor``."""
    gen = torch.Generator().manual_seed(seed)
    count = max(25, n // 10)
    hard = 0.5 + 3 * torch.rand(count, 1, 1, 1, generator=gen, dtype=torch.float64)
    logits = hard * torch.randn(count, 3, 8, 8, generator=gen, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1).movedim(1, -1).reshape(-1, 3), 1, generator=gen)
    return record_of(Simulated(whence.Categorical(class_dim=1), factor * logits, labels.reshape(count, 8, 8)))


def novel_case(n: int, seed: int, apart: float) -> AuditRecord:
    """Logits of novel inputs, less sharp than those of test inputs by the factor ``apart``."""
    logits, gen = logits_of(n, seed, sharp=6.0)
    outside = torch.randn(n, 5, generator=gen, dtype=torch.float64) * 6.0 / apart
    return record_of(Simulated(whence.Categorical(), logits, drawn(logits, gen), outside))


def accuracy_case(n: int, seed: int, training: float) -> AuditRecord:
    """A calibrated network (accuracy about 70%) that was ``training`` accurate on its training data."""
    found = classes_case(n, seed, as_it_is)
    about = found.run.posterior
    fit = TrainingFit(1000, training, training)
    return replace(found, run=replace(found.run, posterior=replace(about, training=fit)))


def overlap_case(n: int, seed: int, part: float) -> AuditRecord:
    found = classes_case(n, seed, as_it_is)
    gen = torch.Generator().manual_seed(seed)
    count = int((torch.rand(n, generator=gen) < part).sum())
    return replace(found, data=replace(found.data, overlap=Overlap(1000, count, None)))


@dataclass(frozen=True)
class Scenario:
    """Records that must (or must not) get some tones at a point of the verdict, or overall."""

    point: str
    what: str
    make: Callable[[int, int], AuditRecord]  # number of inputs and seed
    wanted: tuple[str, ...]

    def tone(self, n: int, seed: int) -> str:
        found = judged(self.make(n, seed), RULES).verdict
        if self.point == "overall":
            return found.tone
        return next((point.tone for point in found.points if point.key == self.point), "absent")


def scaled(factor: float) -> Callable[[int, int], AuditRecord]:
    return lambda n, seed: classes_case(n, seed, lambda logits, labels, gen: factor * logits)


GOOD, NOT_GOOD, POOR = ("good",), ("poor", "mixed"), ("poor",)
SIMULATED = (
    Scenario("calibration", "calibrated, 5 classes", lambda n, s: classes_case(n, s, as_it_is), GOOD),
    Scenario("calibration", "overconfident, logits × 2.5", scaled(2.5), POOR),
    Scenario("calibration", "underconfident, logits × 0.3", scaled(0.3), POOR),
    Scenario("calibration", "a class five times as frequent as learnt", lambda n, s: shifted_case(n, s, 5.0), NOT_GOOD),
    Scenario(
        "calibration", "answers of one class overconfident", lambda n, s: classes_case(n, s, sharp_answers), NOT_GOOD
    ),
    Scenario("calibration", "a rare label, calibrated", lambda n, s: rare_case(n, s, 1.0), GOOD),
    Scenario("calibration", "a rare label, trained with pos_weight = 5", lambda n, s: rare_case(n, s, 5.0), POOR),
    Scenario("calibration", "numbers, stated deviation right", lambda n, s: numbers_case(n, s, 1.0), GOOD),
    Scenario("calibration", "numbers, stated deviation half", lambda n, s: numbers_case(n, s, 0.5), POOR),
    Scenario("calibration", "numbers, stated deviation twice", lambda n, s: numbers_case(n, s, 2.0), NOT_GOOD),
    Scenario("calibration", "numbers, half a deviation too high", lambda n, s: shifted_numbers(n, s, 0.5), NOT_GOOD),
    Scenario("calibration", "numbers, skewed errors", skewed_numbers, NOT_GOOD),
    Scenario("calibration", "pixels, calibrated", lambda n, s: pixels_case(n, s, 1.0), GOOD),
    Scenario("calibration", "pixels, overconfident, logits × 3", lambda n, s: pixels_case(n, s, 3.0), POOR),
    Scenario("guessing", "calibrated, 5 classes", lambda n, s: classes_case(n, s, as_it_is), GOOD),
    Scenario("guessing", "permuted labels, confident", lambda n, s: classes_case(n, s, permuted), POOR),
    Scenario("guessing", "permuted labels, unsure", lambda n, s: classes_case(n, s, flat_and_permuted), POOR),
    Scenario("guessing", "numbers, right", lambda n, s: numbers_case(n, s, 1.0), GOOD),
    Scenario("generalisation", "training accuracy 72%, test about 70%", lambda n, s: accuracy_case(n, s, 0.72), GOOD),
    Scenario(
        "generalisation", "training accuracy 100%, test about 70%", lambda n, s: accuracy_case(n, s, 1.0), NOT_GOOD
    ),
    Scenario("classes", "calibrated, 5 classes", lambda n, s: classes_case(n, s, as_it_is), GOOD),
    Scenario("classes", "one of 5 classes never predicted", lambda n, s: classes_case(n, s, never_the_last), NOT_GOOD),
    Scenario("errors", "calibrated, 5 classes", lambda n, s: classes_case(n, s, as_it_is), GOOD),
    Scenario("errors", "confidence of other inputs", lambda n, s: classes_case(n, s, unrelated_confidence), POOR),
    Scenario("errors", "pixels, calibrated", lambda n, s: pixels_case(n, s, 1.0), GOOD),
    Scenario("novelty", "novel logits ten times less sharp", lambda n, s: novel_case(n, s, 10.0), GOOD),
    Scenario("novelty", "novel logits as sharp", lambda n, s: novel_case(n, s, 1.0), POOR),
    Scenario("independence", "no duplicates", lambda n, s: overlap_case(n, s, 0.0), GOOD),
    Scenario("independence", "10% duplicates", lambda n, s: overlap_case(n, s, 0.1), POOR),
)


# Trained networks


def blobs(n: int, gen: torch.Generator, width: float = 1.0, frequencies: tuple[float, ...] = (1, 1, 1)) -> Any:
    """Three overlapping clouds in ten dimensions."""
    centres = 1.9 * torch.eye(3, 10)
    y = torch.multinomial(torch.tensor(frequencies, dtype=torch.float64), n, replacement=True, generator=gen)
    return centres[y] + width * torch.randn(n, 10, generator=gen), y


def trained(data: Any, seed: int, steps: int, decay: float, hidden: int = 16, weight: float = 1.0) -> nn.Module:
    torch.manual_seed(seed)
    x, y = data
    outputs = 1 if y.dim() == 2 else 3
    model = nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    optimiser = torch.optim.AdamW(model.parameters(), 0.02, weight_decay=decay)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weight)) if outputs == 1 else nn.CrossEntropyLoss()
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return model.eval()


def rare(n: int, gen: torch.Generator) -> Any:
    """A label of about 8%."""
    x = torch.randn(n, 10, generator=gen)
    p = (1.6 * (x[:, 0] + x[:, 1]) - 4.2).sigmoid()
    return x, (torch.rand(n, generator=gen) < p).float().unsqueeze(1)


def network_case(kind: str, seed: int) -> str:
    """The overall verdict on a network of a kind."""
    gen = torch.Generator().manual_seed(1000 + seed)
    make: Any = rare if kind in ("rare", "class-weighted") else blobs
    train, validation, test = (make(n, gen) for n in (3000, 1000, 1000))
    steps, decay, hidden, weight = 60, 0.3, 16, 1.0
    if kind == "overfitted":
        train, steps, decay, hidden = blobs(40, gen, 1.8), 400, 0.0, 128
        validation, test = (blobs(n, gen, 1.8) for n in (1000, 1000))
    elif kind == "label-shifted":
        train, validation = (blobs(n, gen, 1.5, (1, 4, 4)) for n in (3000, 1000))
        test = blobs(1000, gen, 1.5, (8, 1, 1))
    elif kind == "permuted labels":
        train, validation = ((x, y[torch.randperm(len(y), generator=gen)]) for x, y in (train, validation))
    elif kind == "class-weighted":
        weight = 5.0
    elif kind == "test in training data":
        train = (torch.cat([train[0], test[0][:120]]), torch.cat([train[1], test[1][:120]]))
    model = trained(train, seed, steps, decay, hidden, weight)
    name: Any = "binary" if make is rare else "classification"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found = whence.audit(
            model, train, likelihood=name, validation=validation, test=test, sections=["quality", "deferral"],
            progress=False,
        )  # fmt: skip
    return found.results.verdict.tone


NETWORKS = {
    "good": GOOD,
    "rare": GOOD,
    "class-weighted": POOR,
    "label-shifted": POOR,
    "overfitted": POOR,
    "permuted labels": POOR,
    "test in training data": POOR,
}


# The tables


def simulated(place: int, cases: int, n: int) -> dict[str, Any]:
    """One row of the table: a scenario of predictions."""
    torch.set_num_threads(1)
    one = SIMULATED[place]
    return _row(one.point, one.what, one.wanted, [one.tone(n, seed) for seed in range(cases)], n)


def audited(kind: str, cases: int) -> dict[str, Any]:
    """One row of the table: a kind of network."""
    torch.set_num_threads(1)
    tones = [network_case(kind, seed) for seed in range(cases)]
    return _row("overall", f"network: {kind}", NETWORKS[kind], tones, TESTED)


def _row(point: str, what: str, wanted: tuple[str, ...], tones: list[str], n: int) -> dict[str, Any]:
    counts = {tone: tones.count(tone) for tone in ("good", "mixed", "poor", "unknown", "absent") if tone in tones}
    right = sum(tone in wanted for tone in tones)
    row = {"point": point, "what": what, "wanted": list(wanted), "right": right, "cases": len(tones), "n": n}
    print({**row, "tones": counts}, flush=True)
    return {**row, "tones": counts}


def table(found: dict[str, Any]) -> str:
    lines = [
        "| judged | predictions or network | right verdict | right, of cases |",
        "|---|---|---|---|",
        *(
            f"| {row['point']} | {row['what']} | {' or '.join(row['wanted'])} | {row['right']} of {row['cases']} |"
            for row in found["rows"]
        ),
    ]
    versions = found["versions"]
    about = f"{found['date']}, whence {versions['whence']}, rules {versions['rules']}; n = {found['n']:,} test inputs."
    return f"{about}\n\n" + "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--networks", type=int, default=None, help="cases of trained networks; by default as many")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-page", action="store_true", help="print only")
    given = parser.parse_args(arguments)
    networks = given.cases if given.networks is None else given.networks
    with ProcessPoolExecutor(given.processes) as pool:
        jobs = [pool.submit(simulated, place, given.cases, given.inputs) for place in range(len(SIMULATED))]
        jobs += [pool.submit(audited, kind, networks) for kind in NETWORKS]
        rows = [job.result() for job in jobs]
    if given.no_page:
        return
    versions = {"whence": whence.__version__, "torch": torch.__version__, "rules": RULES.version}
    found = {"date": date.today().isoformat(), "versions": versions, "n": given.inputs, "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(between(PAGE.read_text(), "verdicts", table(found)))


if __name__ == "__main__":
    main()
