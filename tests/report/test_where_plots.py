"""The pictures of ``Where`` are those of the figures, drawn from its own tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import whence

pytest.importorskip("matplotlib")


def made() -> tuple[whence.Laplace, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(50, 4), torch.randint(3, (50,))
    return whence.laplace(model, (x, y), likelihood="classification", progress=False), x, y


def test_every_picture_is_drawn_and_saved(tmp_path: Path) -> None:
    posterior, x, y = made()
    where = posterior.where(x)
    pictures = {
        "shares": where.plot_shares(),
        "distributions": where.plot_distributions("identified"),
        "units": where.plot_units("0"),
        "weights": where.plot_weights("0", "weight", shape=(2, 2)),
        "classes": where.plot_classes(y),
        "magnitude": where.plot_magnitude("2"),
        "spectrum": where.plot_spectrum(),
        "slices": where.plot_slices((x, y)),
        "activations": where.plot_activations(),
        "sensitivity": where.plot_sensitivity((0.5, 1.0)),
    }
    for name, drawn in pictures.items():
        figure = drawn if hasattr(drawn, "savefig") else drawn.figure
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 3000, name


def test_the_bars_are_the_tables_shares() -> None:
    posterior, x, _ = made()
    where = posterior.where(x)
    axes = where.plot_shares().axes[0]
    widths = sorted(round(float(bar.get_width()), 6) for bar in axes.patches)
    assert all(round(row.variance_share, 6) in widths for row in where.layers)
