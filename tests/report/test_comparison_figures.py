"""Figures of a comparison are checked by what they were given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.report import sample_comparison
from tests.report.given import drawn, lines, names_of, ticks
from tests.report.typed import comparison
from whence import errors
from whence.report import figures

BarContainer = pytest.importorskip("matplotlib.container").BarContainer
NAMES = ["plain network", "Laplace", "Variational", "MC dropout", "Deep ensemble", "HMC"]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return sample_comparison.methods()


def test_metrics(record: dict[str, Any]) -> None:
    figure = figures.compare_metrics(SimpleNamespace(results=comparison(record)))
    assert [ax.get_title() for ax in figure.axes[:7]] == [metric["label"] for metric in record["metrics"]]
    nll, coverage = figure.axes[1], figure.axes[4]
    assert ticks(figure.axes[0]) == NAMES and nll.get_xlabel() == "↓ lower is better"
    assert [line.get_xdata()[0] for line in nll.lines] == [v["value"] for v in record["metrics"][1]["values"]]
    filled = [line.get_markerfacecolor() != "white" for line in nll.lines]
    assert filled == record["metrics"][1]["best"]
    assert len(coverage.lines) == 5 + 1 and coverage.lines[-1].get_xdata()[0] == 0.95
    drawn(figure)


def test_layers(record: dict[str, Any]) -> None:
    figure = figures.compare_layers(comparison(record))
    shares, explained, activations = figure.axes
    bars = [[bar.get_width() for bar in one] for one in shares.containers if isinstance(one, BarContainer)]
    assert np.allclose(bars, [row for row in record["layers"]["share"] if row is not None])
    assert ticks(shares) == record["layers"]["names"] and shares.yaxis_inverted()
    assert lines(explained)["Laplace"][0] == record["layers"]["explained"][1]
    assert lines(activations)["Deep ensemble"][0] == record["layers"]["activations"][4]
    assert names_of(figure.legends[0]) == NAMES[1:] and "1 − CKA" in activations.get_xlabel()
    drawn(figure)
    only = {**record, "layers": {**record["layers"], "share": [None] * 6, "explained": [None] * 6}}
    assert len(figures.compare_layers(comparison(only)).axes) == 1


def test_curves(record: dict[str, Any]) -> None:
    ax = figures.compare_reliability(comparison(record))
    assert lines(ax)["HMC"] == tuple([b[k] for b in record["reliability"][5]] for k in ("confidence", "accuracy"))
    ax = figures.compare_uncertainty(comparison(record))
    found = lines(ax)["Laplace, ood"]
    assert found[0] == record["uncertainty"]["ood"][1] and found[1][:2] == [1, 1 - 1 / 200]
    assert len(ax.lines) == 12 and ax.get_xlabel() == "entropy of the prediction (nats)"
    drawn(ax)
    ax = figures.compare_rejection(comparison(record))
    assert lines(ax)["HMC"] == (record["rejection"][5]["coverage"], record["rejection"][5]["error"])
    ax = figures.compare_agreement(comparison(record))
    assert np.allclose(ax.images[0].get_array(), record["agreement"]["rho"])
    assert [text.get_text() for text in ax.texts][:2] == ["1.00", "0.55"] and ticks(ax) == record["agreement"][
        "methods"
    ]
    drawn(ax)


def test_what_is_missing_is_said() -> None:
    bare = sample_comparison.bare()
    for name in ("reliability", "uncertainty", "rejection", "layers", "agreement"):
        with pytest.raises(errors.BadOption, match=f"this comparison has no {name}: no {name} for this task."):
            getattr(figures, f"compare_{name}")(comparison(bare))
