"""Graceful shutdown of a server process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter
from rxloop.server.core.gateway import LAST_WORDS_IN, Gateway
from rxloop.support.tasks import GRACE
from rxloop.support.threads import call_user_function

log = logging.getLogger("rxloop")

FORCED = 130
"""Exit code after a second signal."""
_CLOSING_IN = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class _Watcher:
    place: float
    name: str
    do: Callable[[], Any]
    seconds: float


class Shutdown:
    """Graceful shutdown of a server process, as an ordered list of watchers.

    Each watcher starts after the previous watcher has finished.

    | position | watcher | action |
    |---|---|---|
    | 10 | `readiness` | `/readyz` returns 503, and new requests are refused |
    | 20 | `runs` | active runs finish, or are released for another process; see `Runtime.drain` |
    | 30 | `streams` | each stream ends with a closing frame, and its client reconnects to another server |
    | 40 | `log` | the event log is flushed and closed |
    | 50 | `agents` | agents close their resources: MCP servers and connections to models |

    A watcher that fails or times out is logged, and the shutdown continues with the next watcher.

    Example:
        >>> ending = Shutdown(api_door, agui_door, seconds=20)
        >>> ending.watch(35, "metrics", exporter.flush, seconds=2)
        >>> await hypercorn.asyncio.serve(app, config, shutdown_trigger=ending.signalled)
    """

    def __init__(self, *doors: Adapter, seconds: float = 10.0) -> None:
        """Initialize the shutdown sequence.

        Args:
            doors: All adapters of the process, for one or several runtimes.
            seconds: Timeout for active runs.

        Raises:
            ConfigurationError: If there is no adapter, or `seconds` is negative.
        """
        if not doors:
            raise ConfigurationError("a shutdown needs the doors that it is to close: Shutdown(api(runtime))")
        if not seconds >= 0:
            raise ConfigurationError(f"seconds must be 0 or more, not {seconds!r}")
        gateways = list(dict.fromkeys(door.gateway for door in doors))
        runtimes = list(dict.fromkeys(gateway.runtime for gateway in gateways))
        logs = list({id(runtime.log): runtime.log for runtime in runtimes}.values())
        self._watchers: list[_Watcher] = []
        self._running: asyncio.Task[bool] | None = None
        self._seconds = seconds
        self.watch(10, "readiness", partial(_refuse, gateways))
        # Runs have a grace period for their tools in addition to `seconds`.
        self.watch(20, "runs", partial(_drain, runtimes, seconds), seconds=seconds + GRACE + 2)
        self.watch(30, "streams", partial(_end_streams, gateways), seconds=LAST_WORDS_IN + 1)
        self.watch(40, "log", lambda: _all(log.aclose() for log in logs))
        self.watch(50, "agents", partial(_close_agents, runtimes))

    def watch(self, place: float, name: str, do: Callable[[], Any], *, seconds: float = _CLOSING_IN) -> Self:
        """Add a watcher.

        Args:
            place: Position in the order. Watchers with the same position run in the order of their registration.
            name: Name in log messages.
            do: Sync or async function to call; sync functions run in a thread.
            seconds: Timeout in seconds.

        Raises:
            ConfigurationError: If the shutdown has already started.
        """
        if self._running is not None:
            raise ConfigurationError(f"the shutdown has begun: it is too late to watch it by {name!r}")
        self._watchers.append(_Watcher(place, name, do, seconds))
        return self

    async def run(self) -> bool:
        """Run the shutdown once, returning True if all watchers succeeded. Later calls wait for the same shutdown."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="rxloop-shutdown")
        # Cancelling a caller must not interrupt the shutdown.
        return await asyncio.shield(self._running)

    async def signalled(self) -> None:
        """Wait for SIGTERM or SIGINT, then run the shutdown. A second signal exits immediately with code 130.

        This replaces the existing handlers for both signals. It must be called in the main thread.
        """
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        pressed = False

        def on_signal(number: int, frame: object) -> None:
            nonlocal pressed
            if pressed:
                # Exiting without cleanup is safe, because acknowledged events are already in the log.
                os.write(2, b"left without waiting\n")
                os._exit(FORCED)
            pressed = True
            # A signal handler can interrupt any code, so set the event in the event loop.
            loop.call_soon_threadsafe(came.set)

        before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
        try:
            await came.wait()
        except BaseException:
            for number, handler in before.items():
                signal.signal(number, handler)
            raise
        log.info("shutdown: a signal came; runs have %g s to end; a second signal leaves at once", self._seconds)
        await self.run()

    async def _run(self) -> bool:
        well = True
        for watcher in sorted(self._watchers, key=lambda each: each.place):
            well = await _carried_out(watcher) and well
        return well


async def _carried_out(watcher: _Watcher) -> bool:
    """Call a watcher with its timeout, returning True if it succeeded."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    # Use a separate task, because a watcher may ignore cancellation.
    task = asyncio.create_task(call_user_function(watcher.do), name=f"rxloop-shutdown-{watcher.name}")
    data = {"watcher": watcher.name}
    await asyncio.wait([task], timeout=watcher.seconds)
    if not task.done():
        task.cancel()
        log.error("shutdown: %s is not done after %g s, and is left", watcher.name, watcher.seconds, extra=data)
        return False
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        log.error("shutdown: %s failed: %r", watcher.name, error, exc_info=error, extra=data)
        return False
    took = round(loop.time() - begun, 3)
    log.info("shutdown: %s, %.2f s", watcher.name, took, extra={**data, "seconds": took})
    return True


async def _refuse(gateways: Iterable[Gateway]) -> None:
    for gateway in gateways:
        gateway.stop_accepting()


async def _drain(runtimes: Iterable[Runtime], seconds: float) -> None:
    await _all(runtime.drain(seconds) for runtime in runtimes)


async def _end_streams(gateways: Iterable[Gateway]) -> None:
    await _all(gateway.end_streams() for gateway in gateways)


async def _close_agents(runtimes: Iterable[Runtime]) -> None:
    await _all(agent.aclose() for runtime in runtimes for agent in runtime.agents.values())


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently, even if some fail.

    Raises:
        ExceptionGroup: If any coroutine fails.
    """
    done = await asyncio.gather(*work, return_exceptions=True)
    failed = [each for each in done if isinstance(each, BaseException)]
    if failed:
        raise BaseExceptionGroup("not all of it went well", failed)
