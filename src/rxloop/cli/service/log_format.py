"""The log of a server as text for people or JSON for programs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from typing_extensions import override

from rxloop.cli.terminal import failure
from rxloop.support.text import to_one_line

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

requests = logging.getLogger("rxloop.requests")

_LONGEST = 2_000
_QUIET = ("/healthz", "/readyz")
"""What is asked every few seconds, by machines."""
_USUAL = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


@contextmanager
def writes_log(*, json: bool) -> Generator[None]:
    """Write what is logged to stderr: rxloop from `info` on, everybody else's warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if json else _Lines())
    root, ours = logging.getLogger(), logging.getLogger("rxloop")
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


class _Json(logging.Formatter):
    """One object a line, with what was given as `extra`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": to_one_line(record.getMessage(), _LONGEST),
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info and record.exc_info[1] is not None:
            found["error"] = to_one_line(failure(record.exc_info[1]), _LONGEST)
        return orjson.dumps(found, default=str).decode()


class _Lines(logging.Formatter):
    """A line for people; of a traceback the place where it happened."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            said += f": {failure(record.exc_info[1])}"
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {mark}{to_one_line(said, _LONGEST)}"


def log_requests(app: ASGIApp) -> ASGIApp:
    """Log each request once it is answered: its path, and nothing of what is asked or answered."""

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await app(scope, receive, sending)
        finally:
            seconds = round(time.perf_counter() - begun, 3)
            data = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": seconds}
            requests.info("%(method)s %(path)s %(status)d, %(seconds).3f s", data, extra=data)

    return logged
