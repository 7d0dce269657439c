"""What tracking gives: the numbers of a posterior, steps, times and tables."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import whence
from tests.extras.tracking.cases import COLUMNS, SHARES, same_as, small, train_step, two_classes
from whence.errors import BadData, BadOption, NotDefined, Notice
from whence.extras.tracking.records import TrackedLayer, TrackRecord
from whence.extras.tracking.subset import gather
from whence.extras.tracking.track import Track

track = functools.partial(whence.track, every=1)


@pytest.mark.parametrize(
    ("structure", "curvature"),
    [
        ("kron", "mc"),
        ("kron", "ggn"),
        ("ekfac", "mc"),
        ("diag", "mc"),
        ("block", "ggn"),
        ("full", "mc"),
        ("lowrank", "ggn"),
    ],
)
def test_numbers_are_those_of_a_posterior(structure: str, curvature: str) -> None:
    net, data, probe = small(), two_classes(), torch.randn(9, 4)
    t = track(
        net, data, likelihood="classification", probe=probe, structure=structure, curvature=curvature,
        subset=64, prior_precision=0.5, draws=2, seed=7,
    )  # fmt: skip
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(2):
        train_step(net, optimiser, *data)
        record = t.step()
        posterior = whence.laplace(
            net, t.subset, likelihood="classification", structure=structure, curvature=curvature,
            prior_precision=0.5, data_size=200, draws=2, generator=torch.Generator().manual_seed(7), progress=False,
        )  # fmt: skip
        assert record is not None
        same_as(record, posterior, probe)
        prediction = posterior.predict(probe)
        for name in ("entropy", "aleatoric", "epistemic"):
            assert getattr(record, name) == pytest.approx(float(getattr(prediction, name).mean()), abs=1e-5)
        assert record.variance is None and record.probe_loss is None
    assert t.records[0].layers != t.records[1].layers


def test_selected_layers_and_priors() -> None:
    net, data = small(), two_classes()
    prior = {"0": 2.0, "4": 0.3}
    t = track(net, data, likelihood="classification", layers=["0", "4"], prior_precision=prior, data_size=1000)
    posterior = whence.laplace(
        net, t.subset, likelihood="classification", layers=["0", "4"], prior_precision=prior, data_size=1000,
        curvature="ggn", progress=False,
    )  # fmt: skip
    same_as(t.record(), posterior, t.subset[0][:64])


@pytest.mark.parametrize("kind", ["regression", "noise", "heteroscedastic", "count", "binary", "custom"])
def test_other_tasks(kind: str) -> None:
    x = torch.randn(80, 3)
    outputs = 2 if kind == "heteroscedastic" else 1
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs))
    y = x[:, :1] ** 2
    likelihood: Any = {
        "regression": "regression",
        "noise": whence.Gaussian(noise=0.3),
        "heteroscedastic": whence.HeteroscedasticGaussian(),
        "count": whence.Poisson(),
        "binary": "binary",
        "custom": whence.Custom(lambda o, t: F.huber_loss(o, t, reduction="none").sum(1)),
    }[kind]
    y = {"count": y.round(), "binary": (y > 1).float()}.get(kind, y)
    curvature: Any = "ggn" if kind == "custom" else "mc"
    t = track(net, (x, y), likelihood=likelihood, curvature=curvature, draws=1, probe=(x[:10], y[:10]))
    record = t.record()
    posterior = whence.laplace(
        net, t.subset, likelihood=likelihood, curvature=curvature, data_size=80,
        generator=torch.Generator().manual_seed(0), progress=False,
    )  # fmt: skip
    prediction = posterior.predict(x[:10])
    for name in ("entropy", "variance", "aleatoric", "epistemic"):
        expected = getattr(prediction, name, None)
        got = getattr(record, name)
        assert (got is None) == (expected is None), name
        if expected is not None:
            assert got == pytest.approx(float(expected.mean()), rel=1e-4)
    nll = posterior.likelihood.nll(net(x[:10]), posterior.likelihood.check(net(x[:10]), y[:10])).mean()
    assert record.probe_loss == pytest.approx(float(nll), rel=1e-4)


def test_curvature_is_exact_for_few_outputs_and_sampled_for_many() -> None:
    few = track(small(), two_classes(), likelihood="classification")
    assert few.header["options"]["curvature"] == "ggn"
    net, data = nn.Linear(4, 30), (torch.randn(50, 4), torch.randint(30, (50,)))
    with pytest.warns(Notice, match=r"30 outputs .* sampled \(10 draws"):
        many = track(net, data, likelihood="classification")
    posterior = whence.laplace(
        net, many.subset, likelihood="classification", curvature="mc", draws=10, data_size=50,
        generator=torch.Generator().manual_seed(0), progress=False,
    )  # fmt: skip
    same_as(many.record(), posterior, many.subset[0])


def test_the_subset_is_random_fixed_and_counts_for_all_data() -> None:
    data = two_classes(300)
    t = track(small(), data, likelihood="classification", subset=40, seed=1)
    inputs, targets = t.subset
    assert len(inputs) == len(targets) == 40 and t.header["options"]["data_size"] == 300
    rows = {tuple(row.tolist()): int(label) for row, label in zip(*data, strict=True)}
    assert all(rows[tuple(r.tolist())] == int(label) for r, label in zip(inputs, targets, strict=True))
    assert len({tuple(r.tolist()) for r in inputs}) == 40
    again = track(small(), data, likelihood="classification", subset=40, seed=1)
    other = track(small(), data, likelihood="classification", subset=40, seed=2)
    assert torch.equal(again.subset[0], inputs) and not torch.equal(other.subset[0], inputs)
    assert len(track(small(), data, likelihood="classification", subset=1000).subset[1]) == 300


class Spied(TensorDataset):
    asked = 0

    def __getitem__(self, index: Any) -> Any:
        Spied.asked += 1
        return super().__getitem__(index)


def test_loaders() -> None:
    """By number where a plain loader allows it, in one pass otherwise; a loader's own generator is put back."""
    data = two_classes(300)
    Spied.asked = 0
    generator = torch.Generator().manual_seed(3)
    plain = DataLoader(Spied(*data), batch_size=16, shuffle=True, generator=generator)
    before = generator.get_state()
    t = track(small(), plain, likelihood="classification", subset=40)
    assert Spied.asked == 40 and t.header["options"]["data_size"] == 300
    assert torch.equal(generator.get_state(), before)
    half = DataLoader(Spied(*data), batch_size=16, sampler=SubsetRandomSampler(range(100), generator=generator))
    t = track(small(), half, likelihood="classification", subset=40)
    assert torch.equal(generator.get_state(), before)
    assert t.header["options"]["data_size"] == 100
    firsts = {tuple(r.tolist()) for r in data[0][:100]}
    assert {tuple(r.tolist()) for r in t.subset[0]} <= firsts and len({tuple(r.tolist()) for r in t.subset[0]}) == 40
    batches = [{"labels": y, "input": x} for x, y in DataLoader(TensorDataset(*data), batch_size=7)]
    t = track(small(), batches, likelihood="classification", subset=10)
    assert t.subset[0]["input"].shape == (10, 4) and t.record().layers


def test_streamed_examples_are_equally_likely() -> None:
    batches = [(torch.arange(i, i + 4.0).unsqueeze(1), torch.zeros(4).long()) for i in range(0, 40, 4)]
    seen = torch.zeros(40)
    for seed in range(150):
        sample = gather(batches, 5, seed, torch.device("cpu"), torch.float32)
        assert sample.size == 40
        seen[sample.inputs.flatten().long()] += 1
    assert seen.sum() == 750 and seen.min() >= 6 and seen.max() <= 36  # expected 18.75 each


def test_several_inputs_and_probes() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(torch.tanh(self.a(a) + self.b(b)))

    x, y = (torch.randn(30, 3), torch.randn(30, 2)), torch.randint(2, (30,))
    t = track(Two(), (x, y), likelihood="classification", probe=(x[0][:5], x[1][:5]))
    assert t.record().probe_loss is None
    paired = track(Two(), (x, y), likelihood="classification", probe=((x[0][:5], x[1][:5]), y[:5]))
    assert paired.record().probe_loss is not None and paired.header["options"]["probe"] == 5
    loader = DataLoader(TensorDataset(*two_classes(12)), batch_size=5)
    assert track(small(), two_classes(), likelihood="classification", probe=loader).header["options"]["probe"] == 12
    numpy = track(small(), two_classes(), likelihood="classification", probe=torch.randn(3, 4).numpy())
    assert numpy.header["options"]["probe"] == 3


def test_labels_that_do_not_count() -> None:
    net, (x, y) = small(), two_classes()
    masked = torch.where(torch.arange(200) % 3 == 0, -100, y)
    t = track(net, (x, masked), likelihood="classification", probe=(x[:9], masked[:9]))
    expected = F.cross_entropy(net(x[:9]), masked[:9])  # over those that count
    assert t.record().probe_loss == pytest.approx(float(expected), rel=1e-5)


def test_dense_outputs_have_no_probe() -> None:
    net = nn.Conv2d(1, 3, 3, padding=1)
    x, y = torch.randn(6, 1, 5, 5), torch.randint(3, (6, 5, 5))
    with pytest.warns(Notice, match="only the layers' weights"):
        t = track(net, (x, y), likelihood="classification")
    record = t.record()
    assert record.entropy is None and record.layers[0].variance_share is None and 0 < record.layers[0].identified < 1
    with pytest.raises(NotDefined, match="Omit the probe"):
        track(net, (x, y), likelihood="classification", probe=x)


def test_steps_and_labels() -> None:
    t = track(small(), two_classes(), likelihood="classification", every=3)
    made = [t.step() is not None for _ in range(7)]
    assert made == [False, False, True, False, False, True, False]
    t.record("end")
    assert [(r.step, r.label) for r in t.records] == [(3, ""), (6, ""), (7, "end")]
    t.step(6)  # a training that went back: the later record counts
    assert [(r.step, r.label) for r in t.records] == [(3, ""), (6, ""), (7, "end")]
    with pytest.raises(BadOption, match="number=-1"):
        t.step(-1)


def test_time_is_counted() -> None:
    t = track(small(), two_classes(), likelihood="classification")
    assert t.overhead is None
    for _ in range(2):
        time.sleep(0.15)
        t.step()
    for r in t.records:
        assert 0.14 < r.loop_seconds < 5 and r.seconds > 0
        assert r.overhead == r.seconds / r.loop_seconds
    loop = sum(r.loop_seconds for r in t.records)
    assert t.seconds == sum(r.seconds for r in t.records) and t.overhead == pytest.approx(t.seconds / loop)
    assert f"{t.overhead:.1%} of the loop's time" in str(t)


def test_a_training_that_diverges_is_not_ended() -> None:
    net, data = small(), two_classes()
    t = track(net, data, likelihood="classification")
    t.step()
    with torch.no_grad():
        net[0].weight.fill_(float("nan"))
    with pytest.warns(Notice, match=r"step 2 could not be recorded: the parameter '0\.weight' contains NaN"):
        record = t.step()
    assert record is not None and not record.layers and "NaN" in record.error
    assert "1 failed" in str(t) and t.settled() == dict.fromkeys("024")
    assert len(t.probe) == 2 and len(t.layers) == 3 and "NaN" in t.probe["error"][1]
    fresh_net = small()
    fresh = track(fresh_net, data, likelihood="classification")
    with torch.no_grad():
        fresh_net[0].weight.fill_(float("nan"))
    with pytest.raises(BadData, match="NaN"):
        fresh.step()


def slow_settled(series: list[tuple[int, float]], tolerance: float) -> int | None:
    last = series[-1][1]
    for i, (step, _) in enumerate(series[:-1]):
        if all(abs(value - last) <= tolerance for _, value in series[i:]):
            return step
    return None


def test_settled_against_a_slow_twin() -> None:
    generator = torch.Generator().manual_seed(0)
    for case in range(60):
        count = case % 9 + 1
        values = (torch.rand(count, 2, generator=generator) * (0.02 + 0.2 * (case % 3))).tolist()
        steps = torch.randperm(30, generator=generator)[:count].sort().values.tolist()
        records = [
            TrackRecord(
                s, layers=tuple(TrackedLayer(n, "Linear", 1, 1.0, v, 1.0, 1.0) for n, v in zip("ab", vs, strict=True))
            )
            for s, vs in zip(steps, values, strict=True)
        ]
        t = Track({"network": "", "options": {}}, records)
        for tolerance in (0.0, 0.01, 0.05, 1.0):
            expected = {
                n: slow_settled([(s, vs[i]) for s, vs in zip(steps, values, strict=True)], tolerance)
                for i, n in enumerate("ab")
            }
            assert t.settled(tolerance) == expected
    with pytest.raises(BadOption, match="tolerance=-1"):
        t.settled(-1)


def test_tables() -> None:
    pytest.importorskip("pandas")
    net, data = small(), two_classes()
    t = track(net, data, likelihood="classification")
    assert len(t.layers) == 0 and "0 records yet" in str(t)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(3):
        train_step(net, optimiser, *data)
        t.step()
    frame = t.to_pandas()
    assert len(frame) == 9 and list(frame.columns[:2]) == ["step", "name"]
    assert set(COLUMNS + SHARES) <= set(frame.columns)
    assert frame[frame.step == 2].variance_share.sum() == pytest.approx(1)
    probe = t.probe.to_pandas()
    assert list(probe.step) == [1, 2, 3]
    assert list(probe.overhead) == [r.overhead for r in t.records]
    assert probe.epistemic.to_numpy() == pytest.approx((probe.entropy - probe.aleatoric).to_numpy(), abs=1e-6)
    assert not {"variance", "error"} & set(t.probe.columns) and "entropy" in str(t.probe)
    shown = str(t)
    assert "Track of Sequential: 3 records, steps 1 to 3; 200 of 200 examples" in shown
    assert all(name in shown for name in ("settled", "explained", "not yet")) or "step 1" in shown


class Words(nn.Module):
    """The mean of the embeddings of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.table.weight.dtype)
        return self.head(torch.tanh((self.table(input_ids) * mask).sum(1) / mask.sum(1)))


@pytest.mark.parametrize("streamed", [False, True])
def test_batches_that_pad_to_their_own_longest(streamed: bool) -> None:
    """The records are those of the same texts padded to one length."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 10, (30,), generator=generator).tolist()
    texts = [torch.randint(1, 20, (n,), generator=generator) for n in lengths]
    labels = torch.tensor([int(t.sum()) % 2 for t in texts])

    def collated(index: list[int], longest: int | None = None) -> dict[str, Tensor]:
        longest = longest or max(lengths[i] for i in index)
        ids = torch.stack([F.pad(texts[i], (0, longest - lengths[i])) for i in index])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels[index]}

    torch.manual_seed(0)
    net, loader = Words().double(), DataLoader(range(30), 7, collate_fn=collated)
    whole = collated(list(range(30)), 9)
    pair = {name: whole[name] for name in ("input_ids", "attention_mask")}, labels
    options = {"likelihood": "classification", "subset": 30, "prior_precision": 1.0}
    first = track(net, list(loader) if streamed else loader, **options).step()
    second = track(net, pair, **options).step()
    assert first.loss == pytest.approx(second.loss)
    for one, other in zip(first.layers, second.layers, strict=True):
        assert one.identified == pytest.approx(other.identified)
