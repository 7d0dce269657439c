"""Numbers by method, one for each seed, from the values of the units."""

from __future__ import annotations

from dataclasses import dataclass

from reproductions.ritter2018.toy.names import DETERMINISTIC, HMC, METHODS
from reproductions.store import Values


def activations(units: Values) -> list[str]:
    """The one that claims are judged with first."""
    return list(dict.fromkeys(name.split("/")[0] for name in units))


@dataclass(frozen=True)
class View:
    """Units of one activation."""

    units: Values
    activation: str

    @property
    def seeds(self) -> list[str]:
        """In their own order, whichever was computed first."""
        return sorted({name.split("/")[1] for name in self.units if name.split("/")[0] == self.activation}, key=int)

    @property
    def methods(self) -> list[str]:
        """Laplace posteriors that there are numbers of."""
        return [method for method in METHODS if f"{self.activation}/{self.seeds[0]}/{method}" in self.units]

    def unit(self, seed: str, what: str) -> Values:
        found: Values = self.units[f"{self.activation}/{seed}/{what}"]
        return found

    def one(self, seed: str, method: str, case: str = "") -> Values:
        """A prediction; ``case`` is such as "tuned sampled", and nothing for HMC and the deterministic network."""
        found = self.unit(seed, method)
        return found if method in (HMC, DETERMINISTIC) else found[case]

    def numbers(self, method: str, case: str, key: str, region: str | None = "all") -> list[float]:
        """One for each seed; ``region`` is None for what has none."""
        found = [self.one(seed, method, case)[key] for seed in self.seeds]
        return [float(v if region is None else v[region]) for v in found]

    def spread(self, method: str, case: str = "", region: str = "all") -> list[float]:
        """Mean standard deviation of the output."""
        return self.numbers(method, case, "spread", region)

    def distance(self, method: str, case: str = "", region: str = "all") -> list[float]:
        """Wasserstein, to HMC."""
        return self.numbers(method, case, "wasserstein", region)
