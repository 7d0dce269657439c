"""The pruning curve: its rows are the pruned networks, and it starts at the plain one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import whence
from tests.errors.watch import refused
from tests.extras.pruning.cases import CRITERIA, data, fitted, masks, mlp
from whence import errors
from whence.extras.pruning.curve import of_few_answers, prune_curve
from whence.extras.pruning.masks import prune


def changed(better: int, worse: int, whole: int) -> torch.Tensor:
    return torch.cat([torch.ones(better), -torch.ones(worse), torch.zeros(whole - better - worse)])


def test_a_handful_of_changed_answers_shows_little() -> None:
    """Two answers of 1,000 that became wrong are no significant loss: the exact test has p = 0.5."""
    found = of_few_answers(changed(0, 2, 1000))
    assert found is not None and found[0] < -0.007 and 0.0 < found[1] < 0.003
    none, two = (of_few_answers(changed(k, k, 270)) for k in (0, 1))
    assert none is not None and two is not None
    assert none[1] == pytest.approx(1 - 0.025 ** (1 / 270)) and none[0] == -none[1]  # the exact limit
    assert two[1] > none[1], "an interval is not narrower because something changed"
    lost = of_few_answers(changed(0, 9, 1000))
    assert lost is not None and lost[1] < 0.0
    assert of_few_answers(changed(5, 5, 1000)) is None and of_few_answers(torch.tensor([0.5, 0.0])) is None


def test_intervals_of_few_changed_answers_contain_the_truth() -> None:
    generator, inside = torch.Generator().manual_seed(0), []
    for _ in range(1000):
        drawn = torch.rand(500, generator=generator)
        found = of_few_answers((drawn < 0.003).double() - (drawn > 0.992).double())
        if found is not None:
            inside.append(found[0] <= 0.003 - 0.008 <= found[1])
    assert len(inside) > 900 and sum(inside) / len(inside) > 0.95


CHANGE = ("change", "change_low", "change_high", "examples")


def test_the_curve_starts_at_the_plain_network() -> None:
    model, (x, y) = mlp(), data()
    posterior = fitted(model, "kron", (x, y))
    curve = prune_curve(posterior, (x, y), fractions=(0, 0.3, 0.6, 0.9), progress=False)
    for row in curve.rows:
        pruned = prune(posterior, row.fraction, by=row.by)  # type: ignore[arg-type]
        assert row.nll == pytest.approx(float(F.cross_entropy(pruned(x), y).detach()), rel=1e-12)
    table = curve.to_pandas()
    assert list(table.columns) == ["by", "fraction", "sparsity", "parameters", "accuracy", "nll", *CHANGE]
    assert list(table["by"].unique()) == list(CRITERIA) and len(table) == 20
    plain = table[table["fraction"] == 0]
    logits = model(x).detach()
    assert plain["accuracy"].tolist() == [float((logits.argmax(1) == y).double().mean())] * 5
    assert plain["nll"].tolist() == pytest.approx([float(F.cross_entropy(logits, y))] * 5, rel=1e-12)
    assert (plain["parameters"] == sum(p.numel() for p in model.parameters())).all()
    for _, rows in table.groupby("by"):
        assert rows["sparsity"].is_monotonic_increasing and rows["parameters"].is_monotonic_decreasing
        assert rows["sparsity"].tolist() == [round(f * 69) / 69 for f in (0, 0.3, 0.6, 0.9)]
    assert str(curve).splitlines()[0].split() == list(table.columns)


def test_a_row_of_the_curve_is_the_pruned_network() -> None:
    model, (x, y) = mlp(), data()
    posterior = fitted(model, "kron", (x, y))
    batches = [(x[:15], y[:15]), (x[15:], y[15:])]
    curve = prune_curve(posterior, batches, fractions=(0.5,), by="saliency", units=True, progress=False)
    (row,) = curve.rows
    pruned = prune(posterior, 0.5, by="saliency", units=True)
    logits = pruned(x).detach()
    assert row.nll == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-12)
    assert row.accuracy == float((logits.argmax(1) == y).double().mean())
    zeros = {n: int((m == 0).sum()) for n, m in masks(pruned).items()}
    assert row.sparsity == pytest.approx((zeros["0.weight_mask"] + zeros["2.weight_mask"]) / 54)
    assert row.parameters == sum(p.numel() for p in model.parameters()) - sum(zeros.values())


def test_the_curve_of_other_likelihoods() -> None:
    x = torch.randn(30, 4, dtype=torch.float64)
    y = torch.randn(30, 3, dtype=torch.float64)
    model = mlp()
    posterior = fitted(model, "diag", (x, y), likelihood=whence.Gaussian(noise=0.5))
    (row,) = prune_curve(posterior, (x, y), fractions=(0,), by="snr", progress=False).rows
    gap = model(x).detach() - y
    assert row.accuracy is None and row.rmse == pytest.approx(float(gap.square().mean().sqrt()))
    density = torch.distributions.Normal(model(x).detach(), 0.5)
    assert row.nll == pytest.approx(float(-density.log_prob(y).mean()))
    labels = (y > 0).double()
    posterior = fitted(model, "diag", (x, labels), likelihood="binary")
    (row,) = prune_curve(posterior, (x, labels), fractions=(0,), by="snr", progress=False).rows
    assert row.accuracy == pytest.approx(float(((model(x) > 0) == (labels > 0)).double().mean()))
    assert row.nll == pytest.approx(float(F.binary_cross_entropy_with_logits(model(x), labels).detach()))
    counts = torch.randint(0, 4, (30, 3)).double()
    posterior = fitted(model, "diag", (x, counts), likelihood=whence.Poisson())
    (row,) = prune_curve(posterior, (x, counts), fractions=(0,), by="snr", progress=False).rows
    assert row.rmse == pytest.approx(float((model(x).detach().exp() - counts).square().mean().sqrt()))
    custom = whence.Custom(lambda f, t: (f - t).square().sum(1))
    posterior = fitted(model, "diag", (x, y), likelihood=custom)
    curve = prune_curve(posterior, (x, y), fractions=(0,), by="snr", progress=False)
    assert curve.columns == ["by", "fraction", "sparsity", "parameters", "nll", *CHANGE]
    assert curve.rows[0].nll == pytest.approx(float(gap.square().sum(1).mean()))


def test_the_curve_refuses() -> None:
    posterior, given = fitted(mlp()), data()
    with refused(errors.BadOption, "'random'"):
        prune_curve(posterior, given, by=["snr", "randm"], progress=False)
    with refused(errors.BadOption, "fraction=1"):
        prune_curve(posterior, given, fractions=(0, 1), progress=False)
    with refused(errors.BadOption, "nothing to compute"):
        prune_curve(posterior, given, fractions=(), progress=False)
    with refused(errors.BadData, "one-shot"):
        prune_curve(posterior, iter([given]), progress=False)
