"""Progress messages and tool call results."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from rxloop.errors import ToolError
from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import (
    AnyEvent,
    Event,
    StageEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    ThoughtStreamEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ends_attempt,
)
from rxloop.protocol.messages import FilePart, ImagePart, PendingInput
from rxloop.protocol.model import thaw
from rxloop.server.mcp.tools import CONTEXT, CONTINUE, Offered
from rxloop.tools.result import failure_fields

_LONGEST = 500
"""Maximum length of a progress message."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress message."""

    message: str
    passing: bool = False
    """True if the message may be skipped to limit the rate."""


Heard = Progress | StatusUpdateEvent
"""Progress message or public final event."""


def heard() -> View[AnyEvent, Heard]:
    """Create a view of progress messages until the end of an attempt.

    ::

        source     --w--s--p--i--h--x--w--w--|     s a call, p its progress, i of a hidden tool, h a thought
        heard()    -----1--2-----3-----w|          1 to 3 messages, w the end of the attempt

    Returns:
        A view of progress messages and the final event of the attempt.
    """

    def write(out: ViewOutput[Heard]) -> Callable[[AnyEvent], None]:
        def take(event: AnyEvent) -> None:
            shown = event.to_public()
            if shown is None:
                return
            if isinstance(shown, StatusUpdateEvent):
                if ends_attempt(shown):
                    out.emit(shown)
                    out.complete()
                return
            told = _told(shown)
            if told is not None:
                out.emit(told)

        return take

    return make_view(write)


def _told(event: Event) -> Progress | None:
    match event:
        case ToolProgressEvent():
            share = "" if event.fraction is None else f" ({event.fraction:.0%})"
            text = f"{event.name}: {event.message}{share}"
        case ToolStartEvent() | ThoughtStreamEvent() | StageEvent() | SubtaskEvent():
            text = event.describe()
        case _:
            return None
    who = " > ".join(event.agent_path)
    line = " ".join(f"{who}: {text}".split() if who else text.split())
    return Progress(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…", isinstance(event, ToolProgressEvent))


Result = types.CallToolResult

_FOR_MODELS = types.Annotations(audience=["assistant"])
_SCHEMA = 2_000
"""Maximum number of schema characters in a question for a model."""


@dataclass(frozen=True, slots=True)
class Told:
    """Run ids included in results."""

    task_id: str
    context_id: str

    def meta(self, state: str) -> dict[str, Any]:
        """Return result metadata for programs."""
        return {"rxloop/taskId": self.task_id, "rxloop/contextId": self.context_id, "rxloop/state": state}


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer fields available only in the answer event."""

    files: Sequence[ImagePart | FilePart] = ()
    """Images and files after the text."""
    incomplete: str | None = None
    """Clause that explains an incomplete answer, otherwise None."""


def over(run: Told, end: StatusUpdateEvent, agent: Offered, answer: Answer) -> Result:
    """Return the result of a finished run.

    Args:
        run: Ids of the run.
        end: Public final event.
        agent: Tool that was called.
        answer: Answer fields that the final event does not contain.
    """
    meta = run.meta(end.state)
    if end.state != "completed":
        why = end.error.message if end.error is not None else f"The run is {end.state}."
        partial = [_text(f"What there was of the answer: {end.content}")] if end.content else []
        structured: dict[str, Any] = {"state": end.state, "taskId": run.task_id, "contextId": run.context_id}
        if end.error is not None:
            structured["error"] = {"code": end.error.code, "message": end.error.message}
        if end.content:
            structured["content"] = end.content
        blocks: list[types.ContentBlock] = [_text(why), *partial, _conversation(run)]
        return Result(content=blocks, structured_content=structured, is_error=True, _meta=meta)
    content = end.content or ""
    try:
        structured = agent.structured(content)
    except ValueError:
        text = f"The answer is not of the type that {agent.tool.name} gives now: {content}"
        return Result(content=[_text(text), _conversation(run)], is_error=True, _meta=meta)
    shown = [_file(part, f"rxloop://runs/{run.task_id}/files/{place}") for place, part in enumerate(answer.files)]
    note = [_text(f"The answer is incomplete: {answer.incomplete}.")] if answer.incomplete else []
    shown = [_text(content), *note, *shown, _conversation(run)]
    return Result(content=shown, structured_content=structured, _meta=meta)


def going_on(run: Told) -> Result:
    """Return the result for a run that is still active after a timeout."""
    words = f"Call {CONTINUE} with task_id {run.task_id!r} to wait for it."
    return _not_over(run, "working", "The agent is still at work.", words, [])


def waiting(run: Told, state: str, questions: Sequence[PendingInput]) -> Result:
    """Return the result of a run with questions that the client cannot elicit.

    Args:
        run: Ids of the run.
        state: State of the run.
        questions: Public questions.
    """
    lines = [f"- {_question(each)}" for each in questions]
    what = "\n".join(["The agent waits for an answer:", *lines])
    words = f"Ask the person, then call {CONTINUE} with task_id {run.task_id!r} and the answers by their input_id."
    return _not_over(run, state, what, words, questions)


def failed(why: str) -> Result:
    """Return an error result with a message for the model."""
    return Result(content=[_text(why)], is_error=True)


def failed_with(error: ToolError) -> Result:
    """Return the result of a failed call, including the value and parts of the error."""
    fields = failure_fields(error)
    blocks = [_file(part, f"rxloop://failure/files/{place}") for place, part in enumerate(fields.get("parts", ()))]
    structured = {"state": "failed", "value": thaw(fields["result"])} if "result" in fields else None
    return Result(content=[_text(fields["content"]), *blocks], structured_content=structured, is_error=True)


def _not_over(run: Told, state: str, what: str, then: str, questions: Sequence[PendingInput]) -> Result:
    structured: dict[str, Any] = {"state": state, "taskId": run.task_id, "contextId": run.context_id}
    if questions:
        structured["questions"] = [_shown(each) for each in questions]
    structured["next"] = then
    return Result(content=[_text(f"{what}\n{then}")], structured_content=structured, _meta=run.meta(state))


def _shown(question: PendingInput) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "inputId": question.input_id,
        "prompt": question.prompt,
        "inputKind": question.input_kind,
        "options": question.options,
        "answerSchema": question.answer_schema or None,
        "url": question.url,
        "publicKey": question.public_key,
    }
    if question.input_kind == "tool" and question.call is not None:
        shown["call"] = {"name": question.call.name, "arguments": dict(question.call.arguments)}
    return {name: value for name, value in shown.items() if value is not None}


def _question(question: PendingInput) -> str:
    """Format a question for a model."""
    if question.secret:
        how = {True: "true once the person has been there, null to decline", False: "not from here"}
        page = "" if question.url is None else f" at {question.url}"
        given = "the ciphertext" if question.public_key is not None else how[question.url is not None]
        return f"{question.input_id}: {question.prompt[:-1]}{page}. Answer: {given}."
    if question.options:
        wanted = f"one of {json.dumps(question.options)}"
    elif question.answer_schema:
        wanted = f"JSON that fits {json.dumps(question.answer_schema)[:_SCHEMA]}"
    else:
        wanted = "a value"
    called = ""
    if question.input_kind == "tool" and question.call is not None:
        called = f" Carry out {question.call.name} with {json.dumps(dict(question.call.arguments))[:_SCHEMA]}."
    return f"{question.input_id}: {question.prompt}{called} Answer: {wanted}."


def _conversation(run: Told) -> types.TextContent:
    """Return the conversation id for the client's model. It is not addressed to the user."""
    text = f"[To go on with this conversation, give {CONTEXT} {run.context_id!r}.]"
    return types.TextContent(type="text", text=text, annotations=_FOR_MODELS)


def _file(part: ImagePart | FilePart, uri: str) -> types.ContentBlock:
    media_type = part.media_type
    if part.data is None:
        name = (part.filename if isinstance(part, FilePart) else None) or part.type
        return types.ResourceLink(type="resource_link", name=name, uri=part.url or "", mime_type=media_type)
    data, media_type = b64encode(part.data).decode(), media_type or ""
    if isinstance(part, ImagePart):
        return types.ImageContent(type="image", data=data, mime_type=media_type)
    if media_type.startswith("audio/"):
        return types.AudioContent(type="audio", data=data, mime_type=media_type)
    held = types.BlobResourceContents(uri=uri, mime_type=media_type, blob=data)
    return types.EmbeddedResource(type="resource", resource=held)


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)
