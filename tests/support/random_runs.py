"""Runs of every kind that the grammar of the stream knows, drawn by Hypothesis: for doors and views that have to cope.

`any_run()` draws what the model says, how the tools behave, and what becomes of the run: `AnyRun.agent()` makes the
agent. What its model says follows from the messages alone, so that a resumed run goes on as it would have. Everything
that is not for clients has `PLANTED` in it.

    @given(kind=any_run())
    def test_a_door(kind: AnyRun) -> None: ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from reactivex import Observable, abc

from rxloop import (
    Agent,
    Citation,
    CustomEvent,
    Event,
    FilePart,
    ImagePart,
    Limits,
    MemoryEventLog,
    PendingInput,
    RunContext,
    Runtime,
    ThoughtStreamEvent,
    ToolError,
    Usage,
    request_input,
    tool,
)
from rxloop.errors import ConflictError, ContextLengthExceeded, NotAsked, RateLimited, RunOver
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentDeltaEvent, StatusUpdateEvent, ThoughtDeltaEvent, ends_attempt
from rxloop.providers.script import Frames
from rxloop.testing import ScriptedModel, call, frames, turn
from support.faulty_components import PLANTED
from support.strategy_cases import CASES, Case, add, by_step

NAME = "clerk"
"""What the agent is called."""
SHOW_MAP: dict[str, Any] = {
    "name": "show_map",
    "description": "Show a city on the user's map.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
"""A tool that the client carries out; it comes with the start of a run."""
IMAGE = ImagePart(data=b"\x89PNG\x00", media_type="image/png")
CITATION = Citation(url="https://example.org", title="A page", text="words", start=0, end=2)
FRAME = 0.0005
"""Seconds between two deltas of a turn that takes time."""

# -- tools


@tool
async def work(ctx: RunContext[Any], seconds: float = 0) -> dict[str, Any]:
    """Takes its time, and says so."""
    ctx.progress("begun")
    await asyncio.sleep(seconds)
    ctx.progress("half", 0.5)
    return {"worked": seconds, "note": "a\nb"}


@tool(timeout=0.002)
async def late() -> None:
    """Takes too long."""
    await asyncio.sleep(1)


@tool
async def fail() -> None:
    """Fails."""
    raise ToolError("it failed")


@tool
async def nothing() -> None:
    """Has nothing to say."""


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Asks, twice."""
    return "yes" if await ctx.ask("Sure?") and await ctx.ask("Which?", str, options=["a", "b"]) == "a" else "no"


@tool(approve=True, idempotent=True)
async def pay(amount: int) -> str:
    """Wants to be approved."""
    return f"paid {amount}"


@tool
async def sign_in(ctx: RunContext[Any]) -> str:
    """Needs a credential."""
    token = await ctx.require_auth("github", url="https://github.com/login")
    return f"{len(token)} characters"


@tool
async def muse(ctx: RunContext[Any]) -> str:
    """Thinks where everybody sees it, and tells of other things."""
    for number, source in enumerate(("tool", "sequential", "strategy")):
        thought = ThoughtStreamEvent(thought_id=f"muse_{number}", content=f"from {source}", source=source)
        ctx.emit(thought.model_copy(update={"related_to": f"muse_{number - 1}"} if number else {}))
    for data in ({"deep": [1, None, "x"]}, None, [], "text", 0):
        ctx.emit(CustomEvent(name="mused", data=data, metadata={"tenant": PLANTED, "public": {"title": "Oslo"}}))
    return "mused"


@tool
async def draw() -> list[Any]:
    """Makes a picture and a file."""
    return ["Drawn:", IMAGE, FilePart(url="https://example.org/a.pdf", filename="a.pdf")]


@tool
async def write(ctx: RunContext[Any]) -> str:
    """Makes a file, piece by piece."""
    file = await ctx.artifacts.create(f"page-{ctx.step}-{ctx.index}.html", media_type="text/html")
    await file.append("<p>one")
    await file.append("</p>\n", last=True)
    return "written"


@tool(hidden=True)
async def planted_secret(ctx: RunContext[Any], planted: str = "") -> str:
    """Keeps a secret."""
    ctx.progress(PLANTED)
    ctx.emit(ThoughtStreamEvent(content="a thought of nobody"))
    return PLANTED


@tool(hidden=True)
async def planted_question(ctx: RunContext[Any]) -> str:
    """Asks in secret."""
    return f"{PLANTED} {await ctx.ask(PLANTED)}"


TOOLS = [
    work,
    late,
    fail,
    nothing,
    sure,
    pay,
    sign_in,
    muse,
    draw,
    write,
    planted_secret,
    planted_question,
    request_input,
]

# -- what the model says


@dataclass(frozen=True)
class Stumble:
    """An answer that breaks off, and begins anew under the same step."""

    reasoning: str
    text: str
    then: Any


class Model(ScriptedModel):
    """Says what follows from the messages; each `Stumble` breaks off once."""

    def __init__(self, answer: Any, name: str = "any", times: int = 200) -> None:
        super().__init__(*[self._turn] * times, name=name)
        self._answer = answer
        self._stumbled: set[Any] = set()

    def _turn(self, request: ModelRequest) -> Any:
        said = self._answer(request)
        return said.then if isinstance(said, Stumble) else said

    def call(self, request: ModelRequest) -> Observable[Event]:
        said = self._answer(request)
        place = (request.ctx.task_id, request.step)
        if not isinstance(said, Stumble) or place in self._stumbled:
            return super().call(request)

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self._stumbled.add(place)
            if said.reasoning:
                observer.on_next(ThoughtDeltaEvent(delta=said.reasoning))
            for index, delta in enumerate(said.text):
                observer.on_next(ContentDeltaEvent(delta=delta, index=index))
            return _fail(observer)

        return Observable(subscribe)


def _fail(observer: abc.ObserverBase[Event]) -> abc.DisposableBase:
    from reactivex.disposable import Disposable

    observer.on_error(ContextLengthExceeded("too long"))
    return Disposable()


def _in_turn(turns: Sequence[Any], last: Any) -> Any:
    """Answers by how often the model has spoken."""

    def answer(request: ModelRequest) -> Any:
        done = sum(message.role == "assistant" for message in request.messages)
        return turns[done] if done < len(turns) else last

    return answer


def _nested_turns(prompt: str, below: str | None) -> list[Any]:
    """What a nested agent does for a prompt."""
    match prompt:
        case "ask":
            return [call("sure", "0")]
        case "pay":
            return [call("pay", "0", amount=1)]
        case "secret":
            return [[call("planted_secret", "0", planted=PLANTED), call("muse", "0")]]
        case "fail":
            return [RateLimited("later")]
        case "stumble":
            return [Stumble("Hm. ", "So I", turn("So", calls=[call("work", "0")], reasoning="Better."))]
        case _ if prompt.startswith("deep ") and below:
            return [["Deeper.", call(below, "0", prompt=prompt.removeprefix("deep ")), call("work", "0")]]
        case _:
            return [turn(frames("It-works-|", FRAME), calls=[call("work", "0")], reasoning="How?")]


def _nested(name: str, below: Agent[Any, Any] | None) -> Agent[Any, Any]:
    """An agent that is called by others: what it does follows from its prompt."""

    def answer(request: ModelRequest) -> Any:
        prompt = next(message.text for message in request.messages if message.role == "user")
        return _in_turn(_nested_turns(prompt, below.name if below else None), f"{name} is done.")(request)

    # Called without a log of its own.
    tools = [*TOOLS, below.as_tool(description="Goes deeper.")] if below else TOOLS
    return Agent(Model(answer, name), tools=tools, name=name, thoughts=False)


TEXTS = ["", "So", "Well, two\n\nlines", "data: x\r\n", "é🙂\u2028"]
PROMPTS = ["go", "ask", "pay", "secret", "fail", "stumble", "deep go", "deep ask", "deep fail", "deep stumble"]
CALLS = st.one_of(
    st.builds(call, st.just("work"), st.sampled_from(["0", "x"]), seconds=st.sampled_from([0, 0.001])),
    st.sampled_from(
        [call("late", "0"), call("fail", "0"), call("nothing", "1"), call("muse", "0"), call("write", "0")]
    ),
    st.just(call("draw", "0")),
    st.sampled_from([call("sure", "0"), call("pay", "0", amount=5), call("sign_in", "0")]),
    st.just(call("request_input", "0", prompt="Where?", fields={"city": "string", "nights": "integer"})),
    st.just(call("show_map", "0", city="Oslo")),
    st.sampled_from([call("nowhere", "0"), call("work", "0", minutes=1)]),
    st.sampled_from([call("planted_secret", f"{PLANTED}-id", planted=PLANTED), call("planted_question", PLANTED)]),
    st.just(call("think_aloud", "0", thought="Both at once.", thought_type="planning")),
    st.builds(call, st.just("child"), st.just("0"), prompt=st.sampled_from(PROMPTS)),
)
USAGES = st.sampled_from(
    [
        None,
        Usage(input_tokens=5, output_tokens=5, cached_tokens=2, reasoning_tokens=1),
        Usage(input_tokens=5, cached_tokens=1, cache_write_tokens=3),
    ]
)


@st.composite
def _turns(draw: Any) -> Any:
    text = draw(st.sampled_from(TEXTS))
    slow = draw(st.booleans())
    # A message with no call is a piece of an answer, which the model goes on with.
    pauses = not draw(st.integers(0, 9))
    said = turn(
        Frames((text or "-", "-", text or "-", "|"), FRAME) if slow else text,
        calls=[] if pauses else draw(st.lists(CALLS, min_size=1, max_size=4)),
        reasoning=draw(st.sampled_from([None, "Let me\nsee."])),
        usage=draw(USAGES),
        finish_reason="pause" if pauses else None,
        files=draw(st.sampled_from([[], [], [IMAGE]])),
    )
    if draw(st.integers(0, 4)):
        return said
    return Stumble(draw(st.sampled_from(["", "Hm."])), draw(st.sampled_from(["", "no", "So "])), said)


ANSWERS = st.sampled_from(
    [
        "Done.",
        turn(frames("D-o-n-e-.|", FRAME), reasoning="Is it?", usage=Usage(input_tokens=1, output_tokens=2)),
        turn("Half of", finish_reason="length"),
        turn("Well", finish_reason="pause"),
        turn("Look:", files=[IMAGE], citations=[CITATION]),
        turn(files=[IMAGE, IMAGE]),
        "",
        RateLimited(f"{PLANTED}: later"),
        frames("So-#", FRAME),
        RuntimeError(PLANTED),
    ]
)


@dataclass(frozen=True)
class AnyRun:
    """What a run is to be like."""

    turns: tuple[Any, ...] = ()
    last: Any = "Done."
    case: Case | None = None
    """A strategy, with lines beside the main one, in place of the turns."""
    slow: bool = False
    limits: Limits = field(default_factory=Limits)
    keeps_deltas: bool = True
    """Whether its log does; readers elsewhere get whole messages otherwise."""
    declines: bool = False
    """Whether questions are answered with no."""
    cancel_after: int | None = None
    """Its events after which it is cancelled."""
    say_after: int | None = None
    """Its events after which something is said to it."""

    def log(self) -> MemoryEventLog:
        """An empty log."""
        return MemoryEventLog(keep_deltas=self.keeps_deltas)

    def agent(self, **options: Any) -> Agent[Any, Any]:
        """The agent; it needs no log when it is given to a runtime."""
        given: dict[str, Any] = {
            "name": NAME,
            "limits": self.limits,
            "instructions": f"{PLANTED}: be brief.",
            **options,
        }
        if self.case is not None:
            answers = by_step(self.case.turns)

            def answer(request: ModelRequest) -> Any:
                said = answers(request)
                return Frames(("-", said, "-", "|"), FRAME) if self.slow and isinstance(said, str) else said

            return Agent(Model(answer), tools=[add], strategy=self.case.strategy(), **given)
        child = _nested("child", _nested("grandchild", None)).as_tool(description="Knows more.")
        return Agent(Model(_in_turn(self.turns, self.last)), tools=[*TOOLS, child], **given)

    def answer(self, question: PendingInput) -> Any:
        """The answer to a question, as far as clients may see that."""
        match question.input_kind:
            case "confirmation":
                return not self.declines
            case "selection":
                return (question.options or ["a"])[0]
            case "tool":
                return {"error": "no map here"} if self.declines else {"shown": True}
            case "credential":
                return None if self.declines else "a-token"
            case "text":
                return "a"
            case "data":
                return {"city": "Oslo", "nights": 2}

    async def play(self, runtime: Runtime, *, prompt: str = "Go.", **options: Any) -> str:
        """Carry a run out in a runtime, up to its end, with all that becomes of it.

        Returns:
            Its id.
        """
        record = await runtime.start(NAME, prompt, client_tools=[SHOW_MAP], **options)
        asked = 0
        async for number, event in _numbered(runtime.follow(record.task_id)):
            if number == self.cancel_after:
                await runtime.cancel(record.task_id, "enough")
            elif number == self.say_after:
                await say(runtime, record.task_id)
            if isinstance(event, StatusUpdateEvent) and ends_attempt(event) and event.task_id == record.task_id:
                if not event.pending or asked == 6:
                    break
                asked += 1
                # One that was cancelled while it paused waits for nothing.
                with suppress(NotAsked):
                    await runtime.answer(record.task_id, {each.input_id: self.answer(each) for each in event.pending})
        if (await runtime.get_record(record.task_id)).state not in ("completed", "failed", "canceled"):
            await runtime.cancel(record.task_id, "too many questions")
        return record.task_id


async def say(runtime: Runtime, task_id: str) -> None:
    """Say something to a run, if that still can be told anything."""
    with suppress(RunOver, ConflictError):
        await runtime.send(task_id, "And quickly.")


async def _numbered(events: AsyncIterable[Event]) -> AsyncIterator[tuple[int, Event]]:
    number = 0
    async for event in events:
        number += 1
        yield number, event


LIMITS = st.sampled_from([Limits(tool_failures=None)] * 3 + [Limits(), Limits(iterations=2), Limits(tokens=15)])
PLACES = st.none() | st.none() | st.integers(1, 60)


def any_run(*, cancels: bool = True) -> st.SearchStrategy[AnyRun]:
    """Draw what a run is to be like.

    Args:
        cancels: Whether it may be cancelled, or told something, in the middle.
    """
    places = PLACES if cancels else st.none()
    common: dict[str, Any] = {"keeps_deltas": st.booleans(), "cancel_after": places, "limits": LIMITS}
    usual = st.builds(
        AnyRun,
        turns=st.lists(_turns(), max_size=4).map(tuple),
        last=ANSWERS,
        declines=st.booleans(),
        say_after=places,
        **common,
    )
    reasoning = st.builds(AnyRun, case=st.sampled_from(CASES), slow=st.booleans(), **common)
    return st.one_of(usual, usual, usual, reasoning)


@contextmanager
def unheard() -> Generator[None]:
    """Log nothing: what goes wrong in these runs is meant to, and thousands of lines about it take time."""
    logger = logging.getLogger("rxloop")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
