"""Tables of the README, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from reproductions.claims import interval
from reproductions.ritter2018.toy.claims import claims, judged, ratios
from reproductions.ritter2018.toy.figures import LABELS
from reproductions.ritter2018.toy.names import DETERMINISTIC, HMC, TUNINGS, WAYS
from reproductions.ritter2018.toy.run import AGAIN, CHECK, NETWORK
from reproductions.ritter2018.toy.views import View, activations
from reproductions.store import Values


def tables(units: Values) -> str:
    parts = []
    names = activations(units)
    for activation in names:
        view = View(units, activation)
        parts += [f"### {LABELS[activation]} network", _predictions(view), _hyperparameters(view)]
    parts += ["### The trained networks", _networks(units)]
    parts += ["### How far HMC can be trusted", _chains(units)]
    parts += ["### Is the fault ours?", _checks(units)]
    parts += [f"### The same claims, {' and '.join(LABELS[name] for name in names)}", _both(units)]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _predictions(view: View) -> str:
    """Every way to predict: means over seeds with their intervals."""
    head = ("posterior", "prediction", "Wasserstein", "within ±4", "beyond", "total variation", "mean gap", "std gap",
            "std over HMC's, within ±4", "beyond", "error of the mean", "test NLL")  # fmt: skip
    cases = [(m, f"{tuning} {way}") for way in WAYS for tuning in TUNINGS for m in view.methods]
    rows = [_row(view, method, case) for method, case in [*cases, (DETERMINISTIC, "")]]
    rows.append([HMC, "", *[""] * 6, "1", "1", *(_mean(view.numbers(HMC, "", k, None)) for k in ("rmse", "test_nll"))])
    what = f"{len(view.seeds)} seeds, means with 95 % intervals; of distances and gaps to HMC geometric ones."
    return f"{what}\n\n{_table(head, rows)}"


def _row(view: View, method: str, case: str) -> list[str]:
    moved = [_typical(view.distance(method, case, region)) for region in ("all", "inside", "outside")]
    varied = interval(view.numbers(method, case, "total_variation")).text(3)
    gaps = [_typical(view.numbers(method, case, key)) for key in ("mean_gap", "std_gap")]
    wide = ["0", "0"]
    if method != DETERMINISTIC:
        regions = ("inside", "outside")
        wide = [ratios(view.spread(method, case, r), view.spread(HMC, region=r)).text(2) for r in regions]
    errors = [_mean(view.numbers(method, case, key, None)) for key in ("rmse", "test_nll")]
    return [method, case.replace(" ", ", "), *moved, varied, *gaps, *wide, *errors]


def _typical(values: Sequence[float]) -> str:
    """Geometric: one seed whose tuning went astray does not decide it."""
    return ratios(values, [1.0] * len(values)).text(2)


def _mean(values: Sequence[float]) -> str:
    return interval(values).text(2)


def _hyperparameters(view: View) -> str:
    """What tuning chose, seed by seed."""
    rows = []
    for method in view.methods:
        for way in WAYS:
            found = [view.one(seed, method, f"tuned {way}") for seed in view.seeds]
            rows.append([
                method, way,
                ", ".join(f"{f['precision']:.2g}" for f in found), ", ".join(f"{f['data_scale']:.2g}" for f in found),
            ])  # fmt: skip
    head = ("posterior", "tuned for", "τ by seed", "N / 20 by seed")
    return f"Tuned hyperparameters of eq. 9 (untuned: τ as trained, N = 20).\n\n{_table(head, rows)}"


def _networks(units: Values) -> str:
    """How good a mode each of them is."""
    rows = []
    for activation in activations(units):
        view = View(units, activation)
        for seed in view.seeds:
            found = view.unit(seed, NETWORK)
            rows.append([
                LABELS[activation], seed, str(found["weights"]), f"{found['energy']:.2f}",
                ", ".join(f"{e:.1f}" for e in sorted(found["energies"])), f"{found['gradient_norm']:.1e}",
                f"{found['train_rmse']:.2f}",
            ])  # fmt: skip
    head = (
        "network",
        "seed",
        "weights",
        "energy",
        "of every start, before L-BFGS",
        "its gradient's norm",
        "training RMSE",
    )
    return f"Energy is the negative log posterior without its constant.\n\n{_table(head, rows)}"


def _chains(units: Values) -> str:
    rows = []
    for activation in activations(units):
        view = View(units, activation)
        for seed in view.seeds:
            rows.append([LABELS[activation], seed, "trained weights", *_mixing(view.unit(seed, HMC))])
            if f"{activation}/{seed}/{AGAIN}" in units:
                rows.append([LABELS[activation], seed, "prior", *_mixing(view.unit(seed, AGAIN))])
    head = ("network", "seed", "started from", "draws", "R-hat", "bulk ESS", "tail ESS", "divergences", "acceptance",
            "distance", "minutes")  # fmt: skip
    return (
        "R-hat (the largest) and effective sample sizes (the smallest) are of the predictions on the grid. Distance: "
        "Wasserstein, between the draws that all others are held against and other draws of the same chains, or those "
        "of chains that were started from the prior. Minutes are those of sampling; chains that were in the cache do "
        f"not count in the total above.\n\n{_table(head, rows)}"
    )


def _mixing(found: Values) -> list[str]:
    moved = found["again"]["wasserstein"] if "again" in found else found["wasserstein"]
    return [
        f"{found['draws']:,}", f"{found['rhat']:.4f}", f"{found['ess_bulk']:,.0f}", f"{found['ess_tail']:,.0f}",
        str(found["divergences"]), f"{found['accept']:.2f}", f"{moved['all']:.2f}",
        f"{found['sampling_seconds'] / 60:.1f}",
    ]  # fmt: skip


def _checks(units: Values) -> str:
    """The worst of all seeds."""
    rows = []
    for activation in activations(units):
        view = View(units, activation)
        for case in view.unit(view.seeds[0], CHECK):
            found = [view.unit(seed, CHECK)[case] for seed in view.seeds]
            worst = {key: max(f[key] for f in found) for key in found[0]}
            rows.append([
                LABELS[activation], case, f"{worst['covariance']:.0e}", f"{worst['linearised']:.0e}",
                f"{worst['sampled']:.3f}", f"{worst['of_draws']:.3f}",
            ])  # fmt: skip
    head = ("network", "posterior", "covariance", "linearised std", "sampled std", "one set of draws")
    return (
        "Relative errors, the worst over seeds, against the same posteriors written out in plain torch with dense "
        "matrices (`reference.py`). Draws are not the same ones, so the sampled standard deviations agree up to what "
        "one set of draws of one Gaussian is off.\n\n"
        f"{_table(head, rows)}"
    )


def _both(units: Values) -> str:
    """Verdicts with each activation; the first is the one above."""
    names = activations(units)
    each = [judged(View(units, name)) for name in names]
    rows = [[claim.claim, *(found[i].verdict for found in each)] for i, claim in enumerate(claims(units))]
    return _table(("claim", *(LABELS[name] for name in names)), rows)
