"""A method whose intervals cover too little is not praised for narrow intervals."""

from __future__ import annotations

import io
from typing import Any

import torch
from rich.console import Console
from torch import nn

import whence
from whence.report.page import render
from whence.report.terminal.comparison import comparison_sections


def compared(noises: dict[str, float], n: int = 300) -> Any:
    """Linear networks with the true weights, and wrong or right noise; the targets have noise 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(n, 1, generator=generator)
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.zero_()
    posteriors = {
        name: whence.laplace(net, (x, y), likelihood=whence.Gaussian(noise=noise)) for name, noise in noises.items()
    }
    return whence.compare(posteriors, (x, y), plain=None, progress=False)


def width(comparison: Any) -> Any:
    return next(metric for metric in comparison.results.metrics if metric.name == "width")


def test_the_narrowest_is_not_best_if_its_coverage_fails() -> None:
    found = compared({"narrow": 0.3, "right": 1.0, "wide": 3.0})
    metric = width(found)
    assert metric.values[0].value < metric.values[1].value < metric.values[2].value
    assert metric.best == (False, True, False)
    assert "narrow" in metric.note
    assert "n = 300" in metric.note
    assert "right" not in metric.note
    for shown in (str(found), found._repr_html_(), render(found.results), terminal(found)):
        assert "at the cost of coverage" in " ".join(shown.split())


def test_nobody_is_marked_if_all_fail() -> None:
    metric = width(compared({"narrow": 0.3, "narrower": 0.1}))
    assert metric.best == (False, False)
    assert "narrower" in metric.note


def test_without_failures_the_narrowest_is_best_and_nothing_is_said() -> None:
    found = compared({"right": 1.0, "wide": 3.0})
    metric = width(found)
    assert metric.best == (True, False)
    assert metric.note is None
    assert "at the cost of coverage" not in str(found)


def terminal(comparison: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(*comparison_sections(comparison.results, 120))
    return console.file.getvalue()  # type: ignore[attr-defined]
