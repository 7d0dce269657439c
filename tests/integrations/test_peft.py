"""PEFT: posteriors over adapters, compared with the dense one by autograd; training, files and other kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from tests.comparison import assert_close
from tests.integrations.pages import run_page
from tests.integrations.tiny_texts import bert, reviews, tokenizer, trained
from whence.errors import BadOption, NothingSelected

peft = pytest.importorskip("peft", reason="peft is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

from whence.integrations import huggingface  # noqa: E402
from whence.integrations.peft import adapters  # noqa: E402

Batch = tuple[dict[str, Tensor], Tensor]
PARTS = {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}


@pytest.fixture(scope="module")
def batch() -> tuple[Any, Batch]:
    """A tokenizer and padded texts."""
    texts, labels = reviews(60)
    pieces = tokenizer("BPE", texts)
    padded = pieces(texts, padding=True, return_tensors="pt")
    return pieces, ({name: padded[name] for name in ("input_ids", "attention_mask")}, torch.tensor(labels))


def adapted(words: int, batch: Batch, config: Any) -> Any:
    """A model whose adapters have made some steps, in double precision."""
    model = peft.get_peft_model(bert(words), config).double().train()
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(8):
        optimiser.zero_grad()
        model(**batch[0], labels=batch[1]).loss.backward()
        optimiser.step()
    return model.eval()


def dense_precision(model: Any, names: list[str], inputs: dict[str, Tensor]) -> Tensor:
    """Σ Jᵀ (diag(p) − p pᵀ) J over the examples, one row of a Jacobian at a time."""
    params = [dict(model.named_parameters())[name] for name in names]
    logits = model(**inputs).logits
    found: Any = 0.0
    for row in logits:
        probs = row.detach().softmax(0)
        grads = [torch.autograd.grad(one, params, retain_graph=True) for one in row]
        jacobian = torch.stack([torch.cat([g.flatten() for g in each]) for each in grads])  # [C, P]
        found = found + jacobian.T @ (probs.diag() - probs.outer(probs)) @ jacobian
    return found


def test_the_covariance_is_that_of_the_adapters(batch: Any) -> None:
    pieces, data = batch
    model = adapted(len(pieces), data, peft.LoraConfig(r=1, lora_dropout=0.1, **PARTS))
    names = adapters(model)
    assert len(names) == 8 and all(".lora_" in name for name in names)
    posterior = whence.laplace(
        model, data, likelihood="classification", layers=names, structure="full", prior_precision=3.0, progress=False
    )
    assert posterior.names() == names
    precision = dense_precision(model, names, data[0])
    precision = precision + 3.0 * torch.eye(len(precision))
    assert_close(posterior.covariance(), precision.inverse(), 1e-8)


def test_structures_of_the_kinds_of_adapters(batch: Any) -> None:
    """Low-rank ones get Kronecker factors; those that are multiplied into the weight or act by feature a diagonal."""
    pieces, data = batch
    kinds = {
        "kron": peft.LoraConfig(r=2, **PARTS),
        "diag": peft.LoraConfig(r=2, use_dora=True, **PARTS),
    }
    for structure, config in kinds.items():
        model = adapted(len(pieces), data, config)
        posterior = whence.laplace(model, data, likelihood="classification", layers=adapters(model), progress=False)
        assert {str(s.structure) for s in posterior.structures.values()} == {structure}
        assert bool((posterior.predict(data[0]).epistemic > 0).all())


def test_scaling_one_matrix_against_the_other_changes_nothing(batch: Any) -> None:
    """Under the relative prior, which is the default."""
    pieces, data = batch
    found = []
    for factor in (1.0, 8.0):
        torch.manual_seed(0)
        model = adapted(len(pieces), data, peft.LoraConfig(r=2, **PARTS))
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.mul_(factor if "lora_A" in name else 1 / factor)
        posterior = whence.laplace(model, data, likelihood="classification", layers=adapters(model), progress=False)
        found.append(
            (
                posterior.predict(data[0]).epistemic,
                torch.tensor([row.variance_share for row in posterior.where(data[0]).layers]),
            )
        )
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 1e-6)


def test_which_parameters(batch: Any) -> None:
    pieces, data = batch
    model = adapted(len(pieces), data, peft.LoraConfig(r=1, **PARTS))
    every = whence.laplace(model, data, likelihood="classification", progress=False)
    assert every.names() == adapters(model, heads=True) and len(every.names()) == 10
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["key"], task_type="SEQ_CLS"))
    model.set_adapter("other")
    assert len(adapters(model, "other")) == 4 and all(".other." in name for name in adapters(model, "other"))
    with pytest.raises(NothingSelected, match="frozen or not active"):
        adapters(model, "default")
    with pytest.raises(BadOption, match="adapters are 'default', 'other'"):
        adapters(model, "third")
    with pytest.raises(BadOption, match="no adapters of PEFT"):
        adapters(bert(len(pieces)))


def test_trained_by_the_trainer_and_saved_with_the_adapter(batch: Any, tmp_path: Path) -> None:
    pieces, (inputs, labels) = batch
    texts = datasets.Dataset.from_dict({**{name: v.tolist() for name, v in inputs.items()}, "label": labels.tolist()})
    base = bert(len(pieces))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, **PARTS))
    callback = huggingface.WhenceCallback(
        likelihood="classification", fit={"layers": adapters(model)}, track={"every": 4}, audit=False
    )
    trained(model, tmp_path, texts, [callback], processing_class=pieces, num_train_epochs=2)
    posterior = callback.posterior
    assert posterior.names() == adapters(model) and len(callback.track) == 2
    huggingface.save_pretrained(posterior, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()  # the adapter alone
    fresh = bert(len(pieces))
    fresh.load_state_dict({n.replace(".base_layer", ""): v for n, v in _plain(model).items()}, strict=False)
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    found = huggingface.from_pretrained(tmp_path / "adapter", again)
    assert_close(found.predict(inputs).epistemic, posterior.predict(inputs).epistemic, 1e-5)
    with pytest.raises(BadOption, match="holds adapters; pass the model"):
        huggingface.from_pretrained(tmp_path / "adapter")


def _plain(model: Any) -> dict[str, Tensor]:
    """The weights of the model below the adapters."""
    return model.get_base_model().state_dict()


def test_page(tmp_path: Path, monkeypatch: Any) -> None:
    run_page("peft", tmp_path, monkeypatch)
