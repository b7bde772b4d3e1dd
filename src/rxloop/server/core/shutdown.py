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
from rxloop.server.core.gateway import CLOSE_TIMEOUT, Gateway
from rxloop.support.tasks import GRACE
from rxloop.support.threads import call_user_function

log = logging.getLogger("rxloop")

FORCED_EXIT_CODE = 130
"""Exit code after a second signal."""
_TIMEOUT = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class _Step:
    position: float
    name: str
    action: Callable[[], Any]
    seconds: float


class Shutdown:
    """Graceful shutdown of a server process, as an ordered list of steps.

    Each step starts after the previous step has finished.

    | position | step | action |
    |---|---|---|
    | 10 | `readiness` | `/readyz` returns 503; runs cannot be started or answered |
    | 20 | `runs` | active runs finish, or are released for another process; see `Runtime.drain` |
    | 30 | `streams` | each stream ends with a closing frame, and its client reconnects to another server |
    | 40 | `log` | the event log is flushed and closed |
    | 50 | `agents` | agents close their resources: MCP servers and connections to models |

    A step that fails or times out is logged, and the shutdown continues with the next step.

    Example:
        >>> shutdown = Shutdown(api_adapter, agui_adapter, seconds=20)
        >>> shutdown.add_step(35, "metrics", exporter.flush, seconds=2)
        >>> await hypercorn.asyncio.serve(app, config, shutdown_trigger=shutdown.run_on_signal)
    """

    def __init__(self, *adapters: Adapter, seconds: float = 10.0) -> None:
        """Initialize the shutdown sequence.

        Args:
            adapters: All adapters of the process. They may have different runtimes.
            seconds: Timeout for active runs.

        Raises:
            ConfigurationError: If there is no adapter, or `seconds` is negative.
        """
        if not adapters:
            raise ConfigurationError("a shutdown needs at least one adapter, such as Shutdown(api(runtime))")
        if not seconds >= 0:
            raise ConfigurationError(f"seconds must not be negative, got {seconds!r}")
        gateways = list(dict.fromkeys(adapter.gateway for adapter in adapters))
        for gateway in gateways:
            # The streams of active runs stay open until the step `streams`.
            gateway.drains_on_signal = False
        runtimes = list(dict.fromkeys(gateway.runtime for gateway in gateways))
        logs = list({id(runtime.log): runtime.log for runtime in runtimes}.values())
        self._steps: list[_Step] = []
        self._running: asyncio.Task[bool] | None = None
        self._seconds = seconds
        self.add_step(10, "readiness", partial(_refuse, gateways))
        # Runs have a grace period for their tools in addition to `seconds`.
        self.add_step(20, "runs", partial(_drain, runtimes, seconds), seconds=seconds + GRACE + 2)
        self.add_step(30, "streams", partial(_end_streams, gateways), seconds=CLOSE_TIMEOUT + 1)
        self.add_step(40, "log", lambda: _gather(log.aclose() for log in logs))
        self.add_step(50, "agents", partial(_close_agents, runtimes))

    def add_step(self, position: float, name: str, action: Callable[[], Any], *, seconds: float = _TIMEOUT) -> Self:
        """Add a step.

        Args:
            position: Position in the order. Steps with the same position run in the order in which they were added.
            name: Name in log messages.
            action: Sync or async function to call; sync functions run in a thread.
            seconds: Timeout in seconds.

        Raises:
            ConfigurationError: If the shutdown has already started.
        """
        if self._running is not None:
            raise ConfigurationError(f"cannot add {name!r}, because the shutdown has already started")
        self._steps.append(_Step(position, name, action, seconds))
        return self

    async def run(self) -> bool:
        """Run the shutdown once, returning True if all steps succeeded. Later calls wait for the same shutdown."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="rxloop-shutdown")
        # Cancelling a caller must not interrupt the shutdown.
        return await asyncio.shield(self._running)

    async def run_on_signal(self) -> None:
        """Wait for SIGTERM or SIGINT, then run the shutdown. A second signal exits immediately with code 130.

        This replaces the existing handlers for both signals. It must be called in the main thread.
        """
        loop, received = asyncio.get_running_loop(), asyncio.Event()
        is_stopping = False

        def on_signal(number: int, frame: object) -> None:
            nonlocal is_stopping
            if is_stopping:
                # Exiting without cleanup is safe, because acknowledged events are already in the log.
                os.write(2, b"exited without waiting\n")
                os._exit(FORCED_EXIT_CODE)
            is_stopping = True
            # A signal handler can interrupt any code, so set the event in the event loop.
            loop.call_soon_threadsafe(received.set)

        previous_handlers = {number: signal.signal(number, on_signal) for number in _SIGNALS}
        try:
            await received.wait()
        except BaseException:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
            raise
        log.info("Shutting down; active runs have %g s to finish; a second signal exits immediately", self._seconds)
        await self.run()

    async def _run(self) -> bool:
        succeeded = True
        for step in sorted(self._steps, key=lambda each: each.position):
            succeeded = await _run_step(step) and succeeded
        return succeeded


async def _run_step(step: _Step) -> bool:
    """Run a step with its timeout, returning True if it succeeded."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    # Use a separate task, because a step may ignore cancellation.
    task = asyncio.create_task(call_user_function(step.action), name=f"rxloop-shutdown-{step.name}")
    data = {"watcher": step.name}
    await asyncio.wait([task], timeout=step.seconds)
    if not task.done():
        task.cancel()
        log.error("Shutdown step %s timed out after %g s", step.name, step.seconds, extra=data)
        return False
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        log.error("Shutdown step %s failed: %r", step.name, error, exc_info=error, extra=data)
        return False
    duration = round(loop.time() - started, 3)
    log.info("Shutdown step %s finished in %.2f s", step.name, duration, extra={**data, "seconds": duration})
    return True


async def _refuse(gateways: Iterable[Gateway]) -> None:
    for gateway in gateways:
        gateway.stop_accepting()


async def _drain(runtimes: Iterable[Runtime], seconds: float) -> None:
    await _gather(runtime.drain(seconds) for runtime in runtimes)


async def _end_streams(gateways: Iterable[Gateway]) -> None:
    await _gather(gateway.end_streams() for gateway in gateways)


async def _close_agents(runtimes: Iterable[Runtime]) -> None:
    await _gather(agent.aclose() for runtime in runtimes for agent in runtime.agents.values())


async def _gather(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently, even if some fail.

    Raises:
        ExceptionGroup: If any coroutine fails.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    errors = [each for each in results if isinstance(each, BaseException)]
    if errors:
        raise BaseExceptionGroup("part of a shutdown step failed", errors)
