"""Conversion of exceptions from user code to errors of a run."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import reactivex

from rxloop.errors import PipelineError, RxloopError
from rxloop.support.misuse import explain_attribute

_IGNORED_FOLDERS = tuple(f"{root}{os.sep}" for root in (Path(__file__).parents[1], Path(reactivex.__file__).parent))
"""Folders to ignore when searching for the raising function."""

_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
"""Folder to ignore too. Without a virtual environment, it contains the installed packages, which are not ignored."""

_INTERNAL_FUNCTIONS = frozenset(
    ("operator", "subscribe", "on_next", "on_error", "on_completed", "dispose", "action", "<lambda>", "__call__")
)


_UNWIND_SECONDS = 0.1
"""Seconds after which all callers have handled an error."""


def to_error(raised: BaseException, source: str | None = None) -> Exception:
    """Convert an exception to an error of the run.

    Args:
        raised: The exception. Exceptions of rxloop are returned unchanged.
        source: Name of the function that raised it. By default, it is read from the traceback.
    """
    if isinstance(raised, RxloopError):
        return raised
    remark = "" if isinstance(raised, Exception) else ", which is not an Exception"
    error = PipelineError(f"{source or find_raiser(raised)} raised {explain_attribute(raised)!r}{remark}")
    error.__cause__ = raised
    return error


def get_message(raised: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` fails."""
    try:
        return str(explain_attribute(raised))
    except Exception as error:
        return f"{type(raised).__name__}.__str__ raised {type(error).__name__}"


def find_raiser(raised: BaseException) -> str:
    """Return the name and location of the innermost function outside of rxloop, reactivex and the standard library."""
    name = None
    for frame, line in traceback.walk_tb(raised.__traceback__):
        code = frame.f_code
        if name is None or not _is_ignored(code.co_filename):
            name = f"{to_plain_name(code.co_qualname)} ({Path(code.co_filename).name}:{line})"
    return name or "something in the pipeline"


def _is_ignored(file: str) -> bool:
    is_installed = f"{os.sep}site-packages{os.sep}" in file
    return file.startswith(_IGNORED_FOLDERS) or (file.startswith(_STANDARD_LIBRARY) and not is_installed)


def to_plain_name(qualified: str) -> str:
    """Return the user-facing part of a qualified name, such as `at_most` for `at_most.<locals>.subscribe`."""
    names = qualified.split(".<locals>.")
    own_names = [name for name in names if name not in _INTERNAL_FUNCTIONS]
    return (own_names or names)[-1]


def find_sender(value: object) -> str:
    """Return the name of the operator that emitted a value.

    The operator is the first caller on the stack that did not receive the value as its first argument.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    has_receiver = False
    while frame is not None:
        names = [name for name in frame.f_code.co_varnames[: frame.f_code.co_argcount] if name != "self"]
        is_receiver = bool(names) and frame.f_locals.get(names[0]) is value
        if has_receiver and not is_receiver:
            return to_plain_name(frame.f_code.co_qualname).strip("_")
        has_receiver = has_receiver or is_receiver
        frame = frame.f_back
    return "something"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if the process, rather than the code that raised the error, lacks memory."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return True
        error = error.__cause__
    return False


def free_memory() -> None:
    """Free the memory of a failed call soon. Its error and its frames usually refer to each other."""
    asyncio.get_running_loop().call_later(_UNWIND_SECONDS, gc.collect)


def leave_to_loop(raised: BaseException) -> None:
    """Raise KeyboardInterrupt and SystemExit from the event loop, which ends the process. Ignore other exceptions.

    Raised here, they would only end a run's task or interrupt a delivery.
    """
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        with suppress(RuntimeError):  # no event loop is running
            asyncio.get_running_loop().call_soon(_raise, raised)


def _raise(raised: BaseException) -> None:
    raise raised
