"""transformers, tokenizers and datasets: loaders, words on the page, posteriors in model folders, and the callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from tests.integrations.pages import run_page
from tests.integrations.tiny_texts import bert, reviews, tokenizer, trained
from whence.errors import BadData, BadFile, BadOption

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from whence.integrations import huggingface  # noqa: E402

QUICK: dict[str, Any] = {"quick": True, "inputs": 3, "sections": ["quality", "inputs", "layers"]}
datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def texts() -> tuple[Any, Any, Any]:
    """A tokenizer, and data sets for training and test, with the texts still in them."""
    found, labels = reviews(220)
    pieces = tokenizer("BPE", found)
    whole = datasets.Dataset.from_dict({"text": found, "label": labels})
    whole = whole.map(lambda rows: pieces(rows["text"]), batched=True)
    return pieces, whole.select(range(160)), whole.select(range(160, 220))


def test_a_data_set_of_texts_by_its_collator(texts: Any) -> None:
    pieces, train, _ = texts
    model = bert(len(pieces)).eval()
    loader = huggingface.loader(train, tokenizer=pieces, model=model, batch_size=40)
    posterior = whence.laplace(model, loader, likelihood="classification", progress=False)
    padded = pieces(train["text"][:], padding=True, return_tensors="pt")
    inputs = {name: padded[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        loss = model(**inputs, labels=torch.tensor(train["label"][:])).loss
    assert posterior.record.loss / 160 == pytest.approx(float(loss), rel=1e-5)
    same = whence.laplace(model, (inputs, torch.tensor(train["label"][:])), likelihood="classification", progress=False)
    for name, value in same.variance().items():
        assert_close(posterior.variance()[name], value, 1e-4)
    without = huggingface.loader(train, tokenizer=pieces)  # leaves out what is text
    assert sorted(next(iter(without))) == ["attention_mask", "input_ids", "labels"]
    with pytest.raises(BadData, match=r"pass a datasets\.Dataset"):
        huggingface.loader([1, 2])


def test_a_data_set_of_equal_lengths_is_data_itself(texts: Any) -> None:
    pieces, train, _ = texts
    model = bert(len(pieces)).eval()
    equal = train.map(lambda rows: pieces(rows["text"], padding="max_length", max_length=10), batched=True)
    for one in (equal, equal.with_format("torch")):
        posterior = whence.laplace(model, one, likelihood="classification", validation=one, progress=False)
        assert posterior.record.data_size == 160 and posterior.tuning is not None
        assert posterior.predict(one).probs.shape == (160, 2)
    with pytest.raises(BadData, match="Tokenise, pad or convert"):
        whence.laplace(model, train, likelihood="classification", progress=False)


def test_the_callback_tracks_fits_and_audits(texts: Any, tmp_path: Path) -> None:
    pieces, train, test = texts
    model = bert(len(pieces))
    callback = huggingface.WhenceCallback(
        likelihood="classification", folder=tmp_path / "whence", test=test, audit=QUICK, track={"every": 10}
    )
    trained(
        model, tmp_path, train, [callback], eval_dataset=test, processing_class=pieces, eval_strategy="epoch",
        num_train_epochs=4,
    )  # fmt: skip
    assert [r.step for r in callback.track.records] == [10, 20, 30, 40]
    assert callback.track.records[-1].loss < callback.track.records[0].loss
    assert callback.posterior.record.data_size == 160 and callback.posterior.tuning is not None
    results = callback.audit.results
    assert results.data.test.inputs == 60 and results.quality is not None
    every = {word for text in test["text"] for word in text.split()}
    for one in results.inputs:
        assert {token.text for token in one.tokens if "·" not in token.text} <= every | {"·" + w for w in every}
    text = " ".join(token.text for token in results.inputs[0].tokens).replace(" ·", "")
    assert text == test["text"][results.inputs[0].index]
    assert {"track.jsonl", "posterior.safetensors", "audit.html"} <= {p.name for p in (tmp_path / "whence").iterdir()}
    assert (tmp_path / "whence" / "audit.html").read_text().count("Ġ") == 0


def test_the_training_is_the_same_with_and_without_the_callback(texts: Any, tmp_path: Path) -> None:
    pieces, train, _ = texts
    states = []
    for i in range(2):
        callback = huggingface.WhenceCallback(likelihood="classification", audit=False, track={"every": 3})
        model = bert(len(pieces))
        trained(model, tmp_path, train, [callback] * i, processing_class=pieces, num_train_epochs=1)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_posterior_in_the_folder_of_its_model(texts: Any, tmp_path: Path) -> None:
    pieces, train, test = texts
    model = bert(len(pieces)).eval()
    loader = huggingface.loader(train, tokenizer=pieces, model=model)
    posterior = whence.laplace(model, loader, likelihood="classification", progress=False)
    path = huggingface.save_pretrained(posterior, tmp_path / "reviews", pieces)
    assert {"config.json", "model.safetensors", "tokenizer.json", path.name} <= {p.name for p in path.parent.iterdir()}
    known = transformers.AutoModelForSequenceClassification.from_pretrained(path.parent)
    asked = next(iter(huggingface.loader(test, tokenizer=pieces, model=model)))
    inputs = {name: asked[name] for name in ("input_ids", "attention_mask")}
    for again in (huggingface.from_pretrained(path.parent), huggingface.from_pretrained(path.parent, known)):
        assert_close(again.predict(inputs).probs, posterior.predict(inputs).probs, 1e-6)
        assert_close(again.predict(inputs).epistemic, posterior.predict(inputs).epistemic, 1e-5)
    with pytest.raises(BadFile, match="other weights"):
        huggingface.from_pretrained(
            path.parent, bert(len(pieces)).apply(lambda m: getattr(m, "reset_parameters", int)())
        )
    with pytest.raises(BadFile, match="snapshot_download"):
        huggingface.from_pretrained("someone/something")
    plain = whence.laplace(nn.Linear(2, 2), (torch.randn(9, 2), torch.arange(9) % 2), likelihood="classification")
    with pytest.raises(BadOption, match="not of one model with save_pretrained"):
        huggingface.save_pretrained(plain, tmp_path)


def test_a_label_for_every_token(texts: Any) -> None:
    """A tagger: whether a piece begins a word; the collator pads the labels."""
    pieces, train, _ = texts

    def tags(rows: Any) -> Any:
        read = huggingface.words(pieces)
        return {"labels": [[int(not word.startswith("·")) for word in read(ids)] for ids in rows["input_ids"]]}

    tagged = train.map(tags, batched=True, remove_columns=["label"]).select(range(40))
    model = bert(len(pieces), "BertForTokenClassification").eval()
    collator = transformers.DataCollatorForTokenClassification(pieces)
    loader = huggingface.loader(tagged, collator, model=model, batch_size=16)
    likelihood = whence.Categorical(class_dim=-1)
    posterior = whence.laplace(model, loader, likelihood=likelihood, progress=False)
    audit = whence.audit(posterior, loader, test=loader, tokens=pieces, progress=False, **QUICK)
    token = audit.results.inputs[0].tokens[0]
    assert token.uncertainty is not None and token.text.isalpha()
    assert audit.results.data.elements == "tokens"


@pytest.mark.parametrize(
    ("kind", "raw"), [("BPE", ["Ġthe", "Ġfi"]), ("WordPiece", ["the", "##lm"]), ("Unigram", ["▁"])]
)
def test_pieces_of_words(kind: str, raw: list[str]) -> None:
    found, _ = reviews(60)
    pieces = tokenizer(kind, [*found, "fi lm re fi lm re"])
    ids = pieces("the film was refilm", add_special_tokens=False)["input_ids"]
    assert set(raw[:1]) <= set(pieces.convert_ids_to_tokens(ids))
    shown = huggingface.words(pieces)([pieces.cls_token_id, *ids])
    assert shown[0] == "[CLS]" and not shown[1].startswith("·")
    assert " ".join(shown[1:]).replace(" ·", "").replace("▁ ", "") == "the film was refilm"
    assert any(one.startswith("·") for one in shown)


def test_page(tmp_path: Path, monkeypatch: Any) -> None:
    found = run_page("huggingface", tmp_path, monkeypatch)
    assert found["callback"].posterior.record.accuracy > 0.9
    assert (tmp_path / "whence" / "audit.html").is_file()
