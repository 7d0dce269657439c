"""What a combination should do, judged by the numbers."""

from __future__ import annotations

from statistics import fmean

from reproductions.claims import Claim, Verdict, above, difference, every, interval, within
from reproductions.own.detectors.choose import FAMILIES, NEAR, areas, leave_one_out, regrets
from reproductions.own.detectors.combine import ALL, FEW, OURS
from reproductions.own.detectors.subjects import HELD_OUT
from reproductions.own.detectors.tables import SHORT, named
from reproductions.store import Values

RATE, OFF = 0.01, 0.01  # of fresh inputs that are flagged, and by how much it may be off


def claims(units: Values) -> list[Claim]:
    found = areas(units)
    made = []
    for network, sets in found.items():
        if min(len(v) for v in sets[HELD_OUT].values()) < 2:
            continue
        made += [_both_kinds(network, sets, name) for name in (OURS, ALL)]
        mine = [unit["flagged"] - RATE for name, unit in units.items() if name.startswith(f"{network}/")]
        rate = interval(mine)
        made.append(Claim(f"{SHORT[network]}: about 1% of fresh test inputs have p ≤ 0.01 by novelty with entropy",
                          "by construction", f"{rate.mean + RATE:.1%}", within(rate, OFF)))  # fmt: skip
    made += [_left_out(found, family) for family in ("novelty + entropy", "all combinations")]
    return [*made, *_rule(units)]


def _both_kinds(network: str, sets: dict[str, dict[str, list[float]]], name: str) -> Claim:
    """Better than novelty where classes are unseen, better than entropy on the other sets."""
    new = difference(sets[HELD_OUT][name], sets[HELD_OUT]["novelty"])
    others = [place for place in sets if place != HELD_OUT]
    ours, entropy = (_means([sets[place][d] for place in others]) for d in (name, "entropy"))
    other = difference(ours, entropy)
    words = f"AUROC {new.text()} more than novelty on unseen classes, {other.text()} more than entropy on the others"
    return Claim(f"{SHORT[network]}: {name} serves both kinds of novelty", "criterion", words,
                 every(above(new), above(other)))  # fmt: skip


def _means(values: list[list[float]]) -> list[float]:
    """Over sets, seed by seed."""
    return [fmean(seed) for seed in zip(*values, strict=True)]


def _left_out(found: dict[str, dict[str, dict[str, list[float]]]], family: str) -> Claim:
    ours, singles = leave_one_out(found, family), leave_one_out(found, "single detectors")
    gains = [a.area - b.area for a, b in zip(ours, singles, strict=True)]
    better, worse = sum(g > NEAR for g in gains), sum(g < -NEAR for g in gains)
    chosen = sorted({row.chosen for row in ours})
    words = (
        f"mean AUROC on the set left out {fmean(r.area for r in ours):.3f} against "
        f"{fmean(r.area for r in singles):.3f}; "
        f"more than {NEAR} better on {better}, worse on {worse} of {len(gains)} sets; chosen: {', '.join(chosen)}"
    )
    verdict: Verdict = "holds" if better > worse and fmean(gains) > 0 else "does not hold"
    return Claim(f"Chosen on the other novel sets, one of the {_listed(family)} does better than a single detector "
                 "chosen in the same way", "criterion", words, verdict)  # fmt: skip


def _listed(family: str) -> str:
    return {"novelty + entropy": "combinations of novelty and entropy", "all combinations": "combinations"}[family]


def _rule(units: Values) -> list[Claim]:
    """Is there a rule without novel data that beats always taking one detector?"""
    rows = {row.rule: row for row in regrets(areas(units), areas(units, "surrogates"))}
    always = {name: rows[f"always {name}"] for name in FAMILIES["single detectors"]}
    best = min(always, key=lambda name: always[name].mean)
    combos = [name for name in (OURS, FEW, ALL) if rows[f"always {name}"].mean < always[best].mean]
    made = []
    for name in (OURS, FEW, ALL):
        row = rows[f"always {name}"]
        words = (
            f"mean regret {row.mean:.3f} against {always[best].mean:.3f} of {named(best)}, the best of them seen "
            f"afterwards; within {NEAR} of the best single detector in {row.near} of {row.count} cases "
            f"({named(best)}: {always[best].near})"
        )
        made.append(Claim(f"Always “{name}” loses less than always any one detector", "criterion", words,
                          "holds" if name in combos else "does not hold"))  # fmt: skip
    chosen = [row for rule, row in rows.items() if rule.startswith("best on surrogates")]
    surrogate, fixed = min(chosen, key=lambda r: r.mean), min(rows[f"always {n}"].mean for n in (OURS, FEW, ALL))
    words = f"mean regret {surrogate.mean:.3f} ({surrogate.rule}) against {fixed:.3f}"
    made.append(Claim("Choosing on surrogates made from validation inputs loses less than always a combination",
                      "criterion", words, "holds" if surrogate.mean < fixed else "does not hold"))  # fmt: skip
    return made
