"""Figures are checked by what they were given: hand-made tables, whose numbers do not fit together, are drawn as is."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import torch

from tests.report.given import drawn, given, layer, lines, names_of, ticks, widths
from whence import errors
from whence.extras.pruning.curve import PruneCurve, PruneRow
from whence.extras.tracking.records import TrackedLayer, TrackRecord
from whence.extras.tracking.track import Track
from whence.metrics import Estimate, Reliability, RiskCoverage
from whence.report import figures
from whence.tables import Table

matplotlib = pytest.importorskip("matplotlib")


def test_shares_are_the_tables() -> None:
    figure = figures.shares(given())
    left, right = figure.axes
    assert widths(left) == [[0.9, 0.7], [0.8, 0.1]]
    assert list(right.lines[0].get_xdata()) == [0.3, -0.2]
    assert ticks(left) == ["conv", "fc"] and left.yaxis_inverted()
    assert left.get_xlabel() == "share of output variance" and "explained" in right.get_xlabel()
    assert names_of(left.get_legend()) == ["posterior", "prior alone"]
    drawn(figure)


def test_compared_shares_name_the_sets() -> None:
    other = given(layer("conv", 0.2, 0.5, 0.6), layer("fc", 0.1, 0.4, 0.5))
    figure = figures.compare_shares({"test": given(), "novel": other})
    left, right = figure.axes
    assert widths(left) == [[0.9, 0.7], [0.2, 0.1]]
    assert [list(line.get_xdata()) for line in right.lines] == [[0.3, -0.2], [0.6, 0.5]]
    marks = [[segment[0][0] for segment in c.get_segments()] for c in left.collections]
    assert marks == [[0.8, 0.1], [0.5, 0.4]]
    assert names_of(left.get_legend()) == ["test", "novel", "prior alone"]


def test_shares_need_inputs() -> None:
    bare = given(layer("a", None, None, None))
    for ask in (figures.shares, lambda w: figures.compare_shares({"x": w}), lambda w: figures.compare_shares({})):
        with pytest.raises(errors.BadOption):
            ask(bare)


@pytest.mark.parametrize("of", ["std", "identified", "signal_to_noise"])
def test_distributions_mark_the_tables_value(of: str) -> None:
    ax = figures.distributions(given(), of)
    assert [line.get_xdata()[0] for line in ax.lines] == [getattr(row, of) for row in given().layers]
    assert len(ax.patches) == 4 and ticks(ax) == ["conv", "fc"]
    assert ax.get_xscale() == ("linear" if of == "identified" else "log")
    words = {"std": "standard deviation", "identified": "identified", "signal_to_noise": "signal to noise"}
    assert words[of] in ax.get_xlabel()
    drawn(ax)


def test_distribution_of_an_unknown_quantity() -> None:
    with pytest.raises(errors.BadOption, match="signal_to_noise"):
        figures.distributions(given(), "signal")


def test_names_of_twenty_layers_do_not_overlap() -> None:
    rows = [layer(f"encoder.blocks.{i}.attention.projection") for i in range(20)]
    figure = figures.shares(given(*rows))
    drawn(figure)
    boxes = [text.get_window_extent() for text in figure.axes[0].get_yticklabels()]
    assert all(upper.y0 >= lower.y1 - 0.5 for upper, lower in itertools.pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0


def test_maps_of_a_matrix_and_of_images() -> None:
    where = given(inputs=torch.zeros(7, 3, 4))
    matrix = torch.arange(1.0, 61).reshape(5, 12) / 10
    ax = figures.weight_maps(where, "fc")
    assert np.allclose(ax.images[0].get_array(), matrix) and (ax.get_ylabel(), ax.get_title()) == ("row", "weight")
    ax = figures.weight_maps(where, "fc", shape=(3, 4), most=4)
    assert np.allclose(ax.images[0].get_array()[0:6:2, 0:8:2], matrix[0].reshape(3, 4))
    assert "first 4 of 5" in ax.get_xlabel()
    first = given(layer("fc"), inputs=torch.zeros(7, 3, 4))
    assert "one tile for each unit" in figures.weight_maps(first, "fc").get_xlabel()  # the inputs are images
    with pytest.raises(errors.BadOption, match="12"):
        figures.weight_maps(where, "fc", shape=(5, 5))
    with pytest.raises(errors.BadOption, match="most"):
        figures.weight_maps(where, "fc", most=0)
    drawn(ax)


def test_maps_of_filters() -> None:
    ax = figures.weight_maps(given(), "conv", of="identified")
    values, kernel = ax.images[0].get_array(), torch.arange(1.0, 25).reshape(3, 2, 2, 2) / 100
    assert np.allclose(values[0:8:4, 0:8:4], kernel[0, 0]) and np.allclose(values[9:17:4, 0:8:4], kernel[0, 1])
    assert {ax.get_xlabel(), ax.get_ylabel()} == {"filter", "input channel"}
    drawn(ax)


def test_units_are_sorted_and_not_changed() -> None:
    figure = figures.units(given(inputs=torch.zeros(1)), "fc", most=2)
    upper, lower = figure.axes
    assert [bar.get_height() for bar in upper.containers[0]] == [5.0, 0.7]
    assert [text.get_text() for text in lower.get_xticklabels()] == ["2", "0"]
    assert lines(lower)["explained"][1] == [0.7, 0.9] and lines(lower)["identified"][1] == [0.3, 0.1]
    assert "2 of 3 units" in upper.get_title() and "row of fc" in lower.get_xlabel()
    bare = figures.units(given(), "fc").axes[0]
    assert [bar.get_height() for bar in bare.containers[0]] == [3.0, 2.0, 1.0]
    assert "standard" in bare.get_ylabel()


def test_magnitude() -> None:
    ax = figures.magnitude(given())
    assert lines(ax)["conv (ρ = 0.12)"][0] == list(range(1, 25))
    assert "conv (ρ = 0.12)" in names_of(ax.figure.legends[0])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log") and "|w|" in ax.get_xlabel()
    one = figures.magnitude(given(), "fc")
    assert one.collections[0].get_array().sum() == 65 and "ρ = 0.12" in one.get_title()
    drawn(one)


def test_classes() -> None:
    table = Table({
        "class": [0, 0, 4, 4], "name": ["a", "b"] * 2, "explained": [0.1, 0.2, 0.3, 0.4],
        "variance_share": [9.0, 8.0, 7.0, 6.0],
    })  # fmt: skip
    figure = figures.classes(table)
    left, right = figure.axes[:2]
    assert np.allclose(left.images[0].get_array(), [[0.1, 0.3], [0.2, 0.4]])
    assert np.allclose(right.images[0].get_array(), [[9, 7], [8, 6]])
    assert ticks(left) == ["a", "b"] and [t.get_text() for t in left.get_xticklabels()] == ["0", "4"]
    drawn(figure)


def records(**more) -> list[TrackRecord]:
    made = []
    for step in (1, 5):
        rows = [TrackedLayer(n, "Linear", 3, 0.1 * step, 0.2, 1.0, 1.0, 0.5, 0.5, 0.9) for n in ("a", "b")]
        made.append(TrackRecord(step, layers=tuple(rows), **more))
    return [*made, TrackRecord(6, error="it diverged")]


def test_track() -> None:
    figure = figures.track(Track({}, records(entropy=1.0, aleatoric=0.3, epistemic=0.9)))
    std, identified, explained, probe = figure.axes
    assert lines(std)["a"] == ([1, 5], [0.1, 0.5]) and lines(identified)["b"][1] == [0.2, 0.2]
    assert explained.get_ylabel() == "explained" and explained.get_xlabel() == "step"
    assert lines(probe)["epistemic"] == ([1, 5], [0.9, 0.9]) and "nats" in probe.get_ylabel()
    assert names_of(figure.legends[0]) == ["a", "b"]
    variance = figures.track(Track({}, records(variance=1.0, aleatoric=0.3))).axes[3]
    assert "variance" in variance.get_ylabel() and list(lines(variance)) == ["aleatoric"]
    with pytest.raises(errors.BadOption, match="step"):
        figures.track(Track({}, []))
    drawn(figure)


def test_spectrum_marks_the_prior() -> None:
    ax = figures.spectrum(given())
    assert lines(ax)["conv"] == ([1, 2], [30, 2]) and set(lines(ax)["prior precision"][1]) == {3.0}
    assert names_of(ax.figure.legends[0]) == ["conv", "fc", "prior precision"]
    several = figures.spectrum(given(precisions=(3.0, 4.0)))
    assert {line.get_ydata()[0] for line in several.lines if line.get_linestyle() == ":" and len(line.get_ydata())} == {
        3,
        4,
    }
    drawn(several)


def test_slices_and_sensitivity() -> None:
    table = Table({
        "name": ["a"] * 4 + ["b"] * 4, "direction": ["largest", "largest", "random", "random"] * 2,
        "curvature": [5.0] * 8, "step": [1.0, -1.0] * 4, "loss": [3.0, 4.0] * 4, "gaussian": [0.5, 0.6] * 4,
    })  # fmt: skip
    figure = figures.slices(table)
    assert len(figure.axes) == 4
    assert lines(figure.axes[1]) == {"Gaussian": ([-1, 1], [0.6, 0.5]), "true loss": ([-1, 1], [4, 3])}
    assert "a, random (λ = 5)" in figure.axes[1].get_title() and "nats" in figure.axes[0].get_ylabel()
    assert "standard deviations" in figure.axes[2].get_xlabel()
    columns = {"factor": [0.1, 0.1, 1.0, 1.0], "name": ["a", "b"] * 2}
    table = Table({**columns, "variance_share": [1.0, 2.0, 3.0, 4.0], "explained": [0.1, 0.2, 0.3, 0.4]})
    left, right = figures.sensitivity(table).axes
    assert lines(left)["b"] == ([0.1, 1], [2, 4]) and lines(right)["a"] == ([0.1, 1], [0.1, 0.3])
    assert names_of(left.figure.legends[0]) == ["a", "b"]


def test_activations() -> None:
    table = Table({"name": ["a", "b"], "spread": [1.0, 2.0], "over_inputs": [3.0, 4.0], "ratio": [7.0, 8.0]})
    left, right = figures.activations(table).axes
    assert lines(left)["over inputs"][0] == [3, 4] and lines(left)["under draws of the weights"][0] == [1, 2]
    assert list(right.lines[1].get_xdata()) == [7, 8] and "ratio" in right.get_xlabel()


def test_curvature() -> None:
    g, a = torch.tensor([[[2.0, -1], [-1, 3]]] * 2), torch.eye(3).unsqueeze(0)
    figure = figures.curvature({"G": g, "A": a})
    assert [ax.get_title() for ax in figure.axes[:2]] == ["G (group 1 of 2)", "A"]
    assert np.allclose(figure.axes[0].images[0].get_array(), g[0])
    diagonal = figures.curvature({"diagonal": torch.tensor([1.0, 5.0])}).axes[0]
    assert list(diagonal.lines[0].get_ydata()) == [1, 5]
    drawn(figures.curvature({"H": torch.zeros(2, 2)}))
    with pytest.raises(errors.BadOption):
        figures.curvature({})


def test_reliability() -> None:
    nan = float("nan")
    columns = {"low": [0, 0.5, 0.8], "high": [0.5, 0.8, 1], "confidence": [nan, 0.6, 0.9], "accuracy": [nan, 0.2, 0.95]}
    columns |= {"count": [0, 40, 7], "weight": [0, 0.1, 0.1], "gap": [nan, 9, 9]}
    columns |= {"accuracy_low": [nan, 0.1, 0.9], "accuracy_high": [nan, 0.3, 0.99]}
    table = Reliability(**{key: torch.tensor(values, dtype=torch.float64) for key, values in columns.items()})
    figure = figures.reliability(table, Estimate(0.123, 0.1, 0.2))
    upper, lower = figure.axes
    assert lines(upper)["accuracy of a bin"] == ([0.6, 0.9], [0.2, 0.95])
    assert [s[:, 1].tolist() for s in upper.collections[0].get_segments()] == [[0.1, 0.3], [0.9, 0.99]]
    assert [bar.get_height() for bar in lower.containers[0]] == [40, 7]
    assert [text.get_text() for text in upper.texts] == ["ECE 0.123 [0.100, 0.200]"]
    assert "accuracy" in upper.get_ylabel() and "probability" in lower.get_xlabel()
    assert not figures.reliability(table).axes[0].texts


def test_entropies_risk_and_pruning() -> None:
    ax = figures.entropies({"MNIST": torch.tensor([0.5, 0.25]), "notMNIST": torch.ones(4)})
    assert lines(ax)["MNIST (2)"] == ([0, 0.25, 0.5], [1, 0.5, 0]) and "nats" in ax.get_xlabel()
    assert names_of(ax.get_legend()) == ["MNIST (2)", "notMNIST (4)"]
    curve = RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.25, 0.125]), torch.tensor([0.0, 1.0]))
    ax = figures.risk_coverage({"plain": curve})
    assert lines(ax)["plain"] == ([0.5, 1.0], [0.25, 0.125]) and "coverage" in ax.get_xlabel()
    rows = [PruneRow(by, f, f, 5, 1 - f, None, 2 * f) for by in ("snr", "random") for f in (0.5, 0.0)]
    ax = figures.pruning(PruneCurve(rows), of="nll")
    assert lines(ax)["random"] == ([0, 0.5], [0, 1]) and "nats" in ax.get_ylabel() and "sparsity" in ax.get_xlabel()
    assert lines(figures.pruning(PruneCurve(rows)))["snr"] == ([0, 0.5], [1, 0.5])
    with pytest.raises(errors.BadOption, match="rmse"):
        figures.pruning(PruneCurve(rows), of="rmse")
    for empty in (figures.entropies, figures.risk_coverage):
        with pytest.raises(errors.BadOption):
            empty({})


def test_into_axes_that_are_given() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    first, second = figure.subplots(1, 2)
    assert figures.shares(given(), ax=first) is figure and len(figure.axes) == 4
    assert figures.spectrum(given(), ax=second) is second and names_of(second.get_legend())[0] == "conv"
    drawn(figure)
    with pytest.raises(errors.BadOption, match="grid"):
        figures.shares(given(), ax=Figure().add_axes((0, 0, 1, 1)))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.MissingExtra, match=r"whence\[report\]"):
        figures.shares(given())
    with pytest.raises(errors.MissingExtra, match=r"whence\[report\]"):
        figures.entropies({"a": torch.rand(3)})
