"""Signal handlers for graceful shutdown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol
from weakref import WeakSet

_Previous = Callable[[int, FrameType | None], Any]


class SignalListener(Protocol):
    """Receiver of shutdown signals."""

    def handle_signal(self) -> None:
        """Handle a signal. The event loop may be executing any code."""
        ...


class _SignalHandler:
    """Wrapper for the signal handler of an HTTP server, with additional listeners.

    Servers such as uvicorn wait for open streams before notifying the application. On exit, they remove the wrapper
    along with their own handler.
    """

    def __init__(self, previous: Mapping[int, _Previous]) -> None:
        self._previous = previous
        self._has_received = False
        self._listeners: WeakSet[SignalListener] = WeakSet()

    def add(self, listener: SignalListener) -> None:
        if listener in self._listeners:
            return
        self._listeners.add(listener)
        if self._has_received:
            listener.handle_signal()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._has_received = True
        for listener in list(self._listeners):
            listener.handle_signal()
        self._previous[number](number, frame)


def listen_for_signals(listener: SignalListener) -> None:
    """Register a listener for SIGTERM, if a server in the main thread handles this signal.

    Also registers SIGINT if both signals have the same handler. The listener is weakly referenced.
    """
    current = signal.getsignal(signal.SIGTERM)
    if isinstance(current, _SignalHandler):
        current.add(listener)
    elif callable(current) and threading.current_thread() is threading.main_thread():
        previous: dict[int, _Previous] = {
            number: current for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) == current
        }
        handler = _SignalHandler(previous)
        handler.add(listener)
        for number in previous:
            signal.signal(number, handler)
