"""Summary of a run for lists."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import StatusUpdateEvent, TaskEvent
from rxloop.recorded.summary import SummaryFold, TokenRate


@pytest.mark.parametrize(
    ("tokens", "bins"),
    [
        ([], []),
        ([(0, 0)], [0]),
        ([(0, 0), (500, 10), (999, 5), (2_000, 7)], [15, 0, 7]),
        ([(0, 1), (11_999, 2)], [1, *[0] * 10, 2]),
        ([(0, 1), (1_000, 2), (2_500, 4), (12_000, 8)], [3, 4, 0, 0, 0, 0, 8]),
        ([(0, 1), (100_000, 2)], [1, 0, 0, 0, 0, 0, 2]),
        # Clocks may be set back between attempts.
        ([(5_000, 1), (1_000, 2)], [3]),
    ],
)
def test_token_rate_has_at_most_twelve_parts_of_equal_width(tokens: list[tuple[int, int]], bins: list[int]) -> None:
    rate = TokenRate()
    for time, count in tokens:
        rate.add(time, count)
    assert rate.bins == bins


@pytest.mark.parametrize(("fork", "seconds"), [({}, 250.5), ({"fork_of": "original", "fork_seq": 2}, 0.5)])
def test_time_of_a_fork_excludes_copied_events(fork: dict[str, Any], seconds: float) -> None:
    ids: dict[str, Any] = {"task_id": "run", "context_id": "run", "attempt": 1}
    fold = SummaryFold()
    fold.add([TaskEvent(seq=1, model="small", agent_name="clerk", messages=[], timestamp=1_000, **fork, **ids)])
    fold.add([StatusUpdateEvent(seq=2, state="working", timestamp=1_100, **ids)])
    fold.add([StatusUpdateEvent(seq=3, state="working", timestamp=251_000, **ids)])
    fold.add([StatusUpdateEvent(seq=4, state="completed", final=True, timestamp=251_500, **ids)])
    assert fold.make_summary("run").seconds == seconds
