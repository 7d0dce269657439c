"""Examples: batches, epochs, chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.zoo.data import make
from whence.errors import BadData, BadOption
from whence.training import augment
from whence.training.examples import Examples
from whence.zoo.data import load


def pictures(count: int = 50, **more: object) -> Examples:
    raw = torch.arange(count * 12).reshape(count, 3, 2, 2).remainder(256).to(torch.uint8)
    values = {"mean": torch.rand(3, 1, 1), "std": 1 + torch.rand(3, 1, 1), "batch_size": 7, **more}
    return Examples(raw, torch.arange(count), **values)  # type: ignore[arg-type]


def joined(batches: object) -> tuple[Tensor, Tensor]:
    pairs = list(batches)  # type: ignore[call-overload]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def test_iterating_gives_normalised_batches_in_order() -> None:
    data = pictures()
    assert len(data) == 8 and data.size == 50 and [len(y) for _, y in data] == [7] * 7 + [1]
    x, y = joined(data)
    assert torch.equal(y, torch.arange(50))
    assert data.mean is not None and data.std is not None
    assert torch.allclose(x, (data.raw.float() / 255 - data.mean) / data.std)
    assert torch.equal(x, data.inputs) and torch.equal(data.tensors()[1], data.targets)


def test_reading_changes_nothing() -> None:
    data = Examples(torch.randn(10, 2), torch.arange(10), torch.ones(2), torch.ones(2))
    raw, before = data.raw.clone(), data.inputs
    list(data.epoch(3))
    assert torch.equal(data.raw, raw) and torch.equal(data.inputs, before)


def test_batches_are_not_the_data() -> None:
    data = Examples(torch.ones(10, 2), torch.arange(10))
    for x, _ in data:
        x.zero_()
    data.inputs.zero_()
    assert torch.equal(data.raw, torch.ones(10, 2))

    class InPlace:
        def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return x.zero_()

        def spec(self) -> dict:
            return {}

    list(data.with_(augment=InPlace()).epoch(5, shuffle=False))
    assert torch.equal(data.raw, torch.ones(10, 2))


def test_pixel_scale() -> None:
    data = pictures(mean=None, std=None, scale=16.0)
    assert torch.allclose(data.inputs, data.raw.float() / 16)


@pytest.mark.parametrize("batch", [1, 7, 50, 64])
@pytest.mark.parametrize("chunk", [1, 10, 21, 1000])
def test_epoch_gives_every_example_once(batch: int, chunk: int, set_sizes: Callable[..., None]) -> None:
    set_sizes(shuffled_examples=chunk)
    data = pictures()
    batches = list(data.epoch(batch, generator=torch.Generator().manual_seed(3)))
    x, y = joined(batches)
    assert sorted(y.tolist()) == list(range(50)) and y.tolist() != list(range(50))
    assert torch.equal(x, data.inputs[y])
    assert [len(b) for _, b in batches[:-1]] == [batch] * (len(batches) - 1) and len(batches) == -(-50 // batch)


def test_chunks_do_not_change_the_order(set_sizes: Callable[..., None]) -> None:
    data = pictures()
    whole = joined(data.epoch(4, generator=torch.Generator().manual_seed(3)))
    for examples_at_once, bytes_at_once in ((5, 2**30), (1000, 500)):
        set_sizes(shuffled_examples=examples_at_once, shuffled=bytes_at_once)
        cut = joined(data.epoch(4, generator=torch.Generator().manual_seed(3)))
        assert torch.equal(whole[0], cut[0]) and torch.equal(whole[1], cut[1])


@pytest.mark.parametrize("chunk", [10, 1000])
def test_drop_last(chunk: int, set_sizes: Callable[..., None]) -> None:
    set_sizes(shuffled_examples=chunk)
    sizes = [len(y) for _, y in pictures().epoch(8, drop_last=True)]
    assert sizes == [8] * 6
    assert list(pictures(5).epoch(8, drop_last=True)) == []
    dropped = {tuple(joined(pictures().epoch(8, drop_last=True))[1].sort().values.tolist()) for _ in range(5)}
    assert len(dropped) > 1  # others are left out each time


def test_generator_decides() -> None:
    data = pictures(augment=augment.Flip())
    one, two, three = (joined(data.epoch(8, generator=torch.Generator().manual_seed(seed))) for seed in (1, 1, 2))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert not torch.equal(one[1], three[1])
    generator = torch.Generator().manual_seed(1)
    first, second = joined(data.epoch(8, generator=generator)), joined(data.epoch(8, generator=generator))
    assert not torch.equal(first[1], second[1])
    torch.manual_seed(5)
    default = joined(data.epoch(8))
    torch.manual_seed(5)
    assert torch.equal(default[0], joined(data.epoch(8))[0])


def test_augmentation_comes_before_normalisation() -> None:
    data = pictures(augment=augment.Binarise())
    x, y = joined(data.epoch(8, shuffle=False, generator=torch.Generator().manual_seed(0)))
    assert data.mean is not None and data.std is not None
    values = x * data.std + data.mean
    assert torch.allclose(values, values.round(), atol=1e-6) and not torch.equal(x, data.inputs)
    assert torch.equal(y, data.targets)
    assert torch.equal(joined(data.epoch(8, shuffle=False, augment=False))[0], data.inputs)


def test_plain_passes_are_never_augmented() -> None:
    data = pictures(augment=augment.Binarise())
    assert torch.equal(joined(data)[0], data.with_(augment=None).inputs)


def test_passes_differ_and_follow_from_the_seed() -> None:
    data = pictures(augment=augment.Binarise())
    passes = data.passes(seed=4)
    first, second = joined(passes), joined(passes)
    assert passes.size == 50 and len(passes) == len(data) and passes.done == 2
    assert not torch.equal(first[1], second[1])  # another order
    assert sorted(first[1].tolist()) == sorted(second[1].tolist()) == list(range(50))
    in_order = [x[y.argsort()] for x, y in (first, second)]
    assert not torch.equal(*in_order)  # and other pixels
    again = data.passes(seed=4)
    assert torch.equal(joined(again)[0], first[0]) and torch.equal(joined(again)[0], second[0])
    assert not torch.equal(joined(data.passes(seed=5))[1], first[1])


def test_augmented_is_the_same_in_every_pass() -> None:
    data = pictures(augment=augment.Binarise())
    many = data.augmented(3, seed=4)
    first, again = joined(many), joined(many)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], torch.arange(50).repeat(3))
    assert many.size == 150 and len(many) == 24 == len(list(many))
    copies = first[0].split(50)
    assert not torch.equal(copies[0], copies[1])
    assert not torch.equal(first[0], joined(data.augmented(3, seed=5))[0])
    with pytest.raises(BadOption) as error:
        pictures().augmented(2)
    make.line(error, "augment")


def test_take() -> None:
    data = pictures()
    assert data.take(3).targets.tolist() == data.take(np.int64(3)).targets.tolist() == [0, 1, 2]  # type: ignore[arg-type]
    assert data.take(slice(40, None, 5)).targets.tolist() == [40, 45]
    assert data.take([7, 7, 2]).targets.tolist() == [7, 7, 2]
    assert data.take(data.targets > 47).targets.tolist() == [48, 49]
    assert torch.equal(data.take([9]).inputs, data.inputs[9:10])


def test_like_takes_the_normalisation_of_another() -> None:
    one, other = pictures(), pictures()
    assert not torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.like(other).inputs, other.inputs)


def test_to_and_with() -> None:
    data = pictures().to("meta")
    assert data.raw.is_meta and data.mean is not None and data.mean.is_meta and data.targets.is_meta
    assert len(pictures().with_(batch_size=25)) == 2
    with pytest.raises(BadOption):
        pictures().with_(colour="blue")


def test_refusals() -> None:
    with pytest.raises(BadData) as data_error:
        Examples(torch.zeros(3, 2), torch.zeros(4))
    make.line(data_error, "3 inputs but 4 targets")
    with pytest.raises(BadOption):
        pictures().take(-3)
    for bad in (0, -1, 2.0, True):
        with pytest.raises(BadOption) as error:
            pictures().epoch(bad)  # type: ignore[arg-type]
        make.line(error, f"batch_size={bad}")
    with pytest.raises(BadOption):
        Examples(torch.zeros(3, 2), torch.zeros(3), mean=torch.zeros(2))


@pytest.mark.parametrize("name", ["two-moons", "cubic"])
def test_laplace_takes_the_training_part(name: str) -> None:
    data = load(name)
    assert data.train is not None and data.test is not None
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(data.shape[0], 4), nn.Tanh(), nn.Linear(4, len(data.classes) or 1))
    likelihood = whence.Gaussian(3.0) if data.task == "regression" else "classification"
    by_examples = whence.laplace(network, data.train.with_(batch_size=9), likelihood=likelihood)
    by_pair = whence.laplace(network, data.train.tensors(), likelihood=likelihood)
    assert by_examples.record.data_size == data.train.size
    assert float(by_examples.log_evidence()) == pytest.approx(float(by_pair.log_evidence()), rel=1e-5)


def test_laplace_takes_augmented_images() -> None:
    data = pictures(augment=augment.Flip()).take(10)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    posterior = whence.laplace(network, data.augmented(3), likelihood="classification", data_size=data.size)
    assert posterior.record.seen == 30 and posterior.record.data_size == 10
