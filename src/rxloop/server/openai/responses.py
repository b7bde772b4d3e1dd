"""Responses API endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.messages import FilePart, ImagePart, Message, PendingInput, TextPart, get_tool_error
from rxloop.server.core.adapter import read_query
from rxloop.server.core.errors import Refused
from rxloop.server.core.runs import answer_run, cancel_run, resolve_agent
from rxloop.server.openai import response_items as items
from rxloop.server.openai.answers import (
    ALL_TURNS,
    Left,
    abandon,
    folded,
    json,
    response_stream,
    streamed,
    waited,
)
from rxloop.server.openai.call import OpenAiCall, about_of, invalid, unsupported
from rxloop.server.openai.requests import (
    ApprovalItem,
    CreateResponse,
    ItemsQuery,
    MessageItem,
    OutputItem,
    RetrieveQuery,
    check_format,
)
from rxloop.server.openai.response_fold import ResponseFold
from rxloop.server.openai.response_items import Json, ResponseId, question_of, read_response_id, run_of
from rxloop.server.openai.run_inputs import is_begun, prompt_of, start, tools_of

_LATER = "its conversation has gone on since: go on from its last response, or begin a new one"


class _Place(NamedTuple):
    """Response to continue, with its run and fold."""

    record: RunRecord
    fold: ResponseFold
    turn: int
    """Response number within the run."""

    @property
    def waiting(self) -> Mapping[str, PendingInput]:
        """Open questions, or an empty mapping while the response is active."""
        pauses = self.fold.pauses
        return pauses[self.turn - 1].waiting if self.turn <= len(pauses) else {}


async def create(call: OpenAiCall[CreateResponse]) -> Response:
    """Create a response by starting a run or answering a waiting run."""
    body = call.body
    _check(call, body)
    call.gateway.check_accepting()
    # Repeated requests do not answer their own run or conflict with it.
    again = not _answers_last(body) and await is_begun(call, body.model)
    place = await _place(call, body, again=again)
    inputs = {} if place is None or again else _answers(body, place.waiting)
    if place is not None and inputs:
        record, turn = place.record, place.turn + 1
        if body.background and not about_of(record, call.gateway.runtime).background:
            raise unsupported("background", "a run that was not begun in the background does not go on there")
        await answer_run(call.gateway, record, inputs)
    else:
        record, turn = await _started(call, body, place, again=again), 1
    which = ResponseId(record.task_id, turn)
    try:
        return await _given(call, record, which, body)
    except Refused:
        if not again:
            # Cancel the run, because the refused client does not receive its id.
            await abandon(call, record, which)
        raise


async def retrieve(call: OpenAiCall[Any]) -> Response:
    """Return or stream a response."""
    record, which, fold = await _found(call)
    query = read_query(RetrieveQuery, call.request)
    if not query.stream:
        return json(fold.response())
    if not about_of(record, call.gateway.runtime).background:
        raise unsupported("stream", "only a response that was begun with background=true can be streamed again")
    after = -1 if query.starting_after is None else query.starting_after
    return streamed(call, response_stream(call, record, which, after=after), None)


async def cancel_response(call: OpenAiCall[Any]) -> Response:
    """Cancel an incomplete response."""
    record, which, fold = await _found(call)
    if not fold.over:
        await cancel_run(call.gateway, record.task_id)
        fold = await folded(call, record, which)
    return json(fold.response())


async def input_items(call: OpenAiCall[Any]) -> Response:
    """List a response's input items."""
    record, which, _ = await _found(call)
    query = read_query(ItemsQuery, call.request)
    listed: list[Json] = []
    if which.turn == 1:
        first = (await read_log(call.gateway.runtime.log.read, record.task_id))[0].to_public()
        messages: Sequence[Message] = getattr(first, "messages", ())
        listed = [_input_item(each, f"msg_{record.task_id}:in:{place}") for place, each in enumerate(messages)]
    if query.order == "desc":
        listed.reverse()
    ids = [each["id"] for each in listed]
    if query.after is not None:
        if query.after not in ids:
            raise invalid("after", "there is no such item")
        listed = listed[ids.index(query.after) + 1 :]
    more, listed = len(listed) > query.limit, listed[: query.limit]
    ends = {"first_id": listed[0]["id"] if listed else None, "last_id": listed[-1]["id"] if listed else None}
    return json({"object": "list", "data": listed, **ends, "has_more": more})


# -- create


def _check(call: OpenAiCall[Any], body: CreateResponse) -> None:
    if body.prompt is not None:
        raise unsupported("prompt", "there are no templates here: the agent has its own instructions")
    if body.tool_choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "the agent chooses its tools itself: auto and none are possible")
    check_format(call, body.model, body.text.format.type if body.text is not None else "text", "text.format")


async def _place(call: OpenAiCall[Any], body: CreateResponse, *, again: bool) -> _Place | None:
    """Return the response to continue, or None for a new conversation or active run."""
    found: _Place | None = None
    if body.previous_response_id is not None:
        which = read_response_id(body.previous_response_id)
        found = None if which is None else await _read(call, which)
        if found is None:
            message = "there is no such response"
            raise Refused(400, "previous_response_not_found", message, fields={"previous_response_id": message})
        if body.context_id not in (None, found.record.context_id):
            raise invalid("conversation", "the response of previous_response_id is of another conversation")
    answers = [each for each in body.items if isinstance(each, ApprovalItem | OutputItem)]
    # Only the last answer counts, because earlier items may be history.
    last = answers[-1] if answers and _answers_last(body) else None
    if last is not None:
        asked = _answered(last)
        place = await _asking(call, asked)
        if place is None or (found is not None and place.record.task_id != found.record.task_id):
            raise invalid("input", f"nothing waits for an answer to {asked!r}", "not_waiting")
        return place
    if found is None and body.context_id is not None and not again:
        found = await _waiting_in(call, body.context_id)
    return found


def _answers_last(body: CreateResponse) -> bool:
    """True if the input ends with an answer, optionally followed by user messages."""
    last = next((each for each in reversed(body.items) if not isinstance(each, MessageItem)), None)
    assistant = [place for place, each in enumerate(body.items) if getattr(each, "role", "") == "assistant"]
    return isinstance(last, ApprovalItem | OutputItem) and (not assistant or body.items.index(last) > assistant[-1])


def _answered(item: ApprovalItem | OutputItem) -> str:
    return question_of(item.approval_request_id if isinstance(item, ApprovalItem) else item.call_id)


async def _read(call: OpenAiCall[Any], id: ResponseId) -> _Place | None:
    """Load a response, returning None if it is missing or inaccessible."""
    try:
        record = await call.gateway.find_run(call.principal, id.task_id)
    except Refused:
        return None
    fold = await folded(call, record, ResponseId(id.task_id, ALL_TURNS))
    if id.turn > len(fold.pauses) + 1:
        return None
    return _Place(record, fold, id.turn)


async def _asking(call: OpenAiCall[Any], id: str) -> _Place | None:
    """Find the response containing a question."""
    read = read_response_id(run_of(id))
    place = None if read is None else await _read(call, read)
    if place is None:
        return None
    turns = [number for number, pause in enumerate(place.fold.pauses, start=1) if id in pause.waiting]
    return place._replace(turn=turns[-1]) if turns else None


async def _waiting_in(call: OpenAiCall[Any], context_id: str) -> _Place | None:
    """Return the latest run in a conversation if it is waiting for an answer."""
    await call.gateway.find_context(call.principal, context_id)
    runs = call.gateway.runtime.log.list_runs
    waiting = await read_log(runs, context_id=context_id, states=("input-required",))
    if not waiting or await read_log(runs, context_id=context_id, after=waiting[-1].task_id, limit=1):
        return None
    fold = await folded(call, waiting[-1], ResponseId(waiting[-1].task_id, ALL_TURNS))
    return _Place(waiting[-1], fold, len(fold.pauses)) if fold.pauses else None


def _answers(body: CreateResponse, asked: Mapping[str, PendingInput]) -> dict[str, Any]:
    """Return the answers to a response's questions, or an empty dict if the request contains no answers.

    Raises:
        Refused: If only some questions are answered.
    """
    inputs: dict[str, Any] = {}
    for each in body.items:
        question = asked.get(_answered(each)) if isinstance(each, ApprovalItem | OutputItem) else None
        if isinstance(each, ApprovalItem) and question is not None and question.input_kind == "confirmation":
            inputs[question.input_id] = each.approve
        elif isinstance(each, OutputItem) and question is not None:
            tool = question.input_kind == "tool"
            inputs[question.input_id] = _result(question, each.text) if tool else _in_words(question, each.text)
    # Other question types are answered with text, so only one of them can be answered at a time.
    words = [each for each in asked.values() if each.input_kind in ("text", "selection", "data")]
    said = [each.text for each in body.items if isinstance(each, MessageItem) and each.role == "user" and each.text]
    if len(words) == 1 and said and words[0].input_id not in inputs and (inputs or len(asked) == 1):
        inputs[words[0].input_id] = _in_words(words[0], said[-1])
    missing = [name for name, question in asked.items() if question.input_id not in inputs]
    if inputs and missing:
        raise invalid("input", f"the run waits for answers to all of its questions, and there is none to {missing[0]}")
    return inputs


def _result(question: PendingInput, text: str) -> Any:
    """Convert a client tool's result, keeping text unless it is an error or needs to match a schema."""
    value = _read_json(text)
    return value if question.answer_schema or get_tool_error(value) is not None else text


def _in_words(question: PendingInput, text: str) -> Any:
    """Convert a text answer to the type of the question."""
    text = text.strip()
    if question.input_kind == "text":
        return text
    value = _read_json(text)
    if question.input_kind == "selection":
        return next((each for each in question.options or [] if text == str(each) or value == each), text)
    return value


def _read_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


async def _started(call: OpenAiCall[Any], body: CreateResponse, place: _Place | None, *, again: bool) -> RunRecord:
    """Start a run in a response's conversation, a named conversation, or a new conversation."""
    agent = resolve_agent(call.gateway, body.model, "model")
    if place is not None and not again:
        after = place.record.task_id
        runs = call.gateway.runtime.log.list_runs
        if place.turn < len(place.fold.pauses) or await read_log(
            runs, context_id=place.record.context_id, after=after, limit=1
        ):
            raise Refused(400, "previous_response_not_latest", _LATER, fields={"previous_response_id": _LATER})
    context_id = place.record.context_id if place is not None else body.context_id

    def choose(stored: Sequence[Message] | None) -> list[Message]:
        return prompt_of(call, body.items, body.instructions, fresh=stored is None, param="input")

    prompt = choose if place is None else choose([])
    offered = [] if body.tool_choice == "none" else body.tools or []
    said: Json = {
        "background": bool(body.background),
        "previous": body.previous_response_id,
        "tools": [each.model_dump(include={"type", "name", "description", "parameters", "strict"}) for each in offered],
    }
    tools = tools_of(call, agent, offered)
    return await start(call, agent, prompt, body, context_id=context_id, said=said, metadata=body.metadata, tools=tools)


async def _given(call: OpenAiCall[Any], record: RunRecord, which: ResponseId, body: CreateResponse) -> Response:
    leave = None if body.background else partial(abandon, call, record, which)
    if body.stream:
        return streamed(call, response_stream(call, record, which), leave)
    if not body.background:
        try:
            await waited(call, response_stream(call, record, which), leave)
        except Left:
            return json(None, 499)
    return json((await folded(call, record, which)).response())


# -- retrieve


async def _found(call: OpenAiCall[Any]) -> tuple[RunRecord, ResponseId, ResponseFold]:
    """Load the response identified by the path.

    Raises:
        Refused: If the response does not exist or is not accessible to the principal.
    """
    which = read_response_id(call.request.path_params["response_id"])
    missing = Refused(404, "not_found", "there is no such response")
    if which is None:
        raise missing
    try:
        record = await call.gateway.find_run(call.principal, which.task_id)
    except Refused:
        raise missing from None
    fold = await folded(call, record, which)
    if not fold.exists:
        raise missing
    return record, which, fold


def _input_item(message: Message, id: str) -> Json:
    if message.role == "assistant":
        return items.message_item(id, "completed", items.text_part(message.text))
    if isinstance(message.content, str):
        content: list[Json] = [{"type": "input_text", "text": message.content}]
    else:
        content = [_input_part(each) for each in message.content]
    return {"type": "message", "id": id, "role": "user", "status": "completed", "content": content}


def _input_part(part: TextPart | ImagePart | FilePart) -> Json:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "detail": "auto", "image_url": part.url}
        case FilePart():
            return {"type": "input_file", "file_url": part.url, "filename": part.filename}
