"""The inputs of each matrix of a recurrent layer: the layer's inputs, or its states one step before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CELLS = {torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell}
SEQUENCES = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
Seen = tuple[Tensor, Tensor]  # a weight [O, D], and rows [..., D] that it multiplied


@dataclass(frozen=True)
class RecurrentCall:
    """One call of a recurrent layer or cell."""

    function: Any
    args: tuple[Any, ...]

    @property
    def x(self) -> Tensor:
        return self.args[0]

    @torch.no_grad()
    def inputs(self) -> Iterator[Seen]:
        """Every matrix with the rows that it multiplied."""
        if self.function in CELLS:
            x, state, of_input, of_state = self.args[:4]
            yield of_input, x
            yield of_state, state[0] if isinstance(state, (tuple, list)) else state
        else:
            yield from self._sequence()

    def _sequence(self) -> Iterator[Seen]:
        """Layer by layer, since torch returns only the states of the last layer."""
        packed = isinstance(self.args[3], (list, tuple))
        x, sizes, *rest = self.args if packed else (self.args[0], None, *self.args[1:])
        state, weights, biases, layers, _, _, both, *first = rest
        ways, batch_first = 1 + both, bool(first and first[0])
        each = len(weights) // (layers * ways)
        states = state if isinstance(state, (tuple, list)) else (state,)
        for layer in range(layers):
            mine = weights[layer * ways * each : (layer + 1) * ways * each]
            start = tuple(s[layer * ways : (layer + 1) * ways] for s in states)
            given = (start if isinstance(state, (tuple, list)) else start[0], mine, biases, 1, 0.0, False, both)
            args = (x, sizes, *given) if packed else (x, *given, batch_first)
            out = self.function(*args)[0]
            for way in range(ways):
                yield mine[way * each], x
                own = out.unflatten(-1, (ways, -1))[..., way, :]
                yield mine[way * each + 1], own if packed else _before(own, start[0][way], batch_first, way == 1)
            x = out


def _before(states: Tensor, start: Tensor, batch_first: bool, backwards: bool) -> Tensor:
    """The initial state of each step."""
    if states.dim() == 2:  # without a batch dimension
        states, start, time = states, start.unsqueeze(0) if start.dim() == 1 else start, 0
    else:
        time = 1 if batch_first else 0
        start = start.unsqueeze(time)
    length = states.shape[time]
    if backwards:
        return torch.cat([states.narrow(time, 1, length - 1), start], time)
    return torch.cat([start, states.narrow(time, 0, length - 1)], time)
