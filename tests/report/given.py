"""Tables made by hand, and what a figure shows."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import nn

from whence.functional import Network
from whence.tables import Table
from whence.where.layer_rows import LayerRow
from whence.where.where import Where


class Given(Where):
    """A table made by hand; nothing in it adds up."""

    def weights(self, layer):
        if layer == "conv":
            places = [(o, i, h, w) for o in range(3) for i in range(2) for h in range(2) for w in range(2)]
            names = ["conv.weight"] * 24
        else:
            places = [(o, d) for o in range(5) for d in range(12)] + [(o,) for o in range(5)]
            names = ["weight"] * 60 + ["bias"] * 5
        count = torch.arange(1.0, len(places) + 1)
        columns = {"parameter": names, "index": places, "unit": [p[0] for p in places], "weight": -count}
        columns |= {"std": count / 10, "identified": count / 100, "signal_to_noise": count}
        return Table(columns)

    def units(self, layer):
        columns = {"unit": [0, 1, 2], "std": [1.0, 2.0, 3.0], "identified": [0.1, 0.2, 0.3]}
        if self.inputs is not None:
            columns |= {
                "variance_share": [0.7, -0.2, 5.0],
                "prior_share": [0.1, 0.3, 0.2],
                "explained": [0.9, 0.8, 0.7],
            }
        return Table(columns, f"a unit is a row of {layer}")

    @property
    def magnitude(self):
        names = [row.name for row in self.layers]
        return Table({"name": [*names, "all layers"], "rho_std": [0.123] * (len(names) + 1)})

    @property
    def spectrum(self):
        return Table({"name": ["conv", "conv", "fc"], "rank": [1, 2, 1], "curvature": [30.0, 2.0, 7.0]})


def layer(name: str, share: float | None = 0.9, prior: float | None = 0.8, explained: float | None = 0.3) -> LayerRow:
    fixed = LayerRow(name, "Linear", 10, 0.5, 0.4, 0.1, 0.4, 0.9, 4.0, 2.0, 0.3, 0.02)
    return replace(fixed, variance_share=share, prior_share=prior, explained=explained)


class Flat(nn.Linear):
    """Reads images entry by entry."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))


def given(*rows: LayerRow, inputs=None, precisions=(3.0, 3.0)) -> Given:
    rows = rows or (layer("conv"), layer("fc", 0.7, 0.1, -0.2))
    blocks = [SimpleNamespace(name=row.name) for row in rows]
    by_name = {b.name: d for b, d in zip(blocks, precisions, strict=False)}
    prior = SimpleNamespace(of=lambda blocks: SimpleNamespace(delta=by_name[blocks[0].name]))
    network = Network(Flat(12, 5) if len(rows) == 1 else nn.Sequential(nn.Conv2d(2, 3, 2), Flat(12, 5)))
    posterior = SimpleNamespace(prior=prior, blocks=blocks, snapshots=(network,))
    posterior.as_laplace = lambda what: posterior
    return Given(list(rows), posterior, inputs)


def drawn(found) -> None:
    """It can be saved, and nothing is cut off."""
    (found if hasattr(found, "savefig") else found.figure).savefig(io.BytesIO(), format="png", dpi=50)


def widths(ax) -> list[list[float]]:
    return [[bar.get_width() for bar in container] for container in ax.containers]


def lines(ax) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def names_of(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def ticks(ax) -> list[str]:
    return [text.get_text() for text in ax.get_yticklabels()]
