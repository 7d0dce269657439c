"""What users pass as data: every kind gives the same answer, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, TensorDataset

import whence
from whence.engine.sources import as_source, is_examples
from whence.errors import BadData

N = 40


class Hub:
    """What ``datasets.Dataset`` shows: columns by name, rows as mappings of plain values, no torch."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, int):
            return {name: values[which] for name, values in self.columns.items()}
        return {name: [values[i] for i in which] for name, values in self.columns.items()}


class Rows(Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


def given() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return fresh()


def fresh() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


KINDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "TensorDataset": TensorDataset,
    "Dataset": Rows,
    "examples": lambda x, y: [(x[i], int(y[i])) for i in range(N)],
    "examples with tensors": lambda x, y: [(x[i], y[i]) for i in range(N)],
    "examples of NumPy": lambda x, y: [(x[i].numpy(), y[i].numpy()) for i in range(N)],
    "examples of numbers": lambda x, y: tuple((x[i].tolist(), int(y[i])) for i in range(N)),
    "hub, one column": lambda x, y: Hub(pixels=x.tolist(), label=y.tolist()),
    "hub, more columns": lambda x, y: Hub(input=x.tolist(), labels=y.tolist(), text=["…"] * N),
    "hub of tensors": lambda x, y: Hub(input=list(x), labels=list(y)),
    "pandas": lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
    "NumPy": lambda x, y: (x.numpy(), y.numpy()),
    "targets in a list": lambda x, y: (x, y.tolist()),
}
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "laplace": lambda p, d: whence.laplace(network(), d, likelihood="classification").predict(given()[0]).probs,
    "predict": lambda p, d: p.predict(d).probs,
    "where": lambda p, d: torch.tensor([row.variance_share for row in p.where(d).layers]),
    "novelty": lambda p, d: whence.novelty(p, d, reference=d).score,
    "tune": lambda p, d: p.tune(d, progress=False).predict(given()[0]).probs,
    "prune_curve": lambda p, d: torch.tensor(whence.prune_curve(p, d).to_pandas().select_dtypes("number").to_numpy()),
}


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_answer(verb: str, kind: str) -> None:
    x, y = given()
    posterior = whence.laplace(network(), (x, y), likelihood="classification")
    expected, found = VERBS[verb](posterior, (x, y)), VERBS[verb](posterior, KINDS[kind](x, y))
    assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("kind", ["Dataset", "examples", "hub, more columns"])
def test_every_verb_reads_every_kind(kind: str) -> None:
    x, y = given()
    data, model, how = KINDS[kind](x, y), network(), {"likelihood": "classification", "progress": False}
    posteriors = {
        "laplace": whence.laplace(model, data, **how),  # type: ignore[call-overload]
        "variational": whence.variational(model, data, epochs=1, **how),  # type: ignore[arg-type]
        "swag": whence.swag(model, data, epochs=2, **how),  # type: ignore[arg-type]
        "hmc": whence.hmc(model, data, num_samples=2, warmup=2, chains=1, **how),  # type: ignore[arg-type]
        "ensemble": whence.fit_ensemble(fresh, data, members=2, epochs=1, **how),  # type: ignore[arg-type]
    }
    whence.track(model, data, likelihood="classification", subset=10)
    found = whence.compare(posteriors, data, ood=data, progress=False)
    assert found.results.data.test.inputs == N
    audit = whence.audit(model, data, test=data, validation=data, ood=data, quick=True, **how)  # type: ignore[arg-type]
    assert audit.results.data.test is not None and audit.results.data.test.inputs == N


def test_a_data_set_without_a_loader_is_shuffled_in_training() -> None:
    x, y = given()
    seen: list[Tensor] = []

    class Watched(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            if self.training:
                seen.append(input.detach().clone())
            return super().forward(input)

    whence.zoo.train(Watched(nn.Linear(4, 3)), Rows(x, y), epochs=2, batch_size=N, progress=False)
    whole = [batch for batch in seen if len(batch) == N]
    assert len(whole) >= 2
    assert not torch.equal(whole[0], whole[1])
    assert_close(whole[0].sum(0), whole[1].sum(0), rtol=1e-4, atol=1e-4)


def test_batches_are_not_taken_for_examples() -> None:
    x, y = given()
    assert not is_examples([(x, y)])
    assert not is_examples(list(DataLoader(TensorDataset(x, y), 1)))
    assert not is_examples([(torch.arange(3), torch.arange(3))])  # tokens, and a label for each
    assert not is_examples([(torch.tensor([7]), torch.tensor([1]))])  # one token and its label
    assert is_examples([(x[0], y[0])])
    assert is_examples([(x[0], torch.zeros(2))])
    assert is_examples([(torch.zeros(1), torch.zeros(1))])
    assert is_examples([{"input_ids": torch.arange(3), "labels": torch.arange(3)}])
    assert not is_examples([{"input_ids": torch.zeros(2, 3), "labels": torch.arange(2)}])


def test_examples_with_several_inputs_and_mappings() -> None:
    x, y = given()
    inputs, targets = as_source([((x[i], x[i] + 1), y[i]) for i in range(N)])
    assert_close(inputs[1], x + 1)
    assert_close(targets, y)
    inputs, targets = as_source([{"values": x[i].numpy(), "label": int(y[i])} for i in range(N)])
    assert_close(inputs["values"], x)
    assert_close(targets, y)


def test_what_cannot_be_read_is_named() -> None:
    x, y = given()
    with pytest.raises(BadData, match=r"different shapes \(\[3\], \[4\]\)"):
        as_source([(x[0], 1), (x[1, :3], 0)])
    with pytest.raises(BadData, match=r"no column .* it has \['a', 'b', 'label'\]. The network takes input"):
        whence.laplace(network(), Hub(a=x.tolist(), b=x.tolist(), label=y.tolist()), likelihood="classification")
    ragged = Hub(input=[[1.0] * (1 + i % 3) for i in range(N)], label=y.tolist())
    with pytest.raises(BadData, match=r"column 'input' .* of 1 to 3 elements"):
        whence.laplace(network(), ragged, likelihood="classification")
    with pytest.raises(BadData, match=r"columns \['name'\] holds values of type"):
        as_source((pd.DataFrame({"name": ["a"] * N}), y))
    with pytest.raises(BadData, match="data is the text"):
        whence.laplace(network(), "classification", likelihood="classification")
    with pytest.raises(BadData, match="one example"):
        whence.laplace(network(), (x[0], y[0]), likelihood="classification")
    with pytest.raises(BadData, match="one example"):
        whence.laplace(network(), (x[0], 1), likelihood="classification")
    with pytest.raises(BadData, match="batch_size"):
        whence.laplace(network(), DataLoader(TensorDataset(x, y), batch_size=None), likelihood="classification")


def test_arrays_with_negative_strides() -> None:
    x, y = given()
    assert_close(as_source((x.numpy()[::-1], np.asarray(y)))[0], x.flip(0))
