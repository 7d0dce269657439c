"""A recipe: which network, which data, how trained. Its hash names the weights that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from whence.engine.checkpoint import FORMAT
from whence.engine.files import digest_of_values
from whence.errors import BadOption, one_of
from whence.zoo.data import DataSet
from whence.zoo.networks import network as make_network
from whence.zoo.networks import options_of
from whence.zoo.settings import Settings

DATA_OPTIONS = ("split", "gap", "validation", "noise")
VERSION = 2  # of what the training loop does with the same settings


@dataclass(frozen=True)
class Recipe:
    """A named training. ``with_`` changes any part of it: ``recipe.with_(epochs=5, dropout=0.1, split=3)``."""

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
        """The same with other settings, network options or data options."""
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
        """Of everything that decides the weights; ``fingerprint`` is that of the training data."""
        if callable(self.settings.loss):
            raise BadOption("a recipe with a loss of its own has no hash; pass cache=False.")
        parts = {
            "version": VERSION,
            "network": [self.network, self.network_options],
            "data": [self.data, self.data_options, fingerprint],
            "format": FORMAT,  # of the file that is named by it
            "settings": self.settings.spec(),
            "seed": seed,
        }
        return digest_of_values(parts)[:16]

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.network_options.items())
        chosen = {k: v for k, v in self.settings.spec().items() if v != Settings().spec()[k]}
        how = ", ".join(f"{k}={v}" for k, v in chosen.items())
        data = "".join(f", {k}={v}" for k, v in self.data_options.items())
        return f"{self.name}: {self.network}({options}) on {self.data}{data}; {how}\n  {self.about}".rstrip()
