"""Errors raised by user code, as errors of a run."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import reactivex

from rxloop.errors import PipelineError, RxloopError

_ROOTS = (Path(__file__).parents[1], Path(reactivex.__file__).parent, Path(asyncio.__file__).parent)

_OWN = tuple(f"{root}{os.sep}" for root in _ROOTS)
"""Where code lies that carries out what others wrote, and is not to blame."""

_PLUMBING = frozenset(
    ("operator", "subscribe", "on_next", "on_error", "on_completed", "dispose", "action", "<lambda>", "__call__")
)


def to_error(raised: BaseException, who: str | None = None) -> Exception:
    """Make of what was raised the error of a run.

    Args:
        raised: An error of rxloop's own stays as it is: it says what happened already.
        who: Who raised it; by default that is read from the traceback.
    """
    if isinstance(raised, RxloopError):
        return raised
    error = PipelineError(f"{who or find_raiser(raised)} raised {raised!r}{_remark(raised)}")
    error.__cause__ = raised
    return error


def _remark(raised: BaseException) -> str:
    return "" if isinstance(raised, Exception) else ", which is not an Exception"


def find_raiser(raised: BaseException) -> str:
    """Find who raised it: the innermost function outside of rxloop and reactivex, and where it stands."""
    found = None
    for frame, line in traceback.walk_tb(raised.__traceback__):
        code = frame.f_code
        if found is None or not code.co_filename.startswith(_OWN):
            found = f"{to_plain_name(code.co_qualname)} ({Path(code.co_filename).name}:{line})"
    return found or "something in the pipeline"


def to_plain_name(qualified: str) -> str:
    """Shorten the name of a function to the one that people know: `at_most` for its `subscribe.<locals>.on_next`."""
    names = qualified.split(".<locals>.")
    known = [name for name in names if name not in _PLUMBING]
    return (known or names)[-1]


def find_sender(value: object) -> str:
    """Find which operator sent a value, up the stack of whoever was just given it: those between pass it on."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    passed = False
    while frame is not None:
        names = [name for name in frame.f_code.co_varnames[: frame.f_code.co_argcount] if name != "self"]
        passes = bool(names) and frame.f_locals.get(names[0]) is value
        if passed and not passes:
            return to_plain_name(frame.f_code.co_qualname).strip("_")
        passed = passed or passes
        frame = frame.f_back
    return "something"


def leave_to_loop(raised: BaseException) -> None:
    """Have the event loop raise what ends the process, when everybody has been told.

    Raised on the spot it would end the task of a run that others wait for, or unwind a delivery in the middle.
    """
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        with suppress(RuntimeError):  # no event loop runs any more
            asyncio.get_running_loop().call_soon(_raise, raised)


def _raise(raised: BaseException) -> None:
    raise raised
