"""How the metrics behave as an interface: estimates, keywords, errors, seeds, tables, deferral."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whence.metrics as m
from whence.errors import BadData, BadOption, NotDefined, Notice
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction, RegressionPrediction

OF_LABELS = [m.accuracy, m.nll, m.brier, m.ece, m.mce, m.classwise_ece, m.aurc, m.selective_accuracy]
OF_SCORES = [m.auroc, m.aupr, m.fpr95]
OF_NUMBERS = [m.rmse, m.mae, m.r2, m.nll, m.crps, m.coverage, m.width, m.interval_score]


@pytest.fixture(autouse=True)
def _no_surprises() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def classes(n: int = 60, c: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, c, dtype=torch.float64).mul(1.5).softmax(1), torch.randint(c, (n,))


def scores(n: int = 60) -> tuple[Tensor, Tensor]:
    positive = torch.arange(n) % 3 == 0
    return torch.randn(n, dtype=torch.float64) + positive, positive


def normals(n: int = 60) -> tuple[torch.distributions.Normal, Tensor]:
    mean = torch.randn(n, dtype=torch.float64)
    return torch.distributions.Normal(mean, torch.full_like(mean, 0.8)), mean + torch.randn(n, dtype=torch.float64)


def every() -> list[tuple[Callable[..., m.Estimate], Any]]:
    pairs = [(OF_LABELS, classes), (OF_SCORES, scores), (OF_NUMBERS, normals)]
    return [pytest.param(f, data, id=f"{data.__name__}-{f.__name__}") for fs, data in pairs for f in fs]


def same(a: m.Estimate, b: m.Estimate, rel: float = 1e-9) -> None:
    assert a.__getnewargs__()[:3] == pytest.approx(b.__getnewargs__()[:3], rel=rel, abs=1e-12)


class TestEstimate:
    e = m.Estimate(0.02311, 0.0187, 0.0289, 0.95, 100, 1000, "ece")

    def test_is_a_float(self) -> None:
        assert self.e == 0.02311 and self.e * 2 == 0.04622 and isinstance(self.e, float)
        assert json.loads(json.dumps({"ece": self.e})) == {"ece": 0.02311}
        assert max(self.e, m.Estimate(0.5)) == 0.5

    def test_shows_value_and_interval(self) -> None:
        assert repr(self.e) == str(self.e) == f"{self.e}" == "0.0231 [0.0187, 0.0289]"
        assert f"{self.e:.3f}" == "0.023" and format(self.e, ".1%") == "2.3%"
        assert repr(m.Estimate(0.5)) == "0.500"
        assert repr(m.Estimate(0.0, 0.0, 0.0)) == "0.000 [0.000, 0.000]"
        assert repr(m.Estimate(1234.5, 1200.0, 1300.0)) == "1234 [1200, 1300]"

    @pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
    def test_copies(self, clone: Any) -> None:
        other = clone(self.e)
        assert type(other) is m.Estimate and other.to_dict() == self.e.to_dict()

    def test_fields(self) -> None:
        assert self.e.interval == (0.0187, 0.0289)
        assert self.e.to_dict() == {
            "value": 0.02311, "low": 0.0187, "high": 0.0289, "level": 0.95, "count": 100, "resamples": 1000,
            "name": "ece",
        }  # fmt: skip
        with pytest.raises(AttributeError, match="immutable"):
            self.e.low = 0.0


class TestEveryMetric:
    @pytest.mark.parametrize(("metric", "data"), every())
    def test_seeds_and_the_global_generator(self, metric: Any, data: Any) -> None:
        x, y = data()
        before = torch.get_rng_state()
        np_before = np.random.get_state()[1].copy()
        first, again, other = metric(x, y), metric(x, y, seed=0), metric(x, y, seed=1)
        assert torch.equal(before, torch.get_rng_state())
        assert (np_before == np.random.get_state()[1]).all()
        assert first.to_dict() == again.to_dict()
        assert float(first) == float(other)
        exact = (m.accuracy, m.coverage, m.fpr95, m.mce, m.interval_score)  # or of few values
        if first.low != first.high and metric not in exact:
            assert first.interval != other.interval
        assert first.count == 60 and first.resamples == 1000 and first.level == 0.95

    @pytest.mark.parametrize(("metric", "data"), every())
    def test_no_resamples_no_interval(self, metric: Any, data: Any) -> None:
        found = metric(*data(), resamples=0)
        assert math.isnan(found.low) and math.isnan(found.high) and math.isfinite(found)

    @pytest.mark.parametrize(("metric", "data"), every())
    def test_a_mask_leaves_out(self, metric: Any, data: Any) -> None:
        x, y = data()
        keep = torch.arange(60) % 4 != 1
        if data is normals:
            y = torch.where(keep, y, torch.nan)
            part = torch.distributions.Normal(x.loc[keep], x.scale[keep])
        else:
            x = x.clone()
            x[~keep] = torch.nan
            part = x[keep]
        found, wanted = metric(x, y, mask=keep), metric(part, y[keep])
        same(found, wanted)
        assert found.count == int(keep.sum())
        same(metric(x, y, weights=keep.double()), wanted)

    @pytest.mark.parametrize(("metric", "data"), every())
    def test_weights_count_as_repeats(self, metric: Any, data: Any) -> None:
        x, y = data()
        times = torch.randint(1, 4, (60,))
        if data is normals:
            more: Any = torch.distributions.Normal(x.loc.repeat_interleave(times), x.scale.repeat_interleave(times))
        else:
            more = x.repeat_interleave(times, 0)
        a, b = metric(x, y, weights=times, resamples=0), metric(more, y.repeat_interleave(times), resamples=0)
        # the mean over k ≤ N of aurc, like any harmonic number, knows N and not only shares
        assert float(a) == pytest.approx(float(b), rel=0.05 if metric is m.aurc else 1e-9, abs=1e-12)
        scaled = metric(x, y, weights=times * 0.37)
        same(scaled, metric(x, y, weights=times))

    @pytest.mark.parametrize(("metric", "data"), every())
    def test_groups_are_resampled_together(self, metric: Any, data: Any) -> None:
        """Nine copies of the data in groups carry the information of one copy."""
        x, y = data()
        names = torch.arange(60).repeat(9)
        if data is normals:
            more: Any = torch.distributions.Normal(x.loc.repeat(9), x.scale.repeat(9))
        else:
            more = x.repeat(9, *[1] * (x.dim() - 1))
        once, grouped, loose = metric(x, y), metric(more, y.repeat(9), groups=names), metric(more, y.repeat(9))
        if once.low == once.high:
            return
        assert grouped.high - grouped.low == pytest.approx(once.high - once.low, rel=0.35)
        if metric is not m.mce:
            assert loose.high - loose.low < 0.75 * (grouped.high - grouped.low)

    @pytest.mark.parametrize(("metric", "data"), every())
    def test_lists_and_arrays(self, metric: Any, data: Any) -> None:
        x, y = data()
        wanted = metric(x, y)
        if data is normals:
            same(metric(x, y.tolist()), wanted)
        else:
            same(metric(x.numpy(), y.numpy()), wanted)
            same(metric(x.tolist(), y.tolist()), wanted)
        same(metric(x, y[:, None]), wanted)

    @pytest.mark.parametrize(("metric", "data"), every())
    def test_nothing_to_score(self, metric: Any, data: Any) -> None:
        x, y = data()
        for keywords in ({"mask": torch.zeros(60, dtype=torch.bool)}, {"weights": torch.zeros(60)}):
            with pytest.raises(BadData, match="nothing to score: none of 60"):
                metric(x, y, **keywords)

    @pytest.mark.parametrize(("metric", "data"), every())
    @pytest.mark.parametrize(
        ("keywords", "error", "says"),
        [
            ({"level": 95}, BadOption, "level=95"),
            ({"resamples": -1}, BadOption, "resamples=-1"),
            ({"weights": [-1.0] * 60}, BadData, "-1"),
            ({"weights": [1.0] * 7}, BadData, r"\(7,\)"),
            ({"mask": [0.5] * 60}, BadData, "0.5"),
            ({"groups": [0.5] * 60}, BadData, "whole numbers"),
            ({"masks": None}, TypeError, "Did you mean 'mask'"),
        ],
    )
    def test_bad_keywords(self, metric: Any, data: Any, keywords: Any, error: Any, says: str) -> None:
        with pytest.raises(error, match=says):
            metric(*data(), **keywords)

    @pytest.mark.parametrize("metric", [*OF_LABELS, m.rmse])
    def test_one_example(self, metric: Any) -> None:
        x, y = (torch.tensor([[0.7, 0.3]]), torch.tensor([0])) if metric is not m.rmse else (torch.ones(1),) * 2
        with pytest.warns(Notice, match="one example has no interval"):
            found = metric(x, y)
        assert found.low == found.high == float(found)


class TestLabels:
    @pytest.mark.parametrize("metric", OF_LABELS)
    def test_class_weights_are_weights(self, metric: Any) -> None:
        x, y = classes()
        per_class = torch.tensor([1.0, 2.5, 0.0, 0.5])
        same(metric(x, y, class_weights=per_class), metric(x, y, weights=per_class[y]))

    @pytest.mark.parametrize("metric", OF_LABELS)
    def test_layouts(self, metric: Any) -> None:
        """Dense outputs count element by element, and examples are resampled whole."""
        probs, truth = torch.randn(8, 3, 4, 5).softmax(1), torch.randint(3, (8, 4, 5))
        truth[0, 0, 0] = -100
        wanted = metric(probs, truth)
        assert wanted.count == 8 * 4 * 5 - 1
        same(metric(probs.movedim(1, -1), truth, class_dim=-1), wanted)
        same(metric(ClassificationPrediction(probs.movedim(1, -1), probs.movedim(1, -1), class_dim=-1), truth), wanted)
        flat = probs.movedim(1, -1).reshape(-1, 3)
        same(metric(flat, truth.reshape(-1), groups=torch.arange(8).repeat_interleave(20)), wanted)
        same(metric(probs, truth, groups=torch.arange(8)), wanted)

    @pytest.mark.parametrize("metric", [f for f in OF_LABELS if f is not m.brier])
    def test_binary_is_two_classes(self, metric: Any) -> None:
        p, y = torch.rand(60, dtype=torch.float64), torch.rand(60) < 0.4
        wanted = metric(torch.stack([1 - p, p], 1), y.long())
        for prediction, truth in ((p, y), (p, y.double()), (p[:, None], y[:, None]), (p[:, None], y)):
            same(metric(prediction, truth), wanted)
        same(metric(BinaryPrediction(p[:, None], p[:, None]), y.long()), wanted)

    @pytest.mark.parametrize(
        ("x", "y", "says"),
        [
            (torch.tensor([[2.0, -1.0]]), [0], r"look like logits: pass \.softmax\(1\)"),
            (torch.tensor([[0.3, 0.3]]), [0], "sums to 0.6"),
            (torch.tensor([3.0, -1.0]), [0, 1], r"pass \.sigmoid\(\)"),
            (torch.tensor([[torch.nan, 0.3]]), [0], "NaN"),
            (torch.tensor([[0.5, 0.5]]), [2], r"2\.\.2, but there are 2 classes"),
            (torch.tensor([[0.5, 0.5]]), [0.5], "found 0.5"),
            (torch.tensor([[0.5, 0.5]]), [0, 1], r"\(2,\)"),
            (torch.full((2, 5, 3), 1 / 3), torch.zeros(2, 5), "class_dim=-1"),
        ],
    )
    def test_bad_data(self, x: Any, y: Any, says: str) -> None:
        with pytest.raises(BadData, match=says):
            m.accuracy(x, y)

    def test_zero_probability_is_said(self) -> None:
        with pytest.warns(Notice, match="1 of 2 true classes have probability 0"):
            assert math.isfinite(m.nll([[1.0, 0.0], [1.0, 0.0]], [0, 1]))

    def test_one_hot_targets_are_said(self) -> None:
        x, y = classes()
        with pytest.warns(Notice, match=r"argmax\(1\)"):
            m.brier(x, torch.nn.functional.one_hot(y, 4))

    def test_half_precision(self) -> None:
        x, y = classes()
        for dtype in (torch.float16, torch.bfloat16):
            assert float(m.brier(x.to(dtype), y)) == pytest.approx(float(m.brier(x, y)), abs=0.02)

    def test_gradients_are_no_matter(self) -> None:
        x, y = classes()
        same(m.nll(x.clone().requires_grad_(), y), m.nll(x, y))

    def test_at_the_edge_the_binomial_bound(self) -> None:
        found = m.accuracy(torch.eye(2)[[0, 1] * 25], torch.tensor([0, 1] * 25))
        assert found.interval == pytest.approx((0.025 ** (1 / 50), 1.0))
        found = m.auroc(torch.arange(30), torch.arange(30) >= 10)
        assert found.interval == pytest.approx((0.025 ** (1 / 20 if found == 0 else 1 / 10), 1.0))

    def test_tables(self) -> None:
        x, y = classes()
        table = m.reliability(x, y, bins=7).to_pandas()
        assert len(table) == 7 and table["count"].sum() == 60 and table["weight"].sum() == pytest.approx(1)
        assert m.reliability(x, y, of=2, binning="mass", bins=6).count.tolist() == [10] * 6
        with pytest.raises(BadOption, match="of=9"):
            m.reliability(x, y, of=9)
        curve = m.risk_coverage(x, y)
        assert list(curve.to_pandas().columns) == ["coverage", "risk", "threshold"]
        assert float(curve.risk[-1]) == pytest.approx(1 - float(m.accuracy(x, y)))

    @pytest.mark.parametrize(
        "call",
        [
            lambda x, y: m.ece(x, y, bins=0),
            lambda x, y: m.ece(x, y, binning="with"),
            lambda x, y: m.ece(x, y, norm="l3"),
            lambda x, y: m.selective_accuracy(x, y, coverage=0),
            lambda x, y: m.accuracy(x, y, class_weights=[1, 2]),
            lambda x, y: m.accuracy(x, y, class_dim=0),
            lambda x, y: m.fpr95(x[:, 0], y == 0, tpr=0),
            lambda x, y: m.coverage(x[:, 0], y, of=1),
        ],
    )
    def test_bad_options(self, call: Any) -> None:
        with pytest.raises(BadOption):
            call(*classes())


class TestScoresOfDetection:
    @pytest.mark.parametrize("metric", OF_SCORES)
    def test_both_classes_are_needed(self, metric: Any) -> None:
        with pytest.raises(BadData, match="no positive"):
            metric([0.1, 0.2], [0, 0])
        with pytest.raises(BadData, match="no negative"):
            metric([0.1, 0.2], [True, True])
        with pytest.raises(BadData, match="no positive"):
            metric([0.1, 0.2, 0.3], [0, 0, 1], weights=[1, 1, 0])

    def test_one_positive_among_many(self) -> None:
        with pytest.warns(Notice, match="only one example"):
            assert math.isfinite(m.auroc(torch.randn(50), torch.arange(50) == 3).low)

    def test_of_dense_scores_with_pairs(self) -> None:
        inside, outside = torch.rand(6, 4, 4), torch.rand(5, 3, 3) + 0.3
        found = m.detection(inside, outside)
        assert list(found) == ["auroc", "aupr_out", "aupr_in", "fpr95"]
        assert found["auroc"].count == 6 * 16 + 5 * 9
        part = m.detection(inside, outside, mask=(inside > 0.1, None))
        assert part["auroc"].count == int((inside > 0.1).sum()) + 45
        with pytest.raises(BadOption, match="pair"):
            m.detection(inside, outside, mask=inside > 0.1)


class TestNumbers:
    def test_what_has_no_meaning(self) -> None:
        _, y = normals()
        with pytest.raises(BadData, match="draws have no density"):
            m.nll(torch.randn(9, 60), y)
        with pytest.raises(BadData, match="no interval"):
            m.coverage(torch.randn(60), y)
        with pytest.raises(BadOption, match="fair=False"):
            m.crps(torch.randn(1, 60), y)
        with pytest.raises(NotDefined, match="pass draws"):
            m.crps(torch.distributions.StudentT(torch.full((60,), 5.0)), y)
        with pytest.raises(BadData, match="low above high"):
            m.coverage((y + 1, y - 1), y)
        with pytest.raises(BadData, match="variance"):
            m.nll(RegressionPrediction(y, torch.zeros(60), torch.zeros(60)), y)
        with pytest.raises(BadOption, match="class_weights"):
            m.nll(normals()[0], y, class_weights=[1, 1])

    def test_width_needs_no_targets(self) -> None:
        x, y = normals()
        for prediction in (x, (y - 1, y + 1), torch.randn(30, 60)):
            same(m.width(prediction), m.width(prediction, y))


class TestEvaluate:
    def test_of_labels(self) -> None:
        x, y = classes()
        found = m.evaluate(x, y, ood=torch.full((20, 4), 0.25))
        assert list(found)[:3] == ["accuracy", "nll", "brier"] and "ood_auroc" in found
        assert found["ece"].to_dict() == m.ece(x, y).to_dict()
        table = found.to_pandas()
        assert list(table.columns) == ["metric", "value", "low", "high", "count"] and len(table) == len(found)
        assert found.to_dict()["nll"]["value"] == float(found["nll"])
        lines = repr(found).splitlines()
        assert len(lines) == len(found) + 2 and lines[0].split()[:2] == ["metric", "value"]
        with pytest.raises(KeyError, match="was not evaluated"):
            found["rmse"]

    def test_of_binary_labels(self) -> None:
        p, y = torch.rand(60), torch.rand(60) < 0.4
        found = m.evaluate(p, y, ood=torch.rand(10))
        same(found["auroc"], m.auroc(p, y))
        assert "auroc" not in m.evaluate(p, torch.zeros(60))
        with pytest.raises(BadData, match="both classes"):
            m.evaluate(p, torch.zeros(60), metrics=["auroc"])

    def test_of_numbers(self) -> None:
        x, y = normals()
        assert set(m.evaluate(x, y)) == {score.__name__ for score in OF_NUMBERS}
        assert set(m.evaluate(x.mean, y)) == {"rmse", "mae", "r2"}
        assert set(m.evaluate((y - 1, y + 1), y)) == {"coverage", "width", "interval_score"}
        assert "nll" not in m.evaluate(torch.randn(20, 60), y)
        assert set(m.evaluate(torch.distributions.StudentT(torch.full((60,), 5.0)), y)) == {"rmse", "mae", "r2", "nll"}
        prediction = RegressionPrediction(x.mean[:, None], x.variance[:, None], x.variance[:, None])
        assert "ood_auroc_epistemic" in m.evaluate(prediction, y, ood=prediction)

    def test_chosen_metrics(self) -> None:
        x, y = classes()
        assert list(m.evaluate(x, y, metrics=["ece", "nll"], resamples=0)) == ["ece", "nll"]
        with pytest.raises(BadOption, match="Did you mean 'accuracy'"):
            m.evaluate(x, y, metrics=["acuracy"])
        with pytest.raises(BadOption, match="pass a list"):
            m.evaluate(x, y, metrics="ece")


class TestDeferral:
    u = torch.tensor([0.1, 0.2, 0.2, 0.3, 0.4, 0.5])
    errors = torch.tensor([0, 0, 1, 0, 1, 1])

    def test_coverage_keeps_ties_together(self) -> None:
        rule = m.defer(self.u, self.errors, coverage=0.3)
        assert rule.threshold == pytest.approx(0.2) and float(rule.coverage) == 0.5
        assert rule(self.u).tolist() == [True] * 3 + [False] * 3
        assert float(rule.error or 0) == pytest.approx(1 / 3)
        assert float(rule.deferred_error or 0) == pytest.approx(2 / 3)
        assert rule.target == 0.3 and rule.aim == "coverage"

    def test_max_error_takes_the_largest_coverage(self) -> None:
        rule = m.defer(self.u, self.errors, max_error=0.25)
        assert rule.threshold == pytest.approx(0.3) and float(rule.coverage) == pytest.approx(4 / 6)
        assert "error ≤ 0.25" in repr(rule)

    def test_nothing_and_everything(self) -> None:
        with pytest.warns(Notice, match="everything is deferred"):
            rule = m.defer(self.u, torch.ones(6), max_error=0.1)
        assert rule.threshold == -math.inf and rule.coverage == 0 and rule.error is None
        assert not rule(self.u).any() and "nothing is answered" in repr(rule)
        rule = m.defer(self.u, torch.zeros(6), max_error=0.1)
        assert rule.coverage == 1 and rule.deferred_error is None

    def test_confidence_is_the_exact_binomial(self) -> None:
        """59 answers without error are the fewest that show 5 % with 95 % confidence."""
        u = torch.arange(59.0)
        assert m.defer(u, torch.zeros(59), max_error=0.05, confidence=0.95).coverage == 1
        with pytest.warns(Notice, match="with confidence 0.95"):
            assert m.defer(u[:58], torch.zeros(58), max_error=0.05, confidence=0.95).coverage == 0

    def test_check_measures_on_other_data(self) -> None:
        rule = m.defer(self.u, self.errors, coverage=0.5)
        other = rule.check([0.1, 0.9], [1, 0], resamples=0)
        assert other.threshold == rule.threshold and float(other.coverage) == 0.5 and other.error == 1

    @pytest.mark.parametrize(
        ("keywords", "error"),
        [
            ({}, BadOption),
            ({"max_error": 0.1, "coverage": 0.5}, BadOption),
            ({"coverage": 0.5, "confidence": 0.9}, BadOption),
            ({"max_error": 1.5}, BadOption),
            ({"max_error": 0.1, "confidence": 2}, BadOption),
            ({"max_error": 0.1, "confidence": 0.9, "weights": [1, 2, 1, 1, 1, 1]}, BadOption),
            ({"max_error": 0.1, "confidence": 0.9, "groups": [1, 1, 2, 2, 3, 3]}, BadOption),
        ],
    )
    def test_bad_questions(self, keywords: Any, error: Any) -> None:
        with pytest.raises(error):
            m.defer(self.u, self.errors, **keywords)

    def test_losses_in_0_to_1(self) -> None:
        assert float(m.defer(self.u, self.errors * 0.5, max_error=0.2, resamples=0).error or 1) <= 0.2
        with pytest.raises(BadData, match=r"0\.\.1"):
            m.defer(self.u, self.errors * 3, max_error=0.2)
        with pytest.raises(BadData, match="0 or 1"):
            m.defer(self.u, self.errors * 0.5, max_error=0.2, confidence=0.9)
