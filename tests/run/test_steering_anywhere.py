"""Whenever something is said to a run with tools, its stream is well-formed, and the model hears each message once."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, Event, MemoryEventLog, op, replay, tool
from rxloop.errors import RunOver
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import shape, well_formed


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


said = st.lists(st.tuples(st.integers(0, 45), st.booleans()), max_size=8)
"""At which of the events of the run something is said, and whether that cuts the answer off."""


@given(said)
def test_a_run_that_is_steered_anywhere_hears_each_message_once_and_in_order(places: list[tuple[int, bool]]) -> None:
    with virtual_time() as time:
        log, model = MemoryEventLog(), ScriptedModel(*script())  # type: ignore[arg-type]
        run = Agent(model, tools=[look], log=log).run("Go")
        heard: list[str] = []
        late: list[str] = []
        seen = 0

        def on_next(event: Event) -> None:
            nonlocal seen
            for number, (place, interrupt) in enumerate(places):
                if place == seen:
                    try:
                        run.send(f"said {number}", interrupt=interrupt)
                    except RunOver:
                        late.append(f"said {number}")
                    else:
                        heard.append(f"said {number}")
            seen += 1

        async def main() -> None:
            run.events.subscribe(on_next)
            checked = [event async for event in run.pipe(op.grammar())]
            result = await run
            assert result.state == "completed"
            assert well_formed(result.messages)
            assert [message.text for message in result.messages if message.role == "user"] == ["Go", *heard]
            last = shape(model.requests[-1].messages)
            assert last == shape(result.messages[: len(last)])
            assert [text for text in last if text.startswith("user: ")] == ["user: Go", *(f"user: {t}" for t in heard)]
            for request in model.requests:
                assert well_formed(request.messages)
                assert request.messages[-1].role in ("user", "tool")
            assert checked[-1].kind == "status-update"
            again = [event async for event in replay(log, run.task_id)]
            assert shape(fold_all(again).messages) == shape(result.messages)
            # What comes after the final event is too late, and whoever said it knows.
            assert len(heard) + len(late) == len([1 for place, _ in places if place < seen])

        time.run(main())
