"""Clock controlled by a test."""

from __future__ import annotations

MINUTE = 60_000


class FakeClock:
    """Manually controlled clock."""

    def __init__(self) -> None:
        self.time = 1_700_000_000_000

    def now(self) -> int:
        return self.time

    def monotonic(self) -> float:
        return self.time / 1_000
