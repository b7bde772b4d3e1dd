"""Messages sent at random events."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, Event, MemoryEventLog, op, replay, tool
from rxloop.errors import RunOver
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import is_well_formed, shape


@tool
async def look(at: str) -> str:
    """Look at something."""
    await asyncio.sleep(0.05)
    return f"{at} is blue"


def script() -> list[object]:
    calls = [call("look", at="a"), call("look", at="b")]
    return [
        turn(frames("-I-look.-|"), calls=calls, reasoning="Where?"),
        [call("look", at="c")],
        frames("-It-is-blue.-|"),
        "At once.",
        *[frames(f"-{number}-more-|") for number in range(40)],
    ]


steering_plans = st.lists(st.tuples(st.integers(0, 45), st.booleans()), max_size=8)
"""Event indexes with an interrupt flag."""


@given(steering_plans)
def test_messages_at_random_events_are_received_once_and_in_order(plan: list[tuple[int, bool]]) -> None:
    with virtual_time() as time:
        log, model = MemoryEventLog(), ScriptedModel(*script())  # type: ignore[arg-type]
        run = Agent(model, tools=[look], log=log).run("Go")
        accepted: list[str] = []
        rejected: list[str] = []
        count = 0

        def on_next(event: Event) -> None:
            nonlocal count
            for number, (index, interrupt) in enumerate(plan):
                if index == count:
                    try:
                        run.send(f"said {number}", interrupt=interrupt)
                    except RunOver:
                        rejected.append(f"said {number}")
                    else:
                        accepted.append(f"said {number}")
            count += 1

        async def main() -> None:
            run.events.subscribe(on_next)
            events = [event async for event in run.pipe(op.grammar())]
            result = await run
            assert result.state == "completed"
            assert is_well_formed(result.messages)
            assert [message.text for message in result.messages if message.role == "user"] == ["Go", *accepted]
            last = shape(model.requests[-1].messages)
            assert last == shape(result.messages[: len(last)])
            assert [text for text in last if text.startswith("user: ")] == [
                "user: Go",
                *(f"user: {t}" for t in accepted),
            ]
            for request in model.requests:
                assert is_well_formed(request.messages)
                assert request.messages[-1].role in ("user", "tool")
            assert events[-1].kind == "status-update"
            replayed = [event async for event in replay(log, run.task_id)]
            assert shape(fold_all(replayed).messages) == shape(result.messages)
            # Messages sent after the final event raise an error.
            assert len(accepted) + len(rejected) == len([1 for index, _ in plan if index < count])

        time.run(main())
