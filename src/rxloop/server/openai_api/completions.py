"""`/v1/chat/completions`, for clients that know no responses: text in, text out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import orjson
from starlette.responses import Response

from rxloop.server.bodies import read_body
from rxloop.server.openai_api.bodies import CreateCompletion, MessageItem
from rxloop.server.openai_api.call import Call
from rxloop.server.openai_api.completion import CompletionFold
from rxloop.server.openai_api.errors import invalid, unsupported
from rxloop.server.openai_api.ids import ResponseId
from rxloop.server.openai_api.items import Json
from rxloop.server.openai_api.reading import Left, cancelling, json, streamed, waited
from rxloop.server.openai_api.responses import check_format
from rxloop.server.openai_api.starting import is_begun, prompt_of, start
from rxloop.server.openai_api.view import completion_chunks
from rxloop.server.refusals import Refused
from rxloop.server.starting import agent_of
from rxloop.server.streams import SSE, Format

_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")


def _error(code: str, message: str) -> bytes:
    return _chunk({"error": {"message": message, "type": "server_error", "param": None, "code": code}})


def _chunk(chunk: Json) -> bytes:
    return b"data: " + (orjson.dumps(chunk) if chunk else b"[DONE]") + b"\n\n"


CHUNKS: Format = replace(
    SSE,
    encode=_chunk,
    first=b"",
    last=_error("draining", "the server goes away"),
    broken=_error("log", "the log is out of reach"),
)


async def complete(call: Call) -> Response:
    """Answer a conversation, which the client sends whole, or of which it names the id."""
    body = await read_body(CreateCompletion, call.request, call.host.limits)
    _check(call, body)
    agent = agent_of(call.host, body.model, "model")
    metadata = dict(body.metadata or {})
    context_id = metadata.get("context_id")
    if context_id is not None and not _ID.fullmatch(context_id):
        raise invalid("metadata.context_id", "it has 1 to 128 letters, digits or any of . _ : ~ -")
    known = context_id is not None and await call.host.check_context(call.principal, context_id)
    given: list[MessageItem] = body.messages
    if known:
        # What stands before the last answer is what the server has itself.
        answers = [place for place, each in enumerate(given) if each.role == "assistant"]
        given = given[answers[-1] + 1 :] if answers else given
    prompt = prompt_of(call, given, None, fresh=not known, param="messages")
    again = await is_begun(call, body.model)
    record = await start(call, agent, prompt, body, context_id=context_id, said={}, metadata=metadata)
    options = body.stream_options
    usage = bool(options is not None and options.include_usage)
    made: list[CompletionFold] = []

    def fold(emit: Callable[[Json], None]) -> CompletionFold:
        reasoning = call.options.reasoning_content
        found = CompletionFold(record.task_id, agent, record.created, emit, reasoning=reasoning, usage=usage)
        made.append(found)
        return found

    chunks = call.host.runtime.follow(record.task_id).pipe(completion_chunks(fold))
    leave = cancelling(call, record, ResponseId(record.task_id, 1))
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


def _failed(error: Json) -> Response:
    # To ask again is to begin a new run: nobody is to do that by himself.
    answer = json({"error": error}, 429 if error["type"] == "rate_limit_error" else 500)
    answer.headers["x-should-retry"] = "false"
    return answer


def _check(call: Call, body: CreateCompletion) -> None:
    call.host.check_open()
    if body.tools or body.functions:
        raise unsupported("tools", "chat completions know no tools of the client here: /v1/responses does")
    if body.n not in (None, 1):
        raise unsupported("n", "there is one answer")
    if body.audio is not None or (body.modalities or ["text"]) != ["text"]:
        raise unsupported("modalities", "the answer is text")
    form = body.response_format.type if body.response_format is not None else "text"
    check_format(call, body.model, form, "response_format")
