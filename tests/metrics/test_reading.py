"""How predictions, targets and keywords are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from whence import metrics
from whence.errors import BadData, BadOption
from whence.metrics.proportions import clustered_share, share_of


def test_masked_elements_do_not_decide_what_a_prediction_is() -> None:
    probs = torch.tensor([0.2, float("nan"), 0.7, 0.6])
    targets = torch.tensor([0.0, float("nan"), 1.0, 0.0])
    mask = torch.tensor([True, False, True, True])
    scores = metrics.evaluate(probs, targets, mask=mask, resamples=0)
    assert "brier" in scores and "rmse" not in scores
    assert float(scores["nll"]) == pytest.approx(float(metrics.nll(probs[mask], targets[mask], resamples=0)))


def test_groups_of_detection_are_whole_numbers_in_any_container() -> None:
    inside, outside = torch.rand(20), torch.rand(20) + 0.3
    groups = torch.arange(20) // 4
    with pytest.raises(BadData, match="whole numbers"):
        metrics.detection(inside, outside, groups=(torch.rand(20), torch.rand(20)))
    with pytest.raises(BadOption, match="pair"):
        metrics.detection(inside, outside, groups=groups)
    found = metrics.detection(inside, outside, groups=(groups, groups.numpy() + 100), resamples=50)
    assert found["auroc"].low < found["auroc"].high


def test_reliability_knows_groups() -> None:
    torch.manual_seed(0)
    probs = (0.9 * torch.rand(40) + 0.05).repeat_interleave(10)
    targets = (torch.rand(40) < 0.5).long().repeat_interleave(10)
    alone = metrics.reliability(probs, targets, bins=2, of=1)
    together = metrics.reliability(probs, targets, bins=2, of=1, groups=torch.arange(40).repeat_interleave(10))
    assert torch.equal(alone.accuracy, together.accuracy)
    for place, inside in enumerate((probs[::10] <= 0.5, probs[::10] > 0.5)):
        own = clustered_share("", 10 * targets[::10][inside], torch.full((int(inside.sum()),), 10.0))
        assert own is not None
        assert float(together.accuracy_low[place]) == pytest.approx(own.low)
        assert float(together.accuracy_high[place]) == pytest.approx(own.high)
        whole = share_of("", int(targets[::10][inside].sum()) * 10, int(inside.sum()) * 10)
        assert whole is not None and float(alone.accuracy_low[place]) == pytest.approx(whole.low)
    assert bool((together.accuracy_high - together.accuracy_low > alone.accuracy_high - alone.accuracy_low).all())


def test_class_weights_reach_the_ood_scores() -> None:
    torch.manual_seed(0)
    probs, other = torch.randn(60, 3).softmax(1), torch.randn(30, 3).mul(0.2).softmax(1)
    y = torch.arange(60) % 3
    weighted = metrics.evaluate(probs, y, ood=other, class_weights=[1.0, 0.0, 0.0], metrics=["accuracy"], resamples=0)
    only = metrics.evaluate(probs[y == 0], y[y == 0], ood=other, metrics=["accuracy"], resamples=0)
    assert float(weighted["ood_auroc"]) == pytest.approx(float(only["ood_auroc"]))
    assert weighted["ood_auroc"].count == 50


def test_keywords_of_classes_are_refused_for_numbers() -> None:
    normal, y = torch.distributions.Normal(torch.zeros(5), torch.ones(5)), torch.randn(5)
    for keywords in ({"ignore_index": -100}, {"class_weights": [1.0, 2.0]}):
        with pytest.raises(BadOption, match="applies only to classes"):
            metrics.nll(normal, y, **keywords)
        with pytest.raises(BadOption, match="applies only to classes"):
            metrics.evaluate(normal, y, **keywords)


def test_one_channel_is_a_binary_map() -> None:
    torch.manual_seed(0)
    probs, y = torch.rand(4, 1, 5, 5), torch.randint(2, (4, 5, 5))
    assert float(metrics.brier(probs, y, resamples=0)) == pytest.approx(float((probs[:, 0] - y).square().mean()))


def test_a_list_of_two_is_an_interval() -> None:
    low, high, y = [0.0, 1.0, 2.0], [4.0, 5.0, 6.0], [1.0, 9.0, 3.0]
    assert float(metrics.width([low, high], y, resamples=0)) == 4.0
    assert float(metrics.coverage([low, high], y, resamples=0)) == pytest.approx(2 / 3)


PROBS, LABELS = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    "options",
    [{"resamples": None}, {"resamples": "x"}, {"resamples": float("inf")}, {"seed": None}, {"level": "a"},
     {"level": 1.0}, {"bins": "a"}, {"bins": 0}, {"ignore_index": 1.5}],
)  # fmt: skip
def test_odd_options_are_refused_in_words(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=f"{next(iter(options))}="):
        metrics.ece(PROBS, LABELS, **options)


def test_more_odd_options() -> None:
    with pytest.raises(BadOption, match=r"of=1\.5"):
        metrics.reliability(PROBS, LABELS, of=1.5)
    with pytest.raises(BadOption, match="coverage='a'"):
        metrics.defer([0.1, 0.2], [0, 1], coverage="a")
    assert float(metrics.accuracy(PROBS, LABELS, ignore_index=None, resamples=0)) == pytest.approx(2 / 3)
