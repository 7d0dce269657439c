"""Random numbers that belong to an example."""

from __future__ import annotations

import torch

from whence.engine.randomness import example_uniform


def test_only_the_numbers_that_are_used_are_drawn() -> None:
    rows = torch.arange(40, 45)
    whole = example_uniform(3, 1, rows, (5, 4, 6))
    assert torch.equal(example_uniform(3, 1, rows, (5, 4, 6), 1), whole[..., :1])
    assert torch.equal(example_uniform(3, 1, rows, (5, 4, 6), 2), whole[..., :2])
    assert torch.equal(example_uniform(3, 1, rows, (5, 4, 6), 6), whole)
