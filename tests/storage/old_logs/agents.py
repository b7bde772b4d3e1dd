"""Agents of the runs in the old logs. `generate.py` writes the runs with them, and the tests continue the runs.

The answers of the model depend only on the prompt and on the messages after it, so a resumed run gets the same answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel
from reactivex import Observable

from rxloop import (
    Agent,
    Citation,
    CustomEvent,
    Event,
    EventLog,
    FilePart,
    ImagePart,
    LLMNoticeEvent,
    Message,
    ModelRequest,
    ProviderError,
    RunContext,
    ServerToolEvent,
    SlidingWindowCompressor,
    ToolCallDeltaEvent,
    ToolError,
    Usage,
    op,
    sequential_thinking,
    tool,
)
from rxloop.errors import RateLimited
from rxloop.storage import MemoryArtifacts
from rxloop.stream import Push, from_task
from rxloop.testing import ScriptedModel, call, frames, turn
from rxloop.thinking import ThinkingSessions

IMAGE = ImagePart(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")
UNLUCKY = 13
"""Amount of payments that hang until the crash."""
SHOW_MAP: dict[str, Any] = {
    "name": "show_map",
    "description": "Show a city on the map of the client.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
"""Client tool."""
USED = Usage(input_tokens=20, output_tokens=7, cached_tokens=5, reasoning_tokens=2)

ANSWERS: dict[str, Any] = {
    "confirmation": True,
    "selection": "red",
    "text": "Ann",
    "tool": {"shown": True},
    "credential": "secret-token",
}
"""Answers by kind of question."""


class Invoice(BaseModel):
    """An invoice."""

    customer: str
    total: int


def _thought(number: int, thought: str, **more: Any) -> Any:
    arguments = {"thought": thought, "thoughtNumber": number, "totalThoughts": 2, "nextThoughtNeeded": number < 2}
    return call("sequentialthinking", f"s{number}", **arguments, **more)


CLERK: dict[str, list[Any]] = {
    "Weather in Oslo and Bergen?": [
        turn(
            "I look.",
            calls=[
                call("think_aloud", "t0", thought="Both at once.", thought_type="planning", confidence=0.9),
                call("look", "l0", city="Oslo"),
                call("look", "l1", city="Bergen"),
            ],
            reasoning="Two cities.\nTwo calls.",
            usage=USED,
        ),
        turn("Rain in both.", usage=USED),
    ],
    "What is in this picture?": [
        turn("Let me draw it.", calls=[call("draw", "d0")]),
        turn(
            "The same as here:",
            files=[IMAGE, FilePart(url="https://example.org/a.pdf", filename="a.pdf")],
            citations=[Citation(url="https://example.org", title="A page", text="same", start=4, end=8)],
        ),
    ],
    "Plan the move.": [
        _thought(1, "Copy first."),
        _thought(2, "Or replicate.", branchFromThought=1, branchId="replicate"),
        "Replicate, then switch.",
    ],
    "Write a page.": [
        call("write", "w0", text="one"),
        call("write", "w1", text="two"),
        "The page is written.",
    ],
    "Search forever.": [call("look", "l0", city="Atlantis")],
    "Ask a busy model.": ["It is not busy any more."],
    "Work slowly.": [["I start.", call("work_slowly", "k0")], "Done slowly."],
    "Break a tool.": [[call("fail", "f0"), call("no_such_tool", "n0"), call("look", "l0", town="Oslo")], "All failed."],
    "Tell a long story.": [turn("Once upon a", finish_reason="length", usage=USED)],
    "Refund 5.": [turn("A refund.", calls=[call("refund", "r0", amount=5)], usage=USED), turn("Done.", usage=USED)],
    "Refund 6.": [[call("refund", "r0", amount=6), call("look", "l0", city="Oslo")], "Refunded 6."],
    "Which colour?": [call("choose", "c0"), "A good choice."],
    "Show Oslo on the map.": [call("show_map", "m0", city="Oslo"), "Here it is."],
    "Sign me in.": [call("sign_in", "g0"), "You are in."],
    "Pay three bills.": [
        turn(
            "I pay.",
            calls=[
                call("pay", "p0", amount=4),
                call("pay", "p1", amount=UNLUCKY),
                call("look_slowly", "p2", city="Oslo"),
            ],
            usage=USED,
        ),
        "One of them is uncertain.",
    ],
    "Think for a long time.": ["A long thought."],
    "Refund 7, then think.": [call("refund", "r0", amount=7), "Thought after the refund."],
    "Pay twice.": [call("pay", "p0", amount=UNLUCKY), "Paid at most once."],
    "Say hello.": ["Hello."],
    "I am Bob.": ["Hello Bob."],
    "My number is 7.": [call("look", "l0", city="Oslo"), "Noted."],
    "My colour is red.": ["Red it is."],
    "My dog is Rex.": ["A good dog."],
    "What do you know about me?": ["Bob, 7, red, Rex."],
    "Forget the refund.": ["Forgotten."],
    "Read three long pages.": [
        turn(f"Page {page}.", calls=[call("read_page", f"b{page}", page=page)], usage=USED) for page in range(1, 4)
    ]
    + ["All are read."],
    "Read two long pages.": [call("read_page", f"b{page}", page=page) for page in range(1, 3)] + ["Both are read."],
    "And the first page?": ["It was long."],
}
"""Model turns by prompt."""
TYPIST: dict[str, list[Any]] = {"An invoice for Ann.": ['{"customer": "Ann"}', '{"customer": "Ann", "total": 5}']}
"""Answers for an agent with typed output. The first answer is invalid."""
NESTED: dict[str, list[Any]] = {
    "Ask around.": [["I ask.", call("helper", "h0", prompt="Find out.")], "They know."],
    "Find out.": [call("expert", "e0", prompt="What is it?"), "The expert said it."],
    "What is it?": [turn("It is blue.", reasoning="Blue?", usage=USED)],
    "Buy it.": [[call("helper", "h0", prompt="Order it."), call("look", "l0", city="Oslo")], "Bought."],
    "Order it.": [call("expert", "e0", prompt="Refund the old one."), "Ordered."],
    "Refund the old one.": [call("refund", "r0", amount=8), "Refunded the old one."],
    "Pay for it.": [call("helper", "h0", prompt="Have it paid."), "It is paid."],
    "Have it paid.": [call("expert", "e0", prompt="Pay the bill."), "Somebody paid."],
    "Pay the bill.": [call("pay", "p0", amount=UNLUCKY), "The bill is paid."],
}
"""Model turns of nested agents by prompt."""
STRATEGY_ANSWERS: dict[str, dict[str, Any]] = {
    "linear": {
        "linear/1": "Two and two.\nNext: continue",
        "linear/2": "That is four.\nNext: conclude",
        "linear/3": "It is four.\nHolds: yes",
        "1": "4",
    },
    "self_consistency": dict.fromkeys([f"self_consistency/{sample}/1" for sample in range(1, 10)], "Answer: 4"),
}
"""Model turns by strategy and step."""


class Vendor:
    """Model that sends a notice, runs a built-in tool, and fails during a tool call."""

    name = "vendor-1"

    async def aclose(self) -> None:
        """Close nothing."""

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Answer a request."""

        async def work(push: Push[Event]) -> None:
            push(LLMNoticeEvent(code="left_out", message="temperature is not supported"))
            for phase in ("start", "complete"):
                push(ServerToolEvent(tool_call_id="v0", name="web_search", phase=phase, result={"found": 1}))
            push(ToolCallDeltaEvent(index=0, tool_call_id="v1", name="read_page", fragment='{"page": 1}'))
            await asyncio.sleep(0.02)
            raise ProviderError("the answer broke off")

        return from_task(work, request.ctx, name="vendor", shielded=True)


class Shop:
    """Agents with a shared log.

    Attributes:
        effects: Effects of tools, oldest first.
        requests: Model requests, oldest first.
        broken: True if a model is busy, and some payments and answers block until the process is killed.
    """

    def __init__(self, log: EventLog | None, *, broken: bool = False, sessions: ThinkingSessions | None = None) -> None:
        self.effects: list[str] = []
        self.requests: list[ModelRequest] = []
        self.broken = broken
        tools = self._tools()
        think = sequential_thinking("move", sessions=sessions or ThinkingSessions(MemoryArtifacts()))
        self.clerk: Agent[None, Any] = Agent(
            self._model(CLERK, "clerk-1"), name="clerk", tools=[*tools, think], log=log, instructions="Be brief."
        )
        self.typist: Agent[None, Any] = Agent(
            self._model(
                {"An invoice for Ann.": ['{"customer": "Ann"}', '{"customer": "Ann", "total": 5}']}, "typist-1"
            ),
            name="typist",
            output_type=Invoice,
            log=log,
            thoughts=False,
        )
        compress = op.compress(SlidingWindowCompressor(max_tokens=400))
        self.reader: Agent[None, Any] = Agent(
            self._model(CLERK, "reader-1"),
            name="reader",
            tools=tools,
            log=log,
            thoughts=False,
            loop=op.standard(before_model=[compress]),
        )
        busy = ScriptedModel(*[RateLimited("later")] * 9)
        thinking_phase = op.thinking_phase(SlidingWindowCompressor(max_tokens=400), thinking_model=busy)
        self.planner: Agent[None, Any] = Agent(
            self._model(CLERK, "planner-1"),
            name="planner",
            tools=tools,
            log=log,
            thoughts=False,
            loop=op.standard(before_model=[thinking_phase]),
        )
        self.early: Agent[None, Any] = Agent(
            Vendor(),
            name="early",
            tools=tools,
            log=log,
            thoughts=False,
            loop=[op.call_model(), op.run_tools(early=True), op.checkpoint()],
        )
        expert = Agent(self._model(NESTED, "expert-1"), name="expert", tools=tools, thoughts=False)
        helper = Agent(self._model(NESTED, "helper-1"), name="helper", tools=[expert.as_tool()], thoughts=False)
        self.boss: Agent[None, Any] = Agent(
            self._model(NESTED, "boss-1"), name="boss", tools=[helper.as_tool(), *tools], log=log, thoughts=False
        )
        self.thinkers: dict[str, Agent[None, Any]] = {
            name: Agent(
                ScriptedModel(*[partial(self._answer_step, name)] * 50, name=f"{name}-1"),
                name=name,
                tools=tools,
                log=log,
                thoughts=False,
            )
            for name in STRATEGY_ANSWERS
        }

    @property
    def agents(self) -> dict[str, Agent[None, Any]]:
        """Agents by name."""
        agents = (self.clerk, self.typist, self.reader, self.planner, self.early, self.boss, *self.thinkers.values())
        return {each.name: each for each in agents}

    async def aclose(self) -> None:
        """Close the agents."""
        for agent in self.agents.values():
            await agent.aclose()

    def _model(self, script: dict[str, list[Any]], name: str) -> ScriptedModel:
        return ScriptedModel(*[partial(self._answer, script)] * 200, name=name)

    def _answer(self, script: dict[str, list[Any]], request: ModelRequest) -> Any:
        self.requests.append(request)
        prompt, done = find_prompt(script, request.ctx.state.messages)
        if self.broken and prompt == "Ask a busy model.":
            return RateLimited("later")
        if self.broken and (prompt == "Think for a long time." or (prompt == "Refund 7, then think." and done)):
            # Never complete.
            return frames("A long-", 0.001)
        turns = script[prompt]
        return turns[min(done, len(turns) - 1)]

    def _answer_step(self, strategy: str, request: ModelRequest) -> Any:
        self.requests.append(request)
        return STRATEGY_ANSWERS[strategy][request.step if request.branch else "1"]

    def _tools(self) -> list[Any]:
        def effect(text: str) -> None:
            self.effects.append(text)

        @tool(idempotent=True)
        async def look(city: str) -> dict[str, Any]:
            """Looks up the weather."""
            effect(f"look {city}")
            return {"city": city, "sky": "rain", "degrees": None}

        @tool(idempotent=True)
        async def look_slowly(city: str) -> str:
            """Looks up the weather, slowly."""
            effect(f"look slowly {city}")
            if self.broken:
                await asyncio.Event().wait()
            return "rain"

        @tool
        async def pay(amount: int) -> str:
            """Pays; not idempotent."""
            effect(f"pay {amount}")
            if self.broken and amount == UNLUCKY:
                await asyncio.Event().wait()
            return f"paid {amount}"

        @tool(approve=True, idempotent=True)
        async def refund(amount: int) -> str:
            """Refunds after an approval."""
            effect(f"refund {amount}")
            return f"refunded {amount}"

        @tool
        async def choose(ctx: RunContext[Any]) -> str:
            """Asks two questions."""
            name = await ctx.ask("Your name?", str)
            colour = await ctx.ask("Which colour?", str, options=["red", "blue"])
            return f"{colour} for {name}"

        @tool
        async def sign_in(ctx: RunContext[Any]) -> str:
            """Needs a credential."""
            token = await ctx.require_auth("github", url="https://github.com/login")
            return f"{len(token)} characters"

        @tool
        async def draw(ctx: RunContext[Any]) -> list[Any]:
            """Draws a picture."""
            ctx.progress("drawing", 0.5)
            ctx.emit(CustomEvent(name="drawn", data={"lines": [1, 2.5, None]}, metadata={"public": {"title": "A"}}))
            return ["Drawn:", IMAGE, FilePart(data=b"a,b\n", media_type="text/csv", filename="a.csv")]

        @tool
        async def write(ctx: RunContext[Any], text: str) -> str:
            """Writes a page, or its next version."""
            page = await ctx.artifacts.create("page.html", media_type="text/html", override=True)
            await page.append(f"<p>{text}")
            await page.append("</p>\n", last=True)
            return "written"

        @tool
        async def work_slowly() -> str:
            """Works until the run is steered or cancelled."""
            await asyncio.sleep(0.2)
            return "worked"

        @tool
        async def fail() -> str:
            """Fails."""
            raise ToolError("it failed")

        @tool(read_only=True)
        async def read_page(page: int) -> str:
            """Reads a page."""
            return f"Page {page}: " + "rain falls on the plain. " * 9

        return [look, look_slowly, pay, refund, choose, sign_in, draw, write, work_slowly, fail, read_page]


def find_prompt(script: dict[str, list[Any]], messages: Sequence[Message]) -> tuple[str, int]:
    """Return the newest prompt that the script contains, and the number of later model messages."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "user" and message.text in script:
            return message.text, sum(each.role == "assistant" for each in messages[index:])
    raise AssertionError(f"none of these messages is in the script: {[message.text for message in messages]}")
