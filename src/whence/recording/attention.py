"""Multi-head attention in single operations, so that its projections are recorded as linear layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The result of ``F.multi_head_attention_forward`` in evaluation mode. Tensors are [T, N, features]."""
    batched = query.dim() == 3
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, size, width = query.shape
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _projected(query, key, value, in_proj_weight, in_proj_bias, separate)
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.expand(1, size, width)])
        v = torch.cat([v, bias_v.expand(1, size, width)])
    head = width // num_heads

    def heads(t: Tensor, static: Tensor | None) -> Tensor:
        if static is not None:
            return static.reshape(size, num_heads, -1, head)
        return t.reshape(t.shape[0], size, num_heads, head).permute(1, 2, 0, 3)  # [N, H, T, head]

    q, k, v = heads(q, None), heads(k, static_k), heads(v, static_v)
    extra = 1 if bias_k is not None else 0
    if add_zero_attn:
        k = torch.cat([k, torch.zeros_like(k[:, :, :1])], dim=2)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], dim=2)
        extra += 1
    scores = q @ k.mT / math.sqrt(head)  # [N, H, T, source]
    if attn_mask is None and is_causal:
        attn_mask = torch.ones(length, key.shape[0], dtype=torch.bool, device=query.device).triu(1)
    mask = _additive(attn_mask, scores, extra)
    if mask is not None:
        scores = scores + (mask if mask.dim() == 2 else mask.reshape(size, num_heads, length, -1))
    padding = _additive(key_padding_mask, scores, extra)
    if padding is not None:
        scores = scores + padding[:, None, None, :]
    weights = scores.softmax(-1)
    if training and dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    mixed = (weights @ v).permute(2, 0, 1, 3).reshape(length, size, width)
    out = F.linear(mixed, out_proj_weight, out_proj_bias)
    shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
    if not batched:
        out, shown = out.squeeze(1), None if shown is None else shown.squeeze(0)
    return out, shown


def _projected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v; one product where the three inputs are the same tensor."""
    width = query.shape[-1]
    biases = (None, None, None) if bias is None else tuple(bias[i * width : (i + 1) * width] for i in range(3))
    if separate is not None:
        inputs = (query, key, value)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip(inputs, separate, biases, strict=True))  # type: ignore[arg-type]
        return q, k, v
    assert weight is not None
    if query is key and key is value:
        q, k, v = F.linear(query, weight, bias).chunk(3, dim=-1)
        return q, k, v
    rows = [weight[i * width : (i + 1) * width] for i in range(3)]
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), rows, biases, strict=True))
    return q, k, v


def _additive(mask: Tensor | None, scores: Tensor, extra: int) -> Tensor | None:
    """A mask as numbers to add; the ``extra`` keys that attention appended are not masked."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(mask, float("-inf"))
    return F.pad(mask, (0, extra)) if extra else mask
