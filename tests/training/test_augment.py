"""Augmentations against slow twins that treat one image after the other, given the same random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.zoo.data import make
from whence.errors import BadOption
from whence.training import augment

EVERY = [
    augment.Crop(2),
    augment.Crop(3, "zeros"),
    augment.Flip(0.3),
    augment.Binarise(),
    augment.Cutout(3),
    augment.Compose(augment.Crop(), augment.Flip(), augment.Cutout(2, fill=0.5)),
]


def images(count: int = 20, height: int = 7, width: int = 9) -> Tensor:
    return torch.rand(count, 2, height, width, generator=torch.Generator().manual_seed(1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("mode", ["reflect", "zeros"])
def test_crop_is_a_window_of_the_padded_image(mode: str) -> None:
    x, padding = images(), 3
    found = augment.Crop(padding, mode)(x, generator())
    draws = generator()
    down = torch.randint(2 * padding + 1, (len(x),), generator=draws)
    across = torch.randint(2 * padding + 1, (len(x),), generator=draws)
    assert len(set(zip(down.tolist(), across.tolist(), strict=True))) > 10
    for n, image in enumerate(x):
        options = {"mode": "reflect"} if mode == "reflect" else {"mode": "constant", "value": 0.0}
        padded = torch.nn.functional.pad(image[None], (padding,) * 4, **options)[0]  # type: ignore[arg-type]
        i, j = int(down[n]), int(across[n])
        assert torch.equal(found[n], padded[:, i : i + 7, j : j + 9])


def test_crop_shifts_every_way_equally_often() -> None:
    x = torch.zeros(8000, 1, 5, 5)
    x[:, :, 2, 2] = 1
    counts = augment.Crop(1)(x, generator()).sum((0, 1))[1:4, 1:4]
    assert int(counts.sum()) == 8000
    assert (counts - 8000 / 9).abs().max() < 5 * (8000 / 9) ** 0.5


def test_flip() -> None:
    x = images()
    assert torch.equal(augment.Flip(1.0)(x, generator()), x.flip(3))
    assert torch.equal(augment.Flip(1.0)(augment.Flip(1.0)(x)), x)
    assert torch.equal(augment.Flip(0.0)(x, generator()), x)
    chosen = torch.rand(len(x), generator=generator()) < 0.3
    found = augment.Flip(0.3)(x, generator())
    for n, image in enumerate(x):
        assert torch.equal(found[n], image.flip(2) if chosen[n] else image)
    assert 0 < int(chosen.sum()) < len(x)


def test_binarise_keeps_the_mean() -> None:
    x = images(1).expand(4000, -1, -1, -1)
    found = augment.Binarise()(x, generator())
    assert set(found.unique().tolist()) == {0.0, 1.0} and found.dtype == x.dtype
    deviation = (x[0] * (1 - x[0]) / 4000).sqrt()
    assert ((found.mean(0) - x[0]).abs() < 5 * deviation + 1e-9).all()
    ends = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    assert torch.equal(augment.Binarise()(ends.expand(100, -1, -1, -1)), ends.expand(100, -1, -1, -1))


def test_cutout() -> None:
    x, size = images(), 4
    found = augment.Cutout(size, fill=-1.0)(x, generator())
    draws = generator()
    down = torch.randint(7, (len(x),), generator=draws)
    across = torch.randint(9, (len(x),), generator=draws)
    for n, image in enumerate(x):
        top, left = int(down[n]) - size // 2, int(across[n]) - size // 2
        expected = image.clone()
        expected[:, max(top, 0) : top + size, max(left, 0) : left + size] = -1.0
        assert torch.equal(found[n], expected)


def test_compose_is_one_after_the_other() -> None:
    x = images()
    both = augment.Compose(augment.Crop(2), augment.Flip())(x, generator(4))
    draws = generator(4)
    assert torch.equal(both, augment.Flip()(augment.Crop(2)(x, draws), draws))


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_inputs_stay_as_they_were_and_draws_repeat(step: augment.Augment) -> None:
    x = images()
    before = x.clone()
    first, again, other = (step(x, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(x, before) and first.shape == x.shape
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_spec_round_trip(step: augment.Augment) -> None:
    import json

    spec = json.loads(json.dumps(step.spec()))
    assert augment.from_spec(spec) == step and repr(augment.from_spec(spec)) == repr(step)


def test_specs_tell_steps_apart() -> None:
    assert len({str(step.spec()) for step in EVERY}) == len(EVERY)
    assert augment.from_spec(None) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: augment.Crop(-1),
        lambda: augment.Crop(1, "mirror"),
        lambda: augment.Crop(7)(images()),
        lambda: augment.Flip(1.5),
        lambda: augment.Cutout(0),
        lambda: augment.Flip()(torch.zeros(3, 4)),
        lambda: augment.from_spec({"name": "rotate"}),
        lambda: augment.from_spec({"name": "flip", "q": 1}),
    ],
)
def test_refusals(call: object) -> None:
    with pytest.raises(BadOption) as error:
        call()  # type: ignore[operator]
    make.line(error)
