"""Simulated coverage of conformal sets and intervals, also where the prior was tuned on the same validation data.

``python -m benchmarks.conformal`` prints the two tables of docs/metrics.md (about twenty minutes on one core).
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence import metrics
from whence.errors import Notice
from whence.predictive.predictions import RegressionPrediction

F64 = torch.float64
LEVELS = (0.9, 0.95)
NEW = 200  # new inputs for each validation set
Draw = Callable[[int, torch.Generator], tuple[Any, Tensor]]


# Any prediction, nothing tuned


def overconfident(count: int, g: torch.Generator) -> tuple[Any, Tensor]:
    """Probabilities of four classes from logits that are twice too large."""
    logits = 1.5 * torch.randn(count, 4, generator=g, dtype=F64)
    return (2 * logits).softmax(1), torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)


def skewed(count: int, g: torch.Generator) -> tuple[Any, Tensor]:
    """Means with skewed noise, and standard deviations that are too small by a factor that depends on the input."""
    x, noise = (torch.randn(count, 1, generator=g, dtype=F64) for _ in range(2))
    y = x + (0.3 + x.abs()) * (noise.square() - 1)
    variance = (0.2 + 0.1 * x.abs()).square()
    return RegressionPrediction(x, variance, 0 * variance), y


def cut(prediction: Any, which: slice) -> Any:
    if isinstance(prediction, Tensor):
        return prediction[which]
    return RegressionPrediction(
        *(value[which] for value in (prediction.mean, prediction.aleatoric, prediction.epistemic))
    )


def coverages(draw: Draw, score: Any, count: int, level: float, trials: int) -> Tensor:
    """The coverage of new inputs, for each validation set."""
    found = []
    for trial in range(trials):
        prediction, y = draw(count + NEW, torch.Generator().manual_seed(trial))
        rule = metrics.conformal(cut(prediction, slice(0, count)), y[:count], level=level, score=score)
        found.append(float(rule.covered(cut(prediction, slice(count, None)), y[count:])[0].double().mean()))
    return torch.tensor(found, dtype=F64)


def shown(values: Tensor) -> str:
    if float(values.std()) == 0:
        return f"{100 * float(values.mean()):g}"
    return f"{100 * float(values.mean()):.2f} ± {100 * float(values.std()) / math.sqrt(len(values)):.2f}"


def any_prediction(trials: int, counts: tuple[int, ...]) -> Iterator[str]:
    yield "| validation inputs | level | theory | probability | cumulative | normalised | absolute |"
    yield "|---|" + "---|" * 6
    cases: list[tuple[Draw, str]] = [
        (overconfident, "probability"),
        (overconfident, "cumulative"),
        (skewed, "normalised"),
        (skewed, "absolute"),
    ]
    for count in counts:
        for level in LEVELS:
            rank = math.ceil((count + 1) * level - 1e-9)
            theory = f"{100 * rank / (count + 1):.2f}" if rank <= count else "100, infinite threshold"
            found = [shown(coverages(draw, score, count, level, trials)) for draw, score in cases]
            yield f"| {count:,} | {100 * level:g} | {theory} | {' | '.join(found)} |"


# A posterior tuned on the same validation data


def moons(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three overlapping clusters."""
    centres = torch.tensor([[0.0, 1.2], [1.1, -0.6], [-1.1, -0.6]])
    y = torch.randint(3, (count,), generator=g)
    return centres[y] + 0.9 * torch.randn(count, 2, generator=g), y


def wave(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A curve whose noise grows with the input."""
    x = torch.randn(count, 2, generator=g)
    return x, (2 * x[:, :1]).sin() + (0.1 + 0.2 * x[:, 1:].abs()) * torch.randn(count, 1, generator=g)


def fitted(draw: Draw, likelihood: Any, outputs: int, loss: Callable[..., Tensor], seed: int) -> Any:
    """A network that was trained on a hundred examples for too long, and its posterior."""
    torch.manual_seed(seed)
    x, y = draw(100, torch.Generator().manual_seed(10_000 + seed))
    model = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, outputs))
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(300):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return whence.laplace(model.eval(), (x, y), likelihood=likelihood, progress=False)


def tuned(trials: int, counts: tuple[int, ...], networks: int = 10) -> Iterator[str]:
    yield "| task | validation inputs | theory | same data | other data | difference |"
    yield "|---|---|---|---|---|---|"
    tasks: list[tuple[str, Draw, Any, int, Callable[..., Tensor]]] = [
        ("sets, 90%", moons, "classification", 3, nn.functional.cross_entropy),
        ("intervals, 90%", wave, "regression", 1, nn.functional.mse_loss),
    ]
    for name, draw, likelihood, outputs, loss in tasks:
        posteriors = [fitted(draw, likelihood, outputs, loss, seed) for seed in range(networks)]
        for count in counts:
            same, other = [], []
            for trial in range(trials):
                g = torch.Generator().manual_seed(trial)
                validation, fresh, new = (draw(n, g) for n in (count, count, 1_000))
                posterior = posteriors[trial % networks].tune(validation, progress=False)
                x, y = new
                prediction = posterior.predict(x)
                for (held, truth), into in ((validation, same), (fresh, other)):
                    rule = metrics.conformal(posterior.predict(held), truth, level=0.9)
                    into.append(float(rule.covered(prediction, y)[0].double().mean()))
            a, b = torch.tensor(same, dtype=F64), torch.tensor(other, dtype=F64)
            theory = 100 * math.ceil((count + 1) * 0.9 - 1e-9) / (count + 1)
            yield f"| {name} | {count:,} | {theory:.2f} | {shown(a)} | {shown(b)} | {shown(a - b)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2_000, help="validation sets for each cell of the first table")
    parser.add_argument("--tuned", type=int, default=1_500, help="validation sets for each row of the second table")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", Notice)
    for line in any_prediction(chosen.trials, (8, 9, 19, 50, 200, 1_000)):
        print(line, flush=True)
    print()
    for line in tuned(chosen.tuned, (20, 50, 200)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
