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
from rxloop.server.mcp.tools import CONTEXT, CONTINUE, ExposedAgent
from rxloop.tools.result import failure_fields

_MAX_PROGRESS_LENGTH = 500
"""Maximum length of a progress message."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress message."""

    message: str
    is_optional: bool = False
    """True if the message may be skipped to limit the rate."""


ProgressItem = Progress | StatusUpdateEvent
"""Progress message or public final event."""


def make_progress_view() -> View[AnyEvent, ProgressItem]:
    """Create a view of progress messages until the end of an attempt.

    ::

        source                  --w--s--p--i--h--x--w--w--|     s a call, p progress, i hidden progress, h a thought
        make_progress_view()    -----1--2-----3-----w|          1 to 3 messages, w the end of the attempt

    Returns:
        A view of progress messages and the final event of the attempt.
    """

    def write(out: ViewOutput[ProgressItem]) -> Callable[[AnyEvent], None]:
        def take(event: AnyEvent) -> None:
            public_event = event.to_public()
            if public_event is None:
                return
            if isinstance(public_event, StatusUpdateEvent):
                if ends_attempt(public_event):
                    out.emit(public_event)
                    out.complete()
                return
            progress = _describe_progress(public_event)
            if progress is not None:
                out.emit(progress)

        return take

    return make_view(write)


def _describe_progress(event: Event) -> Progress | None:
    match event:
        case ToolProgressEvent():
            share = "" if event.fraction is None else f" ({event.fraction:.0%})"
            text = f"{event.name}: {event.message}{share}"
        case ToolStartEvent() | ThoughtStreamEvent() | StageEvent() | SubtaskEvent():
            text = event.describe()
        case _:
            return None
    agents = " > ".join(event.agent_path)
    line = " ".join(f"{agents}: {text}".split() if agents else text.split())
    line = line if len(line) <= _MAX_PROGRESS_LENGTH else f"{line[: _MAX_PROGRESS_LENGTH - 1]}…"
    return Progress(line, isinstance(event, ToolProgressEvent))


Result = types.CallToolResult

_FOR_MODELS = types.Annotations(audience=["assistant"])
_MAX_SCHEMA = 2_000
"""Maximum number of schema characters in a question for a model."""


@dataclass(frozen=True, slots=True)
class RunIds:
    """Run id and conversation id for results."""

    task_id: str
    context_id: str

    def meta(self, state: str) -> dict[str, Any]:
        """Return result metadata for programs."""
        return {"rxloop/taskId": self.task_id, "rxloop/contextId": self.context_id, "rxloop/state": state}


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer fields available only in the answer event."""

    files: Sequence[ImagePart | FilePart] = ()
    """Images and files."""
    incomplete: str | None = None
    """Clause that explains an incomplete answer, otherwise None."""


def make_final_result(run: RunIds, end: StatusUpdateEvent, agent: ExposedAgent, answer: Answer) -> Result:
    """Return the result of a finished run.

    Args:
        run: Ids of the run.
        end: Public final event.
        agent: Tool that was called.
        answer: Answer fields that the final event does not contain.
    """
    meta = run.meta(end.state)
    if end.state != "completed":
        message = end.error.message if end.error is not None else f"The run is {end.state}."
        partial = [_make_text(f"Partial answer: {end.content}")] if end.content else []
        structured: dict[str, Any] = {"state": end.state, "taskId": run.task_id, "contextId": run.context_id}
        if end.error is not None:
            structured["error"] = {"code": end.error.code, "message": end.error.message}
        if end.content:
            structured["content"] = end.content
        blocks: list[types.ContentBlock] = [_make_text(message), *partial, _make_conversation_note(run)]
        return Result(content=blocks, structured_content=structured, is_error=True, _meta=meta)
    content = end.content or ""
    try:
        structured = agent.to_structured_content(content)
    except ValueError:
        text = f"The answer does not have the current output type of {agent.tool.name}: {content}"
        return Result(content=[_make_text(text), _make_conversation_note(run)], is_error=True, _meta=meta)
    files = [_make_file(part, f"rxloop://runs/{run.task_id}/files/{index}") for index, part in enumerate(answer.files)]
    note = [_make_text(f"The answer is incomplete: {answer.incomplete}.")] if answer.incomplete else []
    blocks = [_make_text(content), *note, *files, _make_conversation_note(run)]
    return Result(content=blocks, structured_content=structured, _meta=meta)


def make_working_result(run: RunIds) -> Result:
    """Return the result for a run that continues after a timeout."""
    next_step = f"Call {CONTINUE} with task_id {run.task_id!r} to wait for it."
    return _make_unfinished(run, "working", "The agent is still working.", next_step, [])


def make_waiting_result(run: RunIds, state: str, questions: Sequence[PendingInput]) -> Result:
    """Return the result of a run with questions that the client cannot elicit.

    Args:
        run: Ids of the run.
        state: State of the run.
        questions: Public questions.
    """
    lines = [f"- {_format_question(each)}" for each in questions]
    text = "\n".join(["The agent waits for an answer:", *lines])
    next_step = f"Ask the person, then call {CONTINUE} with task_id {run.task_id!r} and the answers by their input_id."
    return _make_unfinished(run, state, text, next_step, questions)


def make_error_result(message: str) -> Result:
    """Return an error result with a message for the model."""
    return Result(content=[_make_text(message)], is_error=True)


def make_tool_error_result(error: ToolError) -> Result:
    """Return the result of a failed call, including the value and parts of the error."""
    fields = failure_fields(error)
    blocks = [_make_file(part, f"rxloop://failure/files/{index}") for index, part in enumerate(fields.get("parts", ()))]
    structured = {"state": "failed", "value": thaw(fields["result"])} if "result" in fields else None
    return Result(content=[_make_text(fields["content"]), *blocks], structured_content=structured, is_error=True)


def _make_unfinished(run: RunIds, state: str, text: str, next_step: str, questions: Sequence[PendingInput]) -> Result:
    structured: dict[str, Any] = {"state": state, "taskId": run.task_id, "contextId": run.context_id}
    if questions:
        structured["questions"] = [_to_json(each) for each in questions]
    structured["next"] = next_step
    return Result(content=[_make_text(f"{text}\n{next_step}")], structured_content=structured, _meta=run.meta(state))


def _to_json(question: PendingInput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "inputId": question.input_id,
        "prompt": question.prompt,
        "inputKind": question.input_kind,
        "options": question.options,
        "answerSchema": question.answer_schema or None,
        "url": question.url,
        "publicKey": question.public_key,
    }
    if question.input_kind == "tool" and question.call is not None:
        fields["call"] = {"name": question.call.name, "arguments": dict(question.call.arguments)}
    return {name: value for name, value in fields.items() if value is not None}


def _format_question(question: PendingInput) -> str:
    """Format a question for a model."""
    if question.secret:
        expected = {
            True: "true after the person has opened the page, null to decline",
            False: "not possible in this conversation",
        }
        page = "" if question.url is None else f" at {question.url}"
        answer = "the ciphertext" if question.public_key is not None else expected[question.url is not None]
        return f"{question.input_id}: {question.prompt[:-1]}{page}. Answer: {answer}."
    if question.options:
        answer = f"one of {json.dumps(question.options)}"
    elif question.answer_schema:
        answer = f"JSON that fits {json.dumps(question.answer_schema)[:_MAX_SCHEMA]}"
    else:
        answer = "a value"
    instruction = ""
    if question.input_kind == "tool" and question.call is not None:
        instruction = f" Execute {question.call.name} with {json.dumps(dict(question.call.arguments))[:_MAX_SCHEMA]}."
    return f"{question.input_id}: {question.prompt}{instruction} Answer: {answer}."


def _make_conversation_note(run: RunIds) -> types.TextContent:
    """Return the conversation id for the client's model. It is not addressed to the user."""
    text = f"[To continue this conversation, pass {CONTEXT} {run.context_id!r}.]"
    return types.TextContent(type="text", text=text, annotations=_FOR_MODELS)


def _make_file(part: ImagePart | FilePart, uri: str) -> types.ContentBlock:
    media_type = part.media_type
    if part.data is None:
        name = (part.filename if isinstance(part, FilePart) else None) or part.type
        return types.ResourceLink(type="resource_link", name=name, uri=part.url or "", mime_type=media_type)
    data, media_type = b64encode(part.data).decode(), media_type or ""
    if isinstance(part, ImagePart):
        return types.ImageContent(type="image", data=data, mime_type=media_type)
    if media_type.startswith("audio/"):
        return types.AudioContent(type="audio", data=data, mime_type=media_type)
    resource = types.BlobResourceContents(uri=uri, mime_type=media_type, blob=data)
    return types.EmbeddedResource(type="resource", resource=resource)


def _make_text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)
