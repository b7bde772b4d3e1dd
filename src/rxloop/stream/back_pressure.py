"""Gates of model sockets, and buffers of slow readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from reactivex import abc

from rxloop.errors import SlowReader
from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.deltas import delta_text, merged, same_run_of_deltas


class Gate:
    """Holds the sockets of a run back while a reader with overflow="block" is behind.

    Leaves look at `closed` after each batch that they have pushed, and wait only then, so that an open gate costs an
    attribute read.
    """

    def __init__(self) -> None:
        self.closed = False
        self._holders = 0
        self._opened: asyncio.Event | None = None

    def close(self) -> None:
        """Hold the leaves back; one `open` is needed for each `close`."""
        self._holders += 1
        self.closed = True

    def open(self) -> None:
        """Undo one `close`."""
        self._holders -= 1
        if not self._holders:
            self.closed = False
            if self._opened is not None:
                self._opened.set()
                self._opened = None

    async def wait(self) -> None:
        """Wait until the gate is open."""
        while self.closed:
            if self._opened is None:
                self._opened = asyncio.Event()
            await self._opened.wait()


class Gates(Gate):
    """The gates of several runs as one, for a reader of all of them."""

    def __init__(self, gates: Iterable[Gate] = ()) -> None:
        super().__init__()
        self._gates = list(gates)

    def close(self) -> None:
        """Hold all of them back, and those that come."""
        if not self.closed:
            for gate in self._gates:
                gate.close()
        super().close()

    def open(self) -> None:
        """Undo one `close`."""
        super().open()
        if not self.closed:
            for gate in self._gates:
                gate.open()

    def add(self, gate: Gate) -> None:
        """Hold the run of this gate back with the others."""
        self._gates.append(gate)
        if self.closed:
            gate.close()

    def remove(self, gate: Gate) -> None:
        """Let go of the run of this gate."""
        self._gates.remove(gate)
        if self.closed:
            gate.open()


Overflow = Literal["coalesce", "block", "drop_oldest", "error"]


class _Text:
    """Text that more text was merged into."""

    __slots__ = ("newest", "pieces")

    def __init__(self, newest: Any, pieces: list[str]) -> None:
        self.newest = newest
        self.pieces = pieces

    def value(self) -> Any:
        if isinstance(self.newest, str):
            return "".join(self.pieces)
        return merged(self.newest, self.pieces)


class _Dropped:
    """The place of events that were dropped."""

    __slots__ = ("count", "newest")

    def __init__(self, newest: Event) -> None:
        self.newest = newest
        self.count = 1

    def value(self) -> GapEvent:
        names = ("context_id", "attempt", "seq", "sub", "timestamp")
        place: dict[str, Any] = {name: getattr(self.newest, name) for name in names}
        place["task_id"] = self.newest.root_task_id
        return GapEvent(reason="dropped", count=self.count, **place)


class Silence(Exception):
    """Nothing came in the time that a reader gave it. No `TimeoutError`, which may be one of the source."""


class ReadBuffer:
    """Holds what a reader has not read yet. Only transient events, and text, are ever merged or dropped."""

    def __init__(self, overflow: Overflow, size: int, gate: Gate | None, joins: bool = False) -> None:
        self.subscription: abc.DisposableBase | None = None
        self._overflow = overflow
        self._size = size
        self._gate = gate
        self._joins = joins
        self._holding = False
        self._items: deque[Any] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes, or the reader has let go."""
        return self._ended

    def attach(self, subscription: abc.DisposableBase) -> None:
        """Take over the subscription that fills the buffer."""
        self.subscription = subscription
        if self._ended:
            # It ran over on what the subscription brought at once.
            subscription.dispose()

    def push(self, item: Any) -> None:
        """Take an item; never blocks."""
        if self._ended:
            return
        if len(self._items) < self._size or not self._relieved(item):
            self._items.append(item)
        if self._reader is not None:
            self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Nothing follows; what ended it first stands."""
        if self._ended:
            return
        self._ended = True
        self._error = error
        self._release()
        self._wake()

    def close(self) -> None:
        """Let go of everything: the reader is gone."""
        self._ended = True
        self._items.clear()
        self._release()
        self._wake()
        if self.subscription is not None:
            self.subscription.dispose()

    async def get(self, within: float | None = None) -> Any:
        """Wait for the next item.

        Args:
            within: How many seconds to wait for it at most.

        Raises:
            StopAsyncIteration: There is none.
            Silence: It has not come in that time; it can be asked for again.
            SlowReader: The buffer ran over and the policy is "error".
        """
        late = False
        while True:
            if self._items:
                return self._take()
            if self._ended:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            if self._reader is not None:
                raise RuntimeError("two tasks read one iterator; give each an iterator of its own")
            if late:
                raise Silence
            await self._pushed(within)
            late = within is not None

    async def _pushed(self, within: float | None) -> None:
        """Wait until something is pushed, or for so many seconds."""
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = None if within is None else loop.call_later(within, self._wake)
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    def there(self) -> Iterator[Any]:
        """Take what is there, for as long as there is something."""
        while self._items:
            yield self._take()

    def _take(self) -> Any:
        item = self._items.popleft()
        if self._holding and len(self._items) <= self._size // 2:
            self._release()
        return item.value() if isinstance(item, _Text | _Dropped) else item

    def _relieved(self, item: Any) -> bool:
        """Tell whether a full buffer has dealt with the item, so that it need not be appended."""
        if self._overflow == "coalesce":
            return self._merge(item)
        if self._overflow == "block":
            if self._gate is not None and not self._holding:
                self._holding = True
                self._gate.close()
            return False
        if self._overflow == "drop_oldest":
            self._drop()
            return False
        self.end(SlowReader(f"a reader fell {self._size} items behind; read faster, or choose another overflow policy"))
        if self.subscription is not None:
            self.subscription.dispose()
        return True

    def _merge(self, item: Any) -> bool:
        place = self._last_of_run(item)
        tail = self._items[place]
        newest = tail.newest if type(tail) is _Text else tail
        if isinstance(item, str):
            text: str | None = item
            fits = self._joins and isinstance(newest, str)
        else:
            text = delta_text(item)
            fits = text is not None and isinstance(newest, Event) and same_run_of_deltas(newest, item)
        if not fits or text is None:
            return False
        if type(tail) is _Text:
            tail.newest = item
            tail.pieces.append(text)
        else:
            first = newest if isinstance(newest, str) else delta_text(newest) or ""
            self._items[place] = _Text(item, [first, text])
        return True

    def _last_of_run(self, item: Any) -> int:
        """The place of the last item, of the same run where several runs are read together: others may go between."""
        if isinstance(item, Event):
            run = item.root_task_id
            for place in range(len(self._items) - 1, -1, -1):
                waiting = self._items[place]
                event = waiting.newest if isinstance(waiting, _Text | _Dropped) else waiting
                if not isinstance(event, Event) or event.root_task_id == run:
                    return place
        return len(self._items) - 1

    def _drop(self) -> None:
        for place, item in enumerate(self._items):
            if isinstance(item, Event) and not item.durable and not isinstance(item, GapEvent):
                before = self._items[place - 1] if place else None
                if isinstance(before, _Dropped):
                    before.newest = item
                    before.count += 1
                    del self._items[place]
                else:
                    self._items[place] = _Dropped(item)
                return

    def _release(self) -> None:
        if self._holding and self._gate is not None:
            self._holding = False
            self._gate.open()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
