"""Elicitation of answers from MCP clients."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

from rxloop import Agent, RunContext, tool
from rxloop.testing import ScriptedModel, call
from support.clients.mcp import ERAS, LEGACY, MODERN, AnswerForm, accept, result_meta, result_text, serve_mcp

each_protocol = pytest.mark.parametrize("mode", ERAS)


class Bed(StrEnum):
    single = "single"
    double = "double"


class Room(BaseModel):
    hotel: str
    nights: Annotated[int, Field(ge=1, le=30)] = 1
    bed: Bed = Bed.single
    note: str | None = None
    extras: list[Literal["breakfast", "parking"]] = []


class Guest(BaseModel):
    name: str
    room: Room


@tool
async def book(ctx: RunContext[Any]) -> str:
    """Book."""
    room = await ctx.ask("Which room?", Room)
    return f"{room.hotel}, {room.nights} nights, {room.bed}, {room.extras}"


@tool
async def invite(ctx: RunContext[Any]) -> str:
    """Invite."""
    guest = await ctx.ask("Who comes?", Guest)
    return f"{guest.name} at {guest.room.hotel}"


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def choose(ctx: RunContext[Any]) -> str:
    """Choose."""
    return str(await ctx.ask("How many?", int, options=[2, 4]))


@tool
async def enter(ctx: RunContext[Any]) -> str:
    """Sign in."""
    return f"in: {await ctx.require_auth('the bank', url='https://bank.example/in')}"


@tool
async def whisper(ctx: RunContext[Any]) -> str:
    """Want a key."""
    return f"got {await ctx.require_auth('the vault')}"


def make_agent(*calls: Any) -> Agent[Any, Any]:
    tools = [book, invite, pay, choose, enter, whisper]
    return Agent(ScriptedModel(*calls, "Done."), tools=tools, thoughts=False, name="clerk")


def list_tool_results(log_events: Sequence[Any]) -> list[str]:
    return [event.content for event in log_events if event.kind == "tool-complete"]


class Person:
    """Elicitation callback that records questions and replies with prepared answers."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self.answers = list(answers)
        self.questions: list[types.ElicitRequestParams] = []

    def __call__(self, question: types.ElicitRequestParams) -> types.ElicitResult:
        self.questions.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return types.ElicitResult.model_validate({"action": answer})
        return types.ElicitResult(action="accept", content=answer)

    @property
    def forms(self) -> list[types.ElicitRequestFormParams]:
        return [each for each in self.questions if isinstance(each, types.ElicitRequestFormParams)]


async def call_with_answers(
    mode: str, answer: AnswerForm | None, *calls: Any
) -> tuple[types.CallToolResult, list[str]]:
    """Return the result of a call, and results of the agent's tools."""
    async with serve_mcp(make_agent(*calls)) as endpoint, endpoint.client(mode, answer) as client:
        result = await client.call_tool("clerk", {"prompt": "Go"})
        return result, list_tool_results(await endpoint.runtime.log.read(result_meta(result, "taskId")))


@each_protocol
async def test_question_with_several_fields_is_a_form(mode: str) -> None:
    person = Person({"hotel": "Bristol", "nights": 3, "bed": "double", "extras": ["parking"]})
    result, tools = await call_with_answers(mode, person, call("book"))
    [form] = person.forms
    assert form.message == "Which room?"
    assert form.requested_schema["required"] == ["hotel"]
    assert form.requested_schema["properties"]["nights"] == {
        "type": "integer",
        "title": "Nights",
        "minimum": 1,
        "maximum": 30,
        "default": 1,
    }
    assert form.requested_schema["properties"]["bed"]["enum"] == ["single", "double"]
    assert form.requested_schema["properties"]["note"]["type"] == "string"
    assert form.requested_schema["properties"]["extras"]["items"]["enum"] == ["breakfast", "parking"]
    assert result_text(result) == "Done."
    assert tools == ["Bristol, 3 nights, double, ['parking']"]


@each_protocol
async def test_questions_of_several_calls_are_asked_before_the_run_continues(mode: str) -> None:
    person = Person({"answer": True}, {"answer": "4"})
    result, tools = await call_with_answers(mode, person, [call("pay", amount=5), call("choose")])
    assert {form.message for form in person.forms} == {"Call pay with amount: 5?", "How many?"}
    assert {str(form.requested_schema["properties"]["answer"]) for form in person.forms} == {
        str({"type": "boolean"}),
        str({"type": "string", "enum": ["2", "4"]}),
    }
    assert result_text(result) == "Done."
    assert sorted(tools) == ["4", "paid 5"]


@each_protocol
async def test_nested_question_is_asked_as_json(mode: str) -> None:
    person = Person({"answer": "no JSON"}, {"answer": '{"name": "Ann", "room": {"hotel": "Bristol"}}'})
    result, tools = await call_with_answers(mode, person, call("invite"))
    assert [form.message for form in person.forms] == ["Who comes?", "The answer is not valid JSON.\nWho comes?"]
    assert result_text(result) == "Done."
    assert tools == ["Ann at Bristol"]


@each_protocol
async def test_invalid_answer_is_asked_again_with_the_reason(mode: str) -> None:
    person = Person({"hotel": "Bristol", "nights": 99}, {"hotel": "Bristol", "nights": 2})
    result, tools = await call_with_answers(mode, person, call("book"))
    assert "99" in person.forms[1].message
    assert person.forms[1].message.endswith("\nWhich room?")
    assert result_text(result) == "Done."
    assert tools == ["Bristol, 2 nights, single, []"]


@each_protocol
async def test_declined_approval_rejects_the_call(mode: str) -> None:
    result, tools = await call_with_answers(mode, Person("decline"), call("pay", amount=5))
    assert result_text(result) == "Done."
    assert "paid" not in tools[0]


@each_protocol
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_open_question_is_a_result_and_can_be_answered_by_a_tool(mode: str, action: str) -> None:
    async with serve_mcp(make_agent(call("book"))) as endpoint, endpoint.client(mode, Person(action)) as client:
        paused = await client.call_tool("clerk", {"prompt": "Go"})
        assert paused.structured_content is not None
        [question] = paused.structured_content["questions"]
        wrong = {"task_id": result_meta(paused, "taskId"), "answers": {question["inputId"]: {"hotel": 3}}}
        rejected = await client.call_tool("continue_run", wrong)
        answers = {question["inputId"]: {"hotel": "Bristol"}}
        done = await client.call_tool("continue_run", {"task_id": result_meta(paused, "taskId"), "answers": answers})
    assert result_meta(paused, "state") == "input-required"
    assert paused.is_error is False
    assert f"{question['inputId']}: Which room?" in result_text(paused)
    assert f"call continue_run with task_id '{result_meta(paused, 'taskId')}'" in result_text(paused)
    assert rejected.is_error
    assert result_text(done) == "Done."


@each_protocol
async def test_client_without_elicitation_gets_the_questions_as_a_result(mode: str) -> None:
    async with (
        serve_mcp(make_agent([call("pay", amount=5), call("choose")])) as endpoint,
        endpoint.client(mode) as client,
    ):
        paused = await client.call_tool("clerk", {"prompt": "Go"})
        assert paused.structured_content is not None
        ids = {each["prompt"]: each["inputId"] for each in paused.structured_content["questions"]}
        first = {"task_id": result_meta(paused, "taskId"), "answers": {ids["Call pay with amount: 5?"]: True}}
        partial = await client.call_tool("continue_run", first)
        second = {"task_id": result_meta(paused, "taskId"), "answers": {ids["How many?"]: 4}}
        done = await client.call_tool("continue_run", second)
        late = await client.call_tool("continue_run", {**second, "answers": {ids["How many?"]: 2}})
    assert result_meta(partial, "state") == "input-required"
    assert "How many?" in result_text(partial)
    assert "Call pay" not in result_text(partial)
    assert result_text(done) == "Done."
    assert late.is_error
    assert "already has one" in result_text(late)


@each_protocol
async def test_sign_in_is_a_page_for_clients_that_support_pages(mode: str) -> None:
    person = Person({})
    result, tools = await call_with_answers(mode, person, call("enter"))
    [page] = person.questions
    assert isinstance(page, types.ElicitRequestURLParams)
    assert page.url == "https://bank.example/in"
    assert result_text(result) == "Done."
    assert tools == ["in: True"]


@each_protocol
async def test_credential_is_never_sent_through_a_form_or_a_model(mode: str) -> None:
    person = Person()
    async with serve_mcp(make_agent(call("whisper"))) as endpoint, endpoint.client(mode, person) as client:
        paused = await client.call_tool("clerk", {"prompt": "Go"})
        assert paused.structured_content is not None
        [question] = paused.structured_content["questions"]
        arguments = {"task_id": result_meta(paused, "taskId"), "answers": {question["inputId"]: "sk-123"}}
        refused = await client.call_tool("continue_run", arguments)
        declined = {"task_id": result_meta(paused, "taskId"), "answers": {question["inputId"]: None}}
        done = await client.call_tool("continue_run", declined)
    assert person.questions == []
    assert result_meta(paused, "state") == "auth-required"
    assert refused.is_error
    assert "Credentials must not be sent through this conversation" in result_text(refused)
    assert result_text(done) == "Done."


async def test_modern_client_can_answer_over_another_connection() -> None:
    async with serve_mcp(make_agent(call("book"))) as endpoint:
        async with endpoint.client(MODERN, accept()) as client:
            pending = await client.session.call_tool("clerk", {"prompt": "Go"}, allow_input_required=True)
            assert isinstance(pending, types.InputRequiredResult)
        assert pending.input_requests is not None
        [name] = pending.input_requests
        responses: types.InputResponses = {name: types.ElicitResult(action="accept", content={"hotel": "Bristol"})}
        async with endpoint.client(MODERN, accept()) as client:
            with pytest.raises(MCPError, match=r"the tool .* does not exist"):
                await client.session.call_tool(
                    "other", {}, input_responses=responses, request_state=pending.request_state
                )
            state: dict[str, Any] = {"input_responses": responses, "request_state": pending.request_state}
            done = await client.session.call_tool("clerk", {"prompt": "Go"}, **state)
            repeated = await client.session.call_tool("clerk", {"prompt": "Go"}, **state)
            for wrong in (f"{pending.request_state}-X", f"1{pending.request_state}", "", result_meta(done, "taskId")):
                with pytest.raises(MCPError, match="the requestState is unknown"):
                    await client.session.call_tool("clerk", {"prompt": "Go"}, request_state=wrong)
        assert len(await endpoint.runtime.log.list_runs()) == 1
    assert result_text(done) == "Done."
    assert result_text(repeated) == "Done."


async def test_failing_form_of_a_client_returns_the_question_as_a_result() -> None:
    def fail(questions: types.ElicitRequestParams) -> types.ElicitResult:
        raise RuntimeError("no screen")

    result, _ = await call_with_answers(LEGACY, fail, call("book"))
    assert result_meta(result, "state") == "input-required"
