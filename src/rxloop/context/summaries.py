"""Rule-based and model-based summaries of removed messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator
from reactivex import Observable

from rxloop.context.compression import CompressionResult, CompressionState
from rxloop.context.request_compressor import RequestCompressor
from rxloop.errors import RxloopError
from rxloop.pipeline.interfaces import Provider, TokenCounter
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.pipeline.thinking_result import ThinkingResult
from rxloop.protocol.events import Event, ThinkingFailedEvent
from rxloop.protocol.messages import Message, Usage, Wire
from rxloop.protocol.settings import ModelSettings
from rxloop.state.run_state import RunState
from rxloop.stream.sources import Push, collect_answer, from_task
from rxloop.support.text import to_one_line

_LINE = 200
"""Maximum line length in notes, in characters."""

_MAX_LISTED = 3

_PLANS, _FINDINGS = ("planning", "strategy"), ("decision", "reflection", "observation", "critique", "analysis")


def reflect(state: RunState) -> ThinkingResult:
    """Derive progress information from the run state using deterministic rules."""
    newest = [thought for thought in list(state.thoughts.values())[-50:] if thought.branch is None]
    plans = [thought.content for thought in newest if thought.thought_type in _PLANS]
    findings = [thought.content for thought in newest if thought.thought_type in _FINDINGS]
    failed = _failed(state.messages)
    actions = [f"{to_one_line(plan, _LINE)}" for plan in plans[-1:]]
    actions += [f"{name} failed: {to_one_line(text, _LINE)}" for name, text in failed]
    return ThinkingResult(
        current_state=_progress(state),
        insights=tuple(to_one_line(finding, _LINE) for finding in findings[-_MAX_LISTED:]),
        next_actions=tuple(actions),
    )


def _progress(state: RunState) -> str:
    """Describe the model call count and recent tool calls."""
    if not state.iteration:
        return ""
    last = next((message for message in reversed(list(state.messages)[-100:]) if message.role == "assistant"), None)
    text = f"{state.iteration} model calls so far."
    if last is None:
        return text
    calls = ", ".join(dict.fromkeys(call.name for call in last.tool_calls))
    if calls:
        text += f" The last one called {to_one_line(calls, _LINE)}."
    return text


def _failed(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return failed calls in the newest block, including their results."""
    block: list[Message] = []
    for message in reversed(list(messages)[-50:]):
        block.append(message)
        if message.role != "tool":
            break
    names = {call.id: call.name for call in block[-1].tool_calls} if block else {}
    results = [result for result in reversed(block) if result.role == "tool"]
    marks = ("error", "traceback", "exception", "failed", "timed out", "not found", "denied")
    bad = [result for result in results if any(mark in result.text[:400].lower() for mark in marks)]
    return [(names.get(result.tool_call_id or "", "a call"), result.text) for result in bad[:_MAX_LISTED]]


class Summary(Wire):
    """Summary of the removed messages, written by the thinking model in fixed sections."""

    model_config = ConfigDict(extra="ignore")

    goal: str = Field(default="", description="What is to be achieved, in a sentence.")
    constraints: list[str] = Field(default_factory=list[str], description="What must be kept to.")
    done: list[str] = Field(default_factory=list[str], description="What has been done, with its outcome.")
    next: list[str] = Field(default_factory=list[str], description="What is to be done next.")
    facts: list[str] = Field(default_factory=list[str], description="Values that will be needed, word for word.")
    open_errors: list[str] = Field(default_factory=list[str], description="What failed and is not solved.")
    files: list[str] = Field(default_factory=list[str], description="Files that matter, each with why.")

    @field_validator("constraints", "done", "next", "facts", "open_errors", "files", mode="before")
    @classmethod
    def _as_lines(cls, value: Any) -> Any:
        """Convert a value to a list of strings, because models may return other shapes."""
        if value is None:
            return []
        if isinstance(value, dict):
            return [f"{key}: {each}" for key, each in value.items()]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, str):
            return [line.strip("-* ") for line in value.splitlines() if line.strip("-* ")]
        return [item if isinstance(item, str) else str(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a summary from a model answer.

        Raises:
            ValueError: Missing, invalid or empty JSON object.
        """
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < start:
            raise ValueError(f"the thinking model gave {to_one_line(text, 80)!r} instead of a JSON object")
        try:
            summary = cls.model_validate_json(text[start : end + 1])
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"the summary does not match its schema: {first['loc']}: {first['msg']}") from None
        if not summary.lines():
            raise ValueError("the summary is empty")
        return summary

    def lines(self) -> list[str]:
        """Return all non-empty sections as lines."""
        sections = [("Constraints", self.constraints), ("Done", self.done), ("Next", self.next), ("Facts", self.facts)]
        sections += [("Open errors", self.open_errors), ("Files", self.files)]
        lines = [f"Goal: {self.goal.strip()}"] if self.goal.strip() else []
        for title, items in sections:
            texts = [item.strip() for item in items if item.strip()]
            if texts:
                lines.append(f"{title}:")
                lines += [f"- {item}" for item in texts]
        return lines

    def text(self, fits: Callable[[str], bool]) -> str:
        """Shorten the summary until it fits, starting with the oldest items in the longest sections.

        Args:
            fits: Returns True if a string is short enough.
        """
        short = self.model_copy()
        while not fits("\n".join(short.lines())):
            lists = {
                name: getattr(short, name) for name in ("done", "facts", "files", "open_errors", "next", "constraints")
            }
            longest = max(lists, key=lambda name: sum(map(len, lists[name])))
            if not lists[longest]:
                return short.goal[: max(20, len(short.goal) // 2)] if fits(short.goal[:20]) else ""
            short = short.model_copy(update={longest: lists[longest][1:]})
        return "\n".join(short.lines())


ASK = """\
You keep the summary of a long piece of work, for the model that goes on with it. Messages are about to leave its \
view. Bring the summary up to date with them: keep what still matters, word for word where it is a name, a number, a \
path or an id; leave out what is over. Answer with one JSON object and nothing else:
{"goal": "", "constraints": [], "done": [], "next": [], "facts": [], "openErrors": [], "files": []}
goal is a text, the others are lists of short texts."""


def question(task: str, before: str, left: Sequence[Message], limit: int) -> str:
    """Return the prompt for a thinking model.

    Args:
        task: The user's first message.
        before: Current summary.
        left: Messages to summarise, in order.
        limit: Maximum number of characters for these messages. Longer text is truncated in the middle.
    """
    text = "\n".join(_line(message) for message in left)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return f"The task:\n{task[:2_000]}\n\nThe summary so far:\n{before or '(none)'}\n\nWhat leaves the view:\n{text}"


def _line(message: Message) -> str:
    calls = "".join(f" [calls {call.name} {call.raw or call.arguments}]" for call in message.tool_calls)
    return f"{message.role}: {message.text_with_placeholders}{calls}"


_MAX_PROMPT_CHARS = 24_000
"""Maximum number of characters that a thinking model reads."""

_TITLE = "[Summary of the messages that are left out here:]\n"


class SummaryPhase:
    """Thinking phase that compresses requests and adds summaries of the removed messages."""

    def __init__(
        self, cutter: RequestCompressor, model: Provider | str | None, note: bool, summary_tokens: int, timeout: float
    ) -> None:
        self._cutter = cutter
        self._model = model
        self._note = note
        self._summary_tokens = summary_tokens
        self._timeout = timeout

    def answer(self, request: ModelRequest) -> Observable[Signal] | ModelRequest:
        """Return the request to send instead, or an observable of it."""
        if self._cutter.skips(request):
            return request
        result = reflect(request.ctx.state)
        if self._note and result.note():
            request = request.replace(tail=(*request.tail, Message.user(result.note())))
        counter = self._cutter.counter(request)
        compression = self._cutter.compression(request, counter)
        if compression.fits:
            return self._request(request, compression.unchanged(), result, counter)

        async def cut(push: Push[Any]) -> None:
            compressed = await self._cutter.cut(request, compression)
            fields: dict[str, Any] = {}
            thinking = result
            if compressed.cut and self._model is not None and not request.pressure:
                compressed, summary, fields, failure = await self._add_model_summary(
                    self._model, request, compressed, counter
                )
                thinking = _add_summary(result, summary)
                if failure is not None:
                    push(failure)
            for event in self._cutter.events(request, compressed, **fields):
                push(event)
            used = fields.get("thinking", Usage())
            push(self._request(request, compressed, replace(thinking, thinking_tokens=used), counter))

        return from_task(cut, request.ctx, name="rxloop-thinking", shielded=True)

    def _request(
        self, request: ModelRequest, compressed: CompressionResult, result: ThinkingResult, counter: TokenCounter
    ) -> ModelRequest:
        thinking = replace(result, summary=compressed.state.summary, compressed_history=compressed.messages)
        return self._cutter.make_request(request.replace(thinking=thinking), compressed.messages, counter)

    async def _add_model_summary(
        self, model: Provider | str, request: ModelRequest, compressed: CompressionResult, counter: TokenCounter
    ) -> tuple[CompressionResult, Summary, dict[str, Any], Event | None]:
        """Add a model's summary.

        Returns:
            The result, the summary or an empty one, event fields, and a failure or None.
        """
        used = Usage()
        name = model if isinstance(model, str) else type(model).__name__
        try:
            provider = request.ctx.info.resolve_model(model)
            name = provider.name
            async with asyncio.timeout(self._timeout):
                text, used = await self._ask(provider, request, compressed)
            summary = Summary.read(text)
            short = summary.text(lambda part: counter.count([Message.user(part)]) <= self._summary_tokens)
            compressed = _with_summary(compressed, short, request, counter)
            return compressed, summary, {"thinking_model": name, "thinking": used}, None
        except TimeoutError:
            reason = f"the thinking model {name} took more than {self._timeout:g} s"
        except (RxloopError, ValueError) as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        failure = ThinkingFailedEvent(
            reason=reason, tokens_before=compressed.tokens_before, step=request.step, branch=request.branch
        )
        return compressed, Summary(), {"thinking_model": name, "thinking": used}, failure

    async def _ask(self, model: Provider, request: ModelRequest, compressed: CompressionResult) -> tuple[str, Usage]:
        """Request a model summary and return its text and usage."""
        history = request.messages
        before = self._cutter.load_state(request) or CompressionState()
        dropped = set(compressed.state.omitted) - set(before.omitted)
        task = next((message.text for message in history if message.role == "user"), "")
        prompt = question(task, before.summary, [history[index] for index in sorted(dropped)], _MAX_PROMPT_CHARS)
        summarise = ModelRequest(
            system=(Message.system(ASK),),
            messages=[Message.user(prompt)],
            settings=ModelSettings(max_tokens=2 * self._summary_tokens + 200),
            step=f"{request.step}/thinking",
            branch=request.branch,
            ctx=request.ctx,
        )
        answer, used = await collect_answer(model.call(summarise))
        return answer.content, used


def _add_summary(result: ThinkingResult, summary: Summary) -> ThinkingResult:
    """Add the facts and next steps of a summary to the result of the phase."""
    return replace(
        result,
        insights=(*result.insights, *summary.facts),
        next_actions=(*summary.next, *result.next_actions),
    )


def _with_summary(
    compressed: CompressionResult, text: str, request: ModelRequest, counter: TokenCounter
) -> CompressionResult:
    """Insert a model summary before the facts.

    Raises:
        ValueError: Empty summary or no size reduction.
    """
    if not text.strip():
        raise ValueError("the summary is empty")
    view = list(compressed.state.view)
    at = _find_summary(view)
    facts = compressed.state.summary
    message = Message.user(f"{_TITLE}{text}\n\n{facts}".rstrip())
    if at is not None:
        view[at] = message
    else:
        view.insert(_index_after_task(view, request.messages), message)
    state = replace(compressed.state, view=tuple(view))
    messages = state.messages(request.messages)
    after = counter.count(messages)
    if after >= compressed.tokens_before:
        raise ValueError(
            f"the summary must reduce the messages to less than {compressed.tokens_before} tokens, got {after}"
        )
    return replace(compressed, state=state, messages=messages, tokens_after=after)


def _find_summary(view: Sequence[int | Message]) -> int | None:
    compressed = (
        at for at, item in enumerate(view) if isinstance(item, Message) and item.role not in ("tool", "assistant")
    )
    return next(compressed, None)


def _index_after_task(view: Sequence[int | Message], history: Sequence[Message]) -> int:
    users = (at for at, item in enumerate(view) if isinstance(item, int) and history[item].role == "user")
    return next(users, -1) + 1
