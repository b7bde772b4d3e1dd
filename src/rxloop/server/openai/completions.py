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
from rxloop.server.core import chat_changes as to
from rxloop.server.core.chat_changes import Change
from rxloop.server.core.chat_fold import make_protocol_view
from rxloop.server.core.errors import Refused
from rxloop.server.core.runs import resolve_agent
from rxloop.server.core.stream import SSE, FrameWriter
from rxloop.server.openai import response_items as items
from rxloop.server.openai.answers import Left, abandon, json, streamed, waited
from rxloop.server.openai.call import OpenAiCall, error_of_run, invalid, unsupported
from rxloop.server.openai.requests import CreateCompletion, MessageItem, check_format
from rxloop.server.openai.response_items import Json, ResponseId
from rxloop.server.openai.run_inputs import is_begun, prompt_of, start

DONE: Json = {}
"""Non-JSON end marker."""
_BETWEEN = "\n\n"
"""Separator between step texts."""
# OpenAI has no value for an unknown finish reason, so report an incomplete answer.
_FINISH = {"length": "length", "content_filter": "content_filter", "unknown": "length"}


class CompletionFold:
    """Fold of a run into a chat completion. Pass all chat changes to `take`, starting with the first event.

    Step texts are joined by blank lines. Text of a retried step stays in the chunks, which cannot be withdrawn, but is
    not part of the completion.
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
        self.over = False
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
        self._shown = ""
        """Step id of the last emitted text."""
        self._begins: dict[str, int] = {}
        """Offset of each step's text in the emitted chunks."""
        self._length = 0
        """Number of characters emitted so far."""
        self._finish = "stop"
        self._used = Usage()

    def completion(self) -> Json:
        """Return the complete chat completion."""
        message: Json = {"role": "assistant", "content": self._content(), "refusal": None}
        begins, length = dict[str, int](), 0
        for step, text in self._steps().items():
            begins[step] = length
            length += len(text) + len(_BETWEEN)
        if annotations := self._annotations(begins):
            message["annotations"] = annotations
        if self._reasoning and self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        choice = {"index": 0, "message": message, "finish_reason": self._finish, "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(self._used)}

    def take(self, change: Change | Event) -> None:
        """Process the next change or event."""
        event = change if isinstance(change, Event) else change.event
        if self.over or event.parent_task_id is not None or event.branch is not None:
            return
        match change:
            case TaskEvent():
                self._chunk({"role": "assistant", "content": ""})
            case to.TextDelta():
                self._say(change.id, change.delta)
            case to.ReasoningDelta() if self._reasoning:
                self._thoughts.append(change.delta)
                self._chunk({"reasoning_content": change.delta})
            case to.StepEnded() if change.outcome != "complete":
                self._texts = [each for each in self._texts if each[0] != change.id]
            case to.StepEnded(event=ContentCompleteEvent() as message):
                self._messages[change.id] = message
            case StatusUpdateEvent() if ends_attempt(change) and change.state != "working":
                self._end(change)
            case _:
                pass

    def _say(self, step: str, delta: str) -> None:
        if self._shown and self._shown != step:
            self._show(_BETWEEN)
        self._shown = step
        self._texts.append((step, delta))
        self._begins.setdefault(step, self._length)
        self._show(delta)

    def _show(self, text: str) -> None:
        self._length += len(text)
        self._chunk({"content": text})

    def _content(self) -> str:
        return _BETWEEN.join(self._steps().values())

    def _steps(self) -> dict[str, str]:
        steps: dict[str, list[str]] = {}
        for step, text in self._texts:
            steps.setdefault(step, []).append(text)
        return {step: "".join(texts) for step, texts in steps.items()}

    def _annotations(self, begins: Mapping[str, int]) -> list[Json]:
        """Return citations at the given step offsets."""
        found: list[Json] = []
        for step, text in self._steps().items():
            if (message := self._messages.get(step)) is not None:
                found += items.url_citations(message, text, begins[step])
        return [{"type": "url_citation", "url_citation": each} for each in found]

    def _end(self, event: StatusUpdateEvent) -> None:
        self.over = True
        self._used = event.usage or Usage()
        cut = _FINISH.get(event.finish_reason or "") if event.state == "completed" else None
        if event.state == "failed" and event.reason == "tokens":
            cut = "length"
        if event.state in ("failed", "canceled") and cut is None:
            self.error = error_of_run(event)
            self._emit({"error": self.error})
            return
        self._finish = cut or "stop"
        last = self._texts[-1][0] if self._texts else ""
        said = "".join(text for step, text in self._texts if step == last)
        if event.state == "completed" and event.content and event.content != said:
            # A tool or strategy returned the final answer instead of a message.
            self._say("answer", event.content)
        for question in event.pending:
            self._say(question.input_id, items.asking(question))
        if annotations := self._annotations(self._begins):
            self._chunk({"annotations": annotations})
        self._chunk({}, self._finish)
        if self._usage:
            self._emit({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": _usage(self._used)})
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


def _error(code: str, message: str) -> bytes:
    return _chunk({"error": {"message": message, "type": "server_error", "param": None, "code": code}})


def _chunk(chunk: Json) -> bytes:
    return b"data: " + (orjson.dumps(chunk) if chunk else b"[DONE]") + b"\n\n"


CHUNKS = FrameWriter(
    SSE.media_type,
    _chunk,
    draining=_error("draining", "the server goes away"),
    broken=_error("log", "the log is out of reach"),
)


async def complete(call: OpenAiCall[CreateCompletion]) -> Response:
    """Handle a chat completion with a full history or a conversation id."""
    body = call.body
    _check(call, body)
    agent = resolve_agent(call.gateway, body.model, "model")
    metadata = dict(body.metadata or {})
    context_id = metadata.get("context_id")
    wrong = None if context_id is None else find_id_fault("metadata.context_id", context_id)
    if wrong is not None:
        raise invalid("metadata.context_id", wrong)

    def choose(stored: Sequence[Message] | None) -> list[Message]:
        given = body.messages if stored is None else _behind(body.messages, stored)
        return prompt_of(call, given, None, fresh=stored is None, param="messages")

    again = await is_begun(call, body.model)
    record = await start(call, agent, choose, body, context_id=context_id, said={}, metadata=metadata)
    options = body.stream_options
    usage = bool(options is not None and options.include_usage)
    made: list[CompletionFold] = []

    def fold(emit: Callable[[Json], None]) -> CompletionFold:
        reasoning = call.reasoning_content
        found = CompletionFold(record.task_id, agent, record.created, emit, reasoning=reasoning, usage=usage)
        made.append(found)
        return found

    chunks = call.gateway.runtime.follow(record.task_id).pipe(completion_chunks(fold))
    leave = partial(abandon, call, record, ResponseId(record.task_id, 1))
    try:
        if body.stream:
            return streamed(call, chunks, leave, CHUNKS)
        over = await waited(call, chunks, leave)
    except Left:
        return json(None, 499)
    except Refused:
        if not again:
            # Cancel the run, because the refused client does not receive its id.
            await leave()
        raise
    if not over:
        raise Refused(503, "draining", "the server goes away", headers={"retry-after": "5", "x-should-retry": "false"})
    [found] = made
    if found.error is not None:
        return _failed(found.error)
    return json(found.completion())


def _behind(given: list[MessageItem], stored: Sequence[Message]) -> list[MessageItem]:
    """Remove messages already stored in the conversation.

    Chat messages have no ids. Messages before the last answer are known to the server. After it, clients repeat
    unanswered messages, which match the end of the stored messages.
    """
    answers = [place for place, each in enumerate(given) if each.role == "assistant"]
    given = given[answers[-1] + 1 :] if answers else given
    users = [place for place, each in enumerate(given) if each.role == "user"]
    said = [given[place].text for place in users]
    known = [message.text for message in stored if message.role == "user"]
    # The last message must be new.
    most = min(len(known), len(said) - 1)
    repeated = next((count for count in range(most, 0, -1) if known[-count:] == said[:count]), 0)
    return given[users[repeated - 1] + 1 :] if repeated else given


def _failed(error: Json) -> Response:
    # A retry would start a new run, so prevent automatic retries.
    answer = json({"error": error}, 429 if error["type"] == "rate_limit_error" else 500)
    answer.headers["x-should-retry"] = "false"
    return answer


def _check(call: OpenAiCall[CreateCompletion], body: CreateCompletion) -> None:
    call.gateway.check_accepting()
    if body.tools or body.functions:
        raise unsupported("tools", "chat completions know no tools of the client here: /v1/responses does")
    if body.n not in (None, 1):
        raise unsupported("n", "there is one answer")
    if body.audio is not None or (body.modalities or ["text"]) != ["text"]:
        raise unsupported("modalities", "the answer is text")
    form = body.response_format.type if body.response_format is not None else "text"
    check_format(call, body.model, form, "response_format")
