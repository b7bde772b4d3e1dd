"""Numbers of messages and open calls in outlines, compared with the folded state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rxloop import Agent, Event, EventLog, MemoryEventLog, Message, tool
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.outline import OutlineFold, OutlineState
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call, virtual_time
from support.viewer_runs import hostile_desk, weather_desk
from support.viewer_talk import record_conversation


@tool(hidden=True)
async def peek(secret: str) -> str:
    """Look at hidden data."""
    return secret


async def _record_weather(log: EventLog) -> str:
    run = weather_desk(log).run(
        [Message.user("Oslo?"), Message(role="assistant", content="Or Bergen?"), Message.user("Yes.")]
    )
    async for _ in run:
        pass
    return run.task_id


async def _record_hidden(log: EventLog) -> str:
    model = ScriptedModel(
        [call("peek", secret="a"), call("think_aloud", thought="x")], call("peek", secret="b"), "Done."
    )
    run = Agent(model, tools=[peek], log=log).run("Look")
    async for _ in run:
        pass
    return run.task_id


async def _record_hostile(log: EventLog) -> str:
    run = hostile_desk(log).run("Read")
    async for _ in run:
        pass
    return run.task_id


@pytest.fixture(params=[_record_weather, _record_hidden, _record_hostile, record_conversation])
def events(request: pytest.FixtureRequest) -> Sequence[Event]:
    log = MemoryEventLog()
    with virtual_time() as time:
        task_id = time.run(request.param(log))
        return time.run(log.read(task_id))


@pytest.mark.parametrize("internal", [True, False])
def test_counts_equal_the_state_after_every_event(events: Sequence[Event], internal: bool) -> None:
    fold = OutlineFold(OutlineState(), internal=internal)
    fold.add(events)
    page = fold.make_page("run", seq=events[-1].seq, final=True)
    for index, event in enumerate(events):
        state = fold_all(events[: index + 1])
        messages = state.messages if internal else select_public_messages(list(state.messages))
        calls = [] if state.batch is None else [state.batch.calls[each] for each in state.batch.open]
        visible = [each for each in calls if internal or not each.hidden]
        assert (page.messages[index], page.calls[index]) == (len(messages), len(visible)), (event.seq, event.kind)
    assert max(page.calls) >= 1


def test_counts_continue_on_the_next_page(events: Sequence[Event]) -> None:
    whole = OutlineFold(OutlineState(), internal=True)
    whole.add(events)
    page = whole.make_page("run", seq=events[-1].seq, final=True)
    for middle in range(1, len(events)):
        first = OutlineFold(OutlineState(), internal=False)
        first.add(events[:middle])
        rest = OutlineFold(first.state, internal=True)
        rest.add(events[middle:])
        assert rest.make_page("run", seq=events[-1].seq, final=True).messages == page.messages[middle:]
