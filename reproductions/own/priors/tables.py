"""The numbers of every prior on every network; means over seeds, differences seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from reproductions.claims import Interval, difference
from reproductions.store import Values

TITLES = {
    "mlp": "ReLU network 784-256-256-10, MNIST",
    "lenet5": "LeNet-5, Fashion-MNIST",
    "batch-norm": "Convolutions with batch normalisation, Fashion-MNIST",
    "transformer": "Transformer on patches, Fashion-MNIST",
    "wrn": "WRN-16-4, CIFAR-10",
    "uci": "Two hidden layers of 50 ReLU units, five UCI regressions",
}
LAWFUL = ("signal", "signal, r = variance", "by size", "g-prior")  # which rescalings leave alone
BLOCKS = "untuned, τ = number of blocks"
Get = Callable[[Values], float]


class Numbers:
    """The units by network, rule and seed."""

    def __init__(self, units: Values) -> None:
        self._found: dict[str, dict[str, list[Values]]] = {}
        for name, value in units.items():
            network, _, rule = name.split("/", 2)
            self._found.setdefault(network, {}).setdefault(rule, []).append(value)

    @property
    def networks(self) -> list[str]:
        return list(self._found)

    def rules(self, network: str) -> list[str]:
        return [rule for rule in self._found[network] if rule != "plain"]

    def has(self, network: str, rule: str) -> bool:
        """Whether the rule was measured on every seed's network, and gave a posterior for each."""
        found = self._found[network].get(rule, [])
        return len(found) == len(self._found[network]["plain"]) and not any("failed" in value for value in found)

    def each(self, network: str, rule: str, get: Get) -> list[float]:
        return [get(value) for value in self._found[network][rule]]

    def each_layer(self, network: str, rule: str, column: str) -> list[list[float]]:
        """A column of the layer table, seed by seed."""
        return [[row[column] for row in value["layers"]] for value in self._found[network][rule]]

    def layers(self, network: str) -> list[str]:
        return [row["name"] for row in self._found[network]["signal"][0]["layers"]]

    def mean(self, network: str, rule: str, get: Get) -> float:
        return fmean(self.each(network, rule, get))

    def over(self, network: str, rule: str, other: str, get: Get) -> Interval:
        """How much larger a figure is than under another prior, seed by seed."""
        return difference(self.each(network, rule, get), self.each(network, other, get))

    def over_plain(self, network: str, rule: str, get: Get, key: str, of: str) -> Interval:
        plain = self.each(network, "plain", lambda v: float(v[key][of]))
        return difference(self.each(network, rule, get), plain)


def at(*path: str) -> Get:
    """A figure by the names on the way to it."""

    def get(value: Values) -> float:
        for key in path:
            value = value[key]
        return float(value)  # type: ignore[arg-type]

    return get


def auroc(key: str) -> Get:
    """The mean over novel data sets."""
    return lambda value: fmean(value[key]["auroc"].values())


def spread(numbers: Numbers, network: str, rule: str, column: str) -> float:
    """Standard deviation over seeds of a layer's figure, meaned over layers."""
    return fmean(pstdev(values) for values in zip(*numbers.each_layer(network, rule, column), strict=True))


def tables(units: Values) -> str:
    numbers = Numbers(units)
    parts = []
    for network in numbers.networks:
        parts += [f"### {TITLES[network]}", network_table(numbers, network)]
        failed = [rule for rule in numbers.rules(network) if not numbers.has(network, rule)]
        parts += (
            [f"No figure for: {', '.join(failed)} (no posterior, or not measured for every seed)."] if failed else []
        )
    return "\n\n".join([*parts, "### The floor ν", floor_table(numbers)])


def summary(units: Values) -> str:
    """The isotropic prior and the one by signal, and what validation data do for the plain network."""
    numbers = Numbers(units)
    lines = [
        "| NLL | plain | scaled | isotropic, untuned | tuned | by signal, untuned | tuned | by signal − isotropic |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for network in numbers.networks:
        plain = [numbers.mean(network, "plain", at(key, "nll")) for key in ("plain", "scaled")]
        priors = [numbers.mean(network, rule, at(key, "nll")) for rule in ("isotropic", "signal")
                  for key in ("untuned", "tuned")]  # fmt: skip
        over = numbers.over(network, "signal", "isotropic", at("tuned", "nll")).text(4)
        cells = [f"{value:.4f}" for value in plain + priors]
        lines.append(f"| {TITLES[network]} | {' | '.join(cells)} | {over} |")
    lines += [
        "",
        "| | ECE: scaled | isotropic | by signal | AUROC: plain | isotropic | by signal | r = variance | g-prior |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for network in numbers.networks:
        ece = [numbers.mean(network, "plain", at("scaled", "ece"))]
        ece += [numbers.mean(network, rule, at("tuned", "ece")) for rule in ("isotropic", "signal")]
        novel = [f"{numbers.mean(network, 'plain', auroc('plain')):.3f}" if network != "uci" else ""]
        rules = ("isotropic", "signal", "signal, r = variance", "g-prior")
        novel += [
            f"{numbers.mean(network, rule, auroc('tuned')):.3f}" if numbers.has(network, rule) else "" for rule in rules
        ]
        lines.append(f"| {TITLES[network]} | {' | '.join(f'{e:.4f}' for e in ece)} | {' | '.join(novel)} |")
    return "\n".join(lines)


def network_table(numbers: Numbers, network: str) -> str:
    classes = network != "uci"
    quality = "accuracy" if classes else "RMSE"
    lines = [
        f"| | NLL, untuned | NLL, tuned | − isotropic | ECE, tuned | AUROC | {quality}, 90% pruned | τ "
        "| spread of shares | of explained |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    scaled = "temperature scaling" if classes else "noise from validation data"
    for key, title in (("plain", "plain network"), ("scaled", f"plain network, {scaled}")):
        nll, ece = (numbers.mean(network, "plain", at(key, column)) for column in ("nll", "ece"))
        novel = f"{numbers.mean(network, 'plain', auroc(key)):.3f}" if classes else ""
        pruned = f"{numbers.mean(network, 'plain', at('pruned by size')):.3f} (by size)" if key == "plain" else ""
        lines.append(f"| {title} | {nll:.4f} | | | {ece:.4f} | {novel} | {pruned} | | | |")
    for rule in numbers.rules(network):
        if "ν" not in rule and numbers.has(network, rule):
            lines.append(_row(numbers, network, rule))
    if numbers.has(network, "signal"):
        deep = numbers.mean(network, "signal", at(BLOCKS, "nll"))
        lines.append(f"| signal, τ = number of blocks | {deep:.4f} | as signal | | | | | | | |")
    return "\n".join(lines)


def _row(numbers: Numbers, network: str, rule: str) -> str:
    over = "" if rule == "isotropic" else numbers.over(network, rule, "isotropic", at("tuned", "nll")).text(4)
    taus = numbers.each(network, rule, at("tuned", "tau"))
    cells = [
        f"**{rule}**" if rule == "signal" else rule,
        f"{numbers.mean(network, rule, at('untuned', 'nll')):.4f}",
        f"{numbers.mean(network, rule, at('tuned', 'nll')):.4f}",
        over,
        f"{numbers.mean(network, rule, at('tuned', 'ece')):.4f}",
        f"{numbers.mean(network, rule, auroc('tuned')):.3f}",
        f"{numbers.mean(network, rule, at('pruned')):.3f}",
        f"{min(taus):.2g} to {max(taus):.2g}",
        f"{spread(numbers, network, rule, 'variance_share'):.3f}",
        f"{spread(numbers, network, rule, 'explained'):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def floors(numbers: Numbers, network: str) -> Sequence[str]:
    found = [rule for rule in numbers.rules(network) if rule.startswith("signal, ν")]
    return sorted([*found, "signal"] if found else [], key=lambda rule: 0.01 if rule == "signal" else _floor(rule))


def _floor(rule: str) -> float:
    return float(rule.rpartition("=")[2])


def floor_table(numbers: Numbers) -> str:
    """Tuned NLL and mean AUROC for each ν; 0.01 is the default."""
    networks = [network for network in numbers.networks if floors(numbers, network)]
    if not networks:
        return "Not measured."
    rules = floors(numbers, networks[0])
    named = ["0.01" if rule == "signal" else f"{_floor(rule):g}" for rule in rules]
    lines = [f"| NLL / AUROC, tuned | {' | '.join(f'ν = {name}' for name in named)} |", "|---" * (len(rules) + 1) + "|"]
    for network in networks:
        cells = [
            f"{numbers.mean(network, rule, at('tuned', 'nll')):.4f} / {numbers.mean(network, rule, auroc('tuned')):.3f}"
            for rule in rules
        ]
        lines.append(f"| {TITLES[network]} | {' | '.join(cells)} |")
    return "\n".join(lines)
