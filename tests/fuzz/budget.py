"""How many random cases a test tries: few and always the same in the suite, new ones in ``make fuzz``."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

CASES = "WHENCE_FUZZ_CASES"  # set by tests/fuzz/__main__.py


def cases(few: int) -> Any:
    """Settings of a test that tries ``few`` cases in the suite."""
    given = os.environ.get(CASES)
    return settings(
        max_examples=few if given is None else int(given),
        derandomize=given is None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
