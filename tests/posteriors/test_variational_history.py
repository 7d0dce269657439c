"""What a variational training records, and its L1 penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import BadData, BadOption, WhenceError
from whence.posteriors.variational import Variational, VariationalModule, variational
from whence.posteriors.variational.history import PROBE_DRAWS, QUANTILES, quantiles, uncertainties
from whence.report import figures


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=gen)
    return x, (x[:, 0] + 0.3 * torch.randn(n, generator=gen) > 0).long()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(net: nn.Module | None = None, **options: Any) -> Variational:
    settings = {"likelihood": "classification", "epochs": 3, "lr": 0.01, "seed": 1, "progress": False} | options
    return variational(net or model(), data(), **settings)


# History


def slow(values: Tensor) -> list[float]:
    """Quantiles between neighbours in the sorted values."""
    ordered = values.double().flatten().sort().values
    found = []
    for level in QUANTILES:
        place = level * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(float(ordered[low] + (place - low) * (ordered[high] - ordered[low])))
    return found


def test_the_history_has_the_quantiles_of_every_layer() -> None:
    posterior = fit()
    last = posterior.history[-1]
    mean, variance = posterior.mean(), posterior.variance()
    assert [layer.name for layer in last.layers] == ["0", "2"]
    for layer in last.layers:
        names = [f"{layer.name}.weight", f"{layer.name}.bias"]
        assert layer.mean == pytest.approx(slow(torch.cat([mean[n].flatten() for n in names])), abs=1e-6)
        assert layer.std == pytest.approx(slow(torch.cat([variance[n].flatten() for n in names]).sqrt()), abs=1e-6)
    table = posterior.history.layers
    assert list(table) == ["epoch", "name", *(f"{w}_q{q}" for w in ("mean", "std") for q in ("05", 25, 50, 75, 95))]
    assert table["epoch"] == [1, 1, 2, 2, 3, 3] and table["std_q50"][-1] == last.layers[1].std[2]
    assert last.aleatoric is None and last.epistemic is None


def test_fixed_entries_are_left_out_and_large_layers_thinned() -> None:
    table = nn.Embedding(5, 4, padding_idx=0)
    (layer,) = quantiles(VariationalModule(nn.Sequential(table, nn.Flatten()), initial_std=0.1))
    assert layer.std == pytest.approx([0.1] * 5)
    assert layer.mean == pytest.approx(slow(table.weight[1:].detach()), abs=1e-6)
    torch.manual_seed(0)
    (layer,) = quantiles(VariationalModule(nn.Sequential(nn.Linear(400, 400))))
    assert layer.mean == pytest.approx([0.05 * (2 * q - 1) for q in QUANTILES], abs=1e-3)  # uniform


@pytest.mark.parametrize("likelihood", ["classification", whence.Gaussian(0.5)], ids=str)
def test_the_history_has_the_uncertainties_of_a_probe(likelihood: Any) -> None:
    x, y = data()
    net, targets = model(), y if likelihood == "classification" else torch.stack([y, y], 1).float()
    options: dict[str, Any] = {"likelihood": likelihood, "epochs": 2, "seed": 1, "progress": False}
    posterior = variational(net, (x, targets), probe=x[:20], **options)
    row = posterior.history[-1]
    prediction = posterior.predict(x[:20], num_samples=2000, generator=torch.Generator().manual_seed(3))
    assert row.aleatoric == pytest.approx(float(prediction.aleatoric.mean()), rel=0.05)
    assert row.epistemic == pytest.approx(float(prediction.epistemic.mean()), rel=0.5) and row.epistemic > 0
    without = variational(net, (x, targets), **options)
    assert all(torch.equal(v, without.mean()[n]) for n, v in posterior.mean().items())  # nothing is disturbed
    module = VariationalModule(net)
    assert uncertainties(module, x, posterior.likelihood, 0) == uncertainties(module, x, posterior.likelihood, 0)
    assert PROBE_DRAWS >= 8


def test_a_probe_that_does_not_fit_is_refused_before_training() -> None:
    called: list[int] = []
    with pytest.raises(BadData):
        fit(probe=torch.zeros(4, 5), callback=lambda *_: called.append(1))
    assert not called


def test_histories_survive_files_and_checkpoints(tmp_path: Path) -> None:
    x = data()[0]
    whole = fit(epochs=4, lr_schedule="constant", probe=x)
    fit(epochs=2, lr_schedule="constant", probe=x, checkpoint=tmp_path / "c")
    resumed = fit(epochs=4, lr_schedule="constant", probe=x, checkpoint=tmp_path / "c")
    for mine, other in zip(whole.history, resumed.history, strict=True):
        assert mine.layers == other.layers and mine.epistemic == other.epistemic
    whole.save(tmp_path / "p")
    assert whence.load(tmp_path / "p", model()).history.rows == whole.history.rows


def test_the_callback_sees_the_module_after_each_epoch() -> None:
    seen: list[tuple[int, float]] = []

    def watch(module: VariationalModule, record: Any) -> None:
        seen.append((record.epoch, float(module.mean()["0.weight"].detach().abs().sum())))

    posterior = fit(callback=watch)
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert seen[-1][1] == pytest.approx(float(posterior.mean()["0.weight"].abs().sum()))


def test_the_figure_shows_all_of_it() -> None:
    figure = figures.variational(fit(probe=data()[0]).history)
    lines = [len(axis.lines) for axis in figure.axes]
    assert lines == [2, 2, 2, 2]  # bound and log likelihood; two layers; two layers; two uncertainties
    assert list(figure.axes[1].lines[0].get_xdata()) == [1, 2, 3]
    assert len(figures.variational(fit().history).axes) == 3
    with pytest.raises(BadOption, match="no epoch"):
        figures.variational(whence.Variational.of(VariationalModule(model()), whence.Categorical()).history)


# L1


def test_l1_is_soft_thresholding_of_a_linear_problem() -> None:
    """With XᵀX = N I the mean of μ is S(ŵ, l1) / (1 + δ/N), S the soft threshold; δ the prior precision."""
    torch.manual_seed(0)
    n, l1, delta = 256, 0.2, 25.6
    x = torch.linalg.qr(torch.randn(n, 6))[0] * n**0.5
    exact = torch.tensor([0.8, -0.5, 0.15, -0.05, 0.3, 0.0])
    y = (x @ exact + 0.1 * torch.randn(n)).unsqueeze(1)
    posterior = variational(
        nn.Linear(6, 1, bias=False), (x, y), likelihood=whence.Gaussian(1.0), prior_precision=delta, l1=l1, lr=0.02,
        batch_size=n, epochs=600, start="scratch", seed=0, progress=False,
    )  # fmt: skip
    free = (x.T @ y / n).squeeze()
    wanted = free.sign() * (free.abs() - l1).clamp(min=0) / (1 + delta / n)
    torch.testing.assert_close(posterior.mean()["weight"][0], wanted, rtol=0, atol=0.01)
    assert "L1 penalty 0.2" in repr(posterior)
    with pytest.raises(WhenceError, match="l1"):
        fit(l1=-1.0)


def test_l1_is_in_the_file_and_in_the_checkpoint(tmp_path: Path) -> None:
    posterior = fit(l1=0.01, checkpoint=tmp_path / "c")
    posterior.save(tmp_path / "p")
    assert whence.load(tmp_path / "p", model()).l1 == 0.01
    with pytest.raises(BadOption, match="l1"):
        fit(l1=0.02, checkpoint=tmp_path / "c")
