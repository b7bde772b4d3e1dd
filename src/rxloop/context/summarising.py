"""Summaries as values: where a run stands, by rule, and a model's summary of the messages that are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator

from rxloop.pipeline.values import ThinkingResult
from rxloop.protocol.messages import Message, Wire
from rxloop.state.run_state import RunState
from rxloop.thoughts.drawing import one_line

_LINE = 200
"""Characters of one thing in a note."""
_FEW = 3
_PLANS, _FINDINGS = ("planning", "strategy"), ("decision", "reflection", "observation", "critique", "analysis")


def reflect(state: RunState) -> ThinkingResult:
    """Read from the state of a run, by rule, where it stands: the same state gives the same result."""
    newest = [thought for thought in list(state.thoughts.values())[-50:] if thought.branch is None]
    plans = [thought.content for thought in newest if thought.thought_type in _PLANS]
    findings = [thought.content for thought in newest if thought.thought_type in _FINDINGS]
    failed = _failed(state.messages)
    actions = [f"{one_line(plan, _LINE)}" for plan in plans[-1:]]
    actions += [f"{name} failed: {one_line(text, _LINE)}" for name, text in failed]
    return ThinkingResult(
        current_state=_progress(state),
        insights=tuple(one_line(finding, _LINE) for finding in findings[-_FEW:]),
        next_actions=tuple(actions),
    )


def _progress(state: RunState) -> str:
    """Say how many model calls there were, and what the last of them did."""
    if not state.iteration:
        return ""
    last = next((message for message in reversed(list(state.messages)[-100:]) if message.role == "assistant"), None)
    said = f"{state.iteration} model calls so far."
    if last is None:
        return said
    calls = ", ".join(dict.fromkeys(call.name for call in last.tool_calls))
    if calls:
        said += f" The last one called {one_line(calls, _LINE)}."
    return said


def _failed(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Find the calls of the newest block whose results look like failures."""
    block: list[Message] = []
    for message in reversed(list(messages)[-50:]):
        block.append(message)
        if message.role != "tool":
            break
    names = {call.id: call.name for call in block[-1].tool_calls} if block else {}
    results = [result for result in reversed(block) if result.role == "tool"]
    marks = ("error", "traceback", "exception", "failed", "timed out", "not found", "denied")
    bad = [result for result in results if any(mark in result.text[:400].lower() for mark in marks)]
    return [(names.get(result.tool_call_id or "", "a call"), result.text) for result in bad[:_FEW]]


class Summary(Wire):
    """What a thinking model writes of the messages that left the request: always the same sections."""

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
        """Make a list of texts of it, whatever shape a model gave it."""
        if value is None:
            return []
        if isinstance(value, dict):
            return [f"{key}: {each}" for key, each in value.items()]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, str):
            return [line.strip("-* ") for line in value.splitlines() if line.strip("-* ")]
        return [item if isinstance(item, str) else str(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the summary from the JSON object in what a model said.

        Raises:
            ValueError: The text has no such object, or the object is empty.
        """
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < start:
            raise ValueError(f"the thinking model gave {one_line(text, 80)!r} instead of a JSON object")
        try:
            found = cls.model_validate_json(text[start : end + 1])
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"the summary does not fit: {first['loc']}: {first['msg']}") from None
        if not found.lines():
            raise ValueError("the summary is empty")
        return found

    def lines(self) -> list[str]:
        """Write the sections that are not empty, as lines."""
        sections = [("Constraints", self.constraints), ("Done", self.done), ("Next", self.next), ("Facts", self.facts)]
        sections += [("Open errors", self.open_errors), ("Files", self.files)]
        lines = [f"Goal: {self.goal.strip()}"] if self.goal.strip() else []
        for title, items in sections:
            kept = [item.strip() for item in items if item.strip()]
            if kept:
                lines.append(f"{title}:")
                lines += [f"- {item}" for item in kept]
        return lines

    def text(self, fits: Callable[[str], bool]) -> str:
        """Cut the summary to what fits: the oldest lines of the longest sections go first.

        Args:
            fits: Says whether a text fits.
        """
        found = self.model_copy()
        while not fits("\n".join(found.lines())):
            lists = {
                name: getattr(found, name) for name in ("done", "facts", "files", "open_errors", "next", "constraints")
            }
            longest = max(lists, key=lambda name: sum(map(len, lists[name])))
            if not lists[longest]:
                return found.goal[: max(20, len(found.goal) // 2)] if fits(found.goal[:20]) else ""
            found = found.model_copy(update={longest: lists[longest][1:]})
        return "\n".join(found.lines())


ASK = """\
You keep the summary of a long piece of work, for the model that goes on with it. Messages are about to leave its \
view. Bring the summary up to date with them: keep what still matters, word for word where it is a name, a number, a \
path or an id; leave out what is over. Answer with one JSON object and nothing else:
{"goal": "", "constraints": [], "done": [], "next": [], "facts": [], "openErrors": [], "files": []}
goal is a text, the others are lists of short texts."""


def question(task: str, before: str, left: Sequence[Message], limit: int) -> str:
    """Write the question to the thinking model: the task, the summary as it was, and what leaves the view.

    Args:
        task: The first message of the user.
        before: The summary so far.
        left: The messages that leave the view, in order.
        limit: Characters of these messages; the middle of what is longer is left out.
    """
    said = "\n".join(_line(message) for message in left)
    if len(said) > limit:
        half = limit // 2
        said = f"{said[:half]}\n[... {len(said) - 2 * half} characters left out ...]\n{said[-half:]}"
    return f"The task:\n{task[:2_000]}\n\nThe summary so far:\n{before or '(none)'}\n\nWhat leaves the view:\n{said}"


def _line(message: Message) -> str:
    calls = "".join(f" [calls {call.name} {call.raw or call.arguments}]" for call in message.tool_calls)
    return f"{message.role}: {message.text_alone}{calls}"
