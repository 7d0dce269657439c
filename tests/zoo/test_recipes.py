"""Named recipes: what they are made of, what names their weights, and that the cache gives them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence import zoo
from whence.errors import BadOption, Notice
from whence.training import augment
from whence.zoo.pretrained import initial

QUICK: dict[str, Any] = {"epochs": 4, "progress": False, "device": "cpu"}


def weights(network: nn.Module) -> torch.Tensor:
    return torch.cat([v.flatten().double() for v in network.state_dict().values()])


@pytest.mark.parametrize("name", zoo.recipes())
def test_every_recipe_speaks_of_a_known_set_and_builds(name: str) -> None:
    recipe = zoo.recipe(name)
    about = zoo.describe(recipe.data)
    outputs = len(about.classes) or 1
    with torch.device("meta"):
        network = zoo.network(recipe.network, about.shape, outputs, **recipe.network_options)
    assert sum(p.numel() for p in network.parameters()) > 0
    assert recipe.about and name in str(recipe) and recipe.data in str(recipe)


def test_ritters_network_is_the_paper_s() -> None:
    recipe = zoo.recipe("mnist-ritter")
    settings = recipe.settings
    assert recipe.network_options == {"hidden": (1024, 1024), "dropout": 0.5}
    assert (settings.epochs, settings.lr, settings.momentum) == (250, 1e-2, 0.9)
    assert isinstance(settings.augment, augment.Binarise)
    wide = zoo.recipe("cifar100-ritter-dropout")
    assert wide.network_options == {"depth": 22, "width": 8, "shortcut": "2x2", "dropout": 0.3}
    rates = [wide.settings.lr * wide.settings.schedule.factor(e, 200) for e in (0, 49, 50, 100, 150, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.004, 0.0008, 0.0008])
    assert wide.settings.nesterov and wide.settings.weight_decay == 5e-4 and wide.settings.batch_size == 128


def test_the_hash_is_of_all_that_decides_the_weights() -> None:
    recipe = zoo.recipe("digits-mlp")
    changed = [
        recipe.hash(0, "data"),
        recipe.hash(1, "data"),
        recipe.hash(0, "other data"),
        recipe.with_(lr=0.5).hash(0, "data"),
        recipe.with_(schedule=zoo.Cosine(warmup=1)).hash(0, "data"),
        recipe.with_(augment=augment.Flip(0.1)).hash(0, "data"),
        recipe.with_(augment=augment.Flip(0.2)).hash(0, "data"),
        recipe.with_(hidden=(9,)).hash(0, "data"),
        recipe.with_(validation=0.2).hash(0, "data"),
    ]
    assert len(set(changed)) == len(changed)
    assert recipe.hash(0, "data") == zoo.recipe("digits-mlp").hash(0, "data")
    with pytest.raises(BadOption, match="cache=False"):
        recipe.with_(loss=nn.functional.cross_entropy).hash(0, "data")


def test_the_fingerprint_is_of_the_numbers() -> None:
    data = zoo.load("two-moons").train
    assert data is not None
    moved = data.raw.clone()
    moved[3, 1] += 1e-3
    others = [
        data.with_(raw=moved),
        data.with_(augment=augment.Flip()),
        data.with_(augment=augment.Flip(0.1)),
        data.with_(scale=1.0),
        data.with_(dtype=torch.float64),
        zoo.load("two-moons", seed=1).train,
    ]
    prints = [part.fingerprint() for part in others if part is not None]
    assert data.fingerprint() == zoo.load("two-moons").train.fingerprint()
    assert len({data.fingerprint(), *prints}) == 7


def test_trained_once_then_read(tmp_path: Path) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = zoo.trained("two-moons-mlp", cache=tmp_path, **QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    again = zoo.trained("two-moons-mlp", cache=tmp_path, **QUICK)
    assert not first.from_cache and again.from_cache
    assert torch.equal(weights(first.network), weights(again.network)) and not again.network.training
    assert again.history == first.history and again.seed == first.seed
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"]
    assert "read from the cache" in repr(again)
    other = zoo.trained("two-moons-mlp", cache=tmp_path, seed=1, **QUICK)
    assert not other.from_cache and not torch.equal(weights(first.network), weights(other.network))
    assert again.data is not None and again.data.test is not None


def test_the_user_s_cache_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHENCE_CACHE", str(tmp_path))
    zoo.trained("two-moons-mlp", **QUICK)
    assert [p.name.split("-")[0] for p in (tmp_path / "weights").iterdir()] == ["two"]
    assert not zoo.trained("two-moons-mlp", cache=False, **QUICK).from_cache


def test_a_cut_training_goes_on(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(network: nn.Module, row: Any) -> None:
        raise Cut

    with pytest.raises(Cut):
        zoo.trained("two-moons-mlp", cache=tmp_path, callback=cut, **QUICK | {"epochs": 1})
    assert [p.suffix for p in tmp_path.iterdir()] == [".checkpoint"]
    whole = zoo.trained("two-moons-mlp", cache=False, **QUICK | {"epochs": 1})
    resumed = zoo.trained("two-moons-mlp", cache=tmp_path, **QUICK | {"epochs": 1})
    assert torch.equal(weights(whole.network), weights(resumed.network))
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"]


def test_first_weights_come_of_the_seed() -> None:
    recipe, data = zoo.recipe("two-moons-mlp"), zoo.load("two-moons")
    torch.manual_seed(1)
    first = weights(initial(recipe, data, 3))
    torch.manual_seed(2)
    assert torch.equal(first, weights(initial(recipe, data, 3)))
    assert not torch.equal(first, weights(initial(recipe, data, 4)))


def test_other_data_may_be_given(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    scores = []
    for fold in zoo.folds("iris", k=3):
        result = zoo.trained("iris-mlp", data=fold, cache=tmp_path, device="cpu", progress=False, epochs=60)
        assert result.data is fold
        scores.append(zoo.evaluate(result.network, fold)["accuracy"])
    assert len(list(tmp_path.iterdir())) == 3
    assert sum(scores) / 3 > 0.9


def test_digits_in_one_call_and_on_to_the_posterior(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    result = zoo.trained("digits-mlp", cache=tmp_path, device="cpu", progress=False, epochs=15)
    assert result.data is not None and result.data.train is not None
    assert zoo.evaluate(result.network, result.data)["accuracy"] > 0.93
    posterior = whence.laplace(result.network, result.data.train, likelihood="classification", progress=False)
    assert posterior.record.data_size == result.data.train.size


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"name": "mnist-lenet"}, "'mnist-lenet5'"), ({"epoch": 3}, "'epochs'"), ({"widht": 0.5}, "'width'")],
)
def test_refuses_unknown_names(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption) as caught:
        zoo.recipe(**{"name": "digits-mlp", **changes})
    assert words in str(caught.value)


def test_amp_of_a_recipe_on_a_cpu_is_said() -> None:
    data = zoo.Examples(torch.rand(8, 3, 32, 32), torch.arange(8) % 2)
    recipe = zoo.recipe("cifar10-wrn16-4", depth=10, width=0.25, epochs=1)
    network = zoo.network(recipe.network, (3, 32, 32), 2, **recipe.network_options)
    with pytest.warns(Notice, match="network.s precision"):
        zoo.train(network, data, recipe.settings, progress=False)
