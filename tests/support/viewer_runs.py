"""Recorded runs for the viewer: the weather desk of its screenshots, a hostile run and a long run."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from reactivex import Observable, defer
from typing_extensions import override

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    EventLog,
    LLMCallEvent,
    Message,
    ModelRequest,
    SlidingWindowCompressor,
    StatusUpdateEvent,
    TaskEvent,
    Thoughts,
    ToolCompleteEvent,
    ToolError,
    ToolStartEvent,
    Usage,
    op,
    tool,
)
from rxloop.errors import RateLimited
from rxloop.protocol.events import UsageEvent
from rxloop.protocol.messages import Citation, ImagePart, ToolCall
from rxloop.providers.retry import Retry, retrying
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time

QUESTION = "Oslo or Bergen for a hike on Saturday?"
FORECASTS = {"Oslo": (0.76, "11 °C, dry until 15:00"), "Bergen": (1.44, "9 °C, 4 mm before noon")}


class _RetryingModel(ScriptedModel):
    """Scripted model whose failed turns are repeated."""

    @override
    def call(self, request: ModelRequest) -> Observable[Event]:
        # Each subscription of a call plays the next turn.
        return defer(lambda _: ScriptedModel.call(self, request)).pipe(retrying(Retry(jitter=0)))


@tool
async def get_forecast(city: str, day: str = "Saturday") -> str:
    """Return the forecast of a city."""
    seconds, text = FORECASTS[city]
    await asyncio.sleep(seconds if day == "Saturday" else 0.54)
    return text if day == "Saturday" else "showers from 11:00"


@tool
async def read_warnings(region: str) -> dict[str, Any]:
    """Return the official warnings of a region."""
    await asyncio.sleep(0.15)
    during = {"from": "09:00", "until": "18:00"}
    return {"level": "yellow", "kind": "wind", "region": region, "gusts_ms": 17, "during": during, "confirmed": True}


@tool(timeout=2)
async def get_alerts(region: str) -> str:
    """Return the alerts of a region."""
    await asyncio.sleep(60)
    return region


def _think(id: str, kind: str, thought: str, **more: Any) -> Any:
    return call("think_aloud", thought=thought, thought_id=id, thought_type=kind, **more)


def weather_desk(log: EventLog) -> Agent[Any, Any]:
    """Return an agent whose run contains a retry, a timeout, thoughts, a nested agent and a compression."""
    alerts = Agent(
        ScriptedModel(
            turn(
                frames("---checking the region |", 0.11),
                calls=[call("read_warnings", region="Vestland")],
                usage=Usage(input_tokens=611, output_tokens=58),
            ),
            turn(
                frames("-Yellow warning for Vestland on Saturday: -wind, gusts of 17 m/s -from 09:00 to 18:00.|", 0.06),
                usage=Usage(input_tokens=702, output_tokens=31),
            ),
            name="glm-4.5-air",
        ),
        name="alerts-desk",
        tools=[read_warnings],
        thoughts=False,
    )
    model = _RetryingModel(
        turn(
            frames("----Let me look -at both -cities |", 0.16),
            calls=[
                _think("plan", "planning", "Rain decides, wind comes second"),
                call("get_forecast", city="Oslo"),
                call("get_forecast", city="Bergen"),
                call("get_alerts", region="Vestland"),
            ],
            usage=Usage(input_tokens=1212, output_tokens=148),
        ),
        RateLimited("too many requests", status=429, retry_after=0.8),
        turn(
            frames("----The alerts -did not answer, -so I ask -the alerts desk. -Bergen gets rain |", 0.2),
            calls=[
                _think("oslo", "reasoning", "Oslo is dry until 15:00", related_to="plan", confidence=0.8),
                _think("bergen", "reasoning", "Bergen gets 4 mm before noon", related_to="plan"),
                call("alerts-desk", prompt="Alerts for Vestland on Saturday?"),
                call("get_forecast", city="Oslo", day="Sunday"),
            ],
            usage=Usage(input_tokens=2905, output_tokens=131, cached_tokens=1024),
        ),
        turn(
            frames(
                "--Oslo is -the better choice: -dry until 15:00, -while Bergen gets -4 mm of rain -before noon and "
                "-has a yellow -wind warning -from 09:00 to 18:00. -Start before ten, "
                "-and take a jacket -for the way back.|",
                0.15,
            ),
            usage=Usage(input_tokens=5480, output_tokens=204, cached_tokens=3100),
        ),
        name="glm-4.7",
    )
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(max_tokens=420))])
    tools = [get_forecast, get_alerts, alerts.as_tool("alerts-desk", description="Ask the alerts desk.")]
    return Agent(model, name="weather-desk", tools=tools, thoughts=Thoughts(hidden=True), log=log, loop=loop)


HOSTILE = (
    '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script> javascript:window.hacked=1 '
    "\x1b[31mred\x1b[0m \u202etxt.exe\u202c \u200bzero"
)
"""Text that a careless page would execute or hide."""


def hostile_desk(log: EventLog) -> Agent[Any, Any]:
    """Return an agent whose texts, names and results are hostile, one of them with a million characters."""

    @tool(name="fetch")
    async def fetch(url: str) -> dict[str, str]:
        """Return a page."""
        return {HOSTILE: HOSTILE, "large": "W" * 1_000_000}

    @tool(name="fail")
    async def fail(reason: str) -> str:
        """Fail."""
        raise ToolError(HOSTILE)

    drawing = b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.hacked=1"/>'
    model = ScriptedModel(
        [
            call("fetch", url=HOSTILE),
            call("fail", reason="W" * 3_000),
            call("think_aloud", thought=HOSTILE, thought_type="critique", thought_id=HOSTILE, alternatives=[HOSTILE]),
        ],
        turn(
            HOSTILE,
            reasoning=HOSTILE,
            citations=[Citation(url="javascript:window.hacked=1", title=HOSTILE, text=HOSTILE, start=0, end=9)],
            files=[ImagePart(data=drawing, media_type="image/svg+xml")],
        ),
        name="<b>model</b>",
    )
    return Agent(model, name="reader", tools=[fetch, fail], log=log)


async def record_hostile_run(log: EventLog) -> str:
    """Record the run of `hostile_desk`, and return its id."""
    run = hostile_desk(log).run(HOSTILE)
    async for _ in run:
        pass
    return run.task_id


def record_weather_run(log: EventLog) -> str:
    """Record the run of `weather_desk` in virtual time, and return its id."""

    async def record() -> str:
        run = weather_desk(log).run(QUESTION)
        async for _ in run:
            pass
        return run.task_id

    with virtual_time() as clock:
        return clock.run(record())


async def store_long_run(log: EventLog, steps: int) -> str:
    """Store a run of five events for each step, and return its id."""
    envelope: dict[str, Any] = {"task_id": "long", "context_id": "talk", "attempt": 1}
    times = itertools.count(0, 20)
    seqs = itertools.count(1)

    def stamp(**fields: Any) -> dict[str, Any]:
        return {**envelope, "seq": next(seqs), "timestamp": next(times), **fields}

    events: list[Event] = [
        TaskEvent(messages=[Message.user("Search everything.")], model="m", agent_name="searcher", **stamp()),
        StatusUpdateEvent(state="working", **stamp()),
    ]
    for number in range(1, steps + 1):
        step = str(number)
        wanted = ToolCall(id=f"c{step}", name="search", arguments={"query": f"query {step}"}, raw="{}")
        is_good = number % 100 != 0
        events += [
            LLMCallEvent(
                iteration=number, model="m", message_count=1, tool_count=1, estimated_input_tokens=9, **stamp(step=step)
            ),
            UsageEvent(input_tokens=9, output_tokens=3, **stamp(step=step)),
            ContentCompleteEvent(content="", tool_calls=[wanted], finish_reason="tool_calls", **stamp(step=step)),
            ToolStartEvent(call=wanted, index=0, idempotency_key=step, **stamp(step=step)),
            ToolCompleteEvent(
                call=wanted,
                index=0,
                success=is_good,
                error=None if is_good else "search failed",
                content="found" if is_good else "search failed",
                **stamp(step=step),
            ),
        ]
    events.append(StatusUpdateEvent(state="completed", final=True, content="Done.", usage=Usage(), **stamp()))
    for start in range(0, len(events), 1_000):
        await log.append("long", events[start : start + 1_000], expected_seq=start)
    return "long"
