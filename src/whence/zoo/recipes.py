"""Recipes: network, data and training. docs/recipes.md has the results of each named recipe."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from whence.engine.checkpoint import FORMAT
from whence.engine.files import digest_of_values
from whence.errors import BadOption, one_of
from whence.training.augment import Binarise, Compose, Crop, Flip
from whence.training.schedules import Cosine, Step
from whence.training.settings import Settings
from whence.zoo.data import DataSet
from whence.zoo.networks import network as make_network
from whence.zoo.networks import options_of

DATA_OPTIONS = ("split", "gap", "validation", "noise")
VERSION = 2  # increased if the training loop changes its results


@dataclass(frozen=True)
class Recipe:
    """A named training. ``with_`` changes any part: ``recipe.with_(epochs=5, dropout=0.1, split=3)``."""

    name: str
    network: str
    data: str
    settings: Settings
    network_options: dict[str, Any] = field(default_factory=dict)
    data_options: dict[str, Any] = field(default_factory=dict)
    about: str = ""

    def build(self, data: DataSet) -> nn.Module:
        """The network for this data, with weights from torch's generator."""
        outputs = len(data.description.classes) or 1
        return make_network(self.network, data.description.shape, outputs, **self.network_options)

    def with_(self, **changes: Any) -> Recipe:
        """A copy with other settings, network options or data options."""
        own = self.settings.spec(), options_of(self.network), DATA_OPTIONS
        for name in changes:
            one_of(name, [option for options in own for option in options], f"option of {self.name}")
        settings = {k: v for k, v in changes.items() if k in own[0]}
        network = {k: v for k, v in changes.items() if k in own[1]}
        data = {k: v for k, v in changes.items() if k in own[2]}
        return replace(
            self,
            settings=self.settings.with_(**settings),
            network_options=self.network_options | network,
            data_options=self.data_options | data,
        )

    def hash(self, seed: int, fingerprint: str) -> str:
        """A hash of everything that determines the weights; ``fingerprint`` is of the training data."""
        if callable(self.settings.loss):
            raise BadOption("a recipe with a custom loss function cannot be cached; pass cache=False.")
        settings = self.settings.spec()
        if not settings["l1"]:
            del settings["l1"]  # hashes are those of before there was one
        parts = {
            "version": VERSION,
            "network": [self.network, self.network_options],
            "data": [self.data, self.data_options, fingerprint],
            "format": FORMAT,  # format of the cached file
            "settings": settings,
            "seed": seed,
        }
        return digest_of_values(parts)[:16]

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.network_options.items())
        chosen = {k: v for k, v in self.settings.spec().items() if v != Settings().spec()[k]}
        how = ", ".join(f"{k}={v}" for k, v in chosen.items())
        data = "".join(f", {k}={v}" for k, v in self.data_options.items())
        return f"{self.name}: {self.network}({options}) on {self.data}{data}; {how}\n  {self.about}".rstrip()


UCI_REGRESSION = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
UCI_CLASSIFICATION = (
    "australian", "breast-cancer", "glass", "ionosphere", "satellite", "vehicle", "waveform",
)  # fmt: skip

# Ritter et al. (2018), section 5.2. Their "L2-regularisation with a factor of 1e-2" is read as a prior precision of
# 1e-2 over the weights, hence 1e-2 / N added to the mean loss; as plain weight decay the network reaches only 95.5%.
RITTER_MLP = Settings(epochs=250, batch_size=128, lr=1e-2, momentum=0.9, weight_decay=1e-2 / 55_000, augment=Binarise(),
                      capture=True)  # fmt: skip
# Their appendix G.
RITTER_WRN = Settings(
    epochs=200, batch_size=128, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, schedule=Step(50, 0.2),
    augment=Compose(Crop(4), Flip()), amp=True, capture=True,
)  # fmt: skip
LENET = Settings(epochs=30, batch_size=128, lr=0.05, nesterov=True, weight_decay=5e-4, schedule=Cosine(), capture=True)
TRANSFORMER = LENET.with_(optimiser="adamw", nesterov=False, lr=2e-3, weight_decay=0.05)
CIFAR = Settings(
    epochs=60, batch_size=256, lr=0.2, nesterov=True, weight_decay=5e-4, schedule=Cosine(warmup=3),
    augment=Compose(Crop(4), Flip()), amp=True, capture=True,
)  # fmt: skip
SMALL = Settings(epochs=200, batch_size=32, optimiser="adam", lr=1e-2, weight_decay=1e-3, schedule=Cosine())


def _images() -> list[Recipe]:
    mlp = {"hidden": (1024, 1024), "dropout": 0.5}
    half = {"width": 0.5}
    wide = {"depth": 16, "width": 4}
    plain = Settings(epochs=40, lr=0.05, weight_decay=1e-5, schedule=Cosine(), capture=True)
    ritter = {"depth": 22, "width": 8, "shortcut": "2x2"}
    return [
        Recipe("mnist-perceptron", "perceptron", "mnist", plain.with_(epochs=20), about="One linear layer."),
        Recipe("mnist-mlp", "mlp", "mnist", plain, mlp, about="Ritter's network on grey images, in 40 epochs."),
        Recipe("mnist-ritter", "mlp", "mnist", RITTER_MLP, mlp, about="Ritter et al. (2018), section 5.2: 250 epochs."),
        Recipe("mnist-lenet5", "lenet5", "mnist", LENET, about="LeNet-5."),
        Recipe("mnist-lenet5-half", "lenet5", "mnist", LENET, half, about="LeNet-5 with half the filters and units."),
        Recipe("mnist-transformer", "transformer", "mnist", TRANSFORMER,
               about="Two encoder layers on 4 × 4 patches."),
        Recipe("fashion-lenet5", "lenet5", "fashion-mnist", LENET, about="LeNet-5 on Fashion-MNIST."),
        Recipe("kmnist-lenet5", "lenet5", "kmnist", LENET, about="LeNet-5 on KMNIST."),
        Recipe("emnist-lenet5", "lenet5", "emnist-letters", LENET, about="LeNet-5 on the letters of EMNIST."),
        Recipe("svhn-lenet5", "lenet5", "svhn", LENET, about="LeNet-5 on SVHN."),
        Recipe("cifar10-lenet5", "lenet5", "cifar10", LENET.with_(augment=CIFAR.augment), about="LeNet-5 on CIFAR-10."),
        Recipe("cifar10-alexnet", "alexnet", "cifar10", CIFAR.with_(lr=0.02), about="AlexNet for 32 × 32 images."),
        Recipe("cifar10-alexnet-half", "alexnet", "cifar10", CIFAR.with_(lr=0.02), half, about="Half as wide."),
        Recipe("cifar10-vgg11", "vgg", "cifar10", CIFAR, {"depth": 11}, about="VGG-11 with batch normalisation."),
        Recipe("cifar10-vgg16", "vgg", "cifar10", CIFAR, {"depth": 16}, about="VGG-16 with batch normalisation."),
        Recipe("cifar10-wrn16-4", "wide-resnet", "cifar10", CIFAR.with_(epochs=100), wide, about="WRN-16-4."),
        Recipe("cifar10-subset-wrn16-4", "wide-resnet", "cifar10-subset", CIFAR, wide,
               about="WRN-16-4 on 20,000 images of CIFAR-10; not comparable with published accuracies."),
        Recipe("cifar100-ritter", "wide-resnet", "cifar100", RITTER_WRN, ritter,
               about="Ritter et al. (2018), appendix G: n = 3, k = 8."),
        Recipe("cifar100-ritter-dropout", "wide-resnet", "cifar100", RITTER_WRN, {**ritter, "dropout": 0.3},
               about="The same with dropout of 0.3 in its blocks."),
    ]  # fmt: skip


def _tables() -> list[Recipe]:
    toy = SMALL.with_(epochs=1000, weight_decay=1e-4, batch_size=64)
    recipes = [
        Recipe("iris-perceptron", "perceptron", "iris", SMALL, about="One linear layer."),
        Recipe("iris-mlp", "mlp", "iris", SMALL, {"hidden": (16,)}, about="One hidden layer of 16 units."),
        Recipe("digits-mlp", "mlp", "digits", SMALL.with_(epochs=60), {"hidden": (64, 64)}, about="8 × 8 digits."),
        Recipe("digits-transformer", "transformer", "digits", SMALL.with_(epochs=60, lr=3e-3),
               {"patch": 2, "units": 32}, about="8 × 8 digits in 2 × 2 patches."),
        Recipe("cubic-ritter", "mlp", "cubic", toy.with_(batch_size=20, epochs=5000),
               {"hidden": (7, 7), "activation": "tanh"},
               about="Ritter et al. (2018), section 5.1: two layers of seven units."),
        Recipe("snelson-mlp", "mlp", "snelson", toy.with_(epochs=4000, lr=0.03, weight_decay=1e-5),
               {"hidden": (50,), "activation": "tanh"}, about="50 tanh units."),
        Recipe("two-moons-mlp", "mlp", "two-moons", toy.with_(epochs=200), {"hidden": (16, 16)}, about="Two moons."),
        Recipe("banana-mlp", "mlp", "banana", SMALL.with_(epochs=60), {"hidden": (50, 50)}, about="Banana."),
    ]  # fmt: skip
    for name in UCI_REGRESSION:
        units = 100 if name == "protein" else 50
        recipes.append(
            Recipe(f"uci-{name}", "mlp", f"uci/{name}", UCI[name], {"hidden": (units,)},
                   about=f"{units} ReLU units, as Hernández-Lobato & Adams (2015).")
        )  # fmt: skip
    for name in UCI_CLASSIFICATION:
        settings = SMALL.with_(epochs=100, weight_decay=1e-3 if name == "satellite" else 1e-2)
        recipes.append(
            Recipe(f"uci-{name}", "mlp", f"uci/{name}", settings,
                   {"hidden": (50, 50), "activation": "tanh"}, about="Two layers of 50 tanh units (Immer et al. 2021).")
        )  # fmt: skip
    return recipes


_UCI = Settings(epochs=400, batch_size=32, optimiser="adam", lr=1e-2, weight_decay=1e-4, schedule=Cosine())
UCI = dict.fromkeys(UCI_REGRESSION, _UCI) | {
    "kin8nm": _UCI.with_(epochs=100, batch_size=64),
    "naval": _UCI.with_(epochs=100, batch_size=64, weight_decay=0.0),
    "power": _UCI.with_(epochs=100, batch_size=64),
    "protein": _UCI.with_(epochs=60, batch_size=256),
    "wine": _UCI.with_(epochs=40, weight_decay=1e-2),
}

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*_images(), *_tables())}


def recipe(name: str, **changes: Any) -> Recipe:
    """The recipe of this name, with changes to its settings, network or data."""
    found = RECIPES[one_of(name, RECIPES, "recipe")]
    return found.with_(**changes) if changes else found


def recipes() -> list[str]:
    """The names of all recipes."""
    return list(RECIPES)
