"""Products of parameters of which the normal suite runs a part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest


def covering(first: Sequence[Any], *others: Sequence[Any], always: Callable[..., bool] = lambda *_: False) -> list[Any]:
    """The product, for ``parametrize``: all of it in ``make test-all``, a part of it in ``make test``.

    The part is every combination for the first (small) case, one for each other case, another each time, and
    whatever ``always`` says.
    """
    combinations = list(itertools.product(*others))
    return [
        pytest.param(
            case,
            *chosen,
            marks=[] if i == 0 or j == i % len(combinations) or always(case, *chosen) else pytest.mark.slow,
        )
        for i, case in enumerate(first)
        for j, chosen in enumerate(combinations)
    ]
