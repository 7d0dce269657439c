"""The loop itself, on a trainable of one number: learning rates, random state, early stopping, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from whence.engine.checkpoint import CheckpointFile
from whence.errors import BadFile, BadOption
from whence.training.checkpoint import TrainingCheckpoint, part_of, prefixed, refuse_other
from whence.training.loop import EpochRecord, Plan, Progress, Tensors, Trainable, run
from whence.training.schedules import Constant, Linear


@dataclass(frozen=True)
class NumberEpoch(EpochRecord):
    epoch: int
    lr: float
    value: float
    seconds: float = 0.0

    def summary(self) -> str:
        return f"{self.value:.3g}"


class Number(Trainable[NumberEpoch]):
    """One number, pulled towards random targets; ``qualities`` are given epoch by epoch."""

    record: ClassVar = NumberEpoch

    def __init__(self, qualities: dict[int, float] | None = None) -> None:
        self.number = nn.Parameter(torch.zeros(()))
        self.optimiser = torch.optim.Adam([{"params": [self.number], "lr": 0.1}])
        self.device, self.seed, self.steps, self.qualities = torch.device("cpu"), 3, 2, qualities or {}
        self.rates: list[float] = []
        self.finished = False

    def begin(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return ((torch.randn(3), torch.zeros(3)) for _ in range(2))

    def loss(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        value = (self.number - inputs).square().mean()
        return value, value

    def before_update(self, values: Tensor, targets: Tensor) -> None:
        self.rates.append(self.optimiser.param_groups[0]["lr"])

    def end(self, epoch: int, lr: float) -> NumberEpoch:
        return NumberEpoch(epoch + 1, lr, float(self.number.detach()))

    def quality(self, record: NumberEpoch) -> float | None:
        return self.qualities.get(record.epoch)

    def state(self) -> Tensors:
        return {"number": self.number.detach()}

    def load_state(self, tensors: Tensors) -> None:
        with torch.no_grad():
            self.number.copy_(tensors["number"])

    def finish(self) -> None:
        self.finished = True


def trained(number: Number, epochs: int = 4, **options: Any) -> Progress[NumberEpoch]:
    plan = {k: options.pop(k) for k in ("patience", "rate_at", "schedule") if k in options}
    return run(number, Plan(epochs, **{"schedule": Constant(), **plan}), progress=False, **options)


def checkpoint(path: Path, **identity: Any) -> TrainingCheckpoint:
    return TrainingCheckpoint(CheckpointFile.at(path, "training"), identity, {"data": "other data"})


@pytest.mark.parametrize(
    ("rate_at", "wanted"), [(0.0, [0.1, 0.075, 0.05, 0.025]), (0.5, [0.0875, 0.0625, 0.0375, 0.0125])]
)
def test_learning_rates_follow_the_schedule_within_epochs(rate_at: float, wanted: list[float]) -> None:
    number = Number()
    done = trained(number, 2, schedule=Linear(), rate_at=rate_at)
    assert number.rates == pytest.approx(wanted)
    assert [record.lr for record in done.records] == pytest.approx([0.05, 0.0])
    assert number.finished and number.number.grad is None


def test_every_epoch_has_seeds_of_its_own_and_the_random_state_is_put_back() -> None:
    torch.manual_seed(8)
    before, first = torch.get_rng_state(), Number()
    trained(first)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    second = Number()
    trained(second)
    assert torch.equal(first.number, second.number)


def test_early_stopping_goes_back_to_the_best_epoch_and_nan_is_never_better() -> None:
    number = Number({1: 0.5, 2: 0.9, 3: float("nan"), 4: 0.6, 5: 1.0})
    done = trained(number, 9, patience=2)
    assert len(done.records) == 4 and done.best_epoch == 2
    assert float(number.number.detach()) == done.records[1].value


def test_a_broken_training_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, broken, resumed = Number(), Number(), Number()
    trained(whole)

    def breaks(record: NumberEpoch) -> None:
        if record.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(broken, checkpoint=checkpoint(tmp_path / "c", lr=0.1), callback=breaks)
    done = trained(resumed, checkpoint=checkpoint(tmp_path / "c", lr=0.1))
    assert torch.equal(whole.number, resumed.number) and len(resumed.rates) == 4
    assert [record.epoch for record in done.records] == [1, 2, 3, 4]
    with pytest.raises(BadOption, match="4 epochs, not 3"):
        trained(Number(), 3, checkpoint=checkpoint(tmp_path / "c", lr=0.1))


def test_files_of_other_work_are_refused_by_what_differs() -> None:
    described = {"data": "other data", "shapes": "another network"}
    refuse_other("the file", {"lr": 0.1, "size": (2, 3)}, {"lr": 0.1, "size": [2, 3]}, described)
    with pytest.raises(BadOption, match=r"the file was made with lr=0\.2, not 0\.1\. Resume with the same"):
        refuse_other("the file", {"lr": 0.1}, {"lr": 0.2}, described)
    with pytest.raises(BadFile, match=r"the file belongs to other data\."):
        refuse_other("the file", {"data": "a", "lr": 0.1}, {"data": "b", "lr": 0.2}, described)
    with pytest.raises(BadFile, match=r"another network: 'b' is missing here and \[2\] in the file"):
        refuse_other("the file", {"shapes": {"a": [1]}}, {"shapes": {"a": [1], "b": [2]}}, described)
    with pytest.raises(BadFile, match="does not say what it belongs to"):
        refuse_other("the file", {"lr": 0.1}, {}, described)


def test_parts_of_a_file() -> None:
    joined = prefixed(a={"x": torch.ones(1), "a.y": torch.ones(2)}, ab={"x": torch.ones(3)})
    assert {k: len(v) for k, v in joined.items()} == {"a.x": 1, "a.a.y": 2, "ab.x": 3}
    assert {k: len(v) for k, v in part_of(joined, "a").items()} == {"x": 1, "a.y": 2}
