"""Back-pressure: gates for model sockets, and buffers for slow readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from reactivex import abc

from rxloop.errors import SlowReader
from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.deltas import are_mergeable, delta_text, merge_deltas

WINDOW_BYTES = 1 << 18
"""Size of the events that a source of decoded events delivers before they are read."""


EVENTS_PER_TURN = 200
"""Number of events that such a source delivers before other tasks can run."""


class Gate:
    """Gate that pauses the sockets of a run while a reader with overflow="block" is too slow.

    Sources check `closed` after each batch and only wait if it is set, so an open gate costs one attribute access.
    """

    def __init__(self) -> None:
        self.closed = False
        self._close_count = 0
        self._opened: asyncio.Event | None = None
        self.buffers: set[ReadBuffer] | None = None
        """Receives the buffers that store an item, while a source delivers it."""

    def close(self) -> None:
        """Pause the sources. Call `open` once for each `close`."""
        self._close_count += 1
        self.closed = True

    def open(self) -> None:
        """Revert one `close`."""
        self._close_count -= 1
        if not self._close_count:
            self.closed = False
            if self._opened is not None:
                self._opened.set()
                self._opened = None

    async def wait(self) -> None:
        """Wait for the gate to open."""
        while self.closed:
            if self._opened is None:
                self._opened = asyncio.Event()
            await self._opened.wait()


class WindowedPush:
    """Function that delivers decoded events in windows. Each window must be read before the next one is delivered."""

    def __init__(self, push: Callable[[Any], None], gate: Gate) -> None:
        self._push, self._gate = push, gate
        self._size = self._count = 0
        self._buffers: set[ReadBuffer] = set()

    async def __call__(self, event: Event) -> None:
        """Deliver an event, and wait for slow readers with overflow="block"."""
        # Other sources may share the gate, so only wait for the buffers that receive these events.
        self._gate.buffers = self._buffers
        try:
            self._push(event)
        finally:
            self._gate.buffers = None
        self._size += event.decoded_size
        if self._size >= WINDOW_BYTES:
            self._size = 0
            while self._buffers:
                await self._buffers.pop().wait_until_read()
        self._count += 1
        if self._count % EVENTS_PER_TURN == 0:
            # Events from a memory log have no size, and views can drop events before a buffer.
            await asyncio.sleep(0)
        if self._gate.closed:
            await self._gate.wait()


class Gates(Gate):
    """Combined gate for multiple runs."""

    def __init__(self, gates: Iterable[Gate] = ()) -> None:
        super().__init__()
        self._gates = list(gates)

    def close(self) -> None:
        """Close all gates, including those added later."""
        if not self.closed:
            for gate in self._gates:
                gate.close()
        super().close()

    def open(self) -> None:
        """Revert one `close`."""
        super().open()
        if not self.closed:
            for gate in self._gates:
                gate.open()

    def add(self, gate: Gate) -> None:
        """Add a run's gate."""
        self._gates.append(gate)
        if self.closed:
            gate.close()

    def remove(self, gate: Gate) -> None:
        """Remove a run's gate."""
        self._gates.remove(gate)
        if self.closed:
            gate.open()


Overflow = Literal["coalesce", "block", "drop_oldest", "error"]


class _MergedText:
    """Merged text items."""

    __slots__ = ("newest", "pieces")

    def __init__(self, newest: Any, pieces: list[str]) -> None:
        self.newest = newest
        self.pieces = pieces

    def value(self) -> Any:
        if isinstance(self.newest, str):
            return "".join(self.pieces)
        return merge_deltas(self.newest, self.pieces)


class _Dropped:
    """Marker that replaces dropped events in the buffer."""

    __slots__ = ("count", "newest")

    def __init__(self, newest: Event) -> None:
        self.newest = newest
        self.count = 1

    def value(self) -> GapEvent:
        names = ("context_id", "attempt", "seq", "sub", "timestamp")
        fields: dict[str, Any] = {name: getattr(self.newest, name) for name in names}
        fields["task_id"] = self.newest.root_task_id
        return GapEvent(reason="dropped", count=self.count, **fields)


class ReadTimeout(Exception):
    """Raised if no item arrives in time. It does not derive from `TimeoutError`, because sources might raise those."""


class ReadBuffer:
    """Buffer of unread items. Only transient events and text can be merged or dropped."""

    def __init__(self, overflow: Overflow, size: int, gate: Gate | None, join_text: bool = False) -> None:
        self.subscription: abc.DisposableBase | None = None
        self._overflow = overflow
        self._size = size
        self._gate = gate
        self._join_text = join_text
        self._gate_closed = False
        self._blocks = gate if overflow == "block" else None
        """Gate of a source that waits for this buffer."""
        self._processed: asyncio.Event | None = None
        self._items: deque[Any] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if the source has ended or the reader has closed the buffer."""
        return self._ended

    def attach(self, subscription: abc.DisposableBase) -> None:
        """Set the source subscription."""
        self.subscription = subscription
        if self._ended:
            # The buffer overflowed while subscribing.
            subscription.dispose()

    def push(self, item: Any) -> None:
        """Add an item without blocking."""
        if self._ended:
            return
        if self._blocks is not None and self._blocks.buffers is not None:
            self._blocks.buffers.add(self)
        if len(self._items) < self._size or not self._handle_overflow(item):
            self._items.append(item)
        if self._reader is not None:
            self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Mark the source as ended. Subsequent calls are ignored."""
        if self._ended:
            return
        self._ended = True
        self._error = error
        self._release()
        self._wake()

    def close(self) -> None:
        """Discard all items and end the subscription."""
        self._ended = True
        self._items.clear()
        self._set_processed()
        self._release()
        self._wake()
        # The subscription refers to this buffer. Break the reference cycle.
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.dispose()

    async def get(self, time_limit: float | None = None) -> Any:
        """Return the next item, waiting if necessary.

        Args:
            time_limit: Maximum time to wait, in seconds.

        Raises:
            StopAsyncIteration: The source has ended.
            ReadTimeout: No item arrived in time. The caller may try again.
            SlowReader: The buffer overflowed, and the policy is "error".
        """
        timed_out = False
        while True:
            if self._items:
                return self._take()
            if self._ended:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            if self._reader is not None:
                raise RuntimeError("an iterator must only be used by one task; create an iterator for each task")
            if timed_out:
                raise ReadTimeout
            await self._wait_for_push(time_limit)
            timed_out = time_limit is not None

    async def _wait_for_push(self, time_limit: float | None) -> None:
        """Wait for the next item."""
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        self._set_processed()
        timer = None if time_limit is None else loop.call_later(time_limit, self._wake)
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    async def wait_until_read(self) -> None:
        """Wait until the reader has processed all items and waits for the next one, or has closed the buffer."""
        if not self._ended and (self._items or self._reader is None):
            self._processed = self._processed or asyncio.Event()
            await self._processed.wait()

    def _set_processed(self) -> None:
        if self._processed is not None:
            self._processed.set()
            self._processed = None

    def drain(self) -> Iterator[Any]:
        """Yield available items without waiting."""
        while self._items:
            yield self._take()

    def _take(self) -> Any:
        item = self._items.popleft()
        if self._gate_closed and len(self._items) <= self._size // 2:
            self._release()
        return item.value() if isinstance(item, _MergedText | _Dropped) else item

    def _handle_overflow(self, item: Any) -> bool:
        """Apply the overflow policy to a full buffer. Return True if the item must not be appended."""
        if self._overflow == "coalesce":
            return self._merge(item)
        if self._overflow == "block":
            if self._gate is not None and not self._gate_closed:
                self._gate_closed = True
                self._gate.close()
            return False
        if self._overflow == "drop_oldest":
            self._drop()
            return False
        self.end(SlowReader(f"a reader is {self._size} items behind; read faster, or use another overflow policy"))
        if self.subscription is not None:
            self.subscription.dispose()
        return True

    def _merge(self, item: Any) -> bool:
        text: str | None = item if isinstance(item, str) else delta_text(item)
        if text is None:
            return False
        index = self._find_last(item)
        tail = self._items[index]
        newest = tail.newest if type(tail) is _MergedText else tail
        if isinstance(item, str):
            fits = self._join_text and isinstance(newest, str)
        else:
            fits = isinstance(newest, Event) and are_mergeable(newest, item)
        if not fits:
            return False
        if type(tail) is _MergedText:
            tail.newest = item
            tail.pieces.append(text)
        else:
            first = newest if isinstance(newest, str) else delta_text(newest) or ""
            self._items[index] = _MergedText(item, [first, text])
        return True

    def _find_last(self, item: Any) -> int:
        """Return the index of the last item. In merged streams, find the last item of the same run."""
        if isinstance(item, Event):
            run = item.root_task_id
            for index in range(len(self._items) - 1, -1, -1):
                buffered = self._items[index]
                event = buffered.newest if isinstance(buffered, _MergedText | _Dropped) else buffered
                if not isinstance(event, Event) or event.root_task_id == run:
                    return index
        return len(self._items) - 1

    def _drop(self) -> None:
        for index, item in enumerate(self._items):
            if isinstance(item, Event) and not item.durable and not isinstance(item, GapEvent):
                before = self._items[index - 1] if index else None
                if isinstance(before, _Dropped):
                    before.newest = item
                    before.count += 1
                    del self._items[index]
                else:
                    self._items[index] = _Dropped(item)
                return

    def _release(self) -> None:
        if self._gate_closed and self._gate is not None:
            self._gate_closed = False
            self._gate.open()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
