from typing import Annotated, Any, Literal, cast

import orjson
import pytest
from pydantic import AfterValidator, BaseModel, Field
from reactivex import Observable

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    Event,
    MemoryEventLog,
    ModelRequest,
    ModelSettings,
    NotFinished,
    RunContext,
    RunError,
    StatusUpdateEvent,
    tool,
)
from rxloop.errors import IncompleteOutput, InvalidOutput
from rxloop.protocol.events import MessageAddedEvent
from rxloop.protocol.messages import ToolCall
from rxloop.providers import openai_chat
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, turn
from support.http_server import Reply, delta, sse, start_server
from support.runs import collect, copy_first_events, format_marbles, is_well_formed, outcome, repeat_turn, shape
from support.vendors.claude import start
from support.vendors.claude import text as words
from support.vendors.vendor_answers import APIS, FILTER, NORMAL, ModelAnswer, reply
from support.vendors.vendor_answers import model as model_of


class City(BaseModel):
    name: str
    population: int = Field(ge=0)


OSLO = '{"name": "Oslo", "population": 717710}'


@pytest.mark.parametrize(
    "text", [OSLO, f"```json\n{OSLO}\n```", f"```\n{OSLO}\n```", f"  \n```JSON\n{OSLO}\n```\n", f"\n{OSLO} "]
)
async def test_answer_is_converted_to_the_output_type(text: str) -> None:
    result = await Agent(ScriptedModel(text), output_type=City).run("The capital of Norway")

    assert result.output == City(name="Oslo", population=717710)
    assert result.content == text


@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (int, "7", 7),
        (bool, "false", False),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Literal["yes", "no"], '"yes"', "yes"),
        (City | None, "null", None),
    ],
)
async def test_output_type_can_be_any_validatable_type(output_type: Any, text: str, value: Any) -> None:
    result = await Agent(ScriptedModel(text), output_type=output_type).run("?")

    assert result.output == value
    assert type(result.output) is type(value)


async def test_text_output_is_returned_unchanged() -> None:
    assert (await Agent(ScriptedModel("  7 \n")).run("?")).output == "  7 \n"


async def test_invalid_answer_is_sent_back_with_the_invalid_field() -> None:
    model = ScriptedModel('{"name": "Oslo", "population": -1}', "No idea.", OSLO)
    run = Agent(model, output_type=City).run("The capital of Norway")
    events = await collect(run)

    assert (await run).output.name == "Oslo"
    assert format_marbles(events) == "twlckmlckmlckF"
    assert "population: " in model.requests[1].messages[-1].text
    assert "JSON" in model.requests[2].messages[-1].text


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_run_fails_after_the_output_retries(retries: int) -> None:
    model = ScriptedModel(*repeat_turn("No idea.", 9))

    with pytest.raises(RunError, match=f"after {retries} retries") as caught:
        await Agent(model, output_type=City, output_retries=retries).run("?")

    assert len(model.requests) == retries + 1
    assert caught.value.code == "output"
    assert isinstance(caught.value.__cause__, InvalidOutput)
    with pytest.raises(NotFinished, match="failed"):
        _ = caught.value.result.output


@pytest.mark.parametrize(
    ("mode", "prompted", "native"), [("auto", True, True), ("native", False, True), ("prompted", True, False)]
)
async def test_output_mode_decides_where_the_schema_is_sent(mode: Any, prompted: bool, native: bool) -> None:
    model = ScriptedModel(OSLO)
    await Agent(model, output_type=City, output_mode=mode, instructions="Be brief.").run("?")

    request = model.requests[0]
    assert ("population" in "".join(message.text for message in request.system)) is prompted
    assert (request.response_schema is not None) is native
    assert "Be brief." in request.system[0].text


async def test_tools_run_before_the_answer_is_validated() -> None:
    @tool
    async def population(city: str) -> int:
        """Looks it up."""
        return 717710

    model = ScriptedModel(["Let me see.", call("population", city="Oslo")], OSLO)
    result = await Agent(model, tools=[population], output_type=City).run("?")

    assert result.output.population == 717710
    assert len(model.requests) == 2


async def test_truncated_typed_answer_is_requested_again() -> None:
    model = ScriptedModel(turn('{"name": "Os', finish_reason="length"), OSLO)
    result = await outcome(Agent(model, output_type=City).run("?"))

    assert result.output.name == "Oslo"


def test_agent_rejects_unknown_output_mode_by_name() -> None:
    mode: Any = "telepathy"
    with pytest.raises(ConfigurationError, match=r"output_mode.*telepathy"):
        Agent(ScriptedModel(), output_type=City, output_mode=mode)


def test_agent_rejects_output_type_that_cannot_be_validated() -> None:
    class Odd:
        pass

    with pytest.raises(ConfigurationError, match=r"output_type.*Odd"):
        Agent(ScriptedModel(), output_type=Odd)


def call_final_answer(**arguments: Any) -> Any:
    return call("final_answer", **arguments)


async def test_answer_is_the_call_of_the_output_tool() -> None:
    model = ScriptedModel(call_final_answer(name="Oslo", population=717710))
    run = Agent(model, output_type=City, output_mode="tool").run("The capital of Norway")
    events = await collect(run)
    result = await run

    assert result.output == City(name="Oslo", population=717710)
    assert result.content == '{"name":"Oslo","population":717710}'
    assert (result.state, result.finish_reason) == ("completed", "tool_calls")
    assert format_marbles(events) == "twlcsxkF"
    assert shape(result.messages)[1:] == ["assistant: final_answer", f"tool: {result.content}"]
    request = model.requests[0]
    (definition,) = [item for item in request.tools if item.name == "final_answer"]
    assert definition.parameters["properties"].keys() == {"name", "population"}
    assert request.response_schema is None
    assert "final_answer" in request.system[0].text


@pytest.mark.parametrize(
    ("output_type", "value"),
    [(list[int], [1, 2]), (Literal["yes", "no"], "yes"), (bool, False), (City | None, None), (list[City], [])],
)
async def test_answer_that_is_not_an_object_is_one_argument_of_the_output_tool(output_type: Any, value: Any) -> None:
    model = ScriptedModel(call_final_answer(value=value))
    result = await Agent(model, output_type=output_type, output_mode="tool").run("?")

    assert result.output == value
    assert type(result.output) is type(value)
    (definition,) = [item for item in model.requests[0].tools if item.name == "final_answer"]
    assert list(definition.parameters["properties"]) == ["value"]
    assert ("City" in definition.parameters.get("$defs", {})) is (output_type in (City | None, list[City]))


async def test_invalid_output_call_is_answered_with_the_invalid_field() -> None:
    model = ScriptedModel(call_final_answer(name="Oslo", population=-1), call_final_answer(name="Oslo", population=7))
    result = await Agent(model, output_type=City, output_mode="tool").run("?")

    assert result.output.population == 7
    reply = model.requests[1].messages[-1]
    assert reply.role == "tool"
    assert "population: " in reply.text


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize("invalid_answer", [call_final_answer(name="Oslo"), "No idea."])
async def test_run_fails_after_the_output_retries_of_the_output_tool(retries: int, invalid_answer: Any) -> None:
    model = ScriptedModel(*repeat_turn(invalid_answer, 9))
    with pytest.raises(RunError, match=f"after {retries} retries: .+") as caught:
        await Agent(model, output_type=City, output_mode="tool", output_retries=retries).run("?")

    assert len(model.requests) == retries + 1
    assert caught.value.code == "output"


async def test_malformed_arguments_of_the_output_tool_count_as_a_retry() -> None:
    malformed_call = ToolCall.parse("1", "final_answer", '{"name": ')
    events = [ContentCompleteEvent(tool_calls=[malformed_call])]

    class BrokenModel:
        name = "broken"

        def call(self, request: ModelRequest) -> Observable[Event]:
            return cast("Observable[Event]", emit(events[0]))

        async def aclose(self) -> None:
            pass

    with pytest.raises(RunError, match=r"after 0 retries: .*not valid JSON"):
        await Agent(BrokenModel(), output_type=City, output_mode="tool", output_retries=0).run("?")


async def test_other_calls_of_the_message_with_the_answer_are_executed() -> None:
    notes: list[str] = []

    @tool
    async def note(text: str) -> str:
        """Notes it."""
        notes.append(text)
        return "noted"

    model = ScriptedModel(["Done.", call_final_answer(name="Oslo", population=7), call("note", text="x")])
    result = await Agent(model, tools=[note], output_type=City, output_mode="tool").run("?")

    assert result.output.name == "Oslo"
    assert notes == ["x"]
    assert is_well_formed(result.messages)
    assert len(model.requests) == 1


async def test_first_valid_answer_of_a_message_is_the_output() -> None:
    first, second, third = (
        call_final_answer(name="A"),
        call_final_answer(name="B", population=1),
        call_final_answer(name="C", population=2),
    )
    result = await Agent(ScriptedModel([first, second, third]), output_type=City, output_mode="tool").run("?")

    assert result.output.name == "B"


async def test_valid_text_is_accepted_instead_of_the_output_call() -> None:
    result = await Agent(ScriptedModel("No idea.", OSLO), output_type=City, output_mode="tool").run("?")

    assert result.output.name == "Oslo"
    assert "final_answer" in result.messages[-2].text


async def test_message_during_the_output_call_causes_another_answer() -> None:
    @tool
    async def steer(ctx: RunContext) -> str:
        """Steers."""
        ctx.emit(MessageAddedEvent(content="In Sweden, please."))
        return "done"

    model = ScriptedModel(
        [call_final_answer(name="Oslo", population=1), call("steer")], call_final_answer(name="Stockholm", population=2)
    )
    result = await Agent(model, tools=[steer], output_type=City, output_mode="tool").run("?")

    assert result.output.name == "Stockholm"


@pytest.mark.parametrize("mode", ["tool", "prompted"])
@pytest.mark.parametrize("count", range(1, 12))
async def test_typed_run_interrupted_after_any_event_completes(mode: Any, count: int) -> None:
    log = MemoryEventLog()

    def turns() -> list[Any]:
        if mode == "tool":
            return [call_final_answer(name="Oslo"), call_final_answer(name="Oslo", population=7)]
        return ["No idea.", '{"name": "Oslo", "population": 7}']

    def agent(model: ScriptedModel, log: MemoryEventLog) -> Agent[None, City]:
        return Agent(model, output_type=City, output_mode=mode, log=log, thoughts=False)

    run = agent(ScriptedModel(*turns()), log).run("?")
    await run
    events = await log.read(run.task_id)
    truncated_log = await copy_first_events(log, run.task_id, count)
    answered = sum(isinstance(event, ContentCompleteEvent) for event in events[:count])
    model = ScriptedModel(*turns()[answered:])
    resumed = agent(model, truncated_log).resume(run.task_id)
    result = await resumed

    assert result.output == City(name="Oslo", population=7)
    assert len(model.requests) == 2 - answered
    finals = [
        event for event in await truncated_log.read(run.task_id) if isinstance(event, StatusUpdateEvent) and event.final
    ]
    assert len(finals) == 1
    resumed_again = agent(ScriptedModel(), truncated_log).resume(run.task_id)
    assert (await resumed_again).output == result.output


async def test_user_tool_named_final_answer_is_rejected_only_in_output_mode_tool() -> None:
    @tool
    async def final_answer(text: str) -> str:
        """Something else."""
        return text

    with pytest.raises(ConfigurationError, match="final_answer"):
        Agent(ScriptedModel(), tools=[final_answer], output_type=City, output_mode="tool")
    model = ScriptedModel(call("final_answer", text="x"), "Done.")
    assert (await Agent(model, tools=[final_answer]).run("?")).output == "Done."


@pytest.mark.parametrize(
    ("mode", "preset", "format", "prompted"),
    [
        ("auto", "openai", "json_schema", False),
        ("auto", "google_chat", None, True),
        ("auto", "zai", None, True),
        ("auto", "groq", None, True),
        ("native", "openai", "json_schema", False),
        ("native", "deepseek", None, True),
        ("prompted", "openai", None, True),
        ("tool", "openai", None, False),
    ],
)
@pytest.mark.parametrize("thoughts", [True, False])
async def test_response_format_depends_on_mode_and_endpoint(
    mode: Any, preset: str, format: str | None, prompted: bool, thoughts: bool
) -> None:
    tool_call = {"tool_calls": [{"id": "a", "function": {"name": "final_answer", "arguments": OSLO}}]}
    reply = Reply(sse(delta("stop", **(tool_call if mode == "tool" else {"content": OSLO}))))
    async with start_server() as server:
        server.answer(reply)
        model = openai_chat("m", preset=preset, base_url=server.base_url, api_key="k")
        agent = Agent(model, output_type=City, output_mode=mode, thoughts=thoughts)
        assert (await agent.run("?")).output.name == "Oslo"
        await model.aclose()

    body = server.requests[0].body
    without_tools = {"google_chat": "json_schema", "zai": "json_object", "deepseek": "json_object"}
    expected = format or (without_tools.get(preset) if mode in ("auto", "native") and not thoughts else None)
    assert body.get("response_format", {}).get("type") == expected
    assert ("JSON Schema" in str(body["messages"][0])) is prompted


REFUSED = "I cannot help with that."


@pytest.mark.parametrize("mode", ["auto", "native", "tool", "prompted"])
@pytest.mark.parametrize(("api", "stream"), APIS)
async def test_refusal_ends_the_run_after_one_request(api: str, stream: bool, mode: Any) -> None:  # P2
    finish = FILTER[api] if api in ("messages", "gemini") else NORMAL[api]
    async with start_server() as server:
        server.answer(reply(api, ModelAnswer(refusal=REFUSED, finish=finish), stream=stream))
        provider = model_of(api, server, stream=stream)
        with pytest.raises(RunError) as caught:
            await Agent(provider, output_type=City, output_mode=mode).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert len(server.requests) == 1
    assert caught.value.code == ("content_filter" if api == "gemini" else "refused")
    assert REFUSED in str(caught.value)
    assert caught.value.result.content == REFUSED
    assert caught.value.result.finish_reason == "content_filter"
    assert isinstance(caught.value.__cause__, IncompleteOutput)


@pytest.mark.parametrize(("api", "stream"), APIS)
async def test_refusal_without_output_type_is_a_readable_answer(api: str, stream: bool) -> None:  # P2
    finish = FILTER[api] if api in ("messages", "gemini") else NORMAL[api]
    async with start_server() as server:
        server.answer(reply(api, ModelAnswer(refusal=REFUSED, finish=finish), stream=stream))
        provider = model_of(api, server, stream=stream)
        result = await Agent(provider).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert result.output == REFUSED
    assert result.finish_reason == "content_filter"


@pytest.mark.parametrize("output_type", [City, City | int, list[int], int])
@pytest.mark.parametrize(("finish", "code"), [("length", "truncated"), ("weird", "incomplete")])
async def test_incomplete_typed_answer_is_reported_as_such(finish: str, code: str, output_type: Any) -> None:  # P2
    # Truncated numbers are still valid text, for example 12 instead of 123.
    text = {int: "12", list[int]: "[1]"}.get(output_type, OSLO)
    model = ScriptedModel(*repeat_turn(turn(text, finish_reason=finish), 5))
    with pytest.raises(RunError) as caught:
        await Agent(model, output_type=output_type).run("?", settings=ModelSettings(max_tokens=9))

    assert caught.value.code == code
    assert ("max_tokens=9" if finish == "length" else "weird") in str(caught.value)
    assert len(model.requests) == 3
    note = model.requests[1].messages[-1].text
    assert ("truncated at the output limit of 9 tokens" if finish == "length" else "weird") in note
    assert "does not fit" not in note


async def test_blocked_prompt_ends_a_run_with_output_type_after_one_request() -> None:  # P2
    async with start_server() as server:
        server.answer(Reply(sse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, done=False)))
        provider = model_of("gemini", server, stream=True)
        with pytest.raises(RunError, match="PROHIBITED_CONTENT") as caught:
            await Agent(provider, output_type=City).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert caught.value.code == "content_filter"
    assert len(server.requests) == 1


DETAILS = {"type": "refusal", "category": "cyber", "explanation": REFUSED}


@pytest.mark.parametrize("output_type", [str, City])
@pytest.mark.parametrize(
    ("details", "text", "expected_text"),
    [
        (DETAILS, "", REFUSED),
        (DETAILS, "Well,", f"Well,\n\n{REFUSED}"),
        ({**DETAILS, "explanation": None}, "", "The model refused to answer (category cyber)."),
        ({"type": "refusal", "category": None, "explanation": None}, "", ""),
        (None, "", ""),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_explanation_of_a_refusal_by_claude_is_the_text_of_the_answer(
    stream: bool, details: Any, text: str, expected_text: str, output_type: Any
) -> None:  # P2
    blocks = [{"type": "text", "text": text}] if text else []
    message = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "refusal", "usage": {}}
    events: list[Any] = [start(), *(words(0, text) if text else [])]
    end = {"stop_reason": "refusal", "stop_details": details}
    events += [{"type": "message_delta", "delta": end, "usage": {}}, {"type": "message_stop"}]
    complete_reply = Reply([orjson.dumps({**message, "stop_details": details})], content_type="application/json")
    async with start_server() as server:
        server.answer(Reply(sse(*events, done=False)) if stream else complete_reply)
        provider = model_of("messages", server, stream=stream)
        run = Agent(provider, output_type=output_type).run("?")
        if output_type is str:
            result = await run
            assert result.output == expected_text
            assert result.finish_reason == "content_filter"
        else:
            with pytest.raises(RunError) as caught:
                await run
            assert caught.value.code == "refused"
            assert caught.value.result.content == expected_text
            assert expected_text in str(caught.value)
        await provider.aclose()
        await server.all_closed.wait()

    assert len(server.requests) == 1


async def test_retry_contains_the_message_of_a_validator() -> None:
    def check(value: int) -> int:
        if value > 9:
            raise ValueError("the number must be below 10")
        return value

    model = ScriptedModel("12", "7")
    result = await Agent(model, output_type=cast("type[int]", Annotated[int, AfterValidator(check)])).run("?")
    assert result.output == 7
    assert "asked for: the answer: the number must be below 10\n" in model.requests[1].messages[-1].text
