"""HTML page of the viewer, and files that contain the page together with a recorded run."""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from rxloop._version import __version__
from rxloop.errors import ConfigurationError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, StatusUpdateEvent
from rxloop.protocol.http_api import RunInfo
from rxloop.protocol.http_api.inspection import AccessInfo, LogInfo, Permissions
from rxloop.protocol.http_api.requests import SentRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import list_public_forms
from rxloop.recorded.export import Form, export_text, select_events
from rxloop.recorded.outline import OutlineFold, OutlineState
from rxloop.recorded.problems import ProblemFold
from rxloop.recorded.request import RequestFold
from rxloop.recorded.requests import RequestListFold
from rxloop.recorded.summary import SummaryFold, make_run_info, make_state_info, redact_state
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState, initial_state

FORMAT = 1
"""Version of the data blocks in a file."""

BLOCK_EVENTS = 500
"""Number of events in a data block."""

_BLOCK_TEXTS, _BLOCK_REQUESTS = 200, 50
"""Number of texts and of model requests in a data block."""

MAX_REQUEST_MESSAGES = 200_000
"""Maximum number of messages in all model requests of a file. Each request contains the messages before it, so the
requests of long runs would be larger than everything else."""

_OUTLINE_EVENTS = 20_000
"""Maximum number of events in a page of the outline."""

_PAGE = Path(__file__).with_name("page.html")
_API = '<meta name="rxloop-api" content="../">'
"""HTML element that contains the API path, replaced by `make_page`."""
_HEAD = '<meta charset="utf-8">'
_BODY = '<div id="page"></div>'
_ELEMENT = re.compile(rb"<(style|script)[^>]*>(.*?)</\1>", re.DOTALL)


def read_page() -> str:
    """Return the built page.

    Raises:
        ConfigurationError: The installation does not contain the page.
    """
    try:
        return _PAGE.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the viewer page {_PAGE}: {error.strerror}; install rxloop again"
        ) from error


def make_page(address: str) -> bytes:
    """Return the HTML page for an API path.

    Raises:
        ConfigurationError: The installation does not contain the page.
    """
    return read_page().replace(_API, _API.replace("../", escape(address)), 1).encode()


def make_policy(page: bytes, *, connects_to: str) -> list[str]:
    """Return the content security policy of a page, with the hashes of its script and its style.

    Args:
        page: HTML page.
        connects_to: Source of the requests that the page may send.
    """
    hashes = {name.decode(): _hash(body) for name, body in _ELEMENT.findall(page)}
    return [
        "default-src 'none'",
        f"script-src {hashes['script']}",
        f"style-src {hashes['style']}",
        "img-src data: blob:",
        f"connect-src {connects_to}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]


def _hash(body: bytes) -> str:
    return f"'sha256-{b64encode(sha256(body).digest()).decode()}'"


# -- files


def export_run(
    form: Form, record: RunRecord, events: Sequence[Event], *, before: RunState | None = None, internal: bool
) -> bytes:
    """Return the file of a run.

    Args:
        form: Form of the file.
        record: Record of the run.
        events: Durable events of the run, possibly without the last ones.
        before: State after the earlier runs of the conversation, whose messages are part of the model requests.
        internal: Whether to include data that clients must not receive.

    Raises:
        ConfigurationError: The form does not support this run, or it requires a package that is not installed.
    """
    match form:
        case "html":
            return make_file(record, events, before=before, internal=internal)
        case "otlp":
            try:
                from rxloop.telemetry.export import encode_spans
            except ImportError as error:
                raise ConfigurationError(
                    f"OTLP requires {error.name}; install it with pip install opentelemetry-exporter-otlp-proto-http"
                ) from error
            shown = select_events(events, internal=internal)
            return encode_spans(record.task_id, shown, content=internal or None)
        case _:
            return export_text(form, record.task_id, events, internal=internal)


def make_file(record: RunRecord, events: Sequence[Event], *, before: RunState | None = None, internal: bool) -> bytes:
    """Return an HTML file that shows a run without a server.

    The file contains the page of the viewer, and the run in compressed blocks. Its content security policy forbids all
    requests.

    Args:
        record: Record of the run.
        events: Durable events of the run, possibly without the last ones.
        before: State after the earlier runs of the conversation, whose messages are part of the model requests.
        internal: Whether to include data that clients must not receive.

    Raises:
        ConfigurationError: The installation does not contain the page.
    """
    page = read_page()
    policy = "; ".join(make_policy(page.encode(), connects_to="'none'"))
    head = f'<meta http-equiv="content-security-policy" content="{escape(policy)}">'
    blocks = "".join(
        f'<script type="application/gzip" data-name="{name}">{_compress(data)}</script>\n'
        for name, data in _list_blocks(record, events, before or initial_state(), internal)
    )
    return page.replace(_HEAD, f"{_HEAD}\n{head}", 1).replace(_BODY, f"{blocks}{_BODY}", 1).encode()


def _compress(data: bytes) -> str:
    return b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _list_blocks(
    record: RunRecord, events: Sequence[Event], before: RunState, internal: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each data block."""
    last = events[-1].seq
    access = AccessInfo(
        principal="",
        scopes=[],
        may=Permissions(act=False, internal=internal, others=False),
        log=LogInfo(kind="custom", keeps_deltas=False),
        agents=False,
        version=__version__,
    )
    meta = {
        "format": FORMAT,
        "taskId": record.task_id,
        "run": _dump(_make_info(record, events)),
        "me": _dump(access),
        "last": last,
        "total": record.seq,
        "blocks": [events[i].seq for i in range(0, len(events), BLOCK_EVENTS)],
    }
    yield "meta", orjson.dumps(meta)
    pages: list[bytes] = []
    fold = OutlineFold(OutlineState(), internal=internal)
    problems = ProblemFold(internal=internal)
    for start in range(0, len(events), _OUTLINE_EVENTS):
        chunk = events[start : start + _OUTLINE_EVENTS]
        fold.reset()
        fold.add(chunk)
        problems.add(chunk)
        # The file does not change, so the page must not wait for events.
        page = fold.make_page(record.task_id, seq=last, final=chunk[-1].seq == last)
        pages.append(page.model_dump_json(by_alias=True).encode())
    yield "outline", b"[%b]" % b",".join(pages)
    yield "problems", orjson.dumps([_dump(each) for each in problems.collect(record.task_id)])
    for start in range(0, len(events), BLOCK_EVENTS):
        shown = select_events(events[start : start + BLOCK_EVENTS], internal=internal)
        yield f"events-{events[start].seq}", b"\n".join(event.to_json(public=not internal) for event in shown)
    texts = _Texts()
    yield "states", orjson.dumps(_list_states(record.task_id, events, before, texts, internal=internal))
    yield from _list_requests(record.task_id, events, before, texts, internal=internal)
    for start in range(0, len(texts.lines), _BLOCK_TEXTS):
        yield f"texts-{start}", b"\n".join(texts.lines[start : start + _BLOCK_TEXTS])


class _Texts:
    """Messages and tools of a file, each of which is stored once as a line of JSON."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._indexes: dict[bytes, int] = {}
        self._messages: dict[int, tuple[Message, int]] = {}

    def add(self, value: object) -> int:
        """Return the index of a value, and add it if it is new."""
        line = orjson.dumps(value)
        index = self._indexes.setdefault(line, len(self.lines))
        if index == len(self.lines):
            self.lines.append(line)
        return index

    def add_message(self, message: Message) -> int:
        """Return the index of a message. Requests share the objects of their common messages."""
        known = self._messages.get(id(message))
        if known is None:
            # The message is kept, because its id must not be used again.
            known = self._messages[id(message)] = message, self.add(_dump(message))
        return known[1]


def _list_states(
    task_id: str, events: Sequence[Event], before: RunState, texts: _Texts, *, internal: bool
) -> Mapping[str, Sequence[object]]:
    """Return the messages of a run, and the changed fields of its state after each event that changes it."""
    state, count = initial_state().replace(goals=before.goals), 0
    messages: list[int] = []
    states: list[tuple[int, dict[str, Any]]] = []
    last, known = None, dict[str, Any]()
    for event in events:
        state = fold_all((event,), state)
        if len(state.messages) > count:
            # The public form of a result depends on the last message with calls.
            first = next((k for k in reversed(range(count)) if state.messages[k].role == "assistant"), count)
            recent = [state.messages[k] for k in range(first, len(state.messages))]
            shown = recent if internal else list_public_forms(recent)
            messages += [texts.add_message(each) for each in shown[count - first :] if each is not None]
            count = len(state.messages)
        fields = (state.attempt, state.state, state.reason, state.error, state.iteration, count)
        fields += (state.batch, state.pending, state.goals, state.content, state.usage)
        if fields == last:
            continue
        last = fields
        info = make_state_info(task_id, event.seq, state, ())
        info = (info if internal else redact_state(info)).model_copy(update={"message_count": len(messages)})
        values: Any = _dump(info)
        changed = {name: value for name, value in values.items() if known.get(name, ...) != value}
        states.append((event.seq, changed | dict.fromkeys(known.keys() - values.keys())))
        known = values
    return {"messages": messages, "states": states}


def _list_requests(
    task_id: str, events: Sequence[Event], before: RunState, texts: _Texts, *, internal: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield blocks with the sizes of all model requests, and with the requests as they were sent."""
    rows = RequestListFold(before, internal=internal, limit=len(events))
    rows.add(events)
    yield "requests", orjson.dumps([_dump(row) for row in rows.make_rows()])
    fold = RequestFold(before, None, internal=internal)
    fold.add(events)
    requests: list[Any] = []
    total = 0
    for seq, size in fold.sizes.items():
        total += size
        request = fold.make_request(task_id, seq) if total <= MAX_REQUEST_MESSAGES else None
        if request is not None:
            requests.append(_dump_request(request, texts))
    yield "sent", orjson.dumps([request["seq"] for request in requests])
    for start in range(0, len(requests), _BLOCK_REQUESTS):
        yield f"sent-{start}", orjson.dumps(requests[start : start + _BLOCK_REQUESTS])
        # Freeing all requests at once would block all threads for 40 ms.
        requests[start : start + _BLOCK_REQUESTS] = [None] * _BLOCK_REQUESTS


def _dump_request(request: SentRequest, texts: _Texts) -> dict[str, Any]:
    """Return a request with indexes instead of its messages, tools and omitted messages."""
    data: Any = _dump(request.model_copy(update={"parts": [], "tools": [], "left_out": []}))
    data["tools"] = [texts.add(_dump(tool)) for tool in request.tools]
    data["leftOut"] = [texts.add(_dump(message)) for message in request.left_out]
    for part in request.parts:
        entry: dict[str, Any] = part.model_dump(mode="json", by_alias=True, exclude={"message", "original"})
        for name, message in (("message", part.message), ("original", part.original)):
            if message is not None:
                entry[name] = texts.add_message(message)
        data["parts"].append(entry)
    return data


def _dump(model: BaseModel) -> object:
    return orjson.loads(model.model_dump_json(by_alias=True))


def _make_info(record: RunRecord, events: Sequence[Event]) -> RunInfo:
    fold = SummaryFold()
    fold.add(events)
    last = events[-1].to_public()
    end = last if isinstance(last, StatusUpdateEvent) and last.final else None
    return make_run_info(
        record,
        seq=events[-1].seq,
        deltas="none",
        events="",
        content=end and end.content,
        reason=end and end.reason,
        finish_reason=end and end.finish_reason,
        model=record.model or None,
        **asdict(fold.make_summary(record.task_id)),
    )
