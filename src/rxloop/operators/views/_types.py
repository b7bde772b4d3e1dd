"""The type of a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable

A = TypeVar("A")
T = TypeVar("T")

View = Callable[[Observable[A]], Observable[T]]
"""Works for a subscriber, outside the loop; any reactivex operator is one."""
