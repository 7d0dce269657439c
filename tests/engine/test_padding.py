"""Batches of different lengths, padded to one."""

from __future__ import annotations

import pytest
import torch

from whence.engine.batches import joined
from whence.engine.padding import counted_positions, same_length, without_padding
from whence.errors import BadData


def batch(*lengths: int, pad: int = 7, left: bool = False, extra: int = 0) -> dict[str, torch.Tensor]:
    longest = max(lengths) + extra
    ids, mask = torch.full((len(lengths), longest), pad), torch.zeros(len(lengths), longest, dtype=torch.long)
    for i, n in enumerate(lengths):
        own = slice(longest - n, None) if left else slice(0, n)
        ids[i, own], mask[i, own] = torch.arange(1, n + 1), 1
    return {"input_ids": ids, "attention_mask": mask, "weight": torch.ones(len(lengths), 2)}


@pytest.mark.parametrize("left", [False, True])
def test_equal_to_padding_at_once(left: bool) -> None:
    short, long = batch(2, 3, left=left), batch(5, 1, left=left)
    labels = [torch.where(one["attention_mask"] > 0, one["input_ids"], -100) for one in (short, long)]
    (first, second), targets = same_length([short, long], labels, "test")
    whole = batch(2, 3, 5, 1, left=left)
    for key in whole:
        assert torch.equal(torch.cat([first[key], second[key]]), whole[key])
    wanted = torch.where(whole["attention_mask"] > 0, whole["input_ids"], -100)
    assert torch.equal(torch.cat(targets), wanted)
    assert short["input_ids"].shape == (2, 3)  # what was given is as it was


def test_labels_of_sequences_and_other_inputs_are_left_alone() -> None:
    inputs, targets = same_length([batch(2), batch(4)], [torch.zeros(1), torch.ones(1)], "test")
    assert [t.shape for t in targets] == [(1,), (1,)]
    assert [one["weight"].shape for one in inputs] == [(1, 2), (1, 2)]


def test_a_mask_of_padding() -> None:
    def turned(one: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": torch.rand(*one["input_ids"].shape, 3), "src_key_padding_mask": one["attention_mask"] == 0}

    (first, second), _ = same_length([turned(batch(2)), turned(batch(4))], [], "test")
    assert first["src_key_padding_mask"].tolist() == [[False, False, True, True]]
    assert first["x"].shape == second["x"].shape == (1, 4, 3) and not first["x"][:, 2:].any()
    counted = counted_positions(first)
    assert counted is not None and counted.tolist() == [[True, True, False, False]]


def test_without_a_mask_nothing_is_padded() -> None:
    parts = [{"input_ids": torch.ones(1, n, dtype=torch.long)} for n in (2, 3)]
    assert same_length(parts, [], "test")[0] is parts
    assert counted_positions(torch.ones(2, 3)) is None


def test_what_cannot_be_padded_is_refused() -> None:
    with pytest.raises(BadData, match="some sequences are padded at their beginning"):
        same_length([batch(2, 3), batch(4, 1, left=True)], [], "test")
    with pytest.raises(BadData, match="numbers cannot be marked as padding"):
        same_length([batch(2), batch(3)], [torch.rand(1, 2), torch.rand(1, 3)], "test")


def test_outputs_of_shorter_sequences_end_in_nan() -> None:
    found = joined([torch.ones(4, 2, 3, 5), torch.zeros(4, 1, 6, 5)], dim=1)
    assert found.shape == (4, 3, 6, 5)
    assert bool(found[:, :2, 3:].isnan().all()) and not bool(found[:, :2, :3].isnan().any() | found[:, 2].isnan().any())
    assert bool(torch.isfinite(without_padding(found)).all())
    found[:, 1] = torch.nan  # no output at all: that is an error, not padding
    assert bool(without_padding(found).isnan().any())
    with pytest.raises(BadData, match="different shapes"):
        joined([torch.ones(2, 3, 5), torch.ones(2, 6, 4)])
