"""An audit of a network with dense outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from whence.errors import Notice


def test_a_segmentation_network_has_a_profile_novelty_and_a_varied_prior() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x = torch.randn(60, 1, 6, 6)
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    sets = {"validation": (x[20:40], y[20:40]), "test": (x[40:], y[40:]), "ood": 5 * x[:10]}
    with pytest.warns(Notice, match="detectors of the plain network were skipped"):
        audit = whence.audit(model, (x[:20], y[:20]), likelihood="classification", **sets, progress=False)
    found = audit.results
    assert found.profile is not None and found.novelty is not None and found.layers is not None
    names = {row.name for row in found.novelty.detectors or ()}
    assert names == {"novelty", "entropy", "mutual_information", "variance"}
    assert [len(one.layers) for one in found.novelty.sets] == [2, 2, 2]
    assert sorted({row.factor for row in found.sensitivity or ()}) == [0.1, 1.0, 10.0]
