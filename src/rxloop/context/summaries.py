"""Rule-based and model-based summaries of removed messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator

from rxloop.context.compression import CompressionResult
from rxloop.pipeline.interfaces import Budget, Provider, TokenCounter
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.thinking_result import ThinkingResult
from rxloop.protocol.messages import Message, Usage, Wire
from rxloop.protocol.settings import ModelSettings
from rxloop.state.run_state import RunState
from rxloop.stream.sources import collect_answer
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
    last = next((message for message in islice(reversed(state.messages), 100) if message.role == "assistant"), None)
    calls = ", ".join(dict.fromkeys(call.name for call in last.tool_calls)) if last is not None else ""
    called = f" The last one called {to_one_line(calls, _LINE)}." if calls else ""
    return f"{state.iteration} model calls so far.{called}"


def _failed(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return failed calls in the newest block, including their results."""
    block: list[Message] = []
    for message in islice(reversed(messages), 50):
        block.append(message)
        if message.role != "tool":
            break
    names = {call.id: call.name for call in block[-1].tool_calls} if block else {}
    results = [result for result in reversed(block) if result.role == "tool"]
    marks = ("error", "traceback", "exception", "failed", "timed out", "not found", "denied")
    bad = [result for result in results if any(mark in result.text[:400].lower() for mark in marks)]
    return [(names.get(result.tool_call_id or "", "a call"), result.text) for result in bad[:_MAX_LISTED]]


_SECTIONS = ("constraints", "done", "next", "facts", "open_errors", "files")


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

    @field_validator(*_SECTIONS, mode="before")
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
        lines = [f"Goal: {self.goal.strip()}"] if self.goal.strip() else []
        for name in _SECTIONS:
            items = [f"- {item.strip()}" for item in getattr(self, name) if item.strip()]
            lines += [f"{name.replace('_', ' ').capitalize()}:", *items] if items else []
        return lines

    def text(self, fits: Callable[[str], bool]) -> str:
        """Shorten the summary until it fits, starting with the oldest items in the longest sections.

        Args:
            fits: Returns True if a string is short enough.
        """
        short = self.model_copy()
        while not fits("\n".join(short.lines())):
            # Of two equally long sections, the later one is shortened.
            lists = {name: getattr(short, name) for name in reversed(_SECTIONS)}
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


def question(task: str, before: str, left: Sequence[Message], limit: int, workspace: str = "") -> str:
    """Return the prompt for a thinking model.

    Args:
        task: The user's first message.
        before: Current summary.
        left: Messages to summarise, in order.
        limit: Maximum number of characters for these messages, and for the workspace. Longer text is truncated in the
            middle.
        workspace: Text of the workspaces.
    """
    text = _shorten("\n".join(to_line(message) for message in left), limit)
    shown = f"The workspace, which stays in view:\n{_shorten(workspace, limit)}\n\n" if workspace else ""
    return (
        f"The task:\n{task[:2_000]}\n\n{shown}The summary so far:\n{before or '(none)'}\n\n"
        f"What leaves the view:\n{text}"
    )


def _shorten(text: str, limit: int) -> str:
    half = limit // 2
    left_out = len(text) - 2 * half
    return text if len(text) <= limit else f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"


def to_line(message: Message) -> str:
    """Return the text and the calls of a message."""
    calls = "".join(f" [calls {call.name} {call.raw or call.arguments}]" for call in message.tool_calls)
    return f"{message.role}: {message.text_with_placeholders}{calls}"


_MAX_PROMPT_CHARS = 24_000
"""Maximum number of characters that a thinking model reads."""

_TITLE = "[Summary of the messages that are left out here:]\n"


class RejectedSummary(ValueError):
    """Invalid answer of a thinking model, which was billed anyway."""

    def __init__(self, reason: str, used: Usage) -> None:
        super().__init__(reason)
        self.used = used


async def summarise(
    model: Provider,
    request: ModelRequest,
    before: str,
    history: Sequence[Message],
    workspace: str,
    results: Sequence[Message],
    budget: Budget,
) -> ThinkingResult:
    """Return a summary by a model that includes the messages removed in this cycle, see `Think`.

    Args:
        model: Thinking model.
        request: Request that was compressed.
        before: Current summary.
        history: Messages of the run.
        workspace: Text of the workspaces.
        results: Tool results of the last iteration.
        budget: Removed messages and token limit.

    Raises:
        RejectedSummary: The answer of the model is invalid.
    """
    task = next((message.text for message in history if message.role == "user"), "")
    prompt = question(task, before, budget.dropped, _MAX_PROMPT_CHARS, workspace)
    asked = ModelRequest(
        system=(Message.system(ASK),),
        messages=[Message.user(prompt)],
        settings=ModelSettings(max_tokens=2 * budget.tokens + 200),
        step=f"{request.step}/thinking",
        branch=request.branch,
        ctx=request.ctx,
    )
    answer, used = await collect_answer(model.call(asked))
    try:
        summary = Summary.read(answer.content)
    except ValueError as error:
        raise RejectedSummary(str(error), used) from None
    short = summary.text(lambda part: budget.count(Message.user(part)) <= budget.tokens)
    return ThinkingResult(
        summary=short, insights=tuple(summary.facts), next_actions=tuple(summary.next), thinking_tokens=used
    )


def insert_summary(
    compressed: CompressionResult, text: str, request: ModelRequest, counter: TokenCounter
) -> CompressionResult:
    """Insert a model summary before the facts.

    Raises:
        ValueError: Empty summary or no size reduction.
    """
    if not text.strip():
        raise ValueError("the summary is empty")
    view = list(compressed.state.view)
    message = Message.user(f"{_TITLE}{text}\n\n{compressed.state.summary}".rstrip())
    start, end = _find_summary(view, request.messages)
    view[start:end] = [message]
    state = replace(compressed.state, view=tuple(view))
    messages = state.messages(request.messages)
    after = counter.count(messages)
    if after >= compressed.tokens_before:
        raise ValueError(
            f"the summary must reduce the messages to less than {compressed.tokens_before} tokens, got {after}"
        )
    return replace(compressed, state=state, messages=messages, tokens_after=after)


def _find_summary(view: Sequence[int | Message], history: Sequence[Message]) -> tuple[int, int]:
    """Return the slice with the summary, or an empty slice after the task."""
    for at, item in enumerate(view):
        if isinstance(item, Message) and item.role not in ("tool", "assistant"):
            return at, at + 1
    users = (at for at, item in enumerate(view) if isinstance(item, int) and history[item].role == "user")
    after_task = next(users, -1) + 1
    return after_task, after_task
