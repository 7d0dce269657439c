"""What the user passes as ``prior_precision``, checked and turned into a prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whence.curvature.blocks import Block
from whence.curvature.signals import Signals
from whence.errors import BadOption
from whence.functional import Network
from whence.priors.precision import Prior, PriorPrecision, by_parameter, positive
from whence.priors.relative import Relative, relative_precision


def check_prior(given: Any, relative: bool = True) -> None:
    """Refuse what can be refused before the data are read; ``relative`` says whether such a prior can be had."""
    if isinstance(given, Relative):
        if not relative:
            raise BadOption(
                "a relative prior comes from the sums of a Laplace fit. Pass its precisions: prior_precision={name: "
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
