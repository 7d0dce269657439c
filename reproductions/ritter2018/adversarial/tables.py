"""Figures 3, 4, 6 and 7 in numbers."""

from __future__ import annotations

from reproductions.claims import interval
from reproductions.ritter2018.adversarial.claims import updates
from reproductions.ritter2018.adversarial.config import PLAIN
from reproductions.ritter2018.adversarial.curves import away, curve, fooled, half, names, peak, plain_methods, seeds
from reproductions.store import Values


def tables(units: Values) -> str:
    count = len(seeds(units))
    lines = [
        f"Means over {count} seeds with 95 % intervals. *Away*: mean over step sizes of 0.1 and more. *Half lost*: "
        "updates after which half of the images have left their class; *fooled*: the first update after which so many "
        "are taken for the target, on each seed. *Masked*: share of inputs whose gradient vanished at "
        "the last update. δ and s: tuned prior precision and data scale.",
        "",
        "| method | untargeted: entropy away | accuracy away | targeted: peak entropy | half lost | 95 % fooled "
        "| all fooled | masked | δ | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names(units):
        cells = [
            interval(away(units, name, "entropy")).text(2),
            interval(away(units, name, "accuracy")).times(100).text(1, " %"),
            interval(peak(units, name)).text(2),
            interval(half(units, name)).text(1),
            updates(fooled(units, name, 0.95)),
            updates(fooled(units, name)),
            f"{100 * sum(c[-1] for c in curve(units, 'targeted', name, 'masked')) / count:.1f} %",
            *_tuned(units, name),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name in plain_methods(units):
        accuracy = interval(away(units, name, "accuracy", PLAIN)).times(100).text(1, " %")
        doubt = interval(away(units, name, "entropy", PLAIN)).text(2)
        sure = interval([units[f"{seed}/{PLAIN}/{name}"]["probability_rounds_to_1"] for seed in seeds(units)])
        lines += ["", f"{name} with the gradient of single precision: accuracy away {accuracy}, entropy {doubt} nats; "
                  f"{sure.times(100).text(0, ' %')} of its probabilities round to 1."]  # fmt: skip
    return "\n".join(lines)


def _tuned(units: Values, name: str) -> tuple[str, str]:
    found = [units[f"{seed}/targeted/{name}"] for seed in seeds(units)]
    if "prior_precision" not in found[0]:
        return "", ""
    return tuple(", ".join(f"{unit[key]:.3g}" for unit in found) for key in ("prior_precision", "data_scale"))  # type: ignore[return-value]
