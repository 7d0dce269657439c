"""Which kernels of our own are used: those that compile here and agree with torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from whence.engine.contexts import capturing
from whence.errors import is_out_of_memory

_trusted: dict[Hashable, bool] = {}


def trusted(what: Hashable, device: torch.device, agrees: Callable[[], bool]) -> bool:
    """Whether a kernel may be used on a device: ``agrees`` compiles it and compares; asked once for each device."""
    key = what, device.index or 0
    if key not in _trusted:
        if capturing():  # nothing may be compiled or read now
            return False
        try:
            _trusted[key] = agrees()
        except Exception as error:  # no Triton, no C compiler, a device that it does not know
            if is_out_of_memory(error):
                raise
            _trusted[key] = False
    return _trusted[key]
