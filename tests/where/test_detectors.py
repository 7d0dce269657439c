"""The detectors beside novelty, against slow twins; hooks are gone afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.errors.watch import HOOKS
from tests.reference import novelty as slow
from tests.where.novel import trained
from whence.errors import BadData, BadOption, NotDefined
from whence.where.detectors import compare_detectors, detectors
from whence.where.novelty import novelty, reference_of
from whence.where.plain_detectors import Mahalanobis, Neighbours, energy, features_of, max_probability

EVERY = {
    "novelty", "novelty_entropy", "entropy", "plain_entropy", "mutual_information", "variance", "max_probability",
    "energy", "mahalanobis", "mahalanobis_layers", "neighbours",
}  # fmt: skip


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hooks_in(module: nn.Module) -> int:
    return sum(len(getattr(m, name, {})) for m in module.modules() for name in HOOKS)


def test_energy_and_largest_probability() -> None:
    logits = torch.tensor([[0.0, 0.0], [3.0, -1.0], [800.0, 0.0]], dtype=torch.float64)
    wanted = [-np.log(2), -np.log(np.exp(3) + np.exp(-1)), -800.0]
    assert_close(energy(logits), torch.tensor(wanted, dtype=torch.float64), 1e-12)
    wanted = [0.5, 1 / (1 + np.exp(4)), 0.0]
    assert_close(max_probability(logits), torch.tensor(wanted, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("dead", [False, True])
def test_mahalanobis_against_its_twin(dead: bool) -> None:
    train, x = drawn(90, 5), drawn(20, 5, seed=1)
    labels = torch.arange(90) % 3 * 2  # with gaps
    train += labels.unsqueeze(1)
    if dead:
        train[:, 2], train[:, 3] = 0.0, train[:, 4]  # a singular covariance
    wanted = slow.mahalanobis(train.numpy(), labels.numpy(), x.numpy())
    assert_close(Mahalanobis.fit(train, labels)(x), torch.from_numpy(wanted), 1e-7)
    alone = slow.mahalanobis(train.numpy(), np.zeros(90), x.numpy())
    assert_close(Mahalanobis.fit(train, None)(x), torch.from_numpy(alone), 1e-7)


@pytest.mark.parametrize("k", [1, 7, 60])
def test_neighbours_against_all_pairs(k: int) -> None:
    train, x = drawn(60, 4), drawn(15, 4, seed=1)
    wanted = slow.kth_distance(train.numpy(), x.numpy(), k)
    few = replace(Neighbours.fit(train, k), at_once=240)  # four inputs at a time
    assert_close(few(x), torch.from_numpy(wanted), 1e-9)


def test_neighbours_of_features_that_are_all_zero() -> None:
    train = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    assert Neighbours.fit(train, 1)(torch.zeros(1, 2)).tolist() == [0.0]
    assert Neighbours.fit(train, 2)(torch.zeros(1, 2)).tolist() == [1.0]


def test_features_are_what_layers_put_out() -> None:
    posterior, draw = trained("conv")
    x, y = draw(9, 3)
    found = features_of(posterior, [(x[:4], y[:4]), (x[4:], y[4:])], targets=True)
    module = posterior.network.module
    with torch.no_grad():
        assert_close(found.layers["0"], module[0](x).mean((2, 3)).double(), 1e-5)
        assert_close(found.last, module[:8](x).double(), 1e-5)
        assert_close(found.logits, module(x).double(), 1e-5)
    assert list(found.layers) == ["0", "4", "8"]
    assert found.targets is not None and torch.equal(found.targets, y)


def test_attention_is_seen() -> None:
    """Although torch would take a fused path around the layers inside."""
    posterior, draw = trained("attention")
    found = features_of(posterior, draw(5, 3)[0])
    names = ["embed", "encoder.layers.0.self_attn", "encoder.layers.0.linear1", "encoder.layers.0.linear2", "head"]
    assert list(found.layers) == names
    assert [found.layers[n].shape[1] for n in names] == [8, 8, 32, 8, 3]
    assert found.last.shape == (5, 8)


@pytest.mark.parametrize("name", ["mlp", "conv", "attention"])
def test_every_detector(name: str) -> None:
    posterior, draw = trained(name)
    x, _ = draw(11, 3)
    reference = reference_of(posterior, draw(150, 1))
    before = {key: value.clone() for key, value in posterior.network.module.state_dict().items()}
    found = detectors(posterior, x, train=draw(300, 0), reference=reference)
    assert set(found) == EVERY
    for values in found.values():
        assert values.shape == (11,) and values.dtype == torch.float64 and bool(torch.isfinite(values).all())
    prediction = posterior.predict(x)
    assert_close(found["entropy"], prediction.entropy.double(), 1e-5)
    assert_close(found["mutual_information"], prediction.epistemic.double(), 1e-5, 1e-6)
    assert torch.equal(found["novelty"], novelty(posterior, x, reference=reference).score)
    assert hooks_in(posterior.network.module) == 0
    for key, value in posterior.network.module.state_dict().items():
        assert torch.equal(value, before[key])


def test_without_training_data_or_reference_there_are_fewer() -> None:
    posterior, draw = trained("mlp")
    assert set(detectors(posterior, draw(5, 3)[0])) == EVERY - {
        "novelty", "novelty_entropy", "mahalanobis", "mahalanobis_layers", "neighbours",
    }  # fmt: skip


def test_regression_has_no_classes() -> None:
    torch.manual_seed(0)
    x = torch.randn(120, 2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    posterior = whence.laplace(model, (x, x[:, :1]), likelihood=whence.Gaussian(noise=0.1), progress=False)
    found = detectors(posterior, x[:7], train=(x, x[:, :1]), reference=x)
    assert set(found) == {"novelty", "combined", "variance", "mahalanobis", "mahalanobis_layers", "neighbours"}


def test_the_table() -> None:
    posterior, draw = trained("mlp")
    far = draw(60, 5)[0] + torch.tensor([0, 0, 0, 0, 2.0, 2.0])
    table = compare_detectors(posterior, draw(80, 4), far, train=draw(300, 0), reference=draw(150, 1))
    assert {row.detector for row in table.rows} == EVERY | {"combined"}
    assert [float(row.auroc) for row in table.rows] == sorted((float(row.auroc) for row in table.rows), reverse=True)
    assert table["novelty"].auroc > 0.99 and table["novelty"].auroc.low <= table["novelty"].auroc
    frame = table.to_pandas()
    assert list(frame.columns) == ["detector", "auroc", "auroc_low", "auroc_high", "fpr95", "fpr95_low", "fpr95_high"]
    assert repr(table) == str(table) and str(table).startswith("80 inputs inside, 60 outside\ndetector")
    with pytest.raises(KeyError):
        table["nothing"]


def test_errors_leave_no_hook() -> None:
    posterior, draw = trained("mlp")
    with pytest.raises(RuntimeError):
        features_of(posterior, torch.randn(4, 5))
    assert hooks_in(posterior.network.module) == 0
    with pytest.raises(BadData, match="train is one tensor"):
        detectors(posterior, draw(4, 3)[0], train=draw(4, 3)[0])
    with pytest.raises(BadOption, match=r"k=9 is not in 1..4"):
        Neighbours.fit(drawn(4, 2), 9)
    with pytest.raises(NotDefined, match="novelty needs a reference"):
        compare_detectors(posterior, draw(4, 3), draw(4, 4), train=draw(60, 0))
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    only = whence.laplace(bare, (torch.randn(9, 1, 8, 8), torch.arange(9) % 3), likelihood="classification")
    with pytest.raises(NotDefined, match=r"no linear layer with one row"):
        features_of(only, torch.randn(4, 1, 8, 8))
