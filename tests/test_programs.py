"""Programs of the documentation, with a scripted model."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import reactivex.operators as rx
from pydantic import BaseModel

from rxloop import (
    Agent,
    ConfigurationError,
    Limits,
    MemoryEventLog,
    ModelRequest,
    PendingInput,
    RunContext,
    Signal,
    ToolCompleteEvent,
    ToolError,
    ToolRequest,
    ToolStartEvent,
    Usage,
    from_json,
    op,
    tool,
)
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time


async def test_program_1_hello_awaited_and_streamed() -> None:
    model = ScriptedModel("It scatters blue light.", turn(frames("-Less--of it-|", 0.001)))
    agent = Agent(model, instructions="Answer in one sentence.")

    result = await agent.run("Why is the sky blue?")
    printed = [text async for text in agent.run("And red at dusk?").text()]

    assert result.output == "It scatters blue light."
    assert printed == ["Less", "of it"]
    assert model.requests[0].system[0].text == "Answer in one sentence."


@dataclass
class Deps:
    http: httpx.AsyncClient
    user: str


@tool(timeout=10)
async def get_weather(ctx: RunContext[Deps], city: str) -> dict[str, float]:
    """Current weather for a city.

    Args:
        city: A city name, such as "Oslo".
    """
    ctx.progress(f"asking for {city}")
    response = await ctx.deps.http.get("https://weather.example/v1", params={"q": city})
    if response.status_code == 404:
        raise ToolError(f"No city is called {city!r}; try the English name.")
    return response.json()


async def test_program_2_tools_with_dependencies() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        known = request.url.params["q"] == "Oslo"
        return httpx.Response(200, json={"celsius": 7.5}) if known else httpx.Response(404)

    model = ScriptedModel([call("get_weather", city="Oslo"), call("get_weather", city="Osllo")], "7.5 C.")
    agent = Agent(model, tools=[get_weather], instructions=lambda ctx: f"You help {ctx.deps.user}.", deps_type=Deps)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        run = agent.run("Weather in Oslo?", deps=Deps(http, "Ann"))
        progress = [event.message async for event in run if event.kind == "tool-progress"]  # type: ignore[attr-defined]
        result = await run

    assert result.output == "7.5 C."
    assert progress == ["asking for Oslo", "asking for Osllo"]
    assert model.requests[0].system[0].text == "You help Ann."
    assert [message.text for message in result.messages[2:4]] == [
        '{"celsius":7.5}',
        "No city is called 'Osllo'; try the English name.",
    ]
    (definition,) = [each for each in model.requests[0].tools if each.name == "get_weather"]
    assert definition.description == "Current weather for a city."
    assert definition.parameters["properties"]["city"]["description"] == 'A city name, such as "Oslo".'
    assert list(definition.parameters["properties"]) == ["city"]


async def make_body(agent: Agent[None, str], question: str) -> AsyncIterator[bytes]:
    async with agent.run(question) as run:
        async for frame in run.sse(heartbeat=15):
            yield frame


async def test_program_3_a_streaming_endpoint() -> None:
    read = [frame async for frame in make_body(Agent(ScriptedModel("Hello.")), "Hi")]

    events = [from_json(frame.split(b"data: ")[1]) for frame in read]
    assert [event.kind for event in events][:2] == ["task", "status-update"]
    assert events[-1].content == "Hello."  # type: ignore[attr-defined]
    assert read[0].startswith(b"id: " + events[0].cursor.encode() + b"\nevent: task\n")


def test_program_3_run_is_cancelled_when_the_client_disconnects() -> None:
    model = ScriptedModel(frames("--a--b--never-"))
    log = MemoryEventLog()
    with virtual_time() as time:

        async def client() -> None:
            frames_read = make_body(Agent(model, log=log), "Hi")
            async for frame in frames_read:
                if b"content-delta" in frame:
                    break
            await frames_read.aclose()  # type: ignore[attr-defined]
            assert model.open == 0
            assert [record.state for record in await log.list_runs()] == ["canceled"]

        time.run(client())


async def test_program_4_several_views_of_one_run_one_model_request() -> None:
    @tool
    async def weather(city: str) -> str:
        """Weather."""
        return f"7 C in {city}"

    thought: dict[str, Any] = {"thought": "Look outside.", "thought_type": "planning", "confidence": 0.9}
    doubt: dict[str, Any] = {"thought": "Or not.", "thought_type": "critique", "confidence": 0.2}
    used = Usage(input_tokens=10, output_tokens=4)
    model = ScriptedModel(
        turn(calls=[call("think_aloud", **thought), call("think_aloud", **doubt), call("weather", city="Oslo")],
             usage=used),
        turn("Walk.", usage=used),
    )  # fmt: skip
    out: list[str] = []

    async with Agent(model, tools=[weather]).run("Plan a weekend in Oslo.") as run:
        run.pipe(op.thoughts(min_confidence=0.5)).subscribe(lambda t: out.append(f"thought: {t.content}"))
        run.pipe(op.usage()).subscribe(lambda u: out.append(f"tokens: {u.output_tokens}"))
        run.pipe(op.stats(), rx.filter(lambda s: s.tokens_per_second < 5)).subscribe(lambda s: out.append("slow"))
        async for event in run.pipe(op.of_type(ToolStartEvent, ToolCompleteEvent)):
            match event:
                case ToolStartEvent(call=call_):
                    if call_.name == "weather":
                        out.append(f"-> {call_.name} {call_.arguments}")
                case ToolCompleteEvent(call=call_, duration=s):
                    if call_.name == "weather":
                        out.append(f"<- {call_.name} {s:.0f} s")
        out.append((await run).output)

    assert sorted(line for line in out if line != "slow") == [
        "-> weather {'city': 'Oslo'}",
        "<- weather 0 s",
        "Walk.",
        "thought: Look outside.",
        "tokens: 4",
        "tokens: 4",
    ]
    assert out[-1] == "Walk."
    assert len(model.requests) == 2


@op.on(ToolRequest)
async def large_transfers(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    made = request.call
    if made.name == "transfer" and made.arguments["amount"] > 1_000:  # noqa: SIM102
        if not await ctx.ask(f"Send {made.arguments['amount']} to {made.arguments['to']}?"):
            yield request.refuse("The user refused this transfer.")
            return
    yield request


class Bank:
    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.log = MemoryEventLog()

        @tool
        async def transfer(to: str, amount: int) -> str:
            """Transfer money."""
            self.sent.append((to, amount))
            return "sent"

        self.tools = [transfer]

    def agent(self, *turns: Any) -> Agent[None, str]:
        loop = op.standard(before_tools=[large_transfers])
        return Agent(ScriptedModel(*turns), tools=self.tools, log=self.log, loop=loop)


@pytest.mark.parametrize("agreed", [True, False])
async def test_program_5_guard_asks_during_the_run(agreed: bool) -> None:
    bank = Bank()
    asked: list[str] = []

    async def ask_at_the_terminal(question: PendingInput) -> bool:
        asked.append(question.prompt)
        return agreed

    model_says = [call("transfer", to="Bob", amount=5_000), call("transfer", to="Eve", amount=5)], "Done."
    result = await bank.agent(*model_says).run("Pay Bob 5000", on_input=ask_at_the_terminal)

    assert asked == ["Send 5000 to Bob?"]
    assert sorted(bank.sent) == ([("Bob", 5_000), ("Eve", 5)] if agreed else [("Eve", 5)])
    assert result.messages[2].text == ("sent" if agreed else "The user refused this transfer.")


@pytest.mark.parametrize("agreed", [True, False])
async def test_program_5_guard_is_answered_later(agreed: bool) -> None:
    bank = Bank()
    result = await bank.agent(call("transfer", to="Bob", amount=5_000)).run("Pay Bob 5000")
    assert result.state == "input-required"
    assert bank.sent == []

    result = await bank.agent("Done.").resume(result.task_id, inputs={result.pending[0].input_id: agreed})

    assert result.output == "Done."
    assert bank.sent == ([("Bob", 5_000)] if agreed else [])


@op.on(ModelRequest)
async def newest_only(request: ModelRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    yield request.replace(messages=request.messages[-1:])


async def test_program_6_custom_pipeline_with_a_log() -> None:
    model = ScriptedModel("Read.", "Fixed.")
    agent = Agent(
        model,
        log=MemoryEventLog(),
        limits=Limits(iterations=50, tokens=200_000),
        loop=[newest_only, op.call_model(), op.run_tools(concurrency=5), op.checkpoint()],
    )

    first = await agent.run("Read the repository.", context_id="repo-42")
    again = await agent.run("Now fix the failing test.", context_id="repo-42")

    assert (first.output, again.output) == ("Read.", "Fixed.")
    assert [message.text for message in model.requests[1].messages] == ["Now fix the failing test."]
    assert [message.text for message in again.messages] == [
        "Read the repository.",
        "Read.",
        "Now fix the failing test.",
        "Fixed.",
    ]


async def test_program_7_live_thoughts_and_graph(tmp_path: Path) -> None:
    def thought(text: str, id: str, kind: str, after: str | None = None) -> Any:
        fields = {"thought": text, "thought_id": id, "thought_type": kind}
        return call("think_aloud", **fields, **({"related_to": after} if after else {}))

    model = ScriptedModel(
        thought("Convert first.", "plan", "planning"),
        thought("65 F is 18.3 C.", "convert", "reasoning", "plan"),
        thought("Oslo is warmer.", "conclusion", "decision", "convert"),
        "Yes.",
    )
    run = Agent(model).run("Is 20 C in Oslo warmer than 65 F in Bergen?")

    live = [f"[{t.thought_type}] {t.thought_id} <- {t.related_to}: {t.content}" async for t in run.pipe(op.thoughts())]
    result = await run
    drawing = tmp_path / "chain.mmd"
    drawing.write_text(result.thoughts.to_mermaid())

    assert live == [
        "[planning] plan <- None: Convert first.",
        "[reasoning] convert <- plan: 65 F is 18.3 C.",
        "[decision] conclusion <- convert: Oslo is warmer.",
    ]
    tree = result.thoughts.tree()
    assert [text in tree for text in ("Convert first.", "65 F is 18.3 C.", "Oslo is warmer.")] == [True] * 3
    assert drawing.read_text().startswith(("graph", "flowchart"))


class City(BaseModel):
    name: str
    population: int


def test_program_12_typed_output() -> None:
    model = ScriptedModel("Oslo, I think.", '{"name": "Oslo", "population": 717710}')
    agent = Agent(model, output_type=City)

    assert agent.run_sync("The capital of Norway").output.population == 717710


def test_program_12_missing_key_is_named() -> None:
    with pytest.raises(ConfigurationError):
        Agent("nobody:glm-4.7")
