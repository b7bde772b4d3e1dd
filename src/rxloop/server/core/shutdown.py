"""The end of a process that serves: what is done, in which order, and for how long."""

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
"""The exit code of a process that a second signal ends."""
_CLOSING_IN = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class _Watcher:
    place: float
    name: str
    do: Callable[[], Any]
    seconds: float


class Shutdown:
    """The end of a process that serves, in order: each watcher in its place, and none before the one ahead is done.

    | place | watcher | does |
    |---|---|---|
    | 10 | `readiness` | `/readyz` says 503, and nothing new is taken |
    | 20 | `runs` | runs end, or are given up for the next process; see `Runtime.drain` |
    | 30 | `streams` | each stream ends with a last word, and its client comes back elsewhere |
    | 40 | `log` | the log is written to its end, and closed |
    | 50 | `agents` | agents close what they have opened: MCP servers, connections to models |

    A watcher that fails, or takes longer than its time, is logged, and the next one follows.

    Example:
        >>> ending = Shutdown(api_door, agui_door, seconds=20)
        >>> ending.watch(35, "metrics", exporter.flush, seconds=2)
        >>> await hypercorn.asyncio.serve(app, config, shutdown_trigger=ending.signalled)
    """

    def __init__(self, *doors: Adapter, seconds: float = 10.0) -> None:
        """Describe the end; nothing is done before `run` or a signal.

        Args:
            doors: All that the process serves, of one runtime or of several.
            seconds: How long runs have to end.

        Raises:
            ConfigurationError: There is no door, or `seconds` is no time.
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
        # Beside their time they have that which a tool gets to stop in.
        self.watch(20, "runs", partial(_drain, runtimes, seconds), seconds=seconds + GRACE + 2)
        self.watch(30, "streams", partial(_end_streams, gateways), seconds=LAST_WORDS_IN + 1)
        self.watch(40, "log", lambda: _all(log.aclose() for log in logs))
        self.watch(50, "agents", partial(_close_agents, runtimes))

    def watch(self, place: float, name: str, do: Callable[[], Any], *, seconds: float = _CLOSING_IN) -> Self:
        """Do something of your own, too.

        Args:
            place: Where in the order; of two in one place, the first comes first.
            name: What the log calls it.
            do: Does it, plain (in a thread) or async.
            seconds: How long it may take.

        Raises:
            ConfigurationError: The end has begun.
        """
        if self._running is not None:
            raise ConfigurationError(f"the shutdown has begun: it is too late to watch it by {name!r}")
        self._watchers.append(_Watcher(place, name, do, seconds))
        return self

    async def run(self) -> bool:
        """Do all of it, once: whoever calls it again waits for the same end. Whether every watcher did its part."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="rxloop-shutdown")
        # Whoever is cancelled while it waits does not leave it half done.
        return await asyncio.shield(self._running)

    async def signalled(self) -> None:
        """Wait for SIGTERM or Ctrl-C, and do all of it; a second signal ends the process at once, with code 130.

        It takes both signals from whatever had them, and keeps them. Call it in the main thread.
        """
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        pressed = False

        def on_signal(number: int, frame: object) -> None:
            nonlocal pressed
            if pressed:
                # Nothing is waited for, which is safe: what the log acknowledged is in it.
                os.write(2, b"left without waiting\n")
                os._exit(FORCED)
            pressed = True
            # Not here: the signal may have come in the middle of anything.
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
    """Let a watcher do its part in its time; whether it did."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    # In a task that is not awaited when its time is over: it may not listen when it is cancelled.
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
    """Do all of it side by side, though some of it fails.

    Raises:
        ExceptionGroup: What failed.
    """
    done = await asyncio.gather(*work, return_exceptions=True)
    failed = [each for each in done if isinstance(each, BaseException)]
    if failed:
        raise BaseExceptionGroup("not all of it went well", failed)
