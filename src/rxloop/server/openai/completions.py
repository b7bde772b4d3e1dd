"""The route `/v1/chat/completions`, for clients that know no responses: text in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import orjson
from starlette.responses import Response

from rxloop.protocol.ids import find_id_fault
from rxloop.protocol.messages import Message
from rxloop.server.core.errors import Refused
from rxloop.server.core.runs import resolve_agent
from rxloop.server.core.stream import SSE, FrameWriter
from rxloop.server.openai.answers import Left, abandon, json, streamed, waited
from rxloop.server.openai.call import OpenAiCall, invalid, unsupported
from rxloop.server.openai.completion_fold import CompletionFold
from rxloop.server.openai.requests import CreateCompletion, MessageItem, check_format
from rxloop.server.openai.response_items import Json, ResponseId
from rxloop.server.openai.run_inputs import is_begun, prompt_of, start
from rxloop.server.openai.views import completion_chunks


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
    """Answer a conversation, which the client sends whole, or of which it names the id."""
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
            # Nobody would ever know of it: the client reads too many streams.
            await leave()
        raise
    if not over:
        raise Refused(503, "draining", "the server goes away", headers={"retry-after": "5", "x-should-retry": "false"})
    [found] = made
    if found.error is not None:
        return _failed(found.error)
    return json(found.completion())


def _behind(given: list[MessageItem], stored: Sequence[Message]) -> list[MessageItem]:
    """Leave out what a conversation has of the messages of a client, which have no ids.

    The server has what stands before the last answer. Behind that, a client that sends all of its messages repeats
    those that have no answer yet: the last ones that are stored.
    """
    answers = [place for place, each in enumerate(given) if each.role == "assistant"]
    given = given[answers[-1] + 1 :] if answers else given
    users = [place for place, each in enumerate(given) if each.role == "user"]
    said = [given[place].text for place in users]
    known = [message.text for message in stored if message.role == "user"]
    # At least one of them is new: it is what is asked.
    most = min(len(known), len(said) - 1)
    repeated = next((count for count in range(most, 0, -1) if known[-count:] == said[:count]), 0)
    return given[users[repeated - 1] + 1 :] if repeated else given


def _failed(error: Json) -> Response:
    # To ask again is to begin a new run: nobody is to do that by himself.
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
