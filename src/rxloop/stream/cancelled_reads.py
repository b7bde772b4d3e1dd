"""Cleanup after canceled or abandoned readers, so that their runs are released."""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

from rxloop.support.garbage import is_processing_large_data

_READERS: WeakKeyDictionary[Task[Any], ref[CancelledError]] = WeakKeyDictionary()
"""Errors of the last canceled read, by observed task."""


def release_frames(error: CancelledError) -> None:
    """Clear local variables of functions ended by a canceled read.

    The error references all frames through its traceback. If the error is kept, by a reference cycle in an anyio
    task group or by a program that keeps the task, so are the variables. Often, one of them is the run's handle, and
    the run would continue until the next garbage collection.

    Functions that caught the error keep their variables, and so do suspended generators.

    Args:
        error: The error that the reader is about to raise. Only a weak reference is kept.
    """
    last = ref(error)
    # In the next loop iteration, all functions have ended except for those that wait in a `finally` block.
    asyncio.get_running_loop().call_soon(_release, last)
    task = asyncio.current_task()
    if task is not None:
        if task not in _READERS:
            task.add_done_callback(_release_at_end)
        _READERS[task] = last


def release_frames_if_cancelled(frame: FrameType | None) -> None:
    """Clear local variables when a reader is dropped by a canceled task between two reads.

    Variables are kept if a function ends in another way: by returning, it frees them itself, and after an error they
    may be needed for debugging.

    Args:
        frame: Frame that dropped the reader.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return
    if task is not None:
        frames: list[FrameType] = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        # Time limits can end the cancellation, so that the task continues.
        clear = partial(_clear, frames) if task.cancelling() else partial(_clear_if_cancelled, task, frames)
        task.get_loop().call_soon(clear)


def release_frames_at_end(task: Task[Any]) -> None:
    """Clear the frames of a canceled task, because the program may keep the task.

    Args:
        task: Canceled task. Its error is consumed, so tasks that await it later get an error without these frames.
    """
    try:
        task.result()
    except CancelledError as error:
        _clear(_frames(error.__traceback__))


def _clear_if_cancelled(task: Task[Any], frames: list[FrameType]) -> None:
    if task.cancelled():
        _clear(frames)


def _release_at_end(task: Task[Any]) -> None:
    _release(_READERS.pop(task))


def _release(last: ref[CancelledError]) -> None:
    error = last()
    if error is not None:
        _clear(_frames(error.__traceback__))


def _clear(frames: Iterable[FrameType]) -> None:
    for frame in frames:
        if _is_finished(frame):
            frame.clear()


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _is_finished(frame: FrameType) -> bool:
    """Return True if the call of a frame has ended.

    `FrameType.clear` rejects executing frames, but before Python 3.13 it closes suspended generators. A frame only owns
    its code once the call has ended.
    """
    code = frame.f_code
    return any(owned is code for owned in gc.get_referents(frame))


_DELAYS = (0.1, 1.0, 10.0)
"""Delays in seconds before each try, because servers need time to end other tasks of a response."""

_MIN_INTERVAL = 5.0
"""Minimum number of seconds between two full collections of this process."""

_LARGE_DATA_DELAY = 0.5
"""Delay in seconds while large data is processed, because it would be examined too."""

_MAX_SHARE = 0.01
"""Maximum fraction of time spent in full collections, because they block the event loop."""


class Abandonable(Protocol):
    """Reader interface used by this module."""

    observed: bool
    """True if the end of the reading task is observed. Otherwise, the next read observes its own task."""

    @property
    def is_over(self) -> bool:
        """True if the reader is closed or at its end."""
        ...


_ABANDONABLE: WeakKeyDictionary[Task[object], WeakSet[Abandonable]] = WeakKeyDictionary()
"""Readers by observed task."""


def observe_reading_task(reader: Abandonable) -> None:
    """Run the garbage collector if the current task is canceled and leaves a reader unfinished.

    If a web server cancels a response while it is sending a chunk, the function that reads the run is suspended at a
    `yield`. Often, only the reference cycle of a task group still refers to it. Python would collect this cycle much
    later, or never if the collector is disabled, and the run would continue until then.

    Readers that are still reachable are not affected, because only the collector decides.

    Args:
        reader: The reader, before its first read in the current task.
    """
    reader.observed = True
    task = asyncio.current_task()
    if task is None:
        return
    readers = _ABANDONABLE.get(task)
    if readers is None:
        readers = _ABANDONABLE[task] = WeakSet()
        task.add_done_callback(_find_abandoned)
    readers.add(reader)


def _find_abandoned(task: Task[object]) -> None:
    readers = _ABANDONABLE.pop(task)
    for reader in readers:
        reader.observed = False
    if readers and task.cancelled():
        release_frames_at_end(task)
        loop = task.get_loop()
        loop.call_later(_DELAYS[0], _collect, loop, readers, _DELAYS[1:])


class _FullCollection:
    """Last full collection of this process, using `time.monotonic`."""

    started = 0.0
    next = 0.0
    """Time of the next allowed collection."""

    @classmethod
    def run(cls) -> None:
        """Collect all generations."""
        cls.started = time.monotonic()
        gc.collect()
        end = time.monotonic()
        cls.next = end + max(_MIN_INTERVAL, (end - cls.started) / _MAX_SHARE)


def _collect(loop: AbstractEventLoop, readers: WeakSet[Abandonable], delays: Sequence[float]) -> None:
    for generation in (0, 1):
        if _is_abandoned(readers):
            gc.collect(generation)
    _collect_all(loop, readers, delays, time.monotonic())


def _collect_all(loop: AbstractEventLoop, readers: WeakSet[Abandonable], delays: Sequence[float], since: float) -> None:
    if not _is_abandoned(readers):
        return
    # Share collections between waiting readers.
    if _FullCollection.started < since:
        wait = _FullCollection.next - time.monotonic()
        if is_processing_large_data():
            wait = max(wait, _LARGE_DATA_DELAY)
        if wait > 0:
            loop.call_later(wait, _collect_all, loop, readers, delays, since)
            return
        _FullCollection.run()
    if delays and _is_abandoned(readers):
        loop.call_later(delays[0], _collect, loop, readers, delays[1:])


def _is_abandoned(readers: WeakSet[Abandonable]) -> bool:
    """Return True if a reader is unfinished and no task has used it since."""
    return any(not reader.is_over and not reader.observed for reader in readers)
