"""What no audit of data can see, and what its intervals assume."""

from __future__ import annotations

from collections.abc import Iterator


def limits(validation: bool, ood: bool) -> Iterator[str]:
    """One sentence for each; ``validation`` and ``ood``: whether such data were given."""
    yield (
        "Intervals assume that test inputs are independent of each other. Repeated measurements of one patient, frames "
        "of one video or samples of one site are not, and then the intervals are too narrow."
    )
    yield "The test data are taken to be like the inputs in use, and their labels to be right. Neither was checked."
    yield "Only exact copies were looked for between training, validation and test data, not near copies."
    if ood:
        yield "Novelty was measured on the out-of-distribution inputs given; other novel inputs may be noticed less."
    if validation:
        yield (
            "The same validation data choose the prior and the recalibration, and give thresholds, prediction sets and "
            "the reference of novelty. What is promised from them alone is therefore approximate; the test data "
            "measure it."
        )
