"""Chat Completions endpoint and the conversion of runs to completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import orjson
from starlette.responses import Response

from rxloop.operators.views import View
from rxloop.protocol.events import ContentCompleteEvent, Event, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.protocol.ids import find_id_fault
from rxloop.protocol.messages import Message, Usage
from rxloop.server.core import chat_changes as changes
from rxloop.server.core.chat_changes import Change
from rxloop.server.core.chat_fold import make_protocol_view
from rxloop.server.core.errors import Refused
from rxloop.server.core.runs import resolve_agent
from rxloop.server.core.stream import SSE, FrameWriter
from rxloop.server.openai import response_items as items
from rxloop.server.openai.call import OpenAiCall, convert_error, invalid, unsupported
from rxloop.server.openai.delivery import ClientDisconnected, abandon, json_response, stream_response, wait_complete
from rxloop.server.openai.requests import CreateCompletion, MessageItem, check_format
from rxloop.server.openai.response_items import Json, ResponseId
from rxloop.server.openai.run_inputs import build_prompt, has_started, start

DONE: Json = {}
"""Non-JSON end marker."""
_SEPARATOR = "\n\n"
"""Separator between the steps."""
# OpenAI has no value for an unknown finish reason, so report an incomplete answer.
_FINISH = {"length": "length", "content_filter": "content_filter", "unknown": "length"}


class CompletionFold:
    """Fold of a run into a chat completion. Pass all chat changes to `take`, starting with the first event.

    The text of the steps is joined by blank lines. Text of a retried step stays in the chunks, which cannot be
    withdrawn, but is not part of the completion.
    """

    def __init__(
        self, task_id: str, model: str, created: int, emit: Callable[[Json], None], *, reasoning: bool, usage: bool
    ) -> None:
        """Initialize the fold.

        Args:
            task_id: Run id.
            model: Agent name.
            created: Creation time in milliseconds.
            emit: Called with each chunk, and finally with `DONE`.
            reasoning: Whether to include reasoning as `reasoning_content`.
            usage: Whether the last chunk includes token usage.
        """
        self.is_complete = False
        self.error: Json | None = None
        """Error of a failed run."""
        self._head: Json = {"id": f"chatcmpl-{task_id}", "created": created // 1000, "model": model}
        self._emit = emit
        self._reasoning, self._usage = reasoning, usage
        self._texts: list[tuple[str, str]] = []
        """Text deltas with their step ids."""
        self._thoughts: list[str] = []
        self._messages: dict[str, ContentCompleteEvent] = {}
        """Complete message of each step, including citations."""
        self._last_step = ""
        """Step id of the last emitted text."""
        self._offsets: dict[str, int] = {}
        """Offset of each step's text in the emitted chunks."""
        self._length = 0
        """Number of characters emitted so far."""
        self._finish = "stop"
        self._counts = Usage()

    def make_completion(self) -> Json:
        """Return the complete chat completion."""
        message: Json = {"role": "assistant", "content": _SEPARATOR.join(self._join_steps().values()), "refusal": None}
        offsets, length = dict[str, int](), 0
        for step, text in self._join_steps().items():
            offsets[step] = length
            length += len(text) + len(_SEPARATOR)
        if annotations := self._collect_citations(offsets):
            message["annotations"] = annotations
        if self._reasoning and self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        choice = {"index": 0, "message": message, "finish_reason": self._finish, "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(self._counts)}

    def take(self, change: Change | Event) -> None:
        """Process the next change or event."""
        event = change if isinstance(change, Event) else change.event
        if self.is_complete or event.parent_task_id is not None or event.branch is not None:
            return
        match change:
            case TaskEvent():
                self._chunk({"role": "assistant", "content": ""})
            case changes.TextDelta():
                self._emit_text(change.id, change.delta)
            case changes.ReasoningDelta() if self._reasoning:
                self._thoughts.append(change.delta)
                self._chunk({"reasoning_content": change.delta})
            case changes.StepEnded() if change.outcome != "complete":
                self._texts = [each for each in self._texts if each[0] != change.id]
            case changes.StepEnded(event=ContentCompleteEvent() as message):
                self._messages[change.id] = message
            case StatusUpdateEvent() if ends_attempt(change) and change.state != "working":
                self._end(change)
            case _:
                pass

    def _emit_text(self, step: str, delta: str) -> None:
        if self._last_step and self._last_step != step:
            self._emit_content(_SEPARATOR)
        self._last_step = step
        self._texts.append((step, delta))
        self._offsets.setdefault(step, self._length)
        self._emit_content(delta)

    def _emit_content(self, text: str) -> None:
        self._length += len(text)
        self._chunk({"content": text})

    def _join_steps(self) -> dict[str, str]:
        steps: dict[str, list[str]] = {}
        for step, text in self._texts:
            steps.setdefault(step, []).append(text)
        return {step: "".join(texts) for step, texts in steps.items()}

    def _collect_citations(self, offsets: Mapping[str, int]) -> list[Json]:
        """Return citations at the given step offsets."""
        citations: list[Json] = []
        for step, text in self._join_steps().items():
            if (message := self._messages.get(step)) is not None:
                citations += items.make_url_citations(message, text, offsets[step])
        return [{"type": "url_citation", "url_citation": each} for each in citations]

    def _end(self, event: StatusUpdateEvent) -> None:
        self.is_complete = True
        self._counts = event.usage or Usage()
        incomplete = _FINISH.get(event.finish_reason or "") if event.state == "completed" else None
        if event.state == "failed" and event.reason == "tokens":
            incomplete = "length"
        if event.state in ("failed", "canceled") and incomplete is None:
            self.error = convert_error(event)
            self._emit({"error": self.error})
            return
        self._finish = incomplete or "stop"
        last = self._texts[-1][0] if self._texts else ""
        last_text = "".join(text for step, text in self._texts if step == last)
        if event.state == "completed" and event.content and event.content != last_text:
            # A tool or strategy returned the final answer instead of a message.
            self._emit_text("answer", event.content)
        for question in event.pending:
            self._emit_text(question.input_id, items.format_question(question))
        if annotations := self._collect_citations(self._offsets):
            self._chunk({"annotations": annotations})
        self._chunk({}, self._finish)
        if self._usage:
            self._emit({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": _usage(self._counts)})
        self._emit(DONE)

    def _chunk(self, delta: Json, finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        self._emit({**chunk, "usage": None} if self._usage else chunk)


def _usage(usage: Usage) -> Json:
    read = {"cached_tokens": usage.cached_tokens}
    if usage.cache_write_tokens:
        read["cache_write_tokens"] = usage.cache_write_tokens
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": read,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def completion_chunks(fold: Callable[[Callable[[Json], None]], CompletionFold]) -> View[Event, Json]:
    """Convert a run to chat completion chunks.

    ::

        source                 --t--w--l--d(He)--d(y)--c--w--    t task, w status-update, d content-delta
        completion_chunks()    --R--------T------T--------(F|)   R the role, T text, F the finish reason
    """
    return make_protocol_view(fold)


def _encode_error(code: str, message: str) -> bytes:
    return _chunk({"error": {"message": message, "type": "server_error", "param": None, "code": code}})


def _chunk(chunk: Json) -> bytes:
    return b"data: " + (orjson.dumps(chunk) if chunk else b"[DONE]") + b"\n\n"


CHUNKS = FrameWriter(
    SSE.media_type,
    _chunk,
    draining=_encode_error("draining", "the server is shutting down"),
    broken=_encode_error("log", "the event log is unavailable"),
)


async def complete(call: OpenAiCall[CreateCompletion]) -> Response:
    """Handle a chat completion with a full history or a conversation id."""
    body = call.body
    _check(call, body)
    agent = resolve_agent(call.gateway, body.model, "model")
    metadata = dict(body.metadata or {})
    context_id = metadata.get("context_id")
    problem = None if context_id is None else find_id_fault("metadata.context_id", context_id)
    if problem is not None:
        raise invalid("metadata.context_id", problem)

    def choose(stored: Sequence[Message] | None) -> list[Message]:
        messages = body.messages if stored is None else _drop_stored_messages(body.messages, stored)
        return build_prompt(call, messages, None, is_new=stored is None, param="messages")

    is_repeated = await has_started(call, body.model)
    record = await start(call, agent, choose, body, context_id=context_id, extra={}, metadata=metadata)
    options = body.stream_options
    usage = bool(options is not None and options.include_usage)
    folds: list[CompletionFold] = []

    def fold(emit: Callable[[Json], None]) -> CompletionFold:
        reasoning = call.reasoning_content
        completion = CompletionFold(record.task_id, agent, record.created, emit, reasoning=reasoning, usage=usage)
        folds.append(completion)
        return completion

    chunks = call.gateway.runtime.follow(record.task_id).pipe(completion_chunks(fold))
    on_disconnect = partial(abandon, call, record, ResponseId(record.task_id, 1))
    try:
        if body.stream:
            return stream_response(call, chunks, on_disconnect, CHUNKS)
        is_complete = await wait_complete(call, chunks, on_disconnect)
    except ClientDisconnected:
        return json_response(None, 499)
    except Refused:
        if not is_repeated:
            # Cancel the run, because the refused client does not receive its id.
            await on_disconnect()
        raise
    if not is_complete:
        headers = {"retry-after": "5", "x-should-retry": "false"}
        raise Refused(503, "draining", "the server is shutting down", headers=headers)
    [completion] = folds
    if completion.error is not None:
        return _respond_failure(completion.error)
    return json_response(completion.make_completion())


def _drop_stored_messages(messages: list[MessageItem], stored: Sequence[Message]) -> list[MessageItem]:
    """Remove messages already stored in the conversation.

    Chat messages have no ids. Messages before the last answer are known to the server. After it, clients repeat
    unanswered messages, which match the end of the stored messages.
    """
    answers = [index for index, each in enumerate(messages) if each.role == "assistant"]
    messages = messages[answers[-1] + 1 :] if answers else messages
    users = [index for index, each in enumerate(messages) if each.role == "user"]
    texts = [messages[index].text for index in users]
    stored_texts = [message.text for message in stored if message.role == "user"]
    # The last message must be new.
    max_repeated = min(len(stored_texts), len(texts) - 1)
    repeated = next((count for count in range(max_repeated, 0, -1) if stored_texts[-count:] == texts[:count]), 0)
    return messages[users[repeated - 1] + 1 :] if repeated else messages


def _respond_failure(error: Json) -> Response:
    # A retry would start a new run, so prevent automatic retries.
    response = json_response({"error": error}, 429 if error["type"] == "rate_limit_error" else 500)
    response.headers["x-should-retry"] = "false"
    return response


def _check(call: OpenAiCall[CreateCompletion], body: CreateCompletion) -> None:
    call.gateway.check_accepting()
    if body.tools or body.functions:
        raise unsupported("tools", "chat completions do not support client tools; use /v1/responses")
    if body.n not in (None, 1):
        raise unsupported("n", "n must be 1")
    if body.audio is not None or (body.modalities or ["text"]) != ["text"]:
        raise unsupported("modalities", "only text output is supported")
    output_format = body.response_format.type if body.response_format is not None else "text"
    check_format(call, body.model, output_format, "response_format")
