"""Machine-independent measurements."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_operations(work: Callable[[], Any]) -> int:
    """Return the number of executed Python instructions, without those of garbage collections.

    Collections happen at any time, and Hypothesis measures them in Python.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before, is_collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if is_collecting:
            gc.enable()
    return count


def measure_peak_memory(work: Callable[[], Any]) -> int:
    """Return the peak number of additional bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
