"""What the verdict says, and how often it is wrong on simulated data."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import whence
from benchmarks.verdicts import NETWORKS, SIMULATED, Scenario, network_case, template
from tests.auditing.cases import classification
from whence.auditing.calibration import _class_off, small_problems
from whence.auditing.data import Examples
from whence.auditing.guessing import implied_auroc
from whence.auditing.label_tables import Labelled, by_class
from whence.auditing.leading_layer import leading_layer
from whence.auditing.overlap import overlap, read_training
from whence.auditing.points import Judge
from whence.auditing.verdict import judged, overall
from whence.errors import BadOption, Notice
from whence.metrics.proportions import share_of
from whence.numerals import number, percent, with_interval
from whence.predictive.links import predict_draws
from whence.predictive.recalibration import recalibrated
from whence.report.record.audit import AuditRecord, Baseline, Metric, Quality
from whence.report.record.common import Estimate, SetSize
from whence.report.record.labels import ClassCalibration
from whence.report.record.numbers import LevelCoverage
from whence.report.record.sections import Layer, Sensitivity, Shares
from whence.report.record.verdict import JUDGED, Guessing, Overlap, Point, VerdictRules


def sensitivity(shares: dict[float, dict[str, float]]) -> list[Sensitivity]:
    return [Sensitivity(f, n, s, None) for f, table in shares.items() for n, s in table.items()]


def layer(name: str, test: Shares | None) -> Layer:
    empty: dict[str, Any] = {one.name: None for one in fields(Layer)}
    return Layer(**{**empty, "name": name, "test": test})


def layers(shares: dict[str, float]) -> list[Layer]:
    return [layer(name, Shares(share, 0.3, None, 0.4, 0.7)) for name, share in shares.items()]


def test_a_layer_that_leads_throughout_is_named_with_its_range() -> None:
    every = {0.1: {"a": 0.4, "b": 0.3}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leading_layer(layers({"a": 0.6, "b": 0.4}), sensitivity(every))
    assert found is not None and not found.elsewhere
    assert found.briefly() == "Layer `a` contributes the largest share of the variance (60%)."
    assert found.words() == (
        "Layer `a` contributes the largest share of the variance (60%; 40% with a prior ten times weaker, 70% with one "
        "ten times stronger; 30% under the prior alone)."
    )
    assert found.briefly(own_prior=True).startswith("Under the weaker prior of the profile, layer `a` contributes")
    falling = leading_layer(layers({"a": 0.6}), sensitivity({0.1: {"a": 0.77}, 1.0: {"a": 0.6}, 10.0: {"a": 0.54}}))
    assert falling is not None
    assert "77% with a prior ten times weaker, 54% with one ten times stronger" in falling.words()


def test_one_that_does_not_is_not_named_alone() -> None:
    every = {0.1: {"a": 0.4, "b": 0.6}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leading_layer(layers({"a": 0.6, "b": 0.4}), sensitivity(every))
    assert found is not None and found.elsewhere == ((0.1, "b"),)
    assert "depends on the prior" in found.briefly() and "`a`" not in found.briefly()
    assert found.words() == (
        "No layer has the largest share of the variance under every prior: layer `a` under this one (60%; 30% under "
        "the prior alone), layer `b` under a prior ten times weaker."
    )


def test_without_shares_there_is_none() -> None:
    assert leading_layer([layer("a", None)], sensitivity({})) is None
    assert leading_layer([], sensitivity({})) is None
    found = leading_layer(layers({"a": 1.0}), sensitivity({}))  # drawn posteriors have no other priors
    assert found is not None and not found.elsewhere


# Rules and points


def judge(**sections: Any) -> Judge:
    return Judge(replace(template(), **sections), VerdictRules())


def binary_quality(shift: float, seed: int, size: int = 1000) -> Quality:
    """Quality of predictions of a rare label whose logits are too large by ``shift``."""
    gen = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(size, 1, generator=gen, dtype=torch.float64) - 4.0
    y = (torch.rand(size, 1, generator=gen, dtype=torch.float64) < logits.sigmoid()).long()
    p = (logits + shift).sigmoid()
    rows = by_class(Labelled(torch.cat([1 - p, p], 1), y[:, 0], None), ["negative", "positive"])
    return Quality((), None, None, (), classes=rows)


def test_the_words_name_the_class_and_its_numbers() -> None:
    quality = binary_quality(math.log(5), 1)
    _, row = quality.classes or ()
    low, high = row.difference.low or 0.0, row.difference.high or 0.0
    found = _class_off(judge(quality=quality).record, VerdictRules())
    assert (
        found is not None
        and found.tone == "poor"
        and found.words
        == (
            f"The probability of `positive` is too high: {row.predicted:.1%} on average, its frequency is "
            f"{row.frequency:.1%} (simultaneous 95% interval of the difference {100 * low:.1f} to {100 * high:.1f} "
            "percentage points)."
        )
    )


def calibrated(ece: tuple[float, float, float], apart: tuple[float, float, float]) -> AuditRecord:
    """Of a class whose mean probability is off by ``apart`` from a frequency of 8%."""
    found = Estimate(*ece, 0.95, 270)
    metric = Metric("ece", "ECE", "lower", "", found, found, None)
    off = Estimate(*apart, 0.995, 270)
    rows = (
        ClassCalibration("8", 0.08, 0.08 + apart[0], off),
        ClassCalibration("9", 0.5, 0.5, Estimate(0.0, -0.1, 0.1, 0.95, 270)),
        ClassCalibration("0", 0.42, 0.42, Estimate(0.0, -0.1, 0.1, 0.95, 270)),
    )
    data = replace(template().data, overlap=None)
    return judged(
        replace(
            template(), data=data, quality=Quality((metric, accuracy(0.9, 0.85, 0.94)), None, None, (), classes=rows)
        ),
        VerdictRules(),
    )


def test_what_is_wrong_stands_first_and_what_is_tolerated_last() -> None:
    poor = calibrated((0.02, 0.01, 0.03), (0.08, 0.06, 0.1)).verdict.points[0]
    assert poor.tone == "poor" and poor.words.startswith("The probability of `8` is too high: 16% on average")
    small = calibrated((0.02, 0.01, 0.03), (0.04, 0.011, 0.076))
    point = small.verdict.points[0]
    assert point.tone == "good" and point.words.endswith(
        "(simultaneous 95% interval of the difference 1.1 to 7.6 percentage points, whose near end is within the limit "
        "of 25% of the frequency)."
    )
    assert small_problems(small, VerdictRules())
    assert "It shows no calibration problem large enough to lower the verdict (n = 500 inputs)." in small.verdict.words
    fine = calibrated((0.02, 0.01, 0.03), (0.0, -0.02, 0.02))
    assert not small_problems(fine, VerdictRules()) and "It is well calibrated." in fine.verdict.words
    wide = calibrated((0.04, 0.0, 0.07), (0.0, -0.02, 0.02))
    assert wide.verdict.points[0].tone == "good" and "no calibration problem large enough" in wide.verdict.words


def accuracy(value: float, low: float, high: float) -> Metric:
    found = Estimate(value, low, high, 0.95, 500)
    return Metric("accuracy", "Accuracy", "higher", "", found, found, None)


@pytest.mark.parametrize(
    ("difference", "right", "tone"),
    [
        ((-0.3, -0.4, -0.2), (0.8, 0.75, 0.85), "good"),
        ((-0.1, -0.3, 0.1), (0.62, 0.55, 0.68), "mixed"),  # not significant, and nothing is excluded
        ((0.0, -0.02, 0.02), (0.6, 0.55, 0.65), "poor"),  # at most 3% better
        ((0.4, 0.3, 0.5), (0.7, 0.65, 0.75), "poor"),
        ((-0.3, -0.4, -0.2), (0.5, 0.45, 0.55), "poor"),  # the most frequent class is right more often
    ],
)
def test_guessing(difference: tuple[float, float, float], right: tuple[float, float, float], tone: str) -> None:
    guess = Guessing("always predicting x", 0.67, Estimate(*difference, 0.95, 500), 0.6, "healthy")
    point = judge(quality=Quality((accuracy(*right),), None, None, (), guessing=guess)).guessing()
    assert point is not None and point.tone == tone and "`healthy`" in point.words
    assert point.words.startswith(
        f"The network is right for {percent(right[0])} of the inputs (95% interval {percent(right[1])} to "
        f"{percent(right[2])}); always answering `healthy` would be right for 60%"
    )
    side = "lower than" if difference[2] < 0 else "higher than" if difference[1] > 0 else "not significantly different"
    assert f"Its log loss is {side}" in point.words and "which the network did not have" in point.words
    size = with_interval(*difference, "nats", signed=True)
    assert f": {number(0.67 + difference[0])} against 0.67 nats (difference {size})." in point.words
    assert ("no significant difference" in point.words) is (right[1] <= 0.6 <= right[2] and right[0] != 0.6)


def test_overconfidence_is_said_only_if_it_is_significant() -> None:
    """The verdict and the section take it from one number."""
    ece = Estimate(0.06, 0.03, 0.09, 0.95, 500)
    metric = Metric("ece", "ECE", "lower", "", ece, ece, None)
    for apart, word in (((0.05, 0.02, 0.08), "overconfident"), ((-0.05, -0.08, -0.02), "underconfident"),
                        ((0.02, -0.01, 0.05), None)):  # fmt: skip
        found = Quality((metric,), None, None, (), overconfidence=Estimate(*apart, 0.95, 500))
        point = judge(quality=found).calibration()
        assert point is not None and point.tone == "mixed"
        assert ("confident" in point.words) == (word is not None) and (word or "") in point.words
        assert (" by 5.0 percentage points (95% interval 2.0 to 8.0)" in point.words) == (word is not None)
    small = Quality((metric,), None, None, (), overconfidence=Estimate(-0.007, -0.011, -0.003, 0.95, 500))
    words = (judge(quality=small).calibration() or point).words
    assert "slightly underconfident by 0.7 percentage points (95% interval 0.3 to 1.1)" in words


@pytest.mark.parametrize(
    ("coverage", "tone"),
    [
        ((0.95, 0.93, 0.97), "good"),
        ((0.91, 0.89, 0.925), "mixed"),
        ((0.8, 0.77, 0.83), "poor"),
        ((1.0, 0.996, 1.0), "mixed"),
        ((0.9, 0.7, 0.98), "unknown"),
    ],
)
def test_coverage_is_judged_by_the_near_end_of_its_interval(coverage: tuple[float, float, float], tone: str) -> None:
    found = Estimate(*coverage, 0.95, 500)
    metric = Metric("coverage", "Coverage", "0.95", "", found, found, None)
    point = judge(quality=Quality((metric,), None, None, ())).calibration()
    assert point is not None and point.tone == tone


def test_errors_as_well_as_the_confidences_imply_are_good() -> None:
    found = Estimate(0.74, 0.70, 0.78, 0.95, 500)
    metric = Metric("error_auroc", "AUROC of errors", "higher", "", found, found, None)
    tones = {}
    for implied in (None, 0.76, 0.85):
        point = judge(quality=Quality((metric,), None, None, (), implied_error_auroc=implied)).errors()
        assert point is not None
        tones[implied] = point.tone
    assert tones == {None: "mixed", 0.76: "good", 0.85: "mixed"}


def test_the_implied_auroc_is_that_of_drawn_errors() -> None:
    gen = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(60, 3, generator=gen, dtype=torch.float64)).softmax(1)
    probs[10:20] = probs[:10]  # ties
    prediction = predict_draws(whence.Categorical(), probs.log()[None])
    u, confidence = prediction.entropy, prediction.confidence
    won = pairs = 0.0
    for i in range(60):
        for j in range(60):
            if i != j:
                weight = float((1 - confidence[i]) * confidence[j])
                pairs += weight
                won += weight * (float(u[i] > u[j]) + 0.5 * float(u[i] == u[j]))
    assert implied_auroc(prediction, u) == pytest.approx(won / pairs, rel=1e-10)


def test_rules_can_be_set_and_are_in_the_record() -> None:
    given = classification()
    audit = whence.audit(given.model, given.train, **given.data(), sections=["quality"], progress=False)
    found = audit.results.verdict
    assert found.rules == VerdictRules() and all(point.rule for point in found.points if point.key in JUDGED)
    strict = audit.judged(VerdictRules(errors_good=1.0, errors_poor=1.0, ece=0.005))
    assert next(p for p in strict.results.verdict.points if p.key == "errors").tone == "poor"
    assert strict.results.verdict.tone == "poor" and audit.results.verdict is found
    assert strict.judged().results.verdict == found
    again = whence.audit(
        given.model,
        given.train,
        **given.data(),
        sections=["quality"],
        progress=False,
        rules=strict.results.verdict.rules,
    )
    assert again.results.verdict == strict.results.verdict


@pytest.mark.parametrize(
    ("given", "words"),
    [({"ece": -0.1}, "ece=-0.1"), ({"novelty_good": 0.5}, "must not be above"), ({"version": 4}, "version 3")],
)
def test_impossible_rules_are_refused(given: dict[str, float], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        VerdictRules(**given)  # type: ignore[arg-type]


def test_what_no_rule_judges_does_not_decide() -> None:
    points = [Point("a", "", "good", "calibration"), Point("b", "", "poor", "gain"), Point("c", "", "note", "prior")]
    assert overall(points) == "good"
    assert overall([*points, Point("d", "", "unknown", "errors")]) == "mixed"
    assert overall([Point("d", "", "unknown", "errors")]) == overall([]) == "unknown"
    assert overall([*points, Point("e", "", "poor", "guessing")]) == "poor"


# Simulated verdicts; python -m benchmarks.verdicts has 100 cases of each and networks


@pytest.mark.parametrize("scenario", SIMULATED, ids=lambda one: f"{one.point}: {one.what}")
def test_known_good_and_known_bad_predictions(scenario: Scenario) -> None:
    tones = [scenario.tone(600, seed) for seed in range(4)]
    assert all(tone in scenario.wanted for tone in tones), tones


@pytest.mark.parametrize("kind", NETWORKS)
def test_known_good_and_known_bad_networks(kind: str) -> None:
    assert network_case(kind, 1) in NETWORKS[kind]


def test_test_inputs_in_the_training_data_are_counted() -> None:
    x, y = torch.randn(30, 4), torch.randint(2, (30,))
    test = Examples("test", torch.cat([x[3:8], torch.randn(5, 4)]), torch.zeros(10))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.double(), y), batch_size=7, shuffle=True)
    for train in ((x, y), loader, {"x": x, "labels": y}, [(x[:20], y[:20]), (x[20:], y[20:])]):
        one = Examples("test", {"x": test.inputs}, test.targets) if isinstance(train, dict) else test
        found = overlap(train, one, None)
        assert found is not None and (found.checked, found.test, found.validation) == (30, 5, None)
    labelled = Examples("test", test.inputs, torch.cat([y[3:6], 1 - y[6:8], torch.zeros(5)]).float())
    for train in ((x, y), loader, (x, y.double()[:, None])):
        found = overlap(train, labelled, None)
        assert found is not None and (found.test, found.same_target) == (5, 3)
    cut = overlap((x, y), test, replace(test, name="validation"), lambda train: read_training(train, most=5))
    assert cut is not None and (cut.checked, cut.test, cut.validation) == (5, 2, 2)
    assert overlap(None, test, None) is None and overlap((x, y), None, None) is None
    assert overlap(iter(()), test, None) is None


class Jittered(torch.utils.data.Dataset):
    """The first inputs of a test set, with noise that differs each time."""

    def __init__(self, x: torch.Tensor, noise: float) -> None:
        self.x, self.noise = x, noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index] + self.noise * torch.randn(4), 0


def test_training_data_that_are_augmented_cannot_be_compared() -> None:
    x = torch.randn(20, 4)
    test = Examples("test", x, torch.zeros(20))
    loader = torch.utils.data.DataLoader(Jittered(x, 0.1), batch_size=5)
    with pytest.warns(Notice, match="random augmentation"):
        assert overlap(loader, test, None) is None
    for train in (Jittered(x, 0.0), torch.utils.data.DataLoader(Jittered(x, 0.0), batch_size=5, shuffle=True)):
        found = overlap(train, test, None)
        assert found is not None and found.test == 20


def test_a_class_that_is_hardly_ever_recognised_is_named() -> None:
    rows = [
        ClassCalibration(
            name,
            0.25,
            0.25,
            Estimate(0.0, -0.01, 0.01, 0.95, count),
            count,
            Estimate.of(share_of("recall", hits, count)),
        )
        for name, count, hits in (("cat", 300, 280), ("dog", 300, 3), ("owl", 20, 0), ("fox", 380, 200))
    ]
    found = judge(quality=Quality((), None, None, (), classes=tuple(rows)))
    point = found.classes()
    assert (
        point is not None
        and point.tone == "mixed"
        and point.words.startswith("Hardly ever recognised: `dog` (1% of 300 inputs, 95% interval 0.21% to 2.9%).")
    )
    assert "10%" in (point.rule or "")
    known = judge(quality=Quality((), None, None, (), classes=(rows[0], rows[2]))).classes()
    assert known is not None and known.tone == "good", "20 inputs are too few to say so of an owl"
    assert known.words == ("The class recognised least often is `owl` (0% of 20 inputs, 95% interval 0% to 16.8%).")
    assert Judge(found.record, VerdictRules(recall_mixed=None)).classes() is None
    labels = tuple(replace(row, specificity=row.recall) for row in rows)
    assert judge(quality=Quality((), None, None, (), classes=labels)).classes() is None, "a threshold decides that"
    assert judge(quality=Quality((), None, None, ())).classes() is None


# The recalibrated network


def test_the_gain_is_judged_against_the_recalibrated_network() -> None:
    apart = Estimate(-0.2, -0.3, -0.1, 0.95, 500)
    nothing = Estimate(0.01, -0.01, 0.03, 0.95, 500)
    nll = Metric("nll", "NLL", "lower", "", apart, apart, apart, apart, nothing)
    alone = judge(quality=Quality((nll,), None, None, ())).gain()
    assert alone is not None and alone.tone == "good" and "the plain network" in alone.words
    baseline = Baseline("temperature scaling", "temperature 1.7", 300)
    beside = judge(quality=Quality((nll,), None, None, (), baseline)).gain()
    assert beside is not None and beside.tone == "note"
    assert beside.words == (
        "No significant change in log loss compared with the plain network after temperature scaling (+0.010 nats, 95% "
        "interval −0.010 to 0.030)."
    )
    assert "gain" not in JUDGED  # a statement of its own


def test_an_audit_compares_with_temperature_scaling() -> None:
    given = classification()
    held = given.data()
    audit = whence.audit(given.model, given.train, **held, sections=["quality"], progress=False)
    quality = audit.results.quality
    assert quality is not None and quality.baseline is not None and quality.classes is not None
    with torch.no_grad():
        outputs = {name: given.model(held[name][0]) for name in ("validation", "test")}
    scaled = recalibrated(whence.Categorical(), outputs["validation"], held["validation"][1])
    assert quality.baseline.words == scaled.words and quality.baseline.inputs == len(held["validation"][1])
    nll = next(m for m in quality.metrics if m.name == "nll")
    direct = whence.metrics.nll(scaled.predict(outputs["test"]), held["test"][1])
    assert nll.recalibrated is not None and nll.recalibrated.value == pytest.approx(float(direct), rel=1e-5)
    assert nll.gain is not None and nll.bayesian is not None
    assert nll.gain.value == pytest.approx((nll.bayesian.value or 0) - float(direct), abs=1e-5)
    assert [row.name for row in quality.classes] == [str(c) for c in range(len(quality.classes))]
    again = whence.audit(
        given.model, given.train, likelihood="classification", test=held["test"], sections=["quality"], progress=False
    )
    assert again.results.quality is not None and again.results.quality.baseline is None


def detector(name: str, value: float) -> Any:
    return SimpleNamespace(name=name, label=name, auroc=Estimate(value, value - 0.02, value + 0.02, 0.95, 500))


def test_novelty_that_a_simpler_detector_beats_is_not_called_good() -> None:
    ranked = [detector("mahalanobis", 0.99), detector("novelty", 0.94), detector("entropy", 0.9)]
    point = judge(novelty=SimpleNamespace(detectors=ranked, choice=None)).novelty()
    assert point is not None and point.tone == "mixed" and "mahalanobis, 0.99" in point.words
    best = [detector("novelty", 0.95), detector("mahalanobis", 0.94), detector("entropy", 0.9)]
    point = judge(novelty=SimpleNamespace(detectors=best, choice=None)).novelty()
    assert point is not None and point.tone == "good" and "; entropy: 0.90)" in point.words
    weak = [detector("mahalanobis", 1.0), detector("novelty", 0.6), detector("entropy", 0.5)]
    point = judge(novelty=SimpleNamespace(detectors=weak, choice=None)).novelty()
    assert point is not None and point.tone == "poor"


def levels(found: dict[float, tuple[float, float, float]]) -> Any:
    estimates = {level: Estimate(*one, 0.95, 500) for level, one in found.items()}
    rows = [LevelCoverage(level, one, one) for level, one in estimates.items()]
    return SimpleNamespace(coverage=rows, pit=SimpleNamespace(distance=None, mean=None), outputs=())


@pytest.mark.parametrize(
    ("half", "tone", "words"),
    [
        ((0.5, 0.46, 0.54), "good", None),
        ((0.58, 0.54, 0.62), "mixed", "too wide"),
        ((0.3, 0.26, 0.34), "poor", "too narrow"),
    ],
)
def test_intervals_of_other_levels_count(half: tuple[float, float, float], tone: str, words: str | None) -> None:
    found = Estimate(0.95, 0.93, 0.97, 0.95, 500)
    metric = Metric("coverage", "Coverage", "0.95", "", found, found, None)
    numbers = levels({0.5: half, 0.95: (0.95, 0.93, 0.97)})
    point = judge(quality=Quality((metric,), None, None, (), numbers=numbers)).calibration()
    assert point is not None and point.tone == tone
    said = f"the 50% prediction intervals are {words}: they contain {percent(half[0])}"
    assert words is None or said in point.words


@pytest.mark.parametrize(
    ("distance", "mean", "tone", "words"),
    [
        ((0.06, 0.02), 0.48, "good", None),
        ((0.12, 0.08), 0.42, "mixed", "too high"),
        ((0.12, 0.08), 0.58, "mixed", "too low"),
        ((0.12, 0.08), 0.51, "mixed", "wrong shape"),
        ((0.3, 0.26), 0.3, "poor", "too high"),
    ],
)
def test_the_distribution_of_f_counts(distance: tuple[float, float], mean: float, tone: str, words: str | None) -> None:
    found = Estimate(0.95, 0.93, 0.97, 0.95, 500)
    metric = Metric("coverage", "Coverage", "0.95", "", found, found, None)
    pit = SimpleNamespace(distance=Estimate(*distance, 1.0, 0.95, 500), mean=mean)
    quality = Quality((metric,), None, None, (), numbers=SimpleNamespace(coverage=[], pit=pit, outputs=()))
    point = judge(quality=quality).calibration()
    assert point is not None and point.tone == tone and (words is None or words in point.words)
    unjudged = Judge(judge(quality=quality).record, VerdictRules(pit_good=None, pit_poor=None)).calibration()
    assert unjudged is not None and unjudged.tone == "good"


def test_validation_inputs_of_the_training_data_count() -> None:
    sizes = {"test": SetSize(100, False), "validation": SetSize(200, False)}
    data = replace(template().data, **sizes, overlap=Overlap(1000, 0, 12))
    point = judge(data=data).independence()
    assert (
        point is not None
        and point.tone == "poor"
        and ("12 of 200 validation inputs (6%) are also in the training data." in point.words)
    )


def test_what_to_do_next_is_in_order_and_has_numbers() -> None:
    data = replace(template().data, test=SetSize(100, False), overlap=Overlap(1000, 50, None))
    guess = Guessing("always predicting x", 0.67, Estimate(0.4, 0.3, 0.5, 0.95, 500), 0.6, "healthy")
    section = Quality((accuracy(0.5, 0.45, 0.55),), None, None, (), guessing=guess)
    steps = judged(replace(template(), data=data, quality=section), VerdictRules()).next_steps
    assert steps is not None and "also in the training data" in steps[0].words and "50 of 100" in steps[0].because
    order = {"poor": 0, "mixed": 1, "note": 2}
    tones = [order[step.tone] for step in steps]
    assert tones == sorted(tones) and all(step.because for step in steps)
