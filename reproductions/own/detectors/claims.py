"""What a combination should do, judged by the numbers."""

from __future__ import annotations

from statistics import fmean

from reproductions.claims import Claim, above, difference, every, interval, within
from reproductions.own.detectors.choose import FAMILIES, areas, leave_one_out, regrets
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
    gains = difference([row.area for row in ours], [row.area for row in singles])
    chosen = sorted({row.chosen for row in ours})
    words = (
        f"mean AUROC on the set left out {fmean(r.area for r in ours):.3f} against "
        f"{fmean(r.area for r in singles):.3f}, {gains.text()} more over {len(ours)} sets; chosen: {'; '.join(chosen)}"
    )
    return Claim(f"Chosen on the other novel sets, one of the {_listed(family)} does better than a single detector "
                 "chosen in the same way", "criterion", words, above(gains))  # fmt: skip


def _listed(family: str) -> str:
    return {"novelty + entropy": "combinations of novelty and entropy", "all combinations": "combinations"}[family]


def _rule(units: Values) -> list[Claim]:
    """Does a fixed combination lose less than a fixed detector, and a choice on surrogates less than that?"""
    rows = {row.rule: row for row in regrets(areas(units), areas(units, "surrogates"))}
    single = min(FAMILIES["single detectors"], key=lambda name: rows[f"always {name}"].mean)
    best = rows[f"always {single}"]
    made = []
    for name in (OURS, FEW, ALL):
        row = rows[f"always {name}"]
        less = difference(best.behind, row.behind)
        words = (
            f"mean regret {row.mean:.3f} (at worst {row.worst:.3f}) against {best.mean:.3f} (at worst "
            f"{best.worst:.3f}) of {named(single)}, the best of them seen afterwards: {less.text()} less over "
            f"{row.count} cases"
        )
        claim = f"Always “{name}” loses less than always the same single detector"
        made.append(Claim(claim, "criterion", words, above(less)))
    chosen = min((row for rule, row in rows.items() if rule.startswith("best on surrogates")), key=lambda row: row.mean)
    fixed = rows[f"always {ALL}"]
    less = difference(fixed.behind, chosen.behind)
    words = f"{chosen.rule}: mean regret {chosen.mean:.3f} against {fixed.mean:.3f}: {less.text()} less"
    claim = f"Choosing on surrogates made from validation inputs loses less than always “{ALL}”"
    return [*made, Claim(claim, "criterion", words, above(less))]
