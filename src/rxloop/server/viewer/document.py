"""HTML page of the viewer, and files that contain the page together with a recorded run."""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path

import orjson
from pydantic import BaseModel

from rxloop._version import __version__
from rxloop.errors import ConfigurationError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api import RunInfo
from rxloop.protocol.http_api.inspection import AccessInfo, LogInfo, Permissions
from rxloop.protocol.visibility import PUBLIC_METADATA, redact_error
from rxloop.recorded.export import Form, export_text, select_events
from rxloop.recorded.outline import OutlineFold, OutlineState
from rxloop.recorded.problems import ProblemFold
from rxloop.recorded.summary import SummaryFold

FORMAT = 1
"""Version of the data blocks in a file."""

BLOCK_EVENTS = 500
"""Number of events in a data block."""

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


def export_run(form: Form, record: RunRecord, events: Sequence[Event], *, internal: bool) -> bytes:
    """Return the file of a run.

    Args:
        form: Form of the file.
        record: Record of the run.
        events: Durable events of the run, possibly without the last ones.
        internal: Whether to include data that clients must not receive.

    Raises:
        ConfigurationError: The form does not support this run, or it requires a package that is not installed.
    """
    match form:
        case "html":
            return make_file(record, events, internal=internal)
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


def make_file(record: RunRecord, events: Sequence[Event], *, internal: bool) -> bytes:
    """Return an HTML file that shows a run without a server.

    The file contains the page of the viewer, and the run in compressed blocks. Its content security policy forbids all
    requests.

    Args:
        record: Record of the run.
        events: Durable events of the run, possibly without the last ones.
        internal: Whether to include data that clients must not receive.

    Raises:
        ConfigurationError: The installation does not contain the page.
    """
    page = read_page()
    policy = "; ".join(make_policy(page.encode(), connects_to="'none'"))
    head = f'<meta http-equiv="content-security-policy" content="{escape(policy)}">'
    blocks = "".join(
        f'<script type="application/gzip" data-name="{name}">{_compress(data)}</script>\n'
        for name, data in _list_blocks(record, events, internal)
    )
    return page.replace(_HEAD, f"{_HEAD}\n{head}", 1).replace(_BODY, f"{blocks}{_BODY}", 1).encode()


def _compress(data: bytes) -> str:
    return b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _list_blocks(record: RunRecord, events: Sequence[Event], internal: bool) -> Iterator[tuple[str, bytes]]:
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
    pages: list[object] = []
    fold = OutlineFold(OutlineState(), internal=internal)
    problems = ProblemFold(internal=internal)
    for start in range(0, len(events), _OUTLINE_EVENTS):
        chunk = events[start : start + _OUTLINE_EVENTS]
        fold.reset()
        fold.add(chunk)
        problems.add(chunk)
        # The file does not change, so the page must not wait for events.
        pages.append(_dump(fold.make_page(record.task_id, seq=last, final=chunk[-1].seq == last)))
    yield "outline", orjson.dumps(pages)
    yield "problems", orjson.dumps([_dump(each) for each in problems.collect(record.task_id)])
    for start in range(0, len(events), BLOCK_EVENTS):
        shown = (
            event.to_json(public=not internal)
            for event in events[start : start + BLOCK_EVENTS]
            if internal or event.to_public() is not None
        )
        yield f"events-{events[start].seq}", b"\n".join(shown)


def _dump(model: BaseModel) -> object:
    return orjson.loads(model.model_dump_json(by_alias=True))


def _make_info(record: RunRecord, events: Sequence[Event]) -> RunInfo:
    fold = SummaryFold()
    fold.add(events)
    summary = fold.make_summary(record.task_id)
    return RunInfo(
        task_id=record.task_id,
        context_id=record.context_id,
        agent=record.agent_name,
        state=record.state,
        attempt=record.attempt,
        seq=events[-1].seq,
        deltas="none",
        cursor=record.cursor,
        created=record.created,
        updated=record.updated,
        events="",
        metadata=dict(record.metadata.get(PUBLIC_METADATA) or {}),
        usage=record.usage,
        error=None if record.error is None else redact_error(record.error, None),
        model=record.model or None,
        title=summary.title,
        seconds=max(record.updated - record.created, 0) / 1000,
        calls=summary.calls,
        problems=summary.problems,
        token_rate=summary.token_rate,
        dollars=summary.dollars,
        fork_of=summary.fork_of,
    )
