"""Readers that were cancelled or abandoned, and let their run go."""

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

_READERS: WeakKeyDictionary[Task[Any], ref[CancelledError]] = WeakKeyDictionary()
"""The tasks whose end is observed, each with the error of its newest cancelled read."""


def release_frames_of(error: CancelledError) -> None:
    """Release the local variables of each function that a cancelled read leaves, once it has left it.

    The error refers to its traceback, and the traceback to the frames of those functions. Whoever keeps the error keeps
    their variables: a task group of anyio in a cycle of references, a program that keeps the task. One of the variables
    is often the handle of the run, and the run would continue until the garbage collector finds it.

    A function that has caught the error keeps its variables. So does a suspended generator.

    Args:
        error: The error, before it leaves the reader. It is not kept.
    """
    last = ref(error)
    # It has left all functions that do not wait in a `finally` by the next round of the event loop.
    asyncio.get_running_loop().call_soon(_release, last)
    task = asyncio.current_task()
    if task is not None:
        if task not in _READERS:
            task.add_done_callback(_release_at_end)
        _READERS[task] = last


def release_frames_if_cancelled(frame: FrameType | None) -> None:
    """Do the same where the task is cancelled between two reads: what is dropped then is the reader.

    A frame that ends otherwise keeps its variables: by return it has none, and an error is for a debugger to look at.

    Args:
        frame: What drops the reader.
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
        # A time limit in the same task ends the cancellation, and the task goes on.
        clear = partial(_clear, frames) if task.cancelling() else partial(_clear_if_cancelled, task, frames)
        task.get_loop().call_soon(clear)


def release_frames_at_end(task: Task[Any]) -> None:
    """Do the same for a task that was cancelled between two reads, and that the program may keep.

    Args:
        task: A cancelled task. Its error is taken out: tasks that await it later get one without these frames.
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
    """Tell whether a frame belongs to a call that is over.

    `FrameType.clear` refuses a frame that executes, but before Python 3.13 it closes a suspended generator. The frame
    of a call that is over owns its code; before that, the call does.
    """
    code = frame.f_code
    return any(owned is code for owned in gc.get_referents(frame))


_DELAYS = (0.1, 1.0, 10.0)
"""Seconds after the end of a task, and between attempts. A server may need time to end the tasks around a response."""

_MIN_INTERVAL = 5.0
"""Seconds between two full collections of this process."""

_MAX_SHARE = 0.01
"""Fraction of the time that full collections may take, since they stop the event loop."""


class Abandonable(Protocol):
    """A reader, as this module sees it."""

    observed: bool
    """True if the end of the task that reads is observed. The next read observes its own task otherwise."""

    @property
    def is_over(self) -> bool:
        """True if the reader holds nothing."""
        ...


_ABANDONABLE: WeakKeyDictionary[Task[object], WeakSet[Abandonable]] = WeakKeyDictionary()
"""The readers of each task whose end is observed."""


def observe_reading_task(reader: Abandonable) -> None:
    """Let the garbage collector look for a reader that the current task leaves unfinished when it is cancelled.

    If a web server cancels a response while it sends a chunk, the function that reads the run is suspended at its
    `yield`. Often only a cycle of a task group refers to it. Python would find that cycle much later, or never if the
    program has disabled the collector, and the run would continue until then.

    A reader that the program can still reach is left alone, since only the collector decides.

    Args:
        reader: The reader, at its first read in the current task.
    """
    reader.observed = True
    task = asyncio.current_task()
    if task is None:
        return
    readers = _ABANDONABLE.get(task)
    if readers is None:
        readers = _ABANDONABLE[task] = WeakSet()
        task.add_done_callback(_look_for_abandoned)
    readers.add(reader)


def _look_for_abandoned(task: Task[object]) -> None:
    readers = _ABANDONABLE.pop(task)
    for reader in readers:
        reader.observed = False
    if readers and task.cancelled():
        release_frames_at_end(task)
        loop = task.get_loop()
        loop.call_later(_DELAYS[0], _collect, loop, readers, _DELAYS[1:])


class _FullCollection:
    """The newest full collection of this process, in seconds of `time.monotonic`."""

    started = 0.0
    next = 0.0
    """When another one may start."""

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
    # One collection serves all readers that wait for it.
    if _FullCollection.started < since:
        wait = _FullCollection.next - time.monotonic()
        if wait > 0:
            loop.call_later(wait, _collect_all, loop, readers, delays, since)
            return
        _FullCollection.run()
    if delays and _is_abandoned(readers):
        loop.call_later(delays[0], _collect, loop, readers, delays[1:])


def _is_abandoned(readers: WeakSet[Abandonable]) -> bool:
    """True if one of the readers is unfinished, and no task has read it since."""
    return any(not reader.is_over and not reader.observed for reader in readers)
