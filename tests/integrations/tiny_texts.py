"""Made-up film reviews, tokenizers trained on them, and tiny models of transformers from configurations."""

from __future__ import annotations

from typing import Any

import torch

GOOD = ["good", "great", "lovely", "bright", "wonderful", "happily", "enjoyed"]
BAD = ["bad", "awful", "dull", "boring", "terrible", "sadly", "hated"]
OTHER = ["the", "film", "was", "and", "a", "plot", "actors", "music", "story", "we", "saw", "it"]


def reviews(count: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts of three to eight words, and whether they are good."""
    generator = torch.Generator().manual_seed(seed)

    def number(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator))

    labels = [i % 2 for i in range(count)]
    pools = [(GOOD if label else BAD) + OTHER[:8] for label in labels]
    return [" ".join(pool[number(len(pool))] for _ in range(3 + number(6))) for pool in pools], labels


def tokenizer(kind: str, texts: list[str]) -> Any:
    """``BPE`` (by bytes), ``WordPiece`` or ``Unigram``."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    special = ["[PAD]", "[UNK]", "[CLS]"]
    made = {
        "BPE": (models.BPE(unk_token="[UNK]"), pre_tokenizers.ByteLevel(), decoders.ByteLevel()),
        "WordPiece": (models.WordPiece(unk_token="[UNK]"), pre_tokenizers.Whitespace(), decoders.WordPiece()),
        "Unigram": (models.Unigram(), pre_tokenizers.Metaspace(), decoders.Metaspace()),
    }
    found = tokenizers.Tokenizer(made[kind][0])
    found.pre_tokenizer, found.decoder = made[kind][1:]
    options: dict[str, Any] = {"unk_token": "[UNK]"} if kind == "Unigram" else {}
    trainer = getattr(trainers, f"{kind.replace('BPE', 'Bpe')}Trainer")(
        vocab_size=120, special_tokens=special, show_progress=False, **options
    )
    found.train_from_iterator(texts, trainer)
    names = dict(zip(("pad_token", "unk_token", "cls_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, **names)


def bert(words: int, kind: str = "BertForSequenceClassification", labels: int = 2) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=words, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, num_labels=labels, attn_implementation="eager",
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def trained(model: Any, folder: Any, train: Any, callbacks: Any = (), **options: Any) -> Any:
    """A trainer that has trained a model on the CPU."""
    import transformers

    arguments: dict[str, Any] = {"num_train_epochs": 3, "learning_rate": 3e-3, "per_device_train_batch_size": 16}
    given = {name: options.pop(name) for name in list(options) if name in ("num_train_epochs", "eval_strategy", "bf16")}
    args = transformers.TrainingArguments(
        str(folder), **{**arguments, **given}, report_to=[], use_cpu=True, save_strategy="no", logging_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, args, train_dataset=train, callbacks=list(callbacks), **options)
    trainer.train()
    return trainer
