"""Questions of a run, put to the person before the client: forms, pages, and where the client can do neither."""

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

both = pytest.mark.parametrize("mode", ERAS)


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


def agent(*calls: Any) -> Agent[Any, Any]:
    tools = [book, invite, pay, choose, enter, whisper]
    return Agent(ScriptedModel(*calls, "Done."), tools=tools, thoughts=False, name="clerk")


def results(log_events: Sequence[Any]) -> list[str]:
    return [event.content for event in log_events if event.kind == "tool-complete"]


class Person:
    """Answers one question after the other, and keeps what was asked."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self.answers = list(answers)
        self.asked: list[types.ElicitRequestParams] = []

    def __call__(self, asked: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return types.ElicitResult.model_validate({"action": answer})
        return types.ElicitResult(action="accept", content=answer)

    @property
    def forms(self) -> list[types.ElicitRequestFormParams]:
        return [each for each in self.asked if isinstance(each, types.ElicitRequestFormParams)]


async def asked(mode: str, says: AnswerForm | None, *calls: Any) -> tuple[types.CallToolResult, list[str]]:
    """What a call gives, and what the tools of the run have given."""
    async with serve_mcp(agent(*calls)) as there, there.client(mode, says) as client:
        result = await client.call_tool("clerk", {"prompt": "Go"})
        return result, results(await there.runtime.log.read(result_meta(result, "taskId")))


@both
async def test_a_question_of_several_fields_is_a_form_and_its_answer_goes_on(mode: str) -> None:
    person = Person({"hotel": "Bristol", "nights": 3, "bed": "double", "extras": ["parking"]})
    result, tools = await asked(mode, person, call("book"))
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
    assert (result_text(result), tools) == ("Done.", ["Bristol, 3 nights, double, ['parking']"])


@both
async def test_questions_of_several_calls_are_all_put_before_the_run_goes_on(mode: str) -> None:
    person = Person({"answer": True}, {"answer": "4"})
    result, tools = await asked(mode, person, [call("pay", amount=5), call("choose")])
    assert {form.message for form in person.forms} == {"Call pay with amount: 5?", "How many?"}
    assert {str(form.requested_schema["properties"]["answer"]) for form in person.forms} == {
        str({"type": "boolean"}),
        str({"type": "string", "enum": ["2", "4"]}),
    }
    assert (result_text(result), sorted(tools)) == ("Done.", ["4", "paid 5"])


@both
async def test_what_is_too_deep_for_a_form_is_asked_for_as_json(mode: str) -> None:
    person = Person({"answer": "no JSON"}, {"answer": '{"name": "Ann", "room": {"hotel": "Bristol"}}'})
    result, tools = await asked(mode, person, call("invite"))
    assert [form.message for form in person.forms] == ["Who comes?", "That is not JSON.\nWho comes?"]
    assert (result_text(result), tools) == ("Done.", ["Ann at Bristol"])


@both
async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(mode: str) -> None:
    person = Person({"hotel": "Bristol", "nights": 99}, {"hotel": "Bristol", "nights": 2})
    result, tools = await asked(mode, person, call("book"))
    assert "99" in person.forms[1].message
    assert person.forms[1].message.endswith("\nWhich room?")
    assert (result_text(result), tools) == ("Done.", ["Bristol, 2 nights, single, []"])


@both
async def test_who_declines_to_agree_has_answered_with_no(mode: str) -> None:
    result, tools = await asked(mode, Person("decline"), call("pay", amount=5))
    assert result_text(result) == "Done."
    assert "paid" not in tools[0]


@both
@pytest.mark.parametrize("does", ["decline", "cancel"])
async def test_a_question_that_is_left_open_is_said_and_can_be_answered_by_a_tool(mode: str, does: str) -> None:
    async with serve_mcp(agent(call("book"))) as there, there.client(mode, Person(does)) as client:
        waits = await client.call_tool("clerk", {"prompt": "Go"})
        assert waits.structured_content is not None
        [question] = waits.structured_content["questions"]
        wrong = {"task_id": result_meta(waits, "taskId"), "answers": {question["inputId"]: {"hotel": 3}}}
        misfit = await client.call_tool("continue_run", wrong)
        answers = {question["inputId"]: {"hotel": "Bristol"}}
        done = await client.call_tool("continue_run", {"task_id": result_meta(waits, "taskId"), "answers": answers})
    assert (result_meta(waits, "state"), waits.is_error) == ("input-required", False)
    assert f"{question['inputId']}: Which room?" in result_text(waits)
    assert f"call continue_run with task_id '{result_meta(waits, 'taskId')}'" in result_text(waits)
    assert misfit.is_error
    assert result_text(done) == "Done."


@both
async def test_a_client_that_cannot_ask_is_told_what_is_asked(mode: str) -> None:
    async with serve_mcp(agent([call("pay", amount=5), call("choose")])) as there, there.client(mode) as client:
        waits = await client.call_tool("clerk", {"prompt": "Go"})
        assert waits.structured_content is not None
        ids = {each["prompt"]: each["inputId"] for each in waits.structured_content["questions"]}
        first = {"task_id": result_meta(waits, "taskId"), "answers": {ids["Call pay with amount: 5?"]: True}}
        half = await client.call_tool("continue_run", first)
        second = {"task_id": result_meta(waits, "taskId"), "answers": {ids["How many?"]: 4}}
        done = await client.call_tool("continue_run", second)
        late = await client.call_tool("continue_run", {**second, "answers": {ids["How many?"]: 2}})
    assert result_meta(half, "state") == "input-required"
    assert "How many?" in result_text(half)
    assert "Call pay" not in result_text(half)
    assert result_text(done) == "Done."
    assert late.is_error
    assert "has another one already" in result_text(late)


@both
async def test_a_sign_in_is_a_page_for_clients_that_can_open_one(mode: str) -> None:
    person = Person({})
    result, tools = await asked(mode, person, call("enter"))
    [page] = person.asked
    assert isinstance(page, types.ElicitRequestURLParams)
    assert page.url == "https://bank.example/in"
    assert (result_text(result), tools) == ("Done.", ["in: True"])


@both
async def test_a_credential_never_goes_through_a_form_or_a_model(mode: str) -> None:
    person = Person()
    async with serve_mcp(agent(call("whisper"))) as there, there.client(mode, person) as client:
        waits = await client.call_tool("clerk", {"prompt": "Go"})
        assert waits.structured_content is not None
        [question] = waits.structured_content["questions"]
        given = {"task_id": result_meta(waits, "taskId"), "answers": {question["inputId"]: "sk-123"}}
        refused = await client.call_tool("continue_run", given)
        declined = {"task_id": result_meta(waits, "taskId"), "answers": {question["inputId"]: None}}
        done = await client.call_tool("continue_run", declined)
    assert person.asked == []
    assert result_meta(waits, "state") == "auth-required"
    assert refused.is_error
    assert "which is not to go through here" in result_text(refused)
    assert result_text(done) == "Done."


async def test_a_client_of_2026_may_come_back_with_the_answer_by_another_connection() -> None:
    async with serve_mcp(agent(call("book"))) as there:
        async with there.client(MODERN, accept()) as client:
            asks = await client.session.call_tool("clerk", {"prompt": "Go"}, allow_input_required=True)
            assert isinstance(asks, types.InputRequiredResult)
        assert asks.input_requests is not None
        [name] = asks.input_requests
        said: types.InputResponses = {name: types.ElicitResult(action="accept", content={"hotel": "Bristol"})}
        async with there.client(MODERN, accept()) as client:
            with pytest.raises(MCPError, match="there is no tool"):
                await client.session.call_tool("other", {}, input_responses=said, request_state=asks.request_state)
            state: dict[str, Any] = {"input_responses": said, "request_state": asks.request_state}
            done = await client.session.call_tool("clerk", {"prompt": "Go"}, **state)
            again = await client.session.call_tool("clerk", {"prompt": "Go"}, **state)
            for wrong in (f"{asks.request_state}-X", f"1{asks.request_state}", "", result_meta(done, "taskId")):
                with pytest.raises(MCPError, match="there is no such requestState"):
                    await client.session.call_tool("clerk", {"prompt": "Go"}, request_state=wrong)
        assert len(await there.runtime.log.list_runs()) == 1
    assert (result_text(done), result_text(again)) == ("Done.", "Done.")


async def test_a_client_whose_form_fails_gets_the_question_as_a_result() -> None:
    def breaks(asked: types.ElicitRequestParams) -> types.ElicitResult:
        raise RuntimeError("no screen")

    result, _ = await asked(LEGACY, breaks, call("book"))
    assert result_meta(result, "state") == "input-required"
