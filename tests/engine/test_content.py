from __future__ import annotations

import hashlib
import json

import pytest
import torch
from torch import nn

from whence.engine.content import ExamplesDigest, digest_of_state


def slow(inputs: dict[str, torch.Tensor] | torch.Tensor, targets: torch.Tensor | None) -> str:
    """One example at a time, from the definition."""
    parts = {f"inputs.{k}": v for k, v in sorted(inputs.items())} if isinstance(inputs, dict) else {"inputs": inputs}
    parts |= {} if targets is None else {"targets": targets}
    count = len(next(iter(parts.values())))
    header = json.dumps([[name, str(t.dtype), list(t.shape[1:])] for name, t in parts.items()]).encode()
    rows = []
    for i in range(count):
        text = b"".join(t[i].contiguous().flatten().numpy().tobytes() for t in parts.values())
        rows.append(hashlib.sha256(header + text).digest())
    return hashlib.sha256(b"".join(sorted(rows))).hexdigest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_a_set_of_examples_is_hashed_by_its_definition(dtype: torch.dtype) -> None:
    x = (5 * torch.randn(17, 3, 4)).to(dtype)
    y = torch.arange(17) % 3
    assert ExamplesDigest().add(x, y).hexdigest() == slow(x, y)
    assert ExamplesDigest().add(x).hexdigest() == slow(x, None)
    assert ExamplesDigest().add({"b": x, "a": y}, y).hexdigest() == slow({"b": x, "a": y}, y)
    assert ExamplesDigest().add(x.transpose(1, 2), y).hexdigest() == slow(x.transpose(1, 2), y)


def test_order_and_batches_do_not_matter_but_everything_else_does() -> None:
    x, y = torch.randn(50, 4), torch.randint(3, (50,))
    whole = ExamplesDigest().add(x, y).hexdigest()
    order = torch.randperm(50)
    parts = ExamplesDigest()
    for some in order.split(7):
        parts.add(x[some], y[some])
    assert parts.hexdigest() == whole and len(parts) == 50
    others = [
        (x[:49], y[:49]),
        (torch.cat([x, x[:1]]), torch.cat([y, y[:1]])),  # a repeated example counts
        (x, y.roll(1)),  # other pairs of the same inputs and targets
        (x.double(), y),
        (x.reshape(50, 2, 2), y),
        (x + (torch.arange(200).reshape(50, 4) == 77) * 1e-3, y),
    ]
    found = [ExamplesDigest().add(*other).hexdigest() for other in others]
    assert len({whole, *found}) == 1 + len(others)


def test_half_precision_empty_and_common_tensors() -> None:
    x = torch.randn(5, 2)
    assert ExamplesDigest().add(x.bfloat16()).hexdigest() != ExamplesDigest().add(x.half()).hexdigest()
    assert len(ExamplesDigest().add(torch.empty(3, 0))) == 3
    one, other = ((x, torch.tensor(scale)) for scale in (1.0, 2.0))
    assert ExamplesDigest().add(one).hexdigest() != ExamplesDigest().add(other).hexdigest()


def test_the_state_of_a_network_whatever_its_order() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    state = net.state_dict()
    found = digest_of_state(state)
    assert digest_of_state(dict(reversed(state.items()))) == found
    assert digest_of_state({**state, "extra": "words"}) == found  # only tensors
    buffer = {**state, "1.running_mean": state["1.running_mean"] + 1}
    renamed = {name.replace("2.", "3."): value for name, value in state.items()}
    nudged = {**state, "0.bias": torch.nextafter(state["0.bias"], torch.ones(4))}
    swapped = {**state, "0.bias": state["1.bias"], "1.bias": state["0.bias"]}
    others = [buffer, renamed, nudged, swapped, {k: v.double() for k, v in state.items()}]
    assert len({found, *map(digest_of_state, others)}) == 6
