"""How a run stood after each of its events, as its owner and as those who run the server may see it."""

from __future__ import annotations

import pytest

from rxloop import Agent, MemoryEventLog, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.replay import history
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_api


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


@tool(hidden=True)
async def peek() -> str:
    """Look where nobody sees it."""
    return "seen in secret"


async def test_the_state_after_each_event_is_a_fold_of_what_the_reader_may_see() -> None:
    log = MemoryEventLog()
    script = ([call("peek"), call("pay", amount=5)], "It is paid.")
    agent = Agent(ScriptedModel(*script), tools=[pay, peek], instructions="Be brief.", thoughts=False, name="clerk")
    async with serve_api(agent, log=log) as served:
        async with Client(served.url, token="ann-key") as ann, Client(served.url, token="root-key") as root:
            run = await ann.start(None, "Pay 5", context_id="talk", wait=10)
            waiting = await ann.state(run.task_id)
            await ann.answer(run.task_id, {run.pending[0].input_id: True}, wait=10)
            events = await log.read(run.task_id)
            for seq in range(1, len(events) + 1):
                whole = fold_all(events[:seq])
                shown, inside = await ann.state(run.task_id, seq), await root.state(run.task_id, seq, internal=True)
                assert shown.messages == list(select_public_messages(whole.messages))
                assert inside.messages == list(whole.messages)
                assert (shown.state, shown.iteration, shown.seq) == (whole.state, whole.iteration, seq)
                assert [each.name for each in shown.calls] == [each.name for each in inside.calls if not each.hidden]
                assert "peek" not in shown.model_dump_json()
            last = await ann.state(run.task_id)
            assert last.messages == await history(log, "talk", public=True)
            with pytest.raises(ApiError) as beyond:
                await ann.state(run.task_id, len(events) + 1)
            with pytest.raises(ApiError) as forbidden:
                await ann.state(run.task_id, internal=True)
    assert [each.name for each in waiting.calls] == ["pay"]
    assert [each.input_id for each in waiting.pending] == [run.pending[0].input_id]
    assert (last.state, last.content, last.calls) == ("completed", "It is paid.", [])
    assert (beyond.value.status, list(beyond.value.fields)) == (422, ["seq"])
    assert forbidden.value.status == 403
