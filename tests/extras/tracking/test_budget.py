"""``every="auto"`` keeps the records below a fifth of the training."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import whence


def test_records_take_at_most_a_fifth_of_the_time() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    net = nn.Linear(4, 2)
    track = whence.track(net, (x, (x[:, 0] > 0).long()), likelihood="classification", every="auto", subset=20)
    assert track.step() is not None  # the first is always recorded
    assert track.step() is None  # nothing was trained since
    while len(track) < 3:
        time.sleep(0.02)
        track.step()
    spent = sum(record.seconds for record in track.records)
    trained = sum(record.loop_seconds for record in track.records)
    assert spent - track.records[-1].seconds <= 0.2 * trained


def test_other_words_are_refused() -> None:
    x = torch.randn(8, 4)
    with pytest.raises(whence.errors.BadOption, match="'auto'"):
        whence.track(nn.Linear(4, 2), (x, (x[:, 0] > 0).long()), likelihood="classification", every="often")  # type: ignore[arg-type]
