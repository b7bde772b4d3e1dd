"""Agents of OpenAI's Agents SDK with a served agent as their model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from rxloop import Agent, tool
from rxloop.testing import ScriptedModel, call, turn
from support.clients.openai import serve_openai

sdk = pytest.importorskip("agents", reason="openai-agents is not installed")

pytestmark = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])

SERVER = {"type": "mcp", "server_label": "rxloop", "require_approval": "always", "server_url": "http://localhost"}
TWICE = [call("pay", "0", amount=5), call("pay", "1", amount=7)]


@pytest.fixture(autouse=True)
def disable_tracing() -> None:
    sdk.set_tracing_disabled(True)


class Clerk:
    """Agent of the SDK, with the payments of the served agent."""

    def __init__(self, agent: Any, paid: list[int], model: ScriptedModel, client: AsyncOpenAI, streams: bool) -> None:
        self.agent, self.paid, self.model, self.client, self._streams = agent, paid, model, client, streams

    async def run(self, given: Any, **options: Any) -> Any:
        """Run the agent with a prompt, items or a state until it is done or has questions."""
        if not self._streams:
            return await sdk.Runner.run(self.agent, given, **options)
        result = sdk.Runner.run_streamed(self.agent, given, **options)
        async for _ in result.stream_events():
            pass
        return result


@asynccontextmanager
async def make_clerk(streams: bool, *turns: Any, tools: Any = None) -> AsyncGenerator[Clerk]:
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return f"paid {amount}"

    model = ScriptedModel(*turns)
    async with (
        serve_openai(Agent(model, tools=[pay], thoughts=False, name="clerk")) as served,
        served.client() as client,
    ):
        offered = [sdk.HostedMCPTool(tool_config=SERVER)] if tools is None else tools
        served_model = sdk.OpenAIResponsesModel(model="clerk", openai_client=client)
        yield Clerk(sdk.Agent(name="clerk", model=served_model, tools=offered), paid, model, client, streams)


def list_results(model: ScriptedModel) -> list[str]:
    """Return the tool results that the model of the served agent received."""
    return [each.text for each in model.requests[-1].messages if each.role == "tool"]


async def test_approved_calls_are_executed(streams: bool) -> None:
    async with make_clerk(streams, turn("Paying.", calls=TWICE), "Done.") as clerk:
        asked = await clerk.run("Pay.")
        assert [(each.name, each.arguments) for each in asked.interruptions] == [
            ("pay", '{"amount":5}'),
            ("pay", '{"amount":7}'),
        ]
        state = asked.to_state()
        for each in asked.interruptions:
            state.approve(each)
        done = await clerk.run(state)
        assert done.final_output == "Done."
        assert done.interruptions == []
        assert sorted(clerk.paid) == [5, 7]


async def test_rejected_call_is_not_executed(streams: bool) -> None:
    async with make_clerk(streams, TWICE, "Done.") as clerk:
        asked = await clerk.run("Pay.")
        state = asked.to_state()
        state.approve(asked.interruptions[0])
        state.reject(asked.interruptions[1])
        done = await clerk.run(state)
        assert done.final_output == "Done."
        assert clerk.paid == [5]
        assert list_results(clerk.model) == ["paid 5", "The call of pay was not approved."]


async def test_approvals_follow_each_other(streams: bool) -> None:
    calls = [[call("pay", str(number), amount=number)] for number in range(1, 4)]
    async with make_clerk(streams, *calls, "Done.") as clerk:
        result = await clerk.run("Pay.")
        while result.interruptions:
            state = result.to_state()
            for each in result.interruptions:
                state.approve(each)
            result = await clerk.run(state)
        assert result.final_output == "Done."
        assert clerk.paid == [1, 2, 3]


async def test_state_is_resumed_after_it_was_stored(streams: bool) -> None:
    async with make_clerk(streams, [call("pay", "0", amount=5)], "Done.") as clerk:
        stored = (await clerk.run("Pay.")).to_state().to_string()
        state = await sdk.RunState.from_string(clerk.agent, stored)
        [approval] = state.get_interruptions()
        state.approve(approval)
        assert (await clerk.run(state)).final_output == "Done."
        assert clerk.paid == [5]


async def test_hook_of_the_server_answers(streams: bool) -> None:
    def answer(request: Any) -> dict[str, Any]:
        return {"approve": '"amount":5' in request.data.arguments}

    server = sdk.HostedMCPTool(tool_config=SERVER, on_approval_request=answer)
    async with make_clerk(streams, TWICE, "Done.", tools=[server]) as clerk:
        done = await clerk.run("Pay.")
        assert done.final_output == "Done."
        assert clerk.paid == [5]


@pytest.mark.parametrize("continues", ["items", "previous_response_id", "session", "conversation"])
async def test_conversation_continues_after_an_approval(continues: str, streams: bool) -> None:
    async with make_clerk(streams, "Hello.", [call("pay", "0", amount=5)], "Done.", "You paid 5.") as clerk:
        options: dict[str, Any] = {}
        if continues == "session":
            options["session"] = sdk.SQLiteSession("ann")
        elif continues == "conversation":
            options["conversation_id"] = (await clerk.client.conversations.create()).id
        elif continues == "previous_response_id":
            options["auto_previous_response_id"] = True
        result = await clerk.run("Hello.", **options)
        for prompt in ("Pay 5.", "What did I pay?"):
            if continues == "previous_response_id":
                options["previous_response_id"] = result.last_response_id
            given: Any = prompt
            if continues == "items":
                given = [*result.to_input_list(), {"role": "user", "content": prompt}]
            result = await clerk.run(given, **options)
            if result.interruptions:
                state = result.to_state()
                state.approve(result.interruptions[0])
                result = await clerk.run(state, **({"session": options["session"]} if "session" in options else {}))
        assert result.final_output == "You paid 5."
        assert clerk.paid == [5]
        texts = [each.text for each in clerk.model.requests[-1].messages if each.role in ("user", "assistant")]
        assert [each for each in texts if each] == ["Hello.", "Hello.", "Pay 5.", "Done.", "What did I pay?"]


async def test_function_of_the_application_is_called_next_to_an_approval(streams: bool) -> None:
    @sdk.function_tool
    async def show_map(city: str) -> str:
        """Show a city."""
        return f"shown {city}"

    tools = [sdk.HostedMCPTool(tool_config=SERVER), show_map]
    calls = [call("show_map", "0", city="Oslo"), call("pay", "1", amount=5)]
    async with make_clerk(streams, calls, "Done.", tools=tools) as clerk:
        asked = await clerk.run("Go.")
        state = asked.to_state()
        state.approve(asked.interruptions[0])
        assert (await clerk.run(state)).final_output == "Done."
        assert list_results(clerk.model) == ["shown Oslo", "paid 5"]
        assert clerk.paid == [5]


@pytest.mark.parametrize(
    "other", [{**SERVER, "server_label": "other"}, {**SERVER, "allowed_tools": ["pay"]}], ids=["label", "allowed_tools"]
)
async def test_other_servers_and_restricted_tools_are_refused(other: dict[str, Any], streams: bool) -> None:
    async with make_clerk(streams, "Hello.", tools=[sdk.HostedMCPTool(tool_config=other)]) as clerk:
        with pytest.raises(BadRequestError, match="tools"):
            await clerk.run("Go.")
        assert clerk.model.requests == []


async def test_response_shows_the_label_without_settings_of_the_client(streams: bool) -> None:
    secret = {**SERVER, "headers": {"authorization": "secret"}, "authorization": "secret"}
    async with make_clerk(streams, "Hello.") as clerk:
        created = await clerk.client.responses.create(model="clerk", input="Hi.", tools=[secret])  # type: ignore[list-item]
        assert [each.to_dict() for each in created.tools] == [{"type": "mcp", "server_label": "rxloop"}]
