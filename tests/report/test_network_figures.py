"""Figures of whole networks, of feature maps, and films: they draw what they are given."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.report.given import drawn, ticks
from whence.errors import BadOption
from whence.extras.tracking.records import TrackedLayer, TrackRecord
from whence.extras.tracking.track import Track
from whence.report import figures
from whence.report.figures.film import frame
from whence.where.pictures import BlockPicture, FeatureMap, NetworkPicture

pytest.importorskip("matplotlib")


def block(name: str, parameters: int, count: int = 4, factors: bool = False) -> BlockPicture:
    pair = (torch.eye(2), torch.full((3, 3), 0.5)) if factors else None
    return BlockPicture(name, "Linear", parameters, torch.arange(count**2).reshape(count, count) / count**2, pair)


def picture(*blocks: BlockPicture, across: torch.Tensor | None = None) -> NetworkPicture:
    return NetworkPicture("covariance", "kron", blocks, across)


def test_blocks_lie_along_the_diagonal_and_grow_with_their_weights() -> None:
    figure = figures.network(picture(block("first", 100), block("second", 100_000)))
    (ax,) = [a for a in figure.axes if a.get_yticks().size and ticks(a)[:1] == ["first (100)"]]
    boxes = [image.get_extent() for image in ax.images]
    assert boxes[0][1] == pytest.approx(boxes[1][0]) and boxes[0][2] == pytest.approx(boxes[1][3])
    assert boxes[1][1] - boxes[1][0] > boxes[0][1] - boxes[0][0]
    assert np.array_equal(ax.images[0].get_array(), block("", 1).matrix.numpy())
    assert "100,100 weights" in ax.get_title()
    drawn(figure)


def test_factors_stand_beside_and_correlated_layers_are_whole() -> None:
    figure = figures.network(picture(*(block(str(i), 10, factors=True) for i in range(9))))
    inner = [child for a in figure.axes for child in a.child_axes]
    assert len(inner) == 2 * 4 and {a.get_xlabel() for a in inner} == {"G", "A"}
    drawn(figure)
    across = torch.rand(8, 8)
    figure = figures.network(picture(block("a", 10), block("b", 10), across=across))
    images = figure.axes[0].images
    assert len(images) == 4
    assert np.allclose(images[1].get_array(), across[:4, 4:].numpy())
    drawn(figure)


def test_one_input_through_the_layers() -> None:
    strong = torch.zeros(2, 3, 4)
    strong[1, 0, 0] = -5.0
    maps = [
        FeatureMap("conv", "Conv2d", strong, torch.full((2, 3, 4), 0.2)),
        FeatureMap("hidden", "Linear", torch.arange(20.0), torch.ones(20)),
        FeatureMap("tokens", "Linear", torch.rand(5, 6), torch.rand(5, 6)),
        FeatureMap("head", "Linear", torch.arange(3.0), torch.ones(3)),
    ]
    figure = figures.feature_maps(maps, image=torch.rand(3, 4, 4))
    titles = [a.get_title() for a in figure.axes if a.get_title()]
    assert titles == ["input", "conv\nchannel 1", "hidden\n20 units", "tokens\npositions × features", "head\n3 units"]
    shapes = {a.get_title().split("\n")[0]: a.images[0].get_array().shape for a in figure.axes if a.get_title()}
    assert shapes == {"input": (4, 4, 3), "conv": (3, 4), "hidden": (4, 5), "tokens": (5, 6), "head": (3, 1)}
    drawn(figure)
    many = [FeatureMap(f"layer{i}", "Linear", torch.rand(3), torch.rand(3)) for i in range(30)]
    shown = [a.get_title().split("\n")[0] for a in figures.feature_maps(many).axes if a.get_title()]
    assert len(shown) == 7 and shown[0] == "layer0" and shown[-1] == "layer29"
    with pytest.raises(BadOption, match="feature map"):
        figures.feature_maps([])


def track(records: int = 3) -> Track:
    def layer(name: str, explained: float | None) -> TrackedLayer:
        return TrackedLayer(name, "Linear", 10, 0.5, 0.4, 4.0, 2.0, 0.3, 0.3, explained)

    made = [
        TrackRecord(step, layers=(layer("a", 0.1 * step), layer("b", 0.2 * step)), loss=2.0 - step, probe_loss=None)
        for step in range(records)
    ]
    return Track({"network": "", "options": {"subset": 1, "data_size": 1}}, made)


def test_a_frame_shows_its_record() -> None:
    figure = frame(track(), 1)
    bars, course, loss = (figure.axes[i] for i in (0, 1, 3))
    assert [patch.get_width() for patch in bars.patches] == [0.1, 0.2] and bars.get_title() == "step 1"
    assert [list(line.get_ydata()) for line in course.lines][:2] == [[0.0, 0.1, 0.2], [0.0, 0.1]]
    assert list(loss.lines[1].get_ydata()) == [2.0, 1.0]
    drawn(figure)


def test_films_have_a_frame_for_each_record(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with image.open(figures.film(track(), tmp_path / "film.gif", seconds=0.1)) as film:
        assert film.n_frames >= 3 and film.info["duration"] == 100
    page = figures.film(track(), tmp_path / "film.html", of="identified").read_text()
    frames = re.findall(r'"([A-Za-z0-9+/=]{200,})"', page)
    assert len(frames) == 3 and base64.b64decode(frames[0]).startswith(b"\x89PNG")
    assert "steps=[0,1,2]" in page and 'max="2"' in page and "http" not in page
    for bad, match in ((tmp_path / "film.mp4", "ending"), (tmp_path / "no" / "film.gif", "folder")):
        with pytest.raises(Exception, match=match):
            figures.film(track(), bad)
    with pytest.raises(BadOption, match="step"):
        figures.film(track(0), tmp_path / "film.gif")
    with pytest.raises(BadOption, match="explained"):
        figures.film(track(), tmp_path / "film.gif", of="entropy")  # type: ignore[arg-type]
