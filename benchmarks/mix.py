"""Runs with all kinds of outcomes for the soak test."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from rxloop import (
    Agent,
    LimitReached,
    Limits,
    MemoryEventLog,
    Run,
    RunCancelled,
    RunContext,
    RunError,
    SlidingWindowCompressor,
    SqliteEventLog,
    op,
    openai_chat,
    tool,
)
from rxloop.providers import Retry


@tool(name="add")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add")
async def failing(a: int, b: int) -> int:
    """Add two numbers."""
    raise ValueError("no numbers today")


@tool(name="add", timeout=0.005)
async def slow(a: int, b: int) -> int:
    """Add two numbers."""
    await asyncio.sleep(60)
    return a + b


@tool(name="add")
def blocking(a: int, b: int) -> int:
    """Add two numbers, in a thread."""
    return a + b


@tool(name="add")
async def asking(ctx: RunContext[None], a: int, b: int) -> int:
    """Add two numbers after confirmation."""
    return a + b if await ctx.ask("May I?", answer=bool) else 0


class Mix:
    """Agents that are used in all supported ways."""

    def __init__(self, base: str) -> None:
        self.ended: Counter[str] = Counter()
        """Number of runs by outcome."""
        self._base = base
        # Log messages about failed tools are created but not printed.
        logger = logging.getLogger("rxloop")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        self._models: dict[str, Any] = {}
        self._ways = [
            *(self._answered, self._with_tools, self._in_threads, self._read, self._as_text, self._stream_frames),
            *(self._reader_leaves, self._cancelled, self._dropped, self._awaiter_cancelled, self._out_of_time),
            *(self._refused, self._broken, self._tools_fail, self._tools_too_slow, self._too_many_iterations),
            *(self._logged, self._asks, self._in_memory, self._compressed, self._thinking),
        ]
        self._next = 0
        self._folder = TemporaryDirectory()
        self._log = SqliteEventLog(Path(self._folder.name) / "runs.db")

    @property
    def kinds(self) -> int:
        """Number of variants."""
        return len(self._ways)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for model in self._models.values():
            await model.aclose()
        await self._log.aclose()
        self._folder.cleanup()

    async def batch(self, count: int, at_once: int) -> None:
        """Execute a number of runs and release their resources."""
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                way = self._ways[self._next % len(self._ways)]
                self._next += 1
                await way()
                self.ended[way.__name__.strip("_").replace("_", " ")] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
        # Abandoned runs end on their own.
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _agent(self, path: str, *tools: Any, **options: Any) -> Agent[None, str]:
        model = self._models.get(path)
        if model is None:
            once = Retry(attempts=1)
            model = self._models[path] = openai_chat("bench", base_url=f"{self._base}/{path}", retry=once)
        return Agent(model, tools=tools, **options)

    # -- successful runs

    async def _answered(self) -> None:
        run = self._agent("stream/50/1").run("Tell me a story.")
        seen: Counter[str] = Counter()
        run.events.subscribe(lambda event: seen.update([event.kind]))
        await run
        assert seen["content-delta"] == 50

    async def _with_tools(self) -> None:
        result = await self._agent("tools/3", add).run("Count.")
        assert len(result.messages) == 8

    async def _in_threads(self) -> None:
        await self._agent("tools/1", blocking).run("Count.")

    async def _read(self) -> None:
        run = self._agent("tools/2", add).run("Count.")
        assert [event.kind async for event in run].count("tool-complete") == 2

    async def _as_text(self) -> None:
        parts = [part async for part in self._agent("stream/50/1").run("Tell me a story.").text()]
        assert "".join(parts).endswith("word 49 ")

    async def _stream_frames(self) -> None:
        run = self._agent("stream/50/1").run("Tell me a story.")
        await asyncio.gather(*(self._frames(run) for _ in range(2)))

    async def _frames(self, run: Run[str]) -> None:
        assert len([frame async for frame in run.sse()]) > 50

    # -- abandoned runs

    async def _reader_leaves(self) -> None:
        async with self._agent("held/20").run("Tell me a story.") as run:
            frames = run.sse()
            for _ in range(5):
                await anext(frames)
            await frames.aclose()  # type: ignore[attr-defined]

    async def _cancelled(self) -> None:
        run = self._agent("held/20").run("Tell me a story.")
        run.pipe(op.text()).subscribe(lambda text: run.cancel("enough"))
        with suppress(RunCancelled):
            await run
            raise AssertionError("the run was not cancelled")

    async def _dropped(self) -> None:
        async for event in self._agent("held/20").run("Tell me a story."):
            if event.kind == "content-delta":
                break

    async def _awaiter_cancelled(self) -> None:
        waiting = asyncio.ensure_future(self._agent("held/20").run("Tell me a story.").result())
        await asyncio.sleep(0.005)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    async def _out_of_time(self) -> None:
        await self._limited(self._agent("held/20", limits=Limits(seconds=0.02)).run("Tell me a story."))

    # -- failing runs

    async def _refused(self) -> None:
        await self._failing(self._agent("fail/503").run("Tell me a story."))

    async def _broken(self) -> None:
        await self._failing(self._agent("cut/20").run("Tell me a story."))

    async def _tools_fail(self) -> None:
        await self._limited(self._agent("tools/9", failing).run("Count."))

    async def _tools_too_slow(self) -> None:
        await self._agent("tools/1", slow).run("Count.")

    async def _too_many_iterations(self) -> None:
        await self._limited(self._agent("tools/9", add, limits=Limits(iterations=2)).run("Count."))

    async def _failing(self, run: Run[str]) -> None:
        with suppress(RunError):
            await run
            raise AssertionError("the run did not fail")

    async def _limited(self, run: Run[str]) -> None:
        with suppress(LimitReached):
            await run
            raise AssertionError("the run did not reach a limit")

    # -- runs with a log or additional operators

    async def _logged(self) -> None:
        await self._agent("tools/2", add, log=self._log).run("Count.")

    async def _asks(self) -> None:
        agent = self._agent("tools/1", asking, log=self._log)
        asked = await agent.run("Count.")
        result = await agent.resume(asked.task_id, inputs={asked.pending[0].input_id: True})
        assert result.state == "completed"

    async def _in_memory(self) -> None:
        log = MemoryEventLog()
        agent = self._agent("tools/1", add, log=log)
        await agent.run("Count.", context_id="c")
        await agent.run("Again.", context_id="c")

    async def _compressed(self) -> None:
        await self._through(op.compress(SlidingWindowCompressor(max_tokens=300)))

    async def _thinking(self) -> None:
        await self._through(op.thinking_phase(SlidingWindowCompressor(max_tokens=300)))

    async def _through(self, operator: Any) -> None:
        await self._agent("tools/6", add, loop=op.standard(before_model=[operator])).run("Count.")
