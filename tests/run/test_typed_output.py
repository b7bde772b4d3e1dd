from typing import Any, Literal, cast

import orjson
import pytest
from pydantic import BaseModel, Field
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
from support.http_server import Reply, delta, serving, sse
from support.runs import collect, first_events, letters, outcome, repeated, shape, well_formed
from support.vendors.claude import start
from support.vendors.claude import text as words
from support.vendors.vendor_answers import APIS, FILTER, NORMAL, Said, reply
from support.vendors.vendor_answers import model as model_of


class City(BaseModel):
    name: str
    population: int = Field(ge=0)


OSLO = '{"name": "Oslo", "population": 717710}'


@pytest.mark.parametrize(
    "text", [OSLO, f"```json\n{OSLO}\n```", f"```\n{OSLO}\n```", f"  \n```JSON\n{OSLO}\n```\n", f"\n{OSLO} "]
)
async def test_an_answer_becomes_a_value_of_the_type(text: str) -> None:
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
async def test_anything_that_can_be_validated_is_a_type(output_type: Any, text: str, value: Any) -> None:
    result = await Agent(ScriptedModel(text), output_type=output_type).run("?")

    assert result.output == value
    assert type(result.output) is type(value)


async def test_text_is_taken_as_it_is() -> None:
    assert (await Agent(ScriptedModel("  7 \n")).run("?")).output == "  7 \n"


async def test_an_answer_that_does_not_fit_is_sent_back_with_the_field() -> None:
    model = ScriptedModel('{"name": "Oslo", "population": -1}', "No idea.", OSLO)
    run = Agent(model, output_type=City).run("The capital of Norway")
    events = await collect(run)

    assert (await run).output.name == "Oslo"
    assert letters(events) == "twlckmlckmlckF"
    assert "population: " in model.requests[1].messages[-1].text
    assert "JSON" in model.requests[2].messages[-1].text


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_so_many_retries_and_then_the_run_fails(retries: int) -> None:
    model = ScriptedModel(*repeated("No idea.", 9))

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
async def test_the_schema_goes_where_the_mode_says(mode: Any, prompted: bool, native: bool) -> None:
    model = ScriptedModel(OSLO)
    await Agent(model, output_type=City, output_mode=mode, instructions="Be brief.").run("?")

    request = model.requests[0]
    assert ("population" in "".join(message.text for message in request.system)) is prompted
    assert (request.response_schema is not None) is native
    assert "Be brief." in request.system[0].text


async def test_tools_run_before_the_answer_is_looked_at() -> None:
    @tool
    async def population(city: str) -> int:
        """Looks it up."""
        return 717710

    model = ScriptedModel(["Let me see.", call("population", city="Oslo")], OSLO)
    result = await Agent(model, tools=[population], output_type=City).run("?")

    assert result.output.population == 717710
    assert len(model.requests) == 2


async def test_an_answer_that_was_cut_short_is_not_taken_for_the_value() -> None:
    model = ScriptedModel(turn('{"name": "Os', finish_reason="length"), OSLO)
    result = await outcome(Agent(model, output_type=City).run("?"))

    assert result.output.name == "Oslo"


def test_a_mode_that_does_not_exist_is_refused_by_name() -> None:
    mode: Any = "telepathy"
    with pytest.raises(ConfigurationError, match=r"output_mode.*telepathy"):
        Agent(ScriptedModel(), output_type=City, output_mode=mode)


def test_a_type_that_cannot_be_validated_is_refused_when_the_agent_is_made() -> None:
    class Odd:
        pass

    with pytest.raises(ConfigurationError, match=r"output_type.*Odd"):
        Agent(ScriptedModel(), output_type=Odd)


def answer(**arguments: Any) -> Any:
    return call("final_answer", **arguments)


async def test_the_answer_is_the_call_of_a_tool() -> None:
    model = ScriptedModel(answer(name="Oslo", population=717710))
    run = Agent(model, output_type=City, output_mode="tool").run("The capital of Norway")
    events = await collect(run)
    result = await run

    assert result.output == City(name="Oslo", population=717710)
    assert result.content == '{"name":"Oslo","population":717710}'
    assert (result.state, result.finish_reason) == ("completed", "tool_calls")
    assert letters(events) == "twlcsxkF"
    assert shape(result.messages)[1:] == ["assistant: final_answer", f"tool: {result.content}"]
    request = model.requests[0]
    (offered,) = [each for each in request.tools if each.name == "final_answer"]
    assert offered.parameters["properties"].keys() == {"name", "population"}
    assert request.response_schema is None
    assert "final_answer" in request.system[0].text


@pytest.mark.parametrize(
    ("output_type", "value"),
    [(list[int], [1, 2]), (Literal["yes", "no"], "yes"), (bool, False), (City | None, None), (list[City], [])],
)
async def test_an_answer_that_is_no_object_is_one_argument_of_the_tool(output_type: Any, value: Any) -> None:
    model = ScriptedModel(answer(value=value))
    result = await Agent(model, output_type=output_type, output_mode="tool").run("?")

    assert result.output == value
    assert type(result.output) is type(value)
    (offered,) = [each for each in model.requests[0].tools if each.name == "final_answer"]
    assert list(offered.parameters["properties"]) == ["value"]
    assert ("City" in offered.parameters.get("$defs", {})) is (output_type in (City | None, list[City]))


async def test_a_call_with_an_answer_that_does_not_fit_is_told_what_is_wrong() -> None:
    model = ScriptedModel(answer(name="Oslo", population=-1), answer(name="Oslo", population=7))
    result = await Agent(model, output_type=City, output_mode="tool").run("?")

    assert result.output.population == 7
    told = model.requests[1].messages[-1]
    assert told.role == "tool"
    assert "population: " in told.text


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize("wrong", [answer(name="Oslo"), "No idea."])
async def test_so_many_retries_by_a_tool_too(retries: int, wrong: Any) -> None:
    model = ScriptedModel(*repeated(wrong, 9))
    with pytest.raises(RunError, match=f"after {retries} retries: .+") as caught:
        await Agent(model, output_type=City, output_mode="tool", output_retries=retries).run("?")

    assert len(model.requests) == retries + 1
    assert caught.value.code == "output"


async def test_arguments_that_are_no_json_are_a_retry_as_well() -> None:
    broken = ToolCall.parse("1", "final_answer", '{"name": ')
    events = [ContentCompleteEvent(tool_calls=[broken])]

    class Broken:
        name = "broken"

        def call(self, request: ModelRequest) -> Observable[Event]:
            return cast("Observable[Event]", emit(events[0]))

        async def aclose(self) -> None:
            pass

    with pytest.raises(RunError, match=r"after 0 retries: .*not valid JSON"):
        await Agent(Broken(), output_type=City, output_mode="tool", output_retries=0).run("?")


async def test_the_other_calls_beside_the_answer_are_answered() -> None:
    asked: list[str] = []

    @tool
    async def note(text: str) -> str:
        """Notes it."""
        asked.append(text)
        return "noted"

    model = ScriptedModel(["Done.", answer(name="Oslo", population=7), call("note", text="x")])
    result = await Agent(model, tools=[note], output_type=City, output_mode="tool").run("?")

    assert result.output.name == "Oslo"
    assert asked == ["x"]
    assert well_formed(result.messages)
    assert len(model.requests) == 1


async def test_the_first_good_answer_of_a_message_stands() -> None:
    first, second, third = answer(name="A"), answer(name="B", population=1), answer(name="C", population=2)
    result = await Agent(ScriptedModel([first, second, third]), output_type=City, output_mode="tool").run("?")

    assert result.output.name == "B"


async def test_a_text_that_fits_is_taken_for_the_call() -> None:
    result = await Agent(ScriptedModel("No idea.", OSLO), output_type=City, output_mode="tool").run("?")

    assert result.output.name == "Oslo"
    assert "final_answer" in result.messages[-2].text


async def test_a_message_that_comes_while_the_answer_is_given_has_its_own_answer() -> None:
    @tool
    async def steer(ctx: RunContext) -> str:
        """Steers."""
        ctx.emit(MessageAddedEvent(content="In Sweden, please."))
        return "done"

    model = ScriptedModel([answer(name="Oslo", population=1), call("steer")], answer(name="Stockholm", population=2))
    result = await Agent(model, tools=[steer], output_type=City, output_mode="tool").run("?")

    assert result.output.name == "Stockholm"


@pytest.mark.parametrize("mode", ["tool", "prompted"])
@pytest.mark.parametrize("count", range(1, 12))
async def test_a_typed_run_goes_on_from_wherever_it_was_cut_off(mode: Any, count: int) -> None:
    log = MemoryEventLog()

    def turns() -> list[Any]:
        if mode == "tool":
            return [answer(name="Oslo"), answer(name="Oslo", population=7)]
        return ["No idea.", '{"name": "Oslo", "population": 7}']

    def agent(model: ScriptedModel, log: MemoryEventLog) -> Agent[None, City]:
        return Agent(model, output_type=City, output_mode=mode, log=log, thoughts=False)

    run = agent(ScriptedModel(*turns()), log).run("?")
    await run
    events = await log.read(run.task_id)
    cut = await first_events(log, run.task_id, count)
    done = sum(isinstance(event, ContentCompleteEvent) for event in events[:count])
    model = ScriptedModel(*turns()[done:])
    resumed = agent(model, cut).resume(run.task_id)
    result = await resumed

    assert result.output == City(name="Oslo", population=7)
    assert len(model.requests) == 2 - done
    finals = [event for event in await cut.read(run.task_id) if isinstance(event, StatusUpdateEvent) and event.final]
    assert len(finals) == 1
    again = agent(ScriptedModel(), cut).resume(run.task_id)
    assert (await again).output == result.output


async def test_a_tool_of_that_name_of_ones_own_is_refused_only_beside_it() -> None:
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
async def test_the_endpoint_decides_what_of_it_is_sent(
    mode: Any, preset: str, format: str | None, prompted: bool, thoughts: bool
) -> None:
    by_tool = {"tool_calls": [{"id": "a", "function": {"name": "final_answer", "arguments": OSLO}}]}
    reply = Reply(sse(delta("stop", **(by_tool if mode == "tool" else {"content": OSLO}))))
    async with serving() as server:
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
    async with serving() as server:
        server.answer(reply(api, Said(refusal=REFUSED, finish=finish), stream=stream))
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
    async with serving() as server:
        server.answer(reply(api, Said(refusal=REFUSED, finish=finish), stream=stream))
        provider = model_of(api, server, stream=stream)
        result = await Agent(provider).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert (result.output, result.finish_reason) == (REFUSED, "content_filter")


@pytest.mark.parametrize("output_type", [City, City | int, list[int], int])
@pytest.mark.parametrize(("finish", "code"), [("length", "truncated"), ("weird", "incomplete")])
async def test_incomplete_typed_answer_is_reported_as_such(finish: str, code: str, output_type: Any) -> None:  # P2
    # As text it would fit: 12 may be the beginning of 123.
    text = {int: "12", list[int]: "[1]"}.get(output_type, OSLO)
    model = ScriptedModel(*repeated(turn(text, finish_reason=finish), 5))
    with pytest.raises(RunError) as caught:
        await Agent(model, output_type=output_type).run("?", settings=ModelSettings(max_tokens=9))

    assert caught.value.code == code
    assert ("max_tokens=9" if finish == "length" else "weird") in str(caught.value)
    assert len(model.requests) == 3
    note = model.requests[1].messages[-1].text
    assert ("truncated at the output limit of 9 tokens" if finish == "length" else "weird") in note
    assert "does not fit" not in note


async def test_blocked_prompt_ends_a_run_with_output_type_after_one_request() -> None:  # P2
    async with serving() as server:
        server.answer(Reply(sse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, done=False)))
        provider = model_of("gemini", server, stream=True)
        with pytest.raises(RunError, match="PROHIBITED_CONTENT") as caught:
            await Agent(provider, output_type=City).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert (caught.value.code, len(server.requests)) == ("content_filter", 1)


DETAILS = {"type": "refusal", "category": "cyber", "explanation": REFUSED}


@pytest.mark.parametrize("output_type", [str, City])
@pytest.mark.parametrize(
    ("details", "text", "said"),
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
    stream: bool, details: Any, text: str, said: str, output_type: Any
) -> None:  # P2
    blocks = [{"type": "text", "text": text}] if text else []
    answer = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "refusal", "usage": {}}
    events: list[Any] = [start(), *(words(0, text) if text else [])]
    end = {"stop_reason": "refusal", "stop_details": details}
    events += [{"type": "message_delta", "delta": end, "usage": {}}, {"type": "message_stop"}]
    whole = Reply([orjson.dumps({**answer, "stop_details": details})], content_type="application/json")
    async with serving() as server:
        server.answer(Reply(sse(*events, done=False)) if stream else whole)
        provider = model_of("messages", server, stream=stream)
        run = Agent(provider, output_type=output_type).run("?")
        if output_type is str:
            result = await run
            assert (result.output, result.finish_reason) == (said, "content_filter")
        else:
            with pytest.raises(RunError) as caught:
                await run
            assert (caught.value.code, caught.value.result.content) == ("refused", said)
            assert said in str(caught.value)
        await provider.aclose()
        await server.all_closed.wait()

    assert len(server.requests) == 1
