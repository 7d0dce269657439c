"""An audit of a network with dense outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence.auditing.profile import _Errors
from whence.errors import Notice
from whence.report.notices import KNOWN, in_words
from whence.report.page.render import render


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


def random_directions() -> whence.Audit:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x = torch.randn(60, 1, 6, 6)
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    with pytest.warns(Notice, match="random columns"):
        return whence.audit(
            model, (x[:20], y[:20]), likelihood="classification", test=(x[40:], y[40:]), progress=False,
            prior_precision=1.0, sections=["layers", "profile"],
        )  # fmt: skip


def test_shares_of_random_directions_have_standard_errors(set_sizes: Any) -> None:
    set_sizes(exact=1)
    audit = random_directions()
    profile, layers = audit.results.profile, audit.results.layers
    assert profile is not None and layers is not None and (profile.outputs, profile.columns) == (108, 16)
    torch.manual_seed(0)
    nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
    rows = audit.posterior.where(torch.randn(60, 1, 6, 6)[40:], probes=16).layers
    for one, row in zip(layers, rows, strict=True):
        assert one.test is not None and row.variance_share_error
        assert one.test.share_error == pytest.approx(row.variance_share_error, rel=1e-4)
        assert f"{100 * row.variance_share_error:.1f}" in " ".join(profile.words)
    assert "16 random directions of the outputs for each input, in place of all 108" in " ".join(profile.words)
    page = render(audit.results)
    assert "summed over the 108 outputs" in page and "standard errors" in page


def test_layers_that_random_directions_cannot_tell_apart_are_said_to() -> None:
    errors = _Errors({"a": 0.01, "b": 0.008}, 16, 9600)
    close, apart = (errors.words((0.242, "a"), (other, "b")) for other in (0.23, 0.2))
    assert "Whether layer `a` or layer `b` (23% (± 0.8 points)) contributes more cannot be told" in close
    assert "cannot be told" not in apart and "all 9,600; ± is a standard error." in apart


def test_messages_are_put_into_words_and_unknown_ones_are_marked(set_sizes: Any) -> None:
    set_sizes(exact=1)
    audit = random_directions()
    said = [in_words(one) for one in audit.results.run.notices]
    assert said and not any(one.startswith("Message of the library") for one in said), audit.results.run.notices
    assert any("estimated with 1 random label for each training input" in one for one in said)
    assert in_words("something else.") == "Message of the library: something else."
    assert in_words("the detectors of the plain network were skipped: no features.").endswith(
        "not computed: no features."
    )
    assert all("{0}" in words or "{1}" in words for _, words in KNOWN)
    page = render(audit.results)
    assert "where()" not in page.split('id="run"')[1].split('id="glossary"')[0]
