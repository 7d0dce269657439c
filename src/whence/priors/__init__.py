"""Gaussian priors: given precisions, and precisions relative to the signal in the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whence.curvature.signals import Signals
from whence.errors import BadOption
from whence.functional import Network
from whence.priors.precision import BlockPrior, ByParameter, Prior, PriorPrecision, by_parameter, positive
from whence.priors.relative import RELATIVE, Relative, RelativePrecision, relative_precision
from whence.recording.blocks import Block

__all__ = [
    "RELATIVE", "BlockPrior", "ByParameter", "Prior", "PriorPrecision", "Relative", "RelativePrecision",
    "check_prior", "resolve_prior",
]  # fmt: skip


def check_prior(given: Any, relative: bool = True) -> None:
    """Check a prior before the data are read; ``relative`` says whether a relative prior is possible."""
    if isinstance(given, Relative):
        if not relative:
            raise BadOption(
                "a relative prior needs the sums of a Laplace fit. Pass its precisions: prior_precision={name: "
                "1 / v for name, v in whence.laplace(…).prior_variance().items()}, or a number."
            )
        given.check()
    elif isinstance(given, Prior):
        positive(given.weight, "of weights")
        if given.bias is not None:
            positive(given.bias, "of biases")
    elif not isinstance(given, (Mapping, PriorPrecision)):
        positive(given, "")


def resolve_prior(
    given: Any, blocks: Sequence[Block], network: Network | None = None, signals: Signals | None = None
) -> PriorPrecision:
    """The prior of some blocks; ``network`` and ``signals`` are needed for a relative one."""
    if isinstance(given, PriorPrecision):
        return given
    if not isinstance(given, Relative):
        return by_parameter(given, blocks)
    if network is None:
        check_prior(given, relative=False)
    assert network is not None
    return relative_precision(given, blocks, network, signals or {})
