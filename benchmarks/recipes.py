"""``python -m benchmarks.recipes NAME … [--device cuda] [--seeds 3]``: what the recipes of the zoo reach, run for real.

Results are kept in benchmarks/results/recipes.json, one entry for each recipe; ``--table`` writes the table of
docs/recipes.md from them. Data sets are looked for as ``whence.zoo.load`` does ($WHENCE_DATA, the cache).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from whence import zoo
from whence.zoo.recipes import UCI_CLASSIFICATION, UCI_REGRESSION

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "recipes.json"
PAGE = HERE.parent / "docs" / "recipes.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
FOLDS = 10

# Root mean square errors of networks with one hidden layer, mean over the same splits: probabilistic backpropagation,
# MC dropout and deep ensembles, as table 1 of Lakshminarayanan et al. (2017) has them side by side.
PAPERS = {
    "boston": ("3.01", "2.97", "3.28"), "concrete": ("5.67", "5.23", "6.03"), "energy": ("1.80", "1.66", "2.09"),
    "kin8nm": ("0.10", "0.10", "0.09"), "naval": ("0.01", "0.01", "0.00"), "power": ("4.12", "4.02", "4.11"),
    "protein": ("4.73", "4.36", "4.71"), "wine": ("0.64", "0.62", "0.64"), "yacht": ("1.02", "1.11", "1.58"),
}  # fmt: skip
BARS = {"mnist-ritter": 0.986, "mnist-mlp": 0.986, "mnist-lenet5": 0.990, "fashion-lenet5": 0.90,
        "cifar10-wrn16-4": 0.94, "iris-mlp": 0.95}  # fmt: skip


def runs(name: str, seeds: int, splits: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is trained for one recipe: seeds, the splits of UCI regression, or the folds of Iris."""
    if name in {f"uci-{s}" for s in UCI_REGRESSION}:
        there = zoo.describe(zoo.recipe(name).data).splits[0]
        yield from ((f"split {k}", {"split": k}) for k in range(min(splits or there, there)))
    elif name.startswith("iris-"):
        for seed in range(seeds):
            for k, fold in enumerate(zoo.folds("iris", k=FOLDS, seed=seed)):
                yield f"seed {seed}, fold {k}", {"seed": seed, "data": fold}
    else:
        yield from ((f"seed {seed}", {"seed": seed}) for seed in range(seeds))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for label, changes in runs(name, options.seeds, options.splits):
        result = zoo.trained(name, device=options.device, cache=options.cache, progress=options.progress, **changes)
        data = result.data
        assert data is not None
        scores = zoo.evaluate(result.network, data.train if data.test is None else data.test)
        if "rmse" in scores and data.target_std is not None:
            scores["rmse"] *= float(data.target_std)
        rows.append({"run": label, **scores, "seconds": round(result.seconds, 2), "epochs": len(result.history)})
        print(f"  {name:<24} {label:<18} " + "  ".join(f"{k} {v:.4f}" for k, v in scores.items())
              + f"  {result.seconds:.1f} s", flush=True)  # fmt: skip
    return {"runs": rows, "device": device_name(options.device), "torch": torch.__version__}


def device_name(device: str | None) -> str:
    if (device or "cuda").startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} CPU cores ({platform.machine()})"


def summary(entry: dict[str, Any]) -> tuple[str, float, float | None]:
    """(metric, mean, standard error) over the runs."""
    metric = "accuracy" if "accuracy" in entry["runs"][0] else "rmse"
    values = [row[metric] for row in entry["runs"]]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return metric, statistics.fmean(values), error


def table(results: dict[str, Any]) -> str:
    """The two tables of the page: labels by accuracy, numbers by error beside the papers."""
    labels = ["| recipe | test accuracy | at least | runs | seconds each | on |", "|---|---|---|---|---|---|"]
    numbers = ["| recipe | RMSE | PBP | MC dropout | deep ensemble | runs |", "|---|---|---|---|---|---|"]
    for name in zoo.recipes():
        if name not in results:
            continue
        entry = results[name]
        metric, mean, error = summary(entry)
        count, seconds = len(entry["runs"]), statistics.fmean(row["seconds"] for row in entry["runs"])
        if metric == "accuracy":
            spread = "" if error is None else f" ± {100 * error:.2f}"
            bar = f"{100 * BARS[name]:.1f}%" if name in BARS else ""
            labels.append(
                f"| `{name}` | {100 * mean:.2f}{spread}% | {bar} | {count} | {seconds:.1f} | {entry['device']} |"
            )
        else:
            digits = 4 if mean < 0.1 else 3
            spread = "" if error is None else f" ± {error:.{digits}f}"
            papers = " | ".join(PAPERS.get(name.removeprefix("uci-"), ("", "", "")))
            numbers.append(f"| `{name}` | {mean:.{digits}f}{spread} | {papers} | {count} |")
    missing = [name for name in zoo.recipes() if name not in results]
    rest = f"\nNot run: {', '.join(f'`{name}`' for name in missing)}.\n" if missing else ""
    note = "\nSnelson has no test part: that is its training error (the noise is about 0.28).\n"
    return "\n".join([*labels, "", *numbers, note if "snelson-mlp" in results else "", rest])


def write_table() -> None:
    page = PAGE.read_text()
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{table(json.loads(RESULTS.read_text()))}\n{END}{tail}")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes; 'uci', 'uci-classification': all of them")
    parser.add_argument("--device")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--splits", type=int, help="only so many of the splits of UCI regression")
    parser.add_argument("--cache", type=Path, help="where trained weights are kept; the user's cache if not given")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--table", action="store_true", help="write the table of docs/recipes.md")
    chosen = parser.parse_args()
    chosen.cache = True if chosen.cache is None else chosen.cache
    groups = {"uci": UCI_REGRESSION, "uci-classification": UCI_CLASSIFICATION}
    chosen.names = [
        n for name in chosen.names for n in ([f"uci-{s}" for s in groups[name]] if name in groups else [name])
    ]
    return chosen


def main() -> None:
    chosen = options()
    for name in chosen.names:
        start = time.perf_counter()
        entry = measure(name, chosen)
        kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        chosen.out.write_text(json.dumps(kept | {name: entry}, indent=1) + "\n")
        metric, mean, error = summary(entry)
        print(f"{name}: {metric} {mean:.4f}" + (f" ± {error:.4f}" if error else "")
              + f" in {time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
    if chosen.table:
        write_table()


if __name__ == "__main__":
    main()
