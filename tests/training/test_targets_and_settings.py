"""Targets, data, checkpoints and options of a training at their edges, each as a new user met it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whence import zoo
from whence.errors import BadData, BadFile, BadOption
from whence.training.loop import Progress
from whence.training.losses import CrossEntropy
from whence.training.supervised import SupervisedEpoch, SupervisedTraining, training_feed
from whence.zoo import augment

QUIET: dict[str, Any] = {"progress": False}


def table(n: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long(), x @ torch.ones(4, 1)


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return zoo.mlp(4, outputs, hidden=(8,))


def test_targets_of_numbers_may_lack_the_last_dimension() -> None:
    x, _, y = table()
    flat = zoo.train(network(), (x, y[:, 0]), epochs=40, **QUIET)
    column = zoo.train(network(), (x, y), epochs=40, **QUIET)
    assert [r.loss for r in flat.history] == [r.loss for r in column.history]
    first, second = zoo.evaluate(flat.network, (x, y[:, 0])), zoo.evaluate(flat.network, (x, y))
    assert first == second and first["loss"] == pytest.approx(first["rmse"] ** 2, rel=1e-5)
    with pytest.raises(BadData, match=r"\[60, 2\] do not match outputs of shape \[60, 1\]"):
        zoo.evaluate(flat.network, (x, y.repeat(1, 2)))


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bool, torch.int32])
def test_binary_labels_are_scored_as_such(shape: tuple[int, ...], kind: torch.dtype) -> None:
    x, y, _ = table()
    labels = y.reshape(shape).to(kind)
    model = network()
    result = zoo.train(model, (x, labels), validation=(x, labels), loss="binary", epochs=30, lr=0.5, **QUIET)
    wanted = float(((model(x)[:, 0] > 0) == y.bool()).float().mean())
    assert result.history[-1].validation["accuracy"] == pytest.approx(wanted, abs=1e-6)
    assert wanted > 0.9 and zoo.evaluate(model, (x, labels), loss="binary")["accuracy"] == pytest.approx(wanted)


def test_whole_numbers_of_any_kind_are_classes() -> None:
    x, y, _ = table()
    for labels in (y.int(), y.bool(), y.numpy().astype(np.int16), y.to(torch.uint8)):
        assert zoo.train(network(2), (x, labels), epochs=2, **QUIET).history[-1].loss < 1
    loader = DataLoader(TensorDataset(x, y.int()), batch_size=20)
    assert zoo.train(network(2), loader, epochs=2, **QUIET).history[-1].loss < 1


def test_tokens_stay_whole_numbers() -> None:
    ids, y = torch.randint(1, 11, (40, 7)), torch.arange(40) % 2
    model = zoo.transformer(7, 2, vocabulary=11, padding=0, units=8, heads=2, depth=1)
    assert len(zoo.train(model, (ids, y), epochs=1, **QUIET).history) == 1


def test_a_network_in_double_precision_is_fed_so() -> None:
    x, y, _ = table()
    assert zoo.train(network(2).double(), (x, y), epochs=1, **QUIET).history[0].loss > 0


def test_ignored_pixels_do_not_count() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 6, 6), torch.randint(2, (8, 6, 6))
    y[:3] = -100
    y[3:, :3] = -100
    model = nn.Conv2d(3, 2, 1)
    one, two = zoo.evaluate(model, (x, y)), zoo.evaluate(model, [(x[:4], y[:4]), (x[4:], y[4:])])
    counted = y != -100
    out = model(x)
    assert one["accuracy"] == pytest.approx(float((out.argmax(1) == y)[counted].float().mean()))
    assert one["loss"] == pytest.approx(float(nn.functional.cross_entropy(out, y).detach()), rel=1e-5)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    result = zoo.train(model, [(x[:3], y[:3]), (x[3:], y[3:])], epochs=1, **QUIET)
    assert math.isfinite(result.history[0].loss), "a batch of ignored labels only adds nothing"


def test_nan_is_never_the_best_validation_value() -> None:
    model, settings, (x, y, _) = network(2), zoo.Settings(), table()
    feed = training_feed((x, y), settings, model, torch.device("cpu"), ())
    training = SupervisedTraining(model, feed, feed, CrossEntropy(), settings, 0)
    done: Progress[SupervisedEpoch] = Progress()
    for epoch, loss in enumerate((0.5, 0.4, math.nan, 0.6), start=1):
        done = done.after(SupervisedEpoch(epoch, 0.1, 0.1, {"loss": loss}), training, keep_best=False)
    assert done.best_epoch == 2


def test_a_checkpoint_is_of_one_network_and_one_data_set(tmp_path: Path) -> None:
    x, y, _ = table()
    path = tmp_path / "run"
    zoo.train(network(2), (x, y), epochs=4, checkpoint=path, **QUIET)
    with pytest.raises(BadFile, match="other data"):
        zoo.train(network(2), (5 * x, 1 - y), epochs=4, checkpoint=path, **QUIET)
    with pytest.raises(BadFile, match="another network"):
        zoo.train(zoo.mlp(4, 2, hidden=(8,), dropout=0.3), (x, y), epochs=4, checkpoint=path, **QUIET)
    with pytest.raises(BadOption, match="4 epochs, not 3"):
        zoo.train(network(2), (x, y), epochs=3, checkpoint=path, **QUIET)
    raw = bytearray(path.read_bytes())
    raw[-40:] = bytes(40)
    path.write_bytes(bytes(raw))
    with pytest.raises(BadFile, match="changed"):
        zoo.train(network(2), (x, y), epochs=4, checkpoint=path, **QUIET)


def test_the_cache_knows_the_data_it_was_trained_on(tmp_path: Path) -> None:
    data = zoo.load("two-moons")
    options: dict[str, Any] = {"cache": tmp_path, "device": "cpu", "epochs": 2, "progress": False}
    zoo.trained("two-moons-mlp", data=data, **options)
    other = zoo.DataSet(data.description, data.train.take(100), data.validation, data.test)
    fewer = zoo.DataSet(data.description, data.train, None, data.test)
    assert not zoo.trained("two-moons-mlp", data=other, **options).from_cache
    assert not zoo.trained("two-moons-mlp", data=fewer, **options).from_cache
    assert zoo.trained("two-moons-mlp", data=data, **options).from_cache
    with pytest.raises(BadOption, match="with data="):
        zoo.trained("two-moons-mlp", data=data, noise=0.3, **options)
    with pytest.raises(BadOption, match="neither True"):
        zoo.trained("two-moons-mlp", **options | {"cache": None})
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="not a folder"):
        zoo.trained("two-moons-mlp", **options | {"cache": tmp_path / "file"})
    assert "noise=0.3" in str(zoo.recipe("two-moons-mlp", noise=0.3))


def test_loaders_leave_the_random_state_alone() -> None:
    x, y, _ = table()
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    torch.manual_seed(3)
    model, state = network(2), torch.get_rng_state()
    zoo.train(model, loader, validation=loader, epochs=2, **QUIET)
    zoo.evaluate(model, loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_settings_that_a_loader_would_ignore_are_refused_in_either_form() -> None:
    x, y, _ = table()
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    for settings in (zoo.Settings(batch_size=3), zoo.Settings(augment=augment.Flip())):
        with pytest.raises(BadOption, match="set by the loader"):
            zoo.train(network(2), loader, settings, **QUIET)


def test_augmentation_can_be_switched_off() -> None:
    seen: list[int] = []
    model = zoo.mlp((1, 4, 4), 2, hidden=(4,))
    model.register_forward_pre_hook(lambda m, a: seen.append(a[0].unique().numel()) if m.training else None)
    data = zoo.Examples(torch.rand(20, 1, 4, 4), torch.arange(20) % 2, augment=augment.Binarise())
    zoo.train(model, data, epochs=1, **QUIET)
    zoo.train(model, data, epochs=1, augment=False, **QUIET)
    assert seen[0] == 2 and seen[-1] > 100


def test_warming_up_starts_at_once_also_without_a_length() -> None:
    x, y, _ = table()

    class Unsized:
        def __iter__(self) -> Any:
            return iter([(x[:30], y[:30]), (x[30:], y[30:])])

    for data in ((x, y), Unsized()):
        model = network(2)
        before = model.head.weight.clone()
        zoo.train(model, data, epochs=1, schedule=zoo.Cosine(warmup=1), **QUIET)
        assert not torch.equal(before, model.head.weight)


def test_schedules_by_name_fit_the_training() -> None:
    assert zoo.Step().factor(10, 20) == pytest.approx(0.2**2)
    assert zoo.Milestones().factor(17, 20) == pytest.approx(0.2**3)


def test_modes_of_submodules_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    model[1].eval()
    x, y, _ = table()
    zoo.evaluate(model, (x, y))
    assert [m.training for m in model.modules()] == [True, True, False, True]


def test_something_is_kept_after_the_first_epoch(tmp_path: Path) -> None:
    x, y, _ = table()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zoo.train(network(2), (x, y), epochs=5, checkpoint=tmp_path / "run", callback=stop, **QUIET)
    assert (tmp_path / "run").exists()


X, Y, R = table()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: zoo.train(network(2), ((255 * X).to(torch.uint8), Y), **QUIET), BadData, "float"),
        (lambda: zoo.train(network(2), (X[:0], Y[:0]), **QUIET), BadData, "empty"),
        (lambda: zoo.train(network(2), "iris", **QUIET), BadData, "zoo.load('iris')"),
        (lambda: zoo.train(network(2), iter([(X, Y)]), **QUIET), BadData, "one-shot"),
        (lambda: zoo.train(network(2), (X * float("nan"), Y), **QUIET), BadData, "NaN"),
        (lambda: zoo.train(network(2), (X, Y + 5), **QUIET), BadData, "out of range"),
        (lambda: zoo.train(network(2), (X, Y.float()), loss="cross-entropy", **QUIET), BadData, "whole numbers"),
        (lambda: zoo.train(nn.ReLU(), (X, Y), **QUIET), BadOption, "no parameter"),
        (lambda: zoo.evaluate(nn.ReLU(), (X, Y)), BadOption, "no parameter"),
        (lambda: zoo.train(network(2), (X, Y), epochs=2.5, **QUIET), BadOption, "whole number"),
        (lambda: zoo.train(network(2), (X, Y), lr="0.1", **QUIET), BadOption, "number"),
        (lambda: zoo.train(network(2), (X, Y), nesterov=True, momentum=0.0, **QUIET), BadOption, "nesterov"),
        (lambda: zoo.Step(0), BadOption, "1 or more"),
        (lambda: zoo.Milestones(3), BadOption, "tuple"),
        (lambda: zoo.Cosine(-1), BadOption, "0 or more"),
        (lambda: zoo.mlp(4, 2, hidden=8), BadOption, "(8,)"),
        (lambda: zoo.mlp(4, 2, hidden=(0,)), BadOption, "1 or more"),
        (lambda: zoo.transformer(heads=0), BadOption, "1 or more"),
        (lambda: zoo.lenet5((1, 28, 2.5)), BadOption, "whole numbers"),
        (lambda: zoo.Examples(X, Y).take([10**9]), BadData, "below 60"),
        (lambda: zoo.Examples(X, Y).take(torch.ones(3, dtype=torch.bool)), BadData, "mask"),
        (lambda: zoo.Examples(X, Y).like(zoo.Examples(X[:, :2], Y)), BadData, "normalised"),
        (lambda: zoo.Examples(X, Y, dtype=torch.int64), BadOption, "floating-point"),
        (lambda: augment.Compose(3), BadOption, "augmentations"),
        (lambda: augment.Crop(1.5), BadOption, "padding"),
        (lambda: augment.Binarise()(X), BadOption, "images"),
    ],
)  # fmt: skip
def test_says_what_is_wrong(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


def test_takes_lists_and_arrays_where_they_are_plain() -> None:
    examples = zoo.Examples(X.numpy(), Y.tolist(), batch_size=np.int64(7))
    assert examples.take([]).size == 0 and examples.take([1, 2]).size == 2
    assert zoo.lenet5([1, 28, 28]).conv1.in_channels == 1 and zoo.mlp(np.int64(4), 2).hidden1.in_features == 4
    flips = augment.Compose([augment.Flip(), augment.Crop(1)])
    assert len(flips.steps) == 2
    _, targets = examples.tensors()
    targets += 1
    assert torch.equal(examples.targets, Y)
