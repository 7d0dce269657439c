"""What a review of the fast paths found: each was wrong once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence import batches, checks
from whence.batches import Data
from whence.errors import BadData


class Added(nn.Module):
    """A parameter that is added to every example."""

    def __init__(self, shape: tuple[int, ...], conv: bool) -> None:
        super().__init__()
        self.p = nn.Parameter(0.3 * torch.randn(shape))
        self.first = nn.Conv2d(2, 3, 1) if conv else nn.Linear(2, 3)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) + self.p).tanh().flatten(1))


@pytest.mark.parametrize(
    ("shape", "conv"),
    [((1, 4, 3), False), ((1, 1, 3), False), ((4, 3), False), ((1, 3, 1, 1), True), ((3, 1, 1), True)],
)
def test_added_parameters_in_batches_of_one(shape: tuple[int, ...], conv: bool) -> None:
    torch.manual_seed(0)
    model = Added(shape, conv).double()
    x = torch.randn(6, 2, 2, 2) if conv else torch.randn(6, 4, 2)
    x, y = x.double(), torch.tensor([0, 1, 2, 2, 1, 0])

    def fit(sizes: list[int]) -> whence.Laplace:
        data = list(zip(x.split(sizes), y.split(sizes), strict=True))
        return whence.laplace(model, data, likelihood="classification", structure="diag")

    whole, cut = fit([6]), fit([3, 1, 1, 1])
    assert_close(cut.covariance(), whole.covariance(), 1e-10)
    assert_close(whole.predict(x[:1]).logit_cov, whole.predict(x).logit_cov[:1], 1e-10)


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize(("classes", "gain"), [(2, 9.0), (10, 12.0), (10, 15.0)])
def test_the_last_layer_of_a_sure_network(structure: str, classes: int, gain: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, classes))
    with torch.no_grad():
        model[2].bias[0] += gain
    x, y = torch.randn(500, 5), torch.zeros(500, dtype=torch.long)
    options: dict[str, Any] = {"likelihood": "classification", "layers": "last", "curvature": "ggn"}
    single = whence.laplace(model, (x, y), structure=structure, **options).curvature.structures[0]
    double = whence.laplace(model.double(), (x, y), structure=structure, **options).curvature.structures[0]
    for key in ("grads", "values"):
        if key in single.tensors():
            assert_close(single.tensors()[key].double(), double.tensors()[key], 1e-4)


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("width", [3, 5])
def test_a_layer_that_a_batch_skips(structure: str, width: int) -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(width, width), nn.Linear(width, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.inner(x).tanh() if bool((x[:, 0] > 0).all()) else x)

    torch.manual_seed(0)
    model = Skips().double()
    x, y = torch.rand(8, width, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    options = {"likelihood": "classification", "structure": structure}
    once = whence.laplace(model, [(x, y)], **options).curvature.structures[0]
    more = whence.laplace(model, [(x, y), (-x, y)], **options).curvature.structures[0]
    for key, value in once.tensors().items():
        assert_close(more.tensors()[key], value, 1e-12)


def test_an_embedding_that_a_batch_leaves_out() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

        def forward(self, v: Tensor, i: Tensor | None = None) -> Tensor:
            return self.head(v if i is None else v + self.table(i).sum(1))

    torch.manual_seed(0)
    model, v = Optional().double(), torch.randn(5, 4, dtype=torch.float64)
    i, y = torch.randint(7, (5, 2)), torch.tensor([0, 1, 2, 1, 0])
    whole = {"v": v, "i": i, "labels": y}
    posterior = whence.laplace(model, [whole, {"v": v, "labels": y}], likelihood="classification")
    assert posterior.predict({"v": v}).probs.shape == (5, 3)
    once = whence.laplace(model, [whole], likelihood="classification")
    table = [b.name for b in posterior.blocks].index("table")
    first, second = (p.curvature.structures[table].values for p in (once, posterior))
    assert_close(second, first, 1e-12)


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def test_a_tuple_of_batches_is_a_loader() -> None:
    model, x, y = network()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    for cut in (6, 5):
        found = posterior.predict(((x[:cut], y[:cut]), (x[cut:], y[cut:])))
        assert_close(found.probs, posterior.predict(x).probs, 1e-12)


def test_a_covariance_that_is_not_kept_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.predictive import dispatch, linearised

    model, x, y = network()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    made: list[Any] = []
    plain = dispatch._Collected.__init__
    monkeypatch.setattr(dispatch._Collected, "__init__", lambda self, x: (made.append(self), plain(self, x))[1])
    monkeypatch.setattr(dispatch, "KEEP_COVARIANCE", 5 * 9 * 8)
    monkeypatch.setattr(linearised, "piece_size", lambda *_: 4)
    prediction = posterior.predict(x.numpy())
    assert "covariance" not in made[0].buffers
    found = prediction.logit_cov
    monkeypatch.undo()
    assert_close(found, posterior.predict(x).logit_cov, 1e-12)


@pytest.mark.parametrize("labels", [torch.tensor(1), torch.zeros(0, dtype=torch.long)])
def test_targets_of_the_wrong_size_are_named(labels: Tensor) -> None:
    model, x, y = network()
    with pytest.raises(BadData, match="batch 1"):
        whence.laplace(model, [(x, y), (x, labels)], likelihood="classification")


def test_validation_labels_that_do_not_count() -> None:
    model, x, y = network()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    with pytest.raises(BadData, match="every label is ignore_index"):
        posterior.tune((x, torch.full_like(y, -100)))
    some = torch.where(torch.arange(12) < 6, y, -100)
    assert posterior.tune((x, some)).tuning.score == pytest.approx(posterior.tune((x[:6], y[:6])).tuning.score)


def test_a_gathered_failure_comes_before_a_later_one() -> None:
    def both() -> None:
        with checks.Watch(gather_on_cpu=True):
            checks.check_finite(torch.tensor([torch.nan]), "the inputs", 3)
            raise BadData("batch 5 is wrong too")

    with pytest.raises(BadData, match="batch 3"):
        both()


class OnItsWay:
    """Counts that a GPU would be sending: what the lookahead waits for, on a CPU."""

    is_cuda = True

    def __init__(self, counted: Any) -> None:
        self.host = getattr(counted, "host", counted)
        self.event = self

    def synchronize(self) -> None:
        pass


def looking_ahead(source: Any, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setattr(batches, "_Fetched", OnItsWay)
    data = Data(source, torch.device("cpu"), torch.float32)
    data.counts = lambda y: OnItsWay(y >= 0)  # type: ignore[assignment, return-value]
    return data


def test_a_loader_may_fill_its_buffers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)

    def loader() -> Any:
        for k in range(3):
            x.fill_(k)
            yield x, y

    assert [float(b.inputs[0, 0]) for b in looking_ahead(loader(), monkeypatch)] == [0.0, 1.0, 2.0]


def test_a_batch_is_given_out_before_the_next_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    source = [(torch.ones(2, 1), torch.zeros(2, dtype=torch.long)), "no batch"]
    given = iter(looking_ahead(source, monkeypatch))
    assert float(next(given).inputs[0, 0]) == 1.0
    with pytest.raises(BadData, match="batch 1"):
        next(given)


def test_fits_with_other_thin_factors_do_not_merge() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.arange(60) % 3
    with pytest.warns(whence.errors.Notice, match="structure that fits"):
        thin = whence.laplace(model, (x[30:], y[30:]), likelihood="classification", max_factor=5)
    plain = whence.laplace(model, (x[:30], y[:30]), likelihood="classification")
    with pytest.raises(whence.errors.BadOption, match="max_factor"):
        whence.merge(plain, thin)


@pytest.mark.parametrize(
    "options",
    [
        {"structure": "lowrank", "rank": 23},
        {"structure": "kron", "curvature": "kfra"},
        {"structure": "full", "curvature": "hessian", "prior_precision": 100.0},
    ],
    ids=str,
)
def test_labels_that_do_not_count_are_left_out_by_every_curvature(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    half = torch.where(torch.arange(20) % 2 == 0, y, -100)
    with_ignored = whence.laplace(model, (x, half), likelihood="classification", **options)
    without = whence.laplace(model, (x[::2], y[::2]), likelihood="classification", **options)
    assert with_ignored.record.data_size == 10
    assert_close(with_ignored.covariance(), without.covariance(), 1e-8)


def test_more_data_says_what_it_leaves_out() -> None:
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    model, x, y = network()
    data = TensorDataset(x, y)
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=0, shuffle=False))
    with pytest.warns(whence.errors.Notice):
        posterior.update(loader, progress=False)


def test_an_error_of_the_data_is_not_blamed_on_a_layer() -> None:
    model, x, y = network()

    class Breaks:
        def __iter__(self) -> Any:
            yield x, y
            raise RuntimeError("disk gone")

    with pytest.raises(RuntimeError, match=r"^disk gone$"):
        whence.laplace(model, Breaks(), likelihood="classification", structure="lowrank")
