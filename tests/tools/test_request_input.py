from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, PendingInput, Result
from rxloop.errors import InvalidInput
from rxloop.testing import ScriptedModel, call, turn
from rxloop.tools.client_tool import request_input

FIELDS = {"city": "string", "days": "integer"}


def make_agent(*calls: Any) -> Agent[None, str]:
    return Agent(ScriptedModel(*calls, "Good."), tools=[request_input], log=MemoryEventLog())


async def run_until_question(agent: Agent[None, str]) -> Result[str]:
    result = await agent.run("Plan it.")
    assert result.state == "input-required"
    return result


def answer_text(result: Result[str]) -> str:
    return next(message.text for message in reversed(result.messages) if message.role == "tool")


@pytest.mark.parametrize(
    ("arguments", "kind", "value", "expected"),
    [
        ({"prompt": "Where to?"}, "text", "Oslo", "Oslo"),
        ({"prompt": "Where to?"}, "text", "", ""),
        ({"prompt": "Shall I?", "kind": "confirmation"}, "confirmation", False, "false"),
        ({"prompt": "Which?", "options": ["a", "b"]}, "selection", "b", "b"),
        (
            {"prompt": "When and where?", "fields": FIELDS},
            "data",
            {"city": "Oslo", "days": 0},
            '{"city":"Oslo","days":0}',
        ),
    ],
)
async def test_answer_of_the_user_is_the_result_of_the_call(
    arguments: dict[str, Any], kind: str, value: Any, expected: str
) -> None:
    # L96, L103
    agent = make_agent(call("request_input", **arguments))
    result = await run_until_question(agent)
    (question,) = result.pending
    assert question.prompt == arguments["prompt"]
    assert question.input_kind == kind
    again = await agent.resume(result.task_id, inputs={question.input_id: value})
    assert again.output == "Good."
    assert answer_text(again) == expected


@pytest.mark.parametrize(
    ("arguments", "value", "message"),
    [
        ({"prompt": "Which?", "options": ["a", "b"]}, "c", "must be one of"),
        ({"prompt": "Shall I?", "kind": "confirmation"}, "yes", "boolean"),
        ({"prompt": "When?", "fields": FIELDS}, {"city": "Oslo", "days": "two"}, "days must be a JSON integer"),
        ({"prompt": "When?", "fields": FIELDS}, {"city": "Oslo"}, "must have 'days'"),
        ({"prompt": "When?", "fields": FIELDS}, {"city": "Oslo", "days": 2, "by": "car"}, "must not have 'by'"),
    ],
)
async def test_invalid_answer_is_refused_and_the_run_still_waits(
    arguments: dict[str, Any], value: Any, message: str
) -> None:
    # L101, L104
    agent = make_agent(call("request_input", **arguments))
    result = await run_until_question(agent)
    input_id = result.pending[0].input_id
    with pytest.raises(InvalidInput, match=message):
        await agent.resume(result.task_id, inputs={input_id: value})
    assert agent.log is not None
    (record,) = await agent.log.list_runs(unfinished=True)
    assert record.state == "input-required"
    assert record.attempt == 1


async def test_on_input_answers_while_the_run_waits() -> None:
    def answer(question: PendingInput) -> str:
        return question.prompt.upper()

    result = await make_agent(call("request_input", prompt="why?")).run("Plan it.", on_input=answer)
    assert answer_text(result) == "WHY?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": "Which?", "options": ["a"], "fields": FIELDS}, "options and fields cannot be used together"),
        ({"prompt": "Which?", "fields": {"a b": "string"}}, "'a b' must not be used as field names"),
        ({"prompt": "Which?", "fields": {"model_dump": "string"}}, "'model_dump' must not be used"),
        ({"prompt": "Which?", "fields": {"a": "date"}}, "fields"),
        ({"prompt": ""}, "prompt"),
    ],
)
async def test_invalid_question_is_reported_to_the_model(arguments: dict[str, Any], message: str) -> None:
    result = await make_agent(call("request_input", **arguments)).run("Plan it.")
    assert message in answer_text(result)


async def test_two_concurrent_questions_are_both_asked() -> None:
    # L98
    agent = make_agent(turn(calls=[call("request_input", prompt="Where?"), call("request_input", prompt="When?")]))
    result = await run_until_question(agent)
    where, when = (question.input_id for question in result.pending)
    half = await agent.resume(result.task_id, inputs={where: "Oslo"})
    assert [question.input_id for question in half.pending] == [when]
    whole = await agent.resume(result.task_id, inputs={when: "Monday"})
    assert [message.text for message in whole.messages if message.role == "tool"] == ["Oslo", "Monday"]
