"""Past events of long runs, which are delivered without blocking the event loop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from reactivex import Subject

from rxloop.protocol.events import CustomEvent, Event
from rxloop.stream.readers import prepend_past
from support.long_runs import count_turns
from support.run_checks import wait_until


def make_events(first: int, last: int) -> list[Event]:
    return [CustomEvent(name="found", task_id="t", seq=seq, attempt=1) for seq in range(first, last + 1)]


@pytest.mark.parametrize("past", [0, 1_000])
async def test_other_tasks_run_while_past_events_are_delivered(past: int) -> None:  # L134
    async def read(before: int) -> Sequence[Event]:
        return make_events(1, before - 1)

    source, received, ended = Subject[Event](), list[int](), list[bool]()
    async with count_turns() as turns:

        def receive(event: Event) -> None:
            turns.count_item()
            received.append(event.seq)

        prepend_past(source, read).subscribe(receive, on_completed=lambda: ended.append(True))
        live = make_events(past + 1, past + 1_000)
        for event in live[:900]:
            source.on_next(event)
        await wait_until(lambda: len(received) >= past + 300)
        # These arrive while earlier ones are delivered.
        for event in live[900:]:
            source.on_next(event)
        source.on_completed()
        await wait_until(lambda: bool(ended))
    assert received == [*range(1, past + 1_001)]
    if past:
        assert max(turns.items.values()) <= 201
