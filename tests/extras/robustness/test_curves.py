"""Tables of attacks: what their columns are, beside loops over the attacks themselves; what is asked of them."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.extras.robustness.posteriors import data, network, options, posterior
from tests.report.given import lines
from whence import robustness
from whence.errors import BadData, BadOption, MissingExtra, NotDefined
from whence.robustness import Robustness, RobustnessRow

QUIET = {"progress": False}
PLAIN = {"likelihood": "classification", "progress": False}


def row(step: float, **values: float | None) -> RobustnessRow:
    names = [f.name for f in dataclasses.fields(RobustnessRow)]
    zero = dict.fromkeys(names, 0.0) | {"accuracy": None, "target": None, "accuracy_se": None, "target_se": None}
    return RobustnessRow(**(zero | values | {"step": step}))


def close(values: Tensor, mean: float | None, error: float | None) -> bool:
    values = values.double()
    return math.isclose(float(values.mean()), mean or 0.0, abs_tol=1e-9) and math.isclose(
        float(values.std() / len(values) ** 0.5), error or 0.0, abs_tol=1e-9
    )


@pytest.mark.parametrize("kind", ["linearised", "sampled", "dropout", "weighted ensemble", "mixture, sampled"])
@pytest.mark.parametrize("away", ["predicted", "labels"])
def test_untargeted_is_fgsm_at_every_step(kind: str, away: str) -> None:
    (x, y), found = data(), posterior(kind)
    scale = robustness.span(x)
    table = robustness.untargeted(
        found, (x, y), steps=(0.4, 0, 0.1), away=away, scale=scale, batch_size=32, **QUIET, **options(kind)
    )
    assert [r.step for r in table.rows] == [0, 0.1, 0.4] and len(table) == 3
    assert (table.count, table.excluded, table.target) == (90, 0, None)
    before = found.predict(x, **options(kind)).labels
    labels = None if away == "predicted" else y
    for r in table.rows:
        moved = robustness.fgsm(found, x, r.step, labels=labels, scale=scale, **options(kind))
        prediction = found.predict(moved, **options(kind))
        assert close(prediction.labels == y, r.accuracy, r.accuracy_se)
        assert close(prediction.labels == before, r.kept, r.kept_se)
        assert close(prediction.entropy, r.entropy, r.entropy_se)
        assert close(prediction.confidence, r.confidence, r.confidence_se)
        assert close(prediction.epistemic.clamp(min=0), r.epistemic, r.epistemic_se)
        assert r.target is None and r.masked == 0 and r.saturated == 0
    assert table.rows[0].kept == 1 and table.rows[-1].accuracy < table.rows[0].accuracy


@pytest.mark.parametrize("kind", ["linearised", "sampled", "dropout", "ensemble"])
def test_targeted_is_the_trace_of_iterative(kind: str) -> None:
    (x, y), found = data(), posterior(kind)
    table = robustness.targeted(found, (x, y), target=1, step=0.05, steps=6, batch_size=40, **QUIET, **options(kind))
    before = found.predict(x, **options(kind)).labels
    others = before != 1
    assert (table.count, table.excluded) == (int(others.sum()), int((~others).sum()))
    assert (table.attack, table.target, table.step) == ("targeted", 1, 0.05)
    trace = robustness.iterative(found, x[others], 1, 0.05, 6, trace=True, **options(kind))
    for r, moved in zip(table.rows, trace, strict=True):
        prediction = found.predict(moved, **options(kind))
        assert close(prediction.labels == y[others], r.accuracy, r.accuracy_se)
        assert close(prediction.labels == 1, r.target, r.target_se)
        assert close(prediction.labels == before[others], r.kept, r.kept_se)
        assert close(prediction.entropy, r.entropy, r.entropy_se)
    assert table.rows[0].target == 0 and table.rows[-1].target > 0.2


def test_sources_of_data_agree() -> None:
    (x, y), net = data(), network()
    given = [
        (x, y),
        (x.numpy(), y),
        DataLoader(TensorDataset(x, y), batch_size=17),
        [(x[:50], y[:50]), (x[50:], y[50:])],
    ]
    tables = [robustness.untargeted(net, d, steps=(0, 0.3), **PLAIN) for d in given]
    assert all(t == tables[0] for t in tables[1:])
    bare = robustness.untargeted(net, x, steps=(0, 0.3), **PLAIN)
    assert "accuracy" not in bare.columns and bare.rows[1].kept == tables[0].rows[1].kept
    ignored = torch.where(torch.arange(90) < 30, -100, y)
    some = robustness.untargeted(net, (x, ignored), steps=(0, 0.3), **PLAIN)
    rest = robustness.untargeted(net, (x[30:], y[30:]), steps=(0, 0.3), **PLAIN)
    assert some.rows == rest.rows and (some.count, some.excluded) == (60, 30)


def test_ties_are_kept_at_the_start() -> None:
    """Members that are sure of different classes leave equal probabilities; rounding must not undo a prediction."""
    members = []
    for seed in range(4):
        members.append(network(seed).float())
        members[-1][-1].weight.data.mul_(1e4)
    sure = whence.ensemble(members, likelihood="classification")
    x = 3 * data()[0].float()
    assert robustness.untargeted(sure, x, steps=(0, 0.1), **QUIET).rows[0].kept == 1
    rows = robustness.targeted(sure, x, target=0, step=0.1, steps=2, **QUIET).rows
    assert (rows[0].kept, rows[0].target) == (1, 0)
    assert robustness.untargeted(members[0], x, steps=(0, 1), **PLAIN).rows[1].epistemic == 0


def test_a_flat_network_masks_its_gradient_and_says_so() -> None:
    """Dead units: no input moves, and the table tells."""
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        net[0].bias.fill_(-100)
    table = robustness.untargeted(net, data(), steps=(0.0, 1.0), **PLAIN)
    assert table.rows[1].masked == 1 and table.rows[1].kept == 1
    target = (int(net(data()[0][:1]).argmax()) + 1) % 3
    targeted = robustness.targeted(net, data(), target=target, step=0.1, steps=2, **PLAIN)
    assert [r.masked for r in targeted.rows] == [0, 1, 1] and targeted.fooled() is None and targeted.rows[2].kept == 1
    half = robustness.untargeted(network(), data(), steps=(1.0,), scale=torch.zeros(4), **PLAIN)
    assert half.rows[0].masked == 1  # nothing may move


def test_where_half_is_lost() -> None:
    rows = (row(0, accuracy=0.9, kept=1.0), row(1, accuracy=0.7, kept=0.9), row(3, accuracy=0.2, kept=0.55))
    table = Robustness("untargeted", rows, 10)
    assert table.half() == pytest.approx(1 + 2 * 0.2 / 0.5)
    assert table.half("kept") is None and table.half("kept", level=0.9) == 1
    assert table.half(level=0.95) == 0  # below from the first row on
    assert table.half(level=0.2) == 3
    bare = Robustness("untargeted", (row(0, kept=1.0), row(2, kept=0.0)), 10)
    assert bare.half() == 1
    with pytest.raises(NotDefined, match="labels"):
        bare.half("accuracy")
    with pytest.raises(BadOption, match=r"level=1.5"):
        bare.half(level=1.5)
    with pytest.raises(BadOption, match="of"):
        bare.half("entropy")


def test_when_all_are_fooled() -> None:
    rows = tuple(row(float(t), target=s, kept=1 - s) for t, s in enumerate((0, 0.5, 0.98, 0.99, 1)))
    table = Robustness("targeted", rows, 10, target=0, step=0.1)
    assert table.fooled() == 3 and table.fooled(0.4) == 1 and table.fooled(1.0) == 4
    assert Robustness("targeted", rows[:3], 10).fooled() is None
    with pytest.raises(BadOption, match="share"):
        table.fooled(0)
    with pytest.raises(NotDefined, match="half"):
        Robustness("untargeted", rows, 10).fooled()


def test_as_text_data_frame_and_json() -> None:
    table = robustness.targeted(network(), data(), target=1, step=0.1, steps=3, **PLAIN)
    text = str(table)
    assert repr(table) == text and "towards class 1, by 0.1 each" in text and "excluded" in text
    assert text.splitlines()[1].split()[:4] == ["step", "accuracy", "kept", "target"] and len(text.splitlines()) == 7
    frame = pytest.importorskip("pandas") and table.to_pandas()
    assert list(frame.columns) == table.columns and frame["target"].tolist() == [r.target for r in table.rows]
    assert json.loads(json.dumps(table.to_dict()))["entropy_se"] == [r.entropy_se for r in table.rows]
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.rows[0].step = 3.0
    one = robustness.untargeted(network(), (data()[0][:1], data()[1][:1]), steps=(0.1,), **PLAIN)
    assert one.rows[0].entropy_se is None and "accuracy_se" not in one.columns and "±" not in str(one)


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pandas"):
        Robustness("untargeted", (row(0),), 1).to_pandas()


def test_figures_draw_the_tables() -> None:
    pytest.importorskip("matplotlib")
    from whence.report import figures

    rows = (row(0, accuracy=0.9, entropy=0.2, entropy_se=0.1), row(2, accuracy=0.3, entropy=0.6, entropy_se=0.1))
    untargeted = Robustness("untargeted", rows, 10)
    figure = untargeted.plot()
    left, right = figure.axes
    assert list(left.lines[0].get_ydata()) == [0.2, 0.6] and list(right.lines[0].get_ydata()) == [0.9, 0.3]
    assert left.get_xlabel() == "step size" and "nats" in left.get_ylabel() and right.get_ylabel() == "accuracy"
    several = figures.robustness({"one": untargeted, "two": untargeted})
    assert lines(several.axes[0])["two"] == ([0, 2], [0.2, 0.6]) and len(several.legends) == 1
    aimed = Robustness("targeted", tuple(row(t, kept=1 - t / 2, target=t / 2) for t in (0.0, 1.0, 2.0)), 10, 0, 3, 0.1)
    figure = aimed.plot()
    left, right = figure.axes
    assert [list(line.get_ydata()) for line in right.lines[:2]] == [[1, 0.5, 0], [0, 0.5, 1]]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "share of predictions kept",
        "predicted as class 3",
    ]
    assert not untargeted.plot().legends
    assert right.get_ylabel() == "share of inputs" and left.get_xlabel() == "updates"
    for wrong in ({}, {"a": untargeted, "b": aimed}):
        with pytest.raises(BadOption, match="one attack"):
            figures.robustness(wrong)


# Refusals: value, bound, remedy


@pytest.mark.parametrize("step", [-0.1, math.inf, math.nan, "0.1", None, True])
def test_steps_that_are_none(step: object) -> None:
    x = data()[0]
    with pytest.raises(BadOption, match="step="):
        robustness.fgsm(network(), x, step, likelihood="classification")
    with pytest.raises(BadOption, match="step="):
        robustness.iterative(network(), x, 0, step, 3, likelihood="classification")
    with pytest.raises(BadOption, match="steps="):
        robustness.untargeted(network(), x, steps=(0.1, step), **PLAIN)


def hit(net: nn.Module, x: object, **options: object) -> Tensor:
    return robustness.fgsm(net, x, 0.1, likelihood="classification", **options)


def many(net: nn.Module, x: object, *rest: object, **options: object) -> object:
    return robustness.iterative(net, x, *rest, likelihood="classification", **options)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda n, x: hit(n, x, target=3), BadOption, "target=3.*0 to 2"),
        (lambda n, x: hit(n, x, target=-1), BadOption, "target=-1"),
        (lambda n, x: hit(n, x, target=0.5), BadOption, "whole numbers"),
        (lambda n, x: hit(n, x, target="cat"), BadOption, "class number"),
        (lambda n, x: hit(n, x, labels=[0, 1]), BadOption, "90 inputs"),
        (lambda n, x: hit(n, x, labels=9), BadOption, "labels=9"),
        (lambda n, x: hit(n, x, labels=0, target=1), BadOption, "one of"),
        (lambda n, x: hit(n, x, scale=torch.ones(3)), BadOption, r"\[3\].*\[4\]"),
        (lambda n, x: hit(n, x, scale=torch.ones(90, 4)), BadOption, r"\[90, 4\]"),
        (lambda n, x: hit(n, x, scale=-1.0), BadOption, "negative"),
        (lambda n, x: hit(n, x, scale=math.nan), BadOption, "NaN"),
        (lambda n, x: hit(n, x, scale="big"), BadOption, "scale is a str"),
        (lambda n, x: hit(n, x, bounds=(0, 1)), BadData, "outside the bounds"),
        (lambda n, x: hit(n, x, bounds=(1, 0)), BadOption, "above high"),
        (lambda n, x: hit(n, x, bounds=5), BadOption, "pair"),
        (lambda n, x: robustness.fgsm(n, x, 0.1), BadOption, "likelihood='classification'"),
        (lambda n, x: robustness.fgsm(lambda v: v, x, 0.1), BadOption, "nn.Module"),
        (lambda n, x: hit(n, x, batch_size=0), BadOption, "batch_size=0"),
        (lambda n, x: hit(n, x, num_samples=0), BadOption, "num_samples=0"),
        (lambda n, x: hit(n, x, method="linear"), BadOption, "Did you mean"),
        (lambda n, x: hit(n, x, method="linearised"), NotDefined, "draws"),
        (lambda n, x: hit(n, x * math.nan), BadData, "NaN"),
        (lambda n, x: hit(n, x.long()), BadData, "int64.*floating"),
        (lambda n, x: hit(n, (x, x)), BadData, "one tensor"),
        (lambda n, x: hit(n, x[:0]), BadData, "no inputs"),
        (lambda n, x: many(n, x, 0, 0.1, -1), BadOption, "steps=-1"),
        (lambda n, x: many(n, x, 7, 0.1, 2, trace=True), BadOption, "target=7"),
        (lambda n, x: robustness.untargeted(n, x, steps=(), **PLAIN), BadOption, "empty"),
        (lambda n, x: robustness.untargeted(n, x, steps=0.1, **PLAIN), BadOption, "sequence"),
        (lambda n, x: robustness.untargeted(n, x, steps=(0.1,), away="label", **PLAIN), BadOption, "Did you mean"),
        (lambda n, x: robustness.untargeted(n, x, steps=(0.1,), away="labels", **PLAIN), BadOption, "needs labels"),
        (lambda n, x: robustness.untargeted(n, (x, torch.full((90,), 5)), steps=(0.1,), **PLAIN), BadData, "label 5"),
        (lambda n, x: robustness.untargeted(n, (x, torch.zeros(9).long()), steps=(0.1,), **PLAIN), BadData, "9 labels"),
        (lambda n, x: robustness.untargeted(n, [x], steps=(0.1,), **PLAIN), BadData, "batch 0"),
        (lambda n, x: robustness.targeted(n, x, target=4, step=0.1, steps=2, **PLAIN), BadOption, "target=4"),
        (lambda n, x: robustness.targeted(n, x, target=0, step=0.1, steps=0, **PLAIN), BadOption, "steps=0"),
        (lambda n, x: robustness.span([]), BadData, "empty"),
        (lambda n, x: robustness.span(5), BadData, "loader"),
        (lambda n, x: robustness.span(x.long()), BadData, "int64"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(network(), data()[0])


def test_nothing_left_to_attack() -> None:
    x, net = data()[0], network()
    ones = x[net(x).argmax(-1) == 1]
    with pytest.raises(BadData, match=f"all {len(ones)} inputs are predicted as class 1"):
        robustness.targeted(net, ones, target=1, step=0.1, steps=2, **PLAIN)


def test_other_likelihoods_are_refused() -> None:
    x = data()[0]
    for likelihood, words in ((whence.Gaussian(noise=1.0), "Gaussian"), ("binary", "two logits")):
        with pytest.raises(NotDefined, match=words):
            robustness.fgsm(network(), x, 0.1, likelihood=likelihood)
    with pytest.raises(BadOption, match="omit likelihood"):
        robustness.fgsm(posterior("linearised"), x, 0.1, likelihood="classification")
    with pytest.raises(BadData, match="two classes"):
        robustness.fgsm(nn.Linear(4, 1).double(), x, 0.1, likelihood="classification")
    dense = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2))).double()
    with pytest.raises(NotDefined, match=r"one label"):
        robustness.fgsm(dense, x, 0.1, likelihood="classification")


def test_gradients_that_do_not_exist_are_not_signs() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.abs().sqrt())

    with pytest.raises(BadData, match="NaN or infinite for 1 of 2"):
        robustness.fgsm(Root(), torch.tensor([[1.0, 1, 1, 1], [0.0, 1, 1, 1]]), 0.1, likelihood="classification")


def test_networks_without_a_gradient_are_refused() -> None:
    class Cut(nn.Module):
        def __init__(self, learn: bool) -> None:
            super().__init__()
            self.last = nn.Linear(4, 3).requires_grad_(learn)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.detach())

    for learn in (True, False):
        with pytest.raises(NotDefined, match="no gradient in the inputs"):
            robustness.fgsm(Cut(learn), torch.ones(2, 4), 0.1, likelihood="classification")


def test_public_face() -> None:
    assert whence.robustness is robustness and "robustness" in whence.__all__
    assert sorted(robustness.__all__) == sorted(
        ["fgsm", "iterative", "span", "targeted", "untargeted", "Robustness", "RobustnessRow"]
    )
