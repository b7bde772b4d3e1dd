"""Standard streams with character replacement and closed-pipe handling."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper
from typing import Any, cast

_REPLACEMENTS = {"→": ">", "←": "<", "…": "~", "·": "*", "✗": "x", "├": "|", "└": "`", "─": "-", "│": "|", "°": "'"}


def prepare_streams() -> None:
    """Open closed standard streams, and replace characters that the terminal cannot encode."""
    codecs.register_error("rxloop", _replace_unencodable)
    # Python sets streams that were closed by the parent process to None.
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # Decoding errors are reported where the input is used.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "rxloop"), (sys.stderr, "rxloop")):
        if isinstance(stream, TextIOWrapper):
            cast("TextIOWrapper[Any]", stream).reconfigure(errors=errors)


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the terminal cannot encode with similar ASCII characters or question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(_REPLACEMENTS.get(char, char) for char in error.object[error.start : error.end])
    return text.encode("ascii", "replace").decode("ascii"), error.end


def discard_output() -> None:
    """Discard unwritable output if the reader has exited, like `head`, or the disk is full."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())
