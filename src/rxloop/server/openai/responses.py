"""Responses API endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.messages import FilePart, ImagePart, Message, PendingInput, TextPart, get_tool_error
from rxloop.recorded.follow import read_first
from rxloop.server.core.bodies import parse_text, read_query
from rxloop.server.core.errors import Refused
from rxloop.server.core.existing_runs import answer_run
from rxloop.server.core.runs import cancel_run, resolve_agent
from rxloop.server.openai import response_items as items
from rxloop.server.openai.call import OpenAiCall, get_response_info, invalid, unsupported
from rxloop.server.openai.delivery import (
    ALL_TURNS,
    ClientDisconnected,
    abandon,
    fold_response,
    json_response,
    response_stream,
    stream_response,
    wait_complete,
)
from rxloop.server.openai.requests import (
    ApprovalItem,
    CreateResponse,
    FunctionTool,
    ItemsQuery,
    MessageItem,
    OutputItem,
    RetrieveQuery,
    check_format,
)
from rxloop.server.openai.response_fold import ResponseFold
from rxloop.server.openai.response_items import Json, ResponseId, parse_question_id, parse_run_id, read_response_id
from rxloop.server.openai.run_inputs import build_prompt, convert_tools, has_started, start
from rxloop.support.threads import compute

_NOT_LATEST = "the conversation has newer responses; continue from the latest one, or start a new conversation"


class _Position(NamedTuple):
    """Response to continue, with its run and fold."""

    record: RunRecord
    fold: ResponseFold
    turn: int
    """Response number within the run."""

    @property
    def pending(self) -> Mapping[str, PendingInput]:
        """Open questions, or an empty mapping while the response is active."""
        pauses = self.fold.pauses
        return pauses[self.turn - 1].pending if self.turn <= len(pauses) else {}


async def create(call: OpenAiCall[CreateResponse]) -> Response:
    """Create a response by starting a run or answering a waiting run."""
    body = call.body
    _check(call, body)
    call.gateway.check_accepting()
    # Repeated requests do not answer their own run or conflict with it.
    is_repeated = not _answers_last(body) and await has_started(call, body.model)
    position = await _find_position(call, body, is_repeated=is_repeated)
    inputs = {} if position is None or is_repeated else _collect_answers(body, position.pending)
    if position is not None and inputs:
        record, turn = position.record, position.turn + 1
        if body.background and not get_response_info(record, call.gateway.runtime).background:
            raise unsupported("background", "a run that started in the foreground cannot continue in the background")
        await answer_run(call.gateway, call.principal, record, inputs)
    else:
        record, turn = await _start_run(call, body, position, is_repeated=is_repeated), 1
    response_id = ResponseId(record.task_id, turn)
    try:
        return await _respond(call, record, response_id, body)
    except Refused:
        if not is_repeated:
            # Cancel the run, because the refused client does not receive its id.
            await abandon(call, record, response_id)
        raise


async def retrieve(call: OpenAiCall[Any]) -> Response:
    """Return or stream a response."""
    record, response_id, fold = await _load(call)
    query = read_query(RetrieveQuery, call.request)
    if not query.stream:
        return json_response(await compute(fold.response))
    if not get_response_info(record, call.gateway.runtime).background:
        raise unsupported("stream", "only responses that were created with background=true can be streamed again")
    after = -1 if query.starting_after is None else query.starting_after
    return stream_response(call, response_stream(call, record, response_id, after=after), None)


async def cancel_response(call: OpenAiCall[Any]) -> Response:
    """Cancel an incomplete response."""
    record, response_id, fold = await _load(call)
    if not fold.is_complete:
        await cancel_run(call.gateway, record.task_id)
        fold = await fold_response(call, record, response_id)
    return json_response(fold.response())


async def input_items(call: OpenAiCall[Any]) -> Response:
    """List a response's input items."""
    record, response_id, _ = await _load(call)
    query = read_query(ItemsQuery, call.request)
    entries: list[Json] = []
    if response_id.turn == 1:
        first = await read_first(call.gateway.runtime.log, record.task_id)
        messages: Sequence[Message] = getattr(first and first.to_public(), "messages", ())
        entries = [_make_input_item(each, f"msg_{record.task_id}:in:{index}") for index, each in enumerate(messages)]
    if query.order == "desc":
        entries.reverse()
    ids = [each["id"] for each in entries]
    if query.after is not None:
        if query.after not in ids:
            raise invalid("after", "the item does not exist")
        entries = entries[ids.index(query.after) + 1 :]
    has_more, entries = len(entries) > query.limit, entries[: query.limit]
    ends = {"first_id": entries[0]["id"] if entries else None, "last_id": entries[-1]["id"] if entries else None}
    return json_response({"object": "list", "data": entries, **ends, "has_more": has_more})


# -- create


def _check(call: OpenAiCall[Any], body: CreateResponse) -> None:
    if body.prompt is not None:
        raise unsupported("prompt", "prompt templates are not supported, because the agent uses its own instructions")
    if body.tool_choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "tool_choice must be auto or none")
    check_format(call, body.model, body.text.format.type if body.text is not None else "text", "text.format")


async def _find_position(call: OpenAiCall[Any], body: CreateResponse, *, is_repeated: bool) -> _Position | None:
    """Return the response to continue, or None for a new conversation or active run."""
    previous: _Position | None = None
    if body.previous_response_id is not None:
        response_id = read_response_id(body.previous_response_id)
        previous = None if response_id is None else await _load_position(call, response_id)
        if previous is None:
            raise invalid("previous_response_id", "the response does not exist", "previous_response_not_found")
        if body.context_id not in (None, previous.record.context_id):
            raise invalid("conversation", "previous_response_id belongs to another conversation")
    answers = [each for each in body.items if isinstance(each, ApprovalItem | OutputItem)]
    # Only the last answer counts, because earlier items may be history.
    last = answers[-1] if answers and _answers_last(body) else None
    if last is not None:
        question_id = _get_question_id(last)
        position = await _find_question(call, question_id)
        if position is None or (previous is not None and position.record.task_id != previous.record.task_id):
            raise invalid("input", f"no run is waiting for an answer to {question_id!r}", "not_waiting")
        return position
    if previous is None and body.context_id is not None and not is_repeated:
        previous = await _find_waiting(call, body.context_id)
    return previous


def _answers_last(body: CreateResponse) -> bool:
    """Return True if the input ends with an answer, optionally followed by user messages."""
    last = next((each for each in reversed(body.items) if not isinstance(each, MessageItem)), None)
    assistant = [index for index, each in enumerate(body.items) if getattr(each, "role", "") == "assistant"]
    return isinstance(last, ApprovalItem | OutputItem) and (not assistant or body.items.index(last) > assistant[-1])


def _get_question_id(item: ApprovalItem | OutputItem) -> str:
    return parse_question_id(item.approval_request_id if isinstance(item, ApprovalItem) else item.call_id)


async def _load_position(call: OpenAiCall[Any], id: ResponseId) -> _Position | None:
    """Load a response, returning None if it is missing or inaccessible."""
    try:
        record = await call.gateway.find_run(call.principal, id.task_id)
    except Refused:
        return None
    fold = await fold_response(call, record, ResponseId(id.task_id, ALL_TURNS))
    if id.turn > len(fold.pauses) + 1:
        return None
    return _Position(record, fold, id.turn)


async def _find_question(call: OpenAiCall[Any], id: str) -> _Position | None:
    """Find the response containing a question."""
    response_id = read_response_id(parse_run_id(id))
    position = None if response_id is None else await _load_position(call, response_id)
    if position is None:
        return None
    turns = [number for number, pause in enumerate(position.fold.pauses, start=1) if id in pause.pending]
    return position._replace(turn=turns[-1]) if turns else None


async def _find_waiting(call: OpenAiCall[Any], context_id: str) -> _Position | None:
    """Return the latest run in a conversation if it is waiting for an answer."""
    runs, key = call.gateway.runtime.log.list_conversation, call.principal.get_conversation(context_id)
    waiting = await read_log(runs, key, states=("input-required",))
    if not waiting or await read_log(runs, key, after=waiting[-1].task_id, limit=1):
        return None
    fold = await fold_response(call, waiting[-1], ResponseId(waiting[-1].task_id, ALL_TURNS))
    return _Position(waiting[-1], fold, len(fold.pauses)) if fold.pauses else None


def _collect_answers(body: CreateResponse, questions: Mapping[str, PendingInput]) -> dict[str, Any]:
    """Return the answers to a response's questions, or an empty dict if the request contains no answers.

    Raises:
        Refused: If only some questions are answered.
    """
    inputs: dict[str, Any] = {}
    for each in body.items:
        question = questions.get(_get_question_id(each)) if isinstance(each, ApprovalItem | OutputItem) else None
        if isinstance(each, ApprovalItem) and question is not None and question.input_kind == "confirmation":
            inputs[question.input_id] = each.approve
        elif isinstance(each, OutputItem) and question is not None:
            convert = _convert_result if question.input_kind == "tool" else _convert_text
            inputs[question.input_id] = convert(question, each.text)
    # Other question types are answered with text, so only one of them can be answered at a time.
    by_text = [each for each in questions.values() if each.input_kind in ("text", "selection", "data")]
    texts = [each.text for each in body.items if isinstance(each, MessageItem) and each.role == "user" and each.text]
    if len(by_text) == 1 and texts and by_text[0].input_id not in inputs and (inputs or len(questions) == 1):
        inputs[by_text[0].input_id] = _convert_text(by_text[0], texts[-1])
    missing = [name for name, question in questions.items() if question.input_id not in inputs]
    if inputs and missing:
        raise invalid("input", f"all questions of the run must be answered; there is no answer to {missing[0]}")
    return inputs


def _convert_result(question: PendingInput, text: str) -> Any:
    """Convert a client tool's result, keeping text unless it is an error or needs to match a schema."""
    value = parse_text(text)
    return value if question.answer_schema or get_tool_error(value) is not None else text


def _convert_text(question: PendingInput, text: str) -> Any:
    """Convert a text answer to the type of the question."""
    text = text.strip()
    if question.input_kind == "text":
        return text
    value = parse_text(text)
    if question.input_kind == "selection":
        return next((each for each in question.options or [] if text == str(each) or value == each), text)
    return value


async def _start_run(
    call: OpenAiCall[Any], body: CreateResponse, position: _Position | None, *, is_repeated: bool
) -> RunRecord:
    """Start a run in a response's conversation, a named conversation, or a new conversation."""
    agent = resolve_agent(call.gateway, body.model, "model")
    if position is not None and not is_repeated:
        record = position.record
        if (record.owner or "") != call.principal.id:
            raise invalid("previous_response_id", "only the owner of a response can continue its conversation")
        runs = call.gateway.runtime.log.list_conversation
        if position.turn < len(position.fold.pauses) or await read_log(
            runs, record.conversation, after=record.task_id, limit=1
        ):
            raise invalid("previous_response_id", _NOT_LATEST, "previous_response_not_latest")
    context_id = position.record.context_id if position is not None else body.context_id

    def choose(stored: Sequence[Message] | None) -> list[Message]:
        return build_prompt(call, body.items, body.instructions, is_new=stored is None, param="input")

    prompt = choose if position is None else choose([])
    offered = [] if body.tool_choice == "none" else body.tools or []
    extra: Json = {
        "background": bool(body.background),
        "previous": body.previous_response_id,
        "tools": [each.model_dump(exclude={"allowed_tools"}) for each in offered],
    }
    tools = convert_tools(call, agent, [each for each in offered if isinstance(each, FunctionTool)])
    metadata = body.metadata
    return await start(call, agent, prompt, body, context_id=context_id, extra=extra, metadata=metadata, tools=tools)


async def _respond(call: OpenAiCall[Any], record: RunRecord, response_id: ResponseId, body: CreateResponse) -> Response:
    on_disconnect = None if body.background else partial(abandon, call, record, response_id)
    if body.stream:
        return stream_response(call, response_stream(call, record, response_id), on_disconnect)
    if not body.background:
        try:
            await wait_complete(call, response_stream(call, record, response_id), on_disconnect)
        except ClientDisconnected:
            return json_response(None, 499)
    return json_response((await fold_response(call, record, response_id)).response())


# -- retrieve


async def _load(call: OpenAiCall[Any]) -> tuple[RunRecord, ResponseId, ResponseFold]:
    """Load the response identified by the path.

    Raises:
        Refused: If the response does not exist or is not accessible to the principal.
    """
    response_id = read_response_id(call.request.path_params["response_id"])
    missing = Refused(404, "not_found", "the response does not exist")
    if response_id is None:
        raise missing
    try:
        record = await call.gateway.find_run(call.principal, response_id.task_id)
    except Refused:
        raise missing from None
    fold = await fold_response(call, record, response_id)
    if not fold.exists:
        raise missing
    return record, response_id, fold


def _make_input_item(message: Message, id: str) -> Json:
    if message.role == "assistant":
        return items.make_message_item(id, "completed", items.make_text_part(message.text))
    if isinstance(message.content, str):
        content: list[Json] = [{"type": "input_text", "text": message.content}]
    else:
        content = [_make_input_part(each) for each in message.content]
    return {"type": "message", "id": id, "role": "user", "status": "completed", "content": content}


def _make_input_part(part: TextPart | ImagePart | FilePart) -> Json:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "detail": "auto", "image_url": part.url}
        case FilePart():
            return {"type": "input_file", "file_url": part.url, "filename": part.filename}
