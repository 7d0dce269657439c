"""The training loop: what it computes, what a seed decides, that it goes on where it was cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whence import zoo
from whence.engine.files import read_tensors
from whence.errors import BadData, BadFile, BadOption, NotConverged, Notice
from whence.training.losses import CrossEntropy
from whence.training.supervised import make_optimiser
from whence.zoo import augment

Pair = tuple[Tensor, Tensor]


def blobs(n: int = 90, seed: int = 0) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 2, generator=generator) + 3 * torch.eye(3)[y, :2], y


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return zoo.mlp(2, 3, hidden=(8,), dropout=0.3)


def weights(network: nn.Module) -> Tensor:
    return torch.cat([v.flatten().double() for v in network.state_dict().values()])


def test_learns_and_returns_the_network_in_evaluation_mode() -> None:
    network = small()
    result = zoo.train(network, blobs(), validation=blobs(seed=1), epochs=30, lr=0.1, progress=False)
    assert result.network is network and not network.training
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert zoo.evaluate(network, blobs(seed=2))["accuracy"] > 0.85
    assert [row.epoch for row in result.history] == list(range(1, 31))
    assert set(result.history[0].validation) == {"loss", "accuracy"}


def by_hand(network: nn.Module, data: Pair, order: list[Tensor], lr: float, decay: float) -> None:
    """SGD with Nesterov momentum and L2, written out (Sutskever et al. 2013, as torch has it)."""
    velocity = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for step, batch in enumerate(order):
        rate = lr * 0.5 ** (step // 3 // 2)
        loss = nn.functional.cross_entropy(network(data[0][batch]), data[1][batch])
        grads = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(network.named_parameters(), grads, strict=True):
                g = g + decay * p
                velocity[name] = 0.9 * velocity[name] + g
                p -= rate * (g + 0.9 * velocity[name])


def test_steps_are_those_of_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs(60)
    seen: list[Tensor] = []
    keys = {tuple(row.tolist()): i for i, row in enumerate(data[0])}
    mine, theirs = zoo.mlp(2, 3, hidden=(8,)).double(), zoo.mlp(2, 3, hidden=(8,)).double()
    theirs.load_state_dict(mine.state_dict())
    mine.register_forward_pre_hook(
        lambda m, args: (
            seen.append(torch.tensor([keys[tuple(r.tolist())] for r in args[0].float()])) if m.training else None
        )
    )
    examples = zoo.Examples(data[0].double(), data[1], dtype=torch.float64)
    zoo.train(
        mine, examples, epochs=4, batch_size=20, lr=0.2, nesterov=True, weight_decay=0.01, schedule=zoo.Step(2, 0.5),
        progress=False,
    )  # fmt: skip
    assert len(seen) == 12 and sorted(torch.cat(seen[:3]).tolist()) == list(range(60))
    by_hand(theirs, (data[0].double(), data[1]), seen, 0.2, 0.01)
    assert torch.allclose(weights(mine), weights(theirs), rtol=1e-12, atol=1e-14)


def test_the_seed_decides_everything_and_nothing_else_does() -> None:
    results = []
    for noise in (1, 2):
        network = small()
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        results.append(weights(zoo.train(network, blobs(), epochs=3, seed=5, progress=False).network))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*results)
    other = zoo.train(small(), blobs(), epochs=3, seed=6, progress=False)
    assert not torch.equal(results[0], weights(other.network))


def test_no_seed_draws_one_that_gives_the_same_again() -> None:
    first = zoo.train(small(), blobs(), epochs=2, seed=None, progress=False)
    again = zoo.train(small(), blobs(), epochs=2, seed=first.seed, progress=False)
    assert torch.equal(weights(first.network), weights(again.network))


class Cut(Exception):
    pass


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_goes_on_to_the_same_weights_after_a_cut(tmp_path: Path, optimiser: str) -> None:
    def cut(network: nn.Module, row: Any) -> None:
        if row.epoch == 4:
            raise Cut

    options: dict[str, Any] = {
        "epochs": 9, "optimiser": optimiser, "lr": 0.02, "schedule": "cosine", "patience": 8,
        "validation": blobs(seed=1), "progress": False,
    }  # fmt: skip
    whole = zoo.train(small(), blobs(), **options)
    path = tmp_path / "run.checkpoint"
    with pytest.raises(Cut):
        zoo.train(small(), blobs(), checkpoint=path, checkpoint_every=0, callback=cut, **options)
    assert len(read_tensors(path)[1]["rows"]) == 4
    resumed = zoo.train(small(seed=99), blobs(), checkpoint=path, **options)
    assert torch.equal(weights(whole.network), weights(resumed.network))
    assert [r.loss for r in whole.history] == [r.loss for r in resumed.history]
    assert whole.best_epoch == resumed.best_epoch


def test_a_finished_checkpoint_trains_no_more(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = zoo.train(small(), blobs(), epochs=2, checkpoint=path, progress=False)
    calls: list[int] = []
    again = zoo.train(
        small(3), blobs(), epochs=2, checkpoint=path, callback=lambda n, r: calls.append(r.epoch), progress=False
    )
    assert calls == [] and torch.equal(weights(first.network), weights(again.network))


def test_a_constant_rate_can_be_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    zoo.train(small(), blobs(), epochs=2, checkpoint=path, progress=False)
    longer = zoo.train(small(), blobs(), epochs=5, checkpoint=path, progress=False)
    whole = zoo.train(small(), blobs(), epochs=5, progress=False)
    assert torch.equal(weights(longer.network), weights(whole.network))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"lr": 0.3}, "lr=0.05"), ({"seed": 7}, "seed=0"), ({"schedule": "cosine"}, "schedule=")],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "run"
    zoo.train(small(), blobs(), epochs=1, checkpoint=path, progress=False)
    with pytest.raises(BadOption, match="delete it") as caught:
        zoo.train(small(), blobs(), epochs=1, checkpoint=path, progress=False, **changes)
    assert words in str(caught.value)


def test_broken_or_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    zoo.train(small(), blobs(), epochs=1, checkpoint=path, progress=False)
    with pytest.raises(BadFile, match="another network"):
        zoo.train(zoo.perceptron(2, 3), blobs(), epochs=1, checkpoint=path, progress=False)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadFile, match="truncated"):
        zoo.train(small(), blobs(), epochs=1, checkpoint=path, progress=False)
    with pytest.raises(BadFile, match="is missing"):
        zoo.train(small(), blobs(), epochs=1, checkpoint=tmp_path / "no" / "run", progress=False)


def test_early_stopping_puts_the_best_weights_back() -> None:
    """With a rate that explodes after five epochs, the weights of the best epoch come back."""
    kept: dict[int, Tensor] = {}
    result = zoo.train(
        small(), blobs(), validation=blobs(seed=1), epochs=40, lr=0.05, patience=3, progress=False,
        schedule=zoo.Milestones((5,), 300.0), callback=lambda n, row: kept.update({row.epoch: weights(n)}),
    )  # fmt: skip
    losses = [row.validation["loss"] for row in result.history]
    assert result.best_epoch == 1 + min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == result.best_epoch + 3
    assert torch.equal(weights(result.network), kept[result.best_epoch])


def test_monitor_accuracy_takes_the_highest() -> None:
    result = zoo.train(
        small(), blobs(), validation=blobs(seed=1), epochs=6, patience=6, monitor="accuracy", progress=False
    )
    values = [row.validation["accuracy"] for row in result.history]
    assert result.best_epoch is not None and values[result.best_epoch - 1] == max(values)


def test_takes_a_loader_and_mappings() -> None:
    x, y = blobs()
    loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True)
    first, second = (zoo.train(small(), loader, epochs=2, seed=3, progress=False) for _ in range(2))
    assert torch.equal(weights(first.network), weights(second.network))

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, features: Tensor) -> Tensor:
            return self.layer(features)

    batches = [{"features": x[:45], "labels": y[:45]}, {"features": x[45:], "labels": y[45:]}]
    result = zoo.train(Named(), batches, epochs=20, lr=0.5, progress=False)
    assert result.history[-1].loss < result.history[0].loss
    assert zoo.evaluate(result.network, batches)["accuracy"] > 0.8


def test_regression_is_scored_by_its_error() -> None:
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    data = (x, 2 * x + 1)
    result = zoo.train(zoo.perceptron(1, 1), data, epochs=100, lr=0.1, batch_size=16, progress=False)
    scores = zoo.evaluate(result.network, data)
    assert set(scores) == {"loss", "rmse"} and scores["rmse"] < 1e-3
    assert scores["loss"] == pytest.approx(scores["rmse"] ** 2, rel=1e-4)


def test_evaluate_is_a_mean_over_examples_whatever_the_batches() -> None:
    network, (x, y) = small().eval(), blobs(70)
    wanted = float(nn.functional.cross_entropy(network(x), y).detach())
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=32)):
        assert zoo.evaluate(network, data)["loss"] == pytest.approx(wanted, rel=1e-5)
    network.train()
    zoo.evaluate(network, (x, y))
    assert network.training


def test_batch_normalisation_survives_a_last_batch_of_one() -> None:
    network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    result = zoo.train(network, blobs(33), batch_size=16, epochs=2, progress=False)
    assert len(result.history) == 2


def test_augmentation_reaches_the_network_in_training_only() -> None:
    seen: list[tuple[bool, float]] = []
    network = zoo.mlp((1, 4, 4), 2, hidden=(4,))
    network.register_forward_pre_hook(lambda m, args: seen.append((m.training, float(args[0].unique().numel()))))
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
    zoo.train(network, (x, y), validation=(x, y), epochs=1, batch_size=20, augment=augment.Binarise(), progress=False)
    assert [count for training, count in seen if training] == [2.0, 2.0]
    assert all(count > 100 for training, count in seen if not training)


def test_decay_can_leave_biases_alone() -> None:
    network = zoo.mlp(2, 3, hidden=(8,))
    groups = make_optimiser(network, zoo.Settings(weight_decay=0.1, decay="weights")).param_groups
    assert [(g["weight_decay"], {p.dim() for p in g["params"]}) for g in groups] == [(0.1, {2}), (0.0, {1})]


def test_gradient_is_clipped() -> None:
    network, (x, y) = zoo.perceptron(2, 3), blobs()
    before = weights(network)
    zoo.train(network, (1000 * x, y), epochs=1, batch_size=90, momentum=0.0, lr=1.0, clip=0.01, progress=False)
    assert float((weights(network) - before).norm()) == pytest.approx(0.01, rel=1e-3)


def test_label_smoothing_is_that_of_torch() -> None:
    loss = CrossEntropy(label_smoothing=0.2)
    out, y = torch.randn(5, 4), torch.randint(4, (5,))
    wanted = nn.functional.cross_entropy(out, y, label_smoothing=0.2)
    assert float(loss(out, y)) == pytest.approx(float(wanted))
    assert float(loss.for_validation()(out, y)) == pytest.approx(float(nn.functional.cross_entropy(out, y)))


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (zoo.Constant(), [1, 1, 1, 1]),
        (zoo.Step(2, 0.5), [1, 1, 0.5, 0.25]),
        (zoo.Milestones((1, 3), 0.1), [1, 0.1, 0.1, 0.01]),
        (zoo.Cosine(), [1, 0.853553, 0.5, 0]),
        (zoo.Cosine(warmup=2), [0, 0.5, 1, 0]),
        (zoo.Linear(final=0.2), [1, 0.8, 0.6, 0.2]),
    ],
)
def test_schedules(schedule: zoo.Schedule, wanted: list[float]) -> None:
    assert [schedule.factor(epoch, 4) for epoch in (0, 1, 2, 4)] == pytest.approx(wanted, abs=1e-6)


def test_says_when_the_loss_explodes() -> None:
    x, y = blobs()
    with pytest.raises(NotConverged, match="lr=1e\\+30"):
        zoo.train(zoo.perceptron(2, 1), (x, 1e20 * y.float().unsqueeze(1)), epochs=5, lr=1e30, progress=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epoch": 3}, "'epochs'"),
        ({"epochs": 0}, "epochs=0"),
        ({"lr": -1}, "lr=-1"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"weight_decay": -1e-3}, "weight_decay"),
        ({"optimiser": "lion"}, "'sgd'"),
        ({"schedule": "cosin"}, "'cosine'"),
        ({"schedule": 3}, "neither a name"),
        ({"loss": "mse"}, "'squared'"),
        ({"patience": 0}, "patience=0"),
        ({"patience": 2}, "validation"),
        ({"label_smoothing": 0.1, "loss": "squared"}, "cross-entropy"),
        ({"augment": "flip"}, "Flip"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_refuses_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption) as caught:
        zoo.train(small(), blobs(), progress=False, **options)
    assert words in str(caught.value)


def test_refuses_what_a_loader_would_ignore() -> None:
    loader = DataLoader(TensorDataset(*blobs()), batch_size=30)
    for options in ({"batch_size": 10}, {"augment": augment.Flip()}):
        with pytest.raises(BadOption, match="set by the loader"):
            zoo.train(small(), loader, progress=False, epochs=1, **options)


def test_refuses_data_that_give_nothing() -> None:
    with pytest.raises(BadData, match="empty"):
        zoo.train(small(), [], epochs=1, progress=False)
    with pytest.raises(BadData, match="empty"):
        zoo.evaluate(small(), [])
    frozen = small()
    for p in frozen.parameters():
        p.requires_grad_(False)
    with pytest.raises(BadOption, match="nothing to train"):
        zoo.train(frozen, blobs(), epochs=1, progress=False)


def test_mixed_precision_on_a_cpu_is_said() -> None:
    with pytest.warns(Notice, match="only to a GPU"):
        zoo.train(small(), blobs(), epochs=1, amp=True, progress=False)
