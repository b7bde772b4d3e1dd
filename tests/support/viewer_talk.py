"""Recorded run whose conversation has all parts that the viewer can display."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import reactivex
from reactivex import Observable, defer
from reactivex import operators as rx
from typing_extensions import override

from rxloop import Agent, ContentDeltaEvent, Event, EventLog, Message, ModelRequest, ThoughtStreamEvent, Usage, tool
from rxloop.errors import ProviderError, RateLimited
from rxloop.protocol.messages import Citation, FilePart, ImagePart, TextPart
from rxloop.providers.retry import Retry, retrying
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP438AAAAQBAYDFKhhdAAAAAElFTkSuQmCC")
DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.hacked=1"/>'
QUESTION = Message.user(
    [
        TextPart(text="What is on the receipt?"),
        ImagePart(data=PIXEL, media_type="image/png"),
        ImagePart(url="https://example.org/receipt.png"),
        FilePart(data=DRAWING, media_type="image/svg+xml", filename="drawing.svg"),
    ]
)


class _LimitedModel(ScriptedModel):
    """Scripted model that reasons for 1.2 seconds. Its turns with a `#` are rate limited, and repeated."""

    @override
    def call(self, request: ModelRequest) -> Observable[Event]:
        def limit(error: Exception, _: Observable[Event]) -> Observable[Event]:
            is_scripted = isinstance(error, ProviderError)
            return reactivex.throw(RateLimited("too many requests", retry_after=0.5) if is_scripted else error)

        def delay(event: Event) -> Observable[Event]:
            async def wait(push: Push[Event]) -> None:
                await asyncio.sleep(1.2)
                push(event)

            return from_task(wait) if isinstance(event, ThoughtStreamEvent) else reactivex.just(event)

        # Each subscription of a call plays the next turn.
        turns = defer(lambda _: ScriptedModel.call(self, request))
        return turns.pipe(rx.catch(limit), retrying(Retry(jitter=0)), rx.concat_map(delay))


@tool(approve="Refund {order}?")
async def refund(order: str) -> list[str | ImagePart]:
    """Refund an order."""
    await asyncio.sleep(0.4)
    return [f"refunded {order}", ImagePart(data=PIXEL, media_type="image/png")]


def make_clerk(log: EventLog) -> Agent[Any, Any]:
    """Return an agent whose first attempt is released while it writes."""
    rules = Agent(ScriptedModel("Refunds take two days.", name="small"), name="rules", thoughts=False)
    model = _LimitedModel(
        frames("--It is -a receipt -over -five pounds|", 0.2),
        frames("--#", 0.1),
        turn(
            frames("--It is a receipt over 5 pounds. |", 0.3),
            reasoning="The picture shows a receipt.",
            calls=[call("refund", order="A17"), call("rules", prompt="How long?")],
            usage=Usage(input_tokens=300, output_tokens=60, reasoning_tokens=41),
        ),
        frames("--Your refund -will take -a very -long -time|", 0.2),
        turn(
            "Two days 🗓, as the rules say.",
            citations=[Citation(url="javascript:alert(1)", title="Rules", text="two days", start=0, end=10)],
            files=[FilePart(data=b"%PDF-1.4", media_type="application/pdf", filename="refund.pdf")],
            finish_reason="length",
        ),
        name="glm-4.7",
    )
    tools = [refund, rules.as_tool("rules", description="Ask about the rules.")]
    return Agent(model, name="clerk", tools=tools, thoughts=False, log=log)


async def record_conversation(log: EventLog) -> str:
    """Record the run of `make_clerk`, and return its id."""
    agent = make_clerk(log)
    run = agent.run(QUESTION)
    async for event in run:
        if isinstance(event, ContentDeltaEvent):
            break
    await run.release()

    async def approve(question: Any) -> bool:
        await asyncio.sleep(3)
        return True

    run = agent.resume(run.task_id, on_input=approve)
    async for event in run:
        if isinstance(event, ContentDeltaEvent) and event.delta.startswith("will take"):
            run.send("Shorter, please.", interrupt=True)
    return run.task_id


def record_conversation_run(log: EventLog) -> str:
    """Record the run in virtual time, and return its id."""
    with virtual_time() as clock:
        return clock.run(record_conversation(log))
