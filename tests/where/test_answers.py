"""Answers in words, with the numbers that the tables give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close, fitted
from tests.reference.networks import ALL
from whence.errors import BadData, BadOption, NotDefined, NothingSelected
from whence.metrics import nll
from whence.posteriors.laplace.layer_subset import restricted_to_layers
from whence.predictive.linearised import moments
from whence.where.answers import _enough, _novel_inputs, answers
from whence.where.shares import Shares


def posterior_of(structure: str = "kron") -> tuple[whence.Laplace, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model[2].weight[:, 1] = 0  # the first layer's unit 1 reaches nothing
    x, y = torch.randn(80, 4).double(), torch.randint(3, (80,))
    return (
        whence.laplace(
            model, (x, y), likelihood="classification", structure=structure, prior_precision=1.0, progress=False
        ),
        x,
        y,
    )


@pytest.mark.parametrize("name", ["mlp", "conv2d"])
@pytest.mark.parametrize("structure", ["kron", "diag", "block", "ekfac"])
def test_a_restricted_posterior_is_the_sum_of_its_layers(name: str, structure: str) -> None:
    case = ALL[name](0)
    posterior = fitted(case, structure=structure)
    parts = moments(posterior, case.x, by_block=True).by_block
    assert parts is not None
    names = [b.name for b in posterior.blocks]
    some = restricted_to_layers(posterior, names[::2])
    assert_close(moments(some, case.x).cov, sum(parts[::2]))
    assert set(some.variance()) == {p.name for b in posterior.blocks[::2] for p in b.params}
    assert_close(moments(posterior, case.x).cov, sum(parts))


def test_what_cannot_be_restricted_is_refused() -> None:
    posterior, _, _ = posterior_of("full")
    with pytest.raises(NotDefined, match="layers="):
        restricted_to_layers(posterior, ["0"])
    posterior, _, _ = posterior_of()
    with pytest.raises(BadOption, match="unknown layer"):
        restricted_to_layers(posterior, ["9"])
    with pytest.raises(NothingSelected):
        restricted_to_layers(posterior, [])


def test_answers_hold_the_numbers_of_the_tables() -> None:
    posterior, x, y = posterior_of()
    found = answers(posterior, (x, y), ood=5 * x)
    by_question = {a.question.split()[0] + a.question.split()[1]: a for a in found.items}
    rows = {row.name: row for row in posterior.where(x).layers}
    last = by_question["Isit"]
    assert last.numbers["share"] == pytest.approx(rows["4"].variance_share)
    assert last.numbers["explained"] == pytest.approx(rows["4"].explained)
    alone = restricted_to_layers(posterior, ["4"]).predict(x)
    assert last.numbers["last_layer"]["nll"] == pytest.approx(float(nll(alone, y, resamples=0)))
    fewest = by_question["Whichlayers"] if "cover" in by_question["Whichlayers"].question else found.items[1]
    assert fewest.numbers["share"] >= 0.95
    kept = sorted(fewest.numbers["layers"], key=lambda n: rows[n].variance_share)
    assert fewest.numbers["share"] - rows[kept[0]].variance_share < 0.95, "none of them could be left out"
    unidentified = next(a for a in found.items if "unidentified" in a.question)
    assert 1 in unidentified.numbers["units"]["0"] and "1 in layer `0`" in unidentified.words
    elsewhere = found.items[-1]
    outside = posterior.where(5 * x).layers
    assert elsewhere.numbers["explained_outside"] == pytest.approx([row.explained for row in outside])
    prior = next(a for a in found.items if "prior" in a.question)
    assert 0 <= prior.numbers["moved"] <= 1 and "%" in prior.words
    assert len(str(found).splitlines()) > 9 and len(found.to_dict()) == len(found.items)


def test_correlated_layers_and_regression_get_what_is_defined() -> None:
    posterior, x, y = posterior_of("full")
    assert all("last layer" not in a.question for a in answers(posterior, (x, y)).items)
    target = x[:, :1] ** 2
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    regression = whence.laplace(network, (x, target), likelihood="regression", progress=False)
    first = answers(regression, (x, target), ood=(3 * x, target)).items[0]
    assert {"nll", "rmse", "ood_auroc"} <= set(first.numbers["whole"])
    with pytest.raises(BadData, match="pair"):
        answers(posterior, x)


@pytest.mark.parametrize(
    ("few", "word"),
    [
        ({"nll": 0.3, "ood_auroc": 0.9}, "Yes for prediction"),
        ({"nll": 0.1, "ood_auroc": 0.95}, "Yes for prediction"),
        ({"nll": 0.4, "ood_auroc": 0.95}, "No"),
        ({"nll": 0.1, "ood_auroc": 0.8}, "No"),
    ],
)
def test_the_last_layer_is_enough_for_prediction_where_nothing_gets_worse(few: dict[str, float], word: str) -> None:
    assert _enough(0.02, few, {"nll": 0.3, "ood_auroc": 0.9}).startswith(word)
    assert _enough(0.97, few, {"nll": 0.3, "ood_auroc": 0.9}) == "Yes"


def test_equal_scores_show_nothing_where_the_weights_change_no_prediction() -> None:
    whole = {"nll": 0.3, "ood_auroc": 0.9}
    for plain, said in (({"nll": 0.3004, "ood_auroc": 0.902}, True), ({"nll": 0.302, "ood_auroc": 0.9}, False)):
        assert _enough(0.02, whole, whole, plain).startswith("Cannot be judged by the predictions") is said
    assert _enough(0.97, whole, whole, whole) == "Yes"
    posterior, x, y = posterior_of()
    strong = answers(posterior.with_prior(1e8), (x, y)).items[0]
    plain = float(nn.functional.cross_entropy(posterior.network(x), y))
    assert strong.numbers["plain"]["nll"] == pytest.approx(plain, rel=1e-6)
    assert strong.numbers["whole"]["nll"] == pytest.approx(plain, abs=1e-3)


def test_how_much_moves_between_layers_is_told_with_the_layer_that_moves_most() -> None:
    def shares(*variance: float) -> Shares:
        row = torch.tensor([variance], dtype=torch.float64)
        return Shares(("a", "b", "c"), row, torch.ones_like(row), None)

    inside = shares(0.75, 0.195, 0.055)
    for outside, said, rises in (
        (shares(0.75, 0.19, 0.06), "It comes from the same layers", None),
        (
            shares(0.70, 0.153, 0.147),
            "It comes mostly from the same layers: 9%",
            "`c` rises most, from 5.5% to 14.7%",
        ),
        (shares(0.30, 0.55, 0.15), "It comes from other layers: 45%", "`b` rises most, from 19.5% to 55.0%"),
    ):
        words = _novel_inputs(inside, outside).words
        assert words.startswith(said) and (rises is None) == ("rises most" not in words)
        assert rises is None or rises in words


def test_a_last_layer_that_predicts_better_alone_points_at_the_prior() -> None:
    posterior, x, _ = posterior_of()
    with torch.no_grad():
        y = posterior.network(x).argmax(1)
    weak, strong = (answers(posterior.with_prior(p), (x, y)).items[0] for p in (1e-4, 1e6))
    assert weak.numbers["last_layer"]["nll"] < weak.numbers["whole"]["nll"] - 1e-3
    assert "may be too weak" in weak.words and "too weak" not in strong.words
