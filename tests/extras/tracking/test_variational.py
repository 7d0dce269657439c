"""Tracking a variational training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.extras.tracking.cases import SHARES, small, two_classes
from whence.errors import BadOption
from whence.report import figures


def trained(path: Path | None = None, watched: bool = True) -> tuple[whence.VariationalModule, Any]:
    """Two epochs in one's own loop, tracked after each."""
    torch.manual_seed(0)
    x, y = two_classes()
    module = whence.VariationalModule(small(), initial_std=0.1)
    track: Any = None
    if watched:
        track = whence.track(
            module, (x, y), likelihood="classification", probe=(x[:20], y[:20]), every=1, subset=50, path=path
        )
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(2):
        for batch in torch.randperm(len(x)).split(50):
            loss = nn.functional.cross_entropy(module(x[batch]), y[batch]) * len(x) + module.kl()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if track is not None:
            track.step()
    return module, track


def test_a_record_is_the_posterior_in_training(tmp_path: Path) -> None:
    module, track = trained(tmp_path / "track.jsonl")
    posterior = whence.Variational.of(module, whence.Categorical())
    x, _ = two_classes()
    torch.manual_seed(0)  # the records' seed
    rows = posterior.where(x[:20]).layers
    last = track.records[-1]
    assert [layer.name for layer in last.layers] == [row.name for row in rows] == ["0", "2", "4"]
    for row, layer in zip(rows, last.layers, strict=True):
        assert (layer.std, layer.identified, layer.signal_to_noise) == pytest.approx(
            (row.std, row.identified, row.signal_to_noise)
        )
        for name in SHARES:
            assert getattr(layer, name) == pytest.approx(getattr(row, name), abs=0.1)
    prediction = posterior.predict(x[:20], num_samples=2000)
    assert last.epistemic == pytest.approx(float(prediction.epistemic.mean()), rel=0.5)
    assert last.aleatoric == pytest.approx(float(prediction.aleatoric.mean()), rel=0.1)
    inputs, targets = track.subset
    logits = posterior.network.module(inputs)
    assert last.loss == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-4)
    assert last.accuracy == pytest.approx(float((logits.argmax(1) == targets).float().mean()))
    assert last.probe_loss is not None and track.settled(1.0) == {"0": 1, "2": 1, "4": 1}
    again = whence.Track.load(tmp_path / "track.jsonl")
    assert again.records == track.records and "variational" in repr(again)
    assert figures.track(track).axes


def test_the_training_is_not_disturbed() -> None:
    (watched, _), (alone, _) = trained(), trained(watched=False)
    for mine, its in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_in_the_callback_of_variational() -> None:
    data, tracks = two_classes(), []

    def watch(module: whence.VariationalModule, _: Any) -> None:
        if not tracks:
            tracks.append(whence.track(module, data, likelihood="classification", every=1, subset=20))
        tracks[0].step()

    posterior = whence.variational(
        small(), data, likelihood="classification", epochs=3, seed=0, callback=watch, progress=False
    )
    assert len(tracks[0]) == 3
    assert tracks[0].records[-1].layers[0].std == pytest.approx(posterior.where().layers[0].std)


def test_options_of_a_laplace_posterior_are_refused() -> None:
    module = whence.VariationalModule(small())
    for options in ({"structure": "diag"}, {"curvature": "mc"}, {"prior_precision": 2.0}, {"layers": ["0"]}):
        with pytest.raises(BadOption, match=next(iter(options))):
            whence.track(module, two_classes(), likelihood="classification", **options)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="noise"):
        whence.track(module, two_classes(), likelihood="regression")


def test_a_mixture_prior_says_nothing_of_identified() -> None:
    prior = whence.posteriors.variational.ScaleMixture(0.5, 1.0, 0.1)
    module = whence.VariationalModule(small(), prior_precision=prior)
    track = whence.track(module, two_classes(), likelihood="classification", every=1)
    track.step()
    track.step()
    assert track.records[0].layers[0].identified is None and track.settled() == {"0": None, "2": None, "4": None}
    assert "0" in str(track)
