"""What makes a prior the default, held against the numbers."""

from __future__ import annotations

from reproductions.claims import Claim, Interval, Verdict, below, every
from reproductions.own.priors.tables import LAWFUL, TITLES, Get, Numbers, at, auroc, floors
from reproductions.store import Values


def claims(units: Values) -> list[Claim]:
    numbers = Numbers(units)
    found = []
    for network in numbers.networks:
        if not (numbers.has(network, "signal") and numbers.has(network, "isotropic")):
            continue
        title = TITLES[network]
        for what, get in (("NLL", at("tuned", "nll")), ("ECE", at("tuned", "ece"))):
            over = numbers.over(network, "signal", "isotropic", get)
            found.append(
                Claim(
                    f"{title}: tuned {what} by signal is not worse than isotropic",
                    "criterion",
                    over.text(4),
                    _no_worse(over),
                )
            )
        alone = numbers.over_plain(network, "signal", at("untuned", "nll"), "plain", "nll")
        found.append(Claim(f"{title}: untuned, by signal predicts better than the plain network", "criterion",
                           f"NLL {alone.text(4)}", below(alone)))  # fmt: skip
    found.append(_among(numbers, "NLL", at("tuned", "nll"), 1.0))
    found.append(_among(numbers, "AUROC for novel inputs", auroc("tuned"), -1.0))
    found.append(_floor(numbers))
    return found


def _no_worse(over: Interval) -> Verdict:
    """Not worse beyond the paired interval."""
    return "does not hold" if over.low > 0 else "holds"


def _among(numbers: Numbers, what: str, get: Get, sign: float) -> Claim:
    """Against the other rules that rescalings leave alone."""
    verdicts: list[Verdict] = []
    shown = []
    measured = [network for network in numbers.networks if numbers.has(network, "signal")]
    for rule in LAWFUL[1:]:
        over = {n: numbers.over(n, "signal", rule, get).times(sign) for n in measured if numbers.has(n, rule)}
        worse = [n for n, interval in over.items() if interval.low > 0]
        better = [n for n, interval in over.items() if interval.high < 0]
        verdicts += ["does not hold" if worse else "holds"]
        shown.append(f"{rule}: better on {len(better)}, worse on {len(worse)} of {len(over)} networks")
    title = f"By signal, {what} is not worse than with any other rule that follows the law"
    return Claim(title, "criterion", "; ".join(shown), every(*verdicts))


def _floor(numbers: Numbers) -> Claim:
    """ν = 0.01 against the others."""
    lower = []
    for network in numbers.networks:
        for rule in floors(numbers, network) if numbers.has(network, "signal") else ():
            if rule != "signal" and numbers.over(network, rule, "signal", at("tuned", "nll")).high < 0:
                lower.append(f"{rule.rpartition(', ')[2]} on {network}")
    shown = f"lower NLL: {', '.join(lower)}" if lower else "none has a lower NLL beyond the paired interval"
    return Claim(
        "No other floor than ν = 0.01 predicts better", "criterion", shown, "does not hold" if lower else "holds"
    )
