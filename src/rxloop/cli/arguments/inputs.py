"""Input of `rxloop run` and `rxloop chat`: the question, text from stdin, and attached files."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import UnsupportedOperation
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rxloop.cli.options import decode
from rxloop.cli.terminal import notify, read_all
from rxloop.errors import ConfigurationError
from rxloop.protocol.media import make_part
from rxloop.protocol.media_types import guess_media_type
from rxloop.protocol.messages import Message
from rxloop.protocol.parts import FilePart, ImagePart, TextPart, format_size

MAX_ATTACHMENT = 20_000_000
"""Maximum attachment size in bytes. Most vendors accept requests of this size."""
STDIN = "-"
_NOTICE_SECONDS = 2.0
_SOCKET_SECONDS = 5.0
_EXAMPLE = 'rxloop run "Why is the sky blue?"'


@dataclass(frozen=True, slots=True)
class Attachments:
    """Files of `rxloop run` and `rxloop chat`."""

    attach: Annotated[
        list[str] | None,
        typer.Option(
            "--attach",
            "-a",
            metavar="FILE",
            help="Image or file for the model, a URL, or - for stdin. Can be repeated.",
        ),
    ] = None

    @property
    def use_stdin(self) -> bool:
        """True if stdin is attached as bytes."""
        return STDIN in (self.attach or ())

    def load(self) -> list[ImagePart | FilePart]:
        """Load files and URLs.

        Raises:
            ConfigurationError: An attachment is unreadable, too large or unsupported.
        """
        names = list(self.attach or ())
        if names.count(STDIN) > 1:
            raise ConfigurationError("--attach - was given twice, but stdin can be read only once; omit one of them")
        return [load_attachment(name) for name in names]


def load_attachment(name: str) -> ImagePart | FilePart:
    """Load an attachment and detect its media type using content and file name.

    Args:
        name: Path, URL, or `-` for stdin.

    Raises:
        ConfigurationError: The attachment is unreadable, too large or unsupported.
    """
    shown = decode(name)
    try:
        if name.startswith(("https://", "http://")):
            media_type = guess_media_type(urlsplit(name).path) or ""
            return make_part(url=name, image=media_type.startswith("image/"))
        data = _read_stdin_bytes() if name == STDIN else _read_file(name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"--attach: cannot read {shown!r}: {reason}; pass the path of a file") from error
    except ValueError as error:
        raise ConfigurationError(f"--attach {shown!r}: {error}") from error
    if len(data) > MAX_ATTACHMENT:
        raise ConfigurationError(
            f"--attach {shown!r} must have at most {format_size(MAX_ATTACHMENT)}; reduce it, or pass a URL of the file"
        )
    if not data:
        raise ConfigurationError(f"--attach {shown!r} must not be empty; pass another file")
    try:
        return make_part(data=data, name=None if name == STDIN else Path(shown).name)
    except ValueError as error:
        raise ConfigurationError(
            f"--attach {shown!r}: neither its content nor its name show its type; "
            "use a name such as report.pdf, or convert it to text"
        ) from error


def _read_file(name: str) -> bytes:
    with Path(name).expanduser().open("rb") as file:
        return file.read(MAX_ATTACHMENT + 1)


def _read_stdin_bytes() -> bytes:
    with _announce_waiting():
        return sys.stdin.buffer.read(MAX_ATTACHMENT + 1)


def make_prompt(words: Sequence[str], attachments: Attachments) -> str | Message:
    """Combine the question, text from stdin and attachments.

    Text from stdin follows the words, or replaces missing words.

    Raises:
        ConfigurationError: There is neither a question nor an attachment, or an input is invalid.
    """
    if attachments.use_stdin and STDIN in words:
        raise ConfigurationError("- and --attach - both need stdin; omit one of them")
    parts = attachments.load()
    if not words and not parts and sys.stdin.isatty():
        raise ConfigurationError(f"no question given; try {_EXAMPLE}, or use a pipe")
    texts = [decode(" ".join(word for word in words if word != STDIN))]
    if not attachments.use_stdin and (STDIN in words or has_input()):
        texts.append(read_document())
    question = "\n\n".join(text for text in texts if text.strip())
    if not question and not parts:
        raise ConfigurationError(f"the question must not be empty; try {_EXAMPLE}, or use a pipe")
    return add_attachments(question, parts)


def add_attachments(question: str, parts: Sequence[ImagePart | FilePart]) -> str | Message:
    """Return the question, followed by attachments if there are any."""
    if not parts:
        return question
    return Message.user([*([TextPart(text=question)] if question else []), *parts])


def has_input() -> bool:
    """Return True if stdin is a pipe, a file or a socket.

    The command does not read terminals and devices such as `/dev/null`. Remote shells leave sockets open without
    sending data, so a socket counts only if it sends data in time.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (UnsupportedOperation, OSError, ValueError):
        # In tests and embedding programs, stdin can be an object in memory.
        return not sys.stdin.isatty()
    if stat.S_ISSOCK(mode):
        if select.select([sys.stdin.fileno()], [], [], _SOCKET_SECONDS)[0]:
            return True
        notify(f"stdin sent no data within {_SOCKET_SECONDS:g} s, continuing without it; pass - to wait for it")
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def read_document() -> str:
    """Read stdin as text, printing a notice after two seconds.

    Raises:
        ConfigurationError: The input contains invalid UTF-8.
    """
    with _announce_waiting():
        return read_all().strip()


@contextmanager
def _announce_waiting() -> Generator[None]:
    """Print a notice if the input does not end, for example because another program left a pipe open."""
    if sys.stdin.isatty():
        yield
        return
    text = "waiting for the end of stdin; use < /dev/null if there is no input"
    timer = threading.Timer(_NOTICE_SECONDS, notify, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
