"""What counts as out of memory, and what is halved first."""

from __future__ import annotations

import pytest

from tests.curvature.running_out import FULL
from whence.engine.memory import ChunkLimits
from whence.errors import TooLarge, WhenceError, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (FULL, True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (TooLarge("out of memory, said in words"), False),
        (WhenceError("out of memory"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, wanted: bool) -> None:
    assert is_out_of_memory(error) is wanted


def test_columns_are_halved_before_examples() -> None:
    limits = ChunkLimits(under_way=5)
    assert limits.halve(8) and (limits.examples, limits.columns) == (None, 2)
    limits.under_way = 2
    assert limits.halve(8) and limits.columns == 1
    limits.under_way = 1
    assert limits.halve(8) and limits.examples == 4
    limits.under_way = 2
    assert limits.halve(1)
    limits.under_way = 1
    assert not limits.halve(1)
