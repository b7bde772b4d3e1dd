"""Early answers of AG-UI clients, sent during other tool calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.run.ownership import read_open_questions
from rxloop.testing import ScriptedModel, call
from support.clients.agui import AgUiEndpoint, serve_agui
from support.clients.agui_posts import RUN_INPUT, post
from support.random_runs import SHOW_MAP
from support.run_checks import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BODY: dict[str, Any] = {**RUN_INPUT, "state": {}, "tools": [SHOW_MAP], "context": [], "forwardedProps": {}}


class Clerk:
    """Test agent and its client."""

    def __init__(self, *turns: Any) -> None:
        self.paid: list[int] = []
        self.release = asyncio.Event()
        self.task_id = ""
        self.served: AgUiEndpoint
        self.requests: list[asyncio.Task[Any]] = []

        @tool(approve=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        @tool
        async def slow() -> str:
            """Wait for the test."""
            await self.release.wait()
            return "slow"

        self.model = ScriptedModel(*turns)
        self.agent: Agent[Any, Any] = Agent(self.model, tools=[pay, slow], thoughts=False, name="clerk")

    def send(self, number: int, **changes: Any) -> asyncio.Task[list[dict[str, Any]]]:
        """Send a request and collect its events in the background."""

        async def stream() -> list[dict[str, Any]]:
            return (await post(self.served.url, {**BODY, "runId": f"r{number}", **changes}))[1]

        task = asyncio.ensure_future(stream())
        self.requests.append(task)
        return task

    def entry(self, input_id: str, payload: Any = True) -> dict[str, Any]:
        return {"interruptId": f"{self.task_id}:{input_id}", "status": "resolved", "payload": payload}

    async def wait_for_questions(self, *input_ids: str) -> None:
        async def wait() -> None:
            log = self.served.runtime.log
            while not (records := await log.list_runs()):  # noqa: ASYNC110 (there is no event for it)
                await asyncio.sleep(0)
            self.task_id = records[0].task_id
            while {each.input_id for each in await read_open_questions(log, self.task_id)} != set(input_ids):  # noqa: ASYNC110
                await asyncio.sleep(0)

        await asyncio.wait_for(wait(), 5)

    async def wait_for_payments(self, *amounts: int) -> None:
        await asyncio.wait_for(wait_until(lambda: self.paid == list(amounts)), 5)

    async def finish(self) -> None:
        """Finish the run and check all responses."""
        self.release.set()
        for events in await asyncio.wait_for(asyncio.gather(*self.requests), 10):
            assert events[-1]["type"] == "RUN_FINISHED", events[-1]
        assert (await self.served.runtime.get_record(self.task_id)).state == "completed"


@contextlib.asynccontextmanager
async def serve(clerk: Clerk) -> AsyncGenerator[None]:
    async with serve_agui(clerk.agent, on_disconnect="keep") as clerk.served:
        try:
            yield
        finally:
            clerk.release.set()
            for each in clerk.requests:
                each.cancel()


def make_clerk_with_two_questions() -> Clerk:
    return Clerk(call("pay", amount=1), [call("pay", amount=2), call("slow")], "Done.")


@pytest.mark.parametrize("is_repeated", [False, True], ids=["only the new answer", "with the earlier answer"])
async def test_early_answer_is_accepted_in_a_second_attempt(is_repeated: bool) -> None:  # P24
    clerk = make_clerk_with_two_questions()
    async with serve(clerk):
        await clerk.send(1)
        await clerk.wait_for_questions("1.0.1")
        clerk.send(2, resume=[clerk.entry("1.0.1")])
        await clerk.wait_for_payments(1)
        await clerk.wait_for_questions("2.0.1")
        earlier = [clerk.entry("1.0.1")] if is_repeated else []
        clerk.send(3, resume=[*earlier, clerk.entry("2.0.1")])
        await clerk.wait_for_payments(1, 2)
        await clerk.finish()


async def test_early_answer_is_accepted_next_to_an_earlier_client_tool_result() -> None:  # P24
    clerk = Clerk(call("show_map", city="Oslo"), [call("pay", amount=2), call("slow")], "Done.")
    async with serve(clerk):
        events = await clerk.send(1)
        [pending] = events[-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "mine", "role": "tool", "toolCallId": pending, "content": '{"shown": true}'}
        messages = [*BODY["messages"], result]
        await clerk.wait_for_questions("1.0.1")
        clerk.send(2, messages=messages)
        await clerk.wait_for_questions("2.0.1")
        clerk.send(3, messages=messages, resume=[clerk.entry("2.0.1")])
        await clerk.wait_for_payments(2)
        await clerk.finish()


async def test_question_left_open_by_another_client_can_be_answered_early() -> None:  # P24
    clerk = Clerk([call("pay", amount=1), call("pay", amount=2), call("slow")], "Done.")
    async with serve(clerk):
        first = clerk.send(1)
        await clerk.wait_for_questions("1.0.1", "1.1.1")
        clerk.release.set()
        await first
        clerk.release.clear()
        await clerk.served.runtime.answer(clerk.task_id, {"1.0.1": True})
        await clerk.wait_for_payments(1)
        await clerk.wait_for_questions("1.1.1")
        clerk.send(2, resume=[clerk.entry("1.1.1")])
        await clerk.wait_for_payments(1, 2)
        await clerk.finish()


async def test_two_early_questions_of_a_second_attempt_are_answered_one_by_one() -> None:  # P24
    calls = [call("pay", amount=2), call("pay", amount=3), call("slow")]
    clerk = Clerk(call("pay", amount=1), calls, "Done.")
    async with serve(clerk):
        await clerk.send(1)
        await clerk.wait_for_questions("1.0.1")
        clerk.send(2, resume=[clerk.entry("1.0.1")])
        await clerk.wait_for_questions("2.0.1", "2.1.1")
        clerk.send(3, resume=[clerk.entry("2.1.1")])
        await clerk.wait_for_payments(1, 3)
        clerk.send(4, resume=[clerk.entry("2.0.1")])
        await clerk.wait_for_payments(1, 3, 2)
        await clerk.finish()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_client_can_send_the_result_of_its_tool_early(attempt: int) -> None:  # P24
    first_turn = [call("pay", amount=1)] if attempt == 2 else []
    clerk = Clerk(*first_turn, [call("show_map", city="Oslo"), call("slow")], "Done.")
    async with serve(clerk):
        if attempt == 2:
            await clerk.send(1)
            await clerk.wait_for_questions("1.0.1")
            clerk.send(2, resume=[clerk.entry("1.0.1")])
        else:
            clerk.send(1)
        await clerk.wait_for_questions(f"{attempt}.0.1")
        result = {"id": "x", "role": "tool", "toolCallId": f"{clerk.task_id}:{attempt}:0", "content": "5"}
        clerk.send(3, messages=[*BODY["messages"], result])
        await clerk.wait_for_questions()
        await clerk.finish()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_message_sent_with_an_early_answer_is_in_the_history(attempt: int) -> None:  # P24
    first_turn = [call("pay", amount=1)] if attempt == 2 else []
    clerk = Clerk(*first_turn, [call("pay", amount=2), call("slow")], "Done.")
    async with serve(clerk):
        if attempt == 2:
            await clerk.send(1)
            await clerk.wait_for_questions("1.0.1")
            clerk.send(2, resume=[clerk.entry("1.0.1")])
        else:
            clerk.send(1)
        await clerk.wait_for_questions(f"{attempt}.0.1")
        message = {"id": "more", "role": "user", "content": "And quickly."}
        clerk.send(3, messages=[*BODY["messages"], message], resume=[clerk.entry(f"{attempt}.0.1")])
        await clerk.wait_for_questions()
        await clerk.finish()
    assert [each.text for each in clerk.model.requests[-1].messages if each.role == "user"] == ["Go.", "And quickly."]
