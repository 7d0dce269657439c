"""Labels of language models, shifted as in the models' own losses.

The models of transformers take ``labels`` with the inputs, and shift one against the other in their forward pass,
while whence computes the loss from the logits.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import BadData, notice

IGNORED = -100
CAUSAL = ("ForCausalLM", "LMHeadModel")  # endings of the names of classes whose loss shifts the labels
Rule = Callable[[Any, Any, bool], tuple[Any, Any]]  # (inputs, targets, whether they were labels) → (inputs, targets)


def label_rule(module: nn.Module) -> Rule | None:
    """The rule for reading a network's labels; None to use them unchanged."""
    inner = _models(module)
    for model in inner:
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            return _Decoder(model)
    if any(getattr(model, "loss_type", None) == "ForCausalLM" or _named(model) for model in inner):
        return _Shifted()
    return None


def argument_names(module: nn.Module) -> list[str] | None:
    """The names of the arguments of a network; None if it takes any."""
    try:
        parameters = inspect.signature(_models(module)[-1].forward).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return named or None


def _models(module: nn.Module) -> list[Any]:
    """A model, and the model inside adapters."""
    found: list[Any] = [module]
    base = getattr(module, "get_base_model", None)
    if callable(base):
        found.append(base())
    return found


def _named(model: Any) -> bool:
    return type(model).__name__.endswith(CAUSAL)


class _Shifted:
    """A causal language model: the output at a token is for the next one."""

    def __init__(self) -> None:
        self.said = False

    def __call__(self, inputs: Any, targets: Any, labels: bool) -> tuple[Any, Any]:
        tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
        if not labels or not isinstance(targets, Tensor) or targets.dim() != 2 or tokens is None:
            return inputs, targets
        if targets.shape != tokens.shape:
            return inputs, targets
        if not self.said:
            self.said = True
            notice("labels are shifted by one token against the outputs, as in the loss of a causal language model.")
        ignored = torch.full_like(targets[:, :1], IGNORED)
        return inputs, torch.cat([targets[:, 1:], ignored], 1)


class _Decoder:
    """An encoder and a decoder: the decoder reads the labels before the one that it predicts."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, inputs: Any, targets: Any, labels: bool) -> tuple[Any, Any]:
        given = isinstance(inputs, Mapping) and any(key.startswith("decoder_input") for key in inputs)
        if given or not isinstance(inputs, Mapping) or not isinstance(targets, Tensor) or targets.dim() != 2:
            return inputs, targets
        shifted = self._shifted(targets)
        if shifted is None:
            raise BadData(
                f"{type(self.model).__name__} has a decoder, but its batches have no 'decoder_input_ids'. Add the "
                "decoder's inputs to the inputs."
            )
        return {**inputs, "decoder_input_ids": shifted}, targets

    def _shifted(self, labels: Tensor) -> Tensor | None:
        """The labels as the model's own loss shifts them: by a method, or by a function of the model's file."""
        method = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if method is not None:
            return method(labels=labels)  # type: ignore[no-any-return]
        function = getattr(sys.modules.get(type(self.model).__module__), "shift_tokens_right", None)
        start = getattr(self.model.config, "decoder_start_token_id", None)
        if function is None or start is None:
            return None
        return function(labels, self.model.config.pad_token_id, start)  # type: ignore[no-any-return]


def say_if_unshifted(inputs: Any, targets: Tensor, outputs: Tensor) -> None:
    """Give a notice if the labels of a network with outputs for every token are the tokens themselves."""
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.shape != targets.shape:
        return
    if outputs.dim() != 3 or tokens.dim() != 2:
        return
    counted = targets != IGNORED
    if bool(counted.any()) and bool((tokens == targets)[counted].all()):
        notice(
            "every label is the token at its own position. If the network predicts the next token, its labels must be "
            "shifted: labels[:, t] is the token at t + 1, and -100 at the end."
        )
