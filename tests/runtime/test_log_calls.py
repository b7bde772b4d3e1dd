"""How often a run that is started through a runtime calls its log."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, Runtime
from rxloop.providers.script import Turn
from rxloop.testing import ScriptedModel
from support.run_checks import until

_REFUSED = {"append_now", "store_folds"}
"""Calls that do nothing, or do not wait for anything."""


def counting(log: type[EventLog], calls: list[str]) -> type[Any]:
    """A log of this kind that notes the name of each call."""

    def noted(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if name not in _REFUSED:
                calls.append(name)
            return getattr(super(counted, self), name)(*args, **options)

        return call

    names = [name for name, _ in inspect.getmembers(log, inspect.isfunction) if not name.startswith("_")]
    counted: type[Any] = type("Counted", (log,), {name: noted(name) for name in names if name != "aclose"})
    return counted


async def test_a_run_reads_the_log_once_before_it_asks_the_model() -> None:
    calls: list[str] = []
    log = counting(MemoryEventLog, calls)()

    def answer(request: ModelRequest) -> Turn:
        calls.append("MODEL")
        return "Fine."

    async with Runtime({"a": Agent(ScriptedModel(*[answer] * 3), thoughts=False)}, log=log) as runtime:

        async def run(**options: Any) -> tuple[list[str], list[str]]:
            calls.clear()
            record = await runtime.start("a", "Hi", **options)
            await until(lambda: not runtime.drives(record.task_id))
            model = calls.index("MODEL")
            return calls[:model], calls[model + 1 :]

        before, after = await run()
        assert before == ["append", "watch_commands", "acquire_lease", "snapshot", "append"]
        assert after == ["append", "append", "release_lease"]
        # The process asks once more whether an earlier run of the conversation comes first.
        assert (await run(context_id="c"))[0] == ["append", "list_runs", *before[1:]]
        before, after = await run(context_id="c")
        assert before == ["append", "list_runs", "watch_commands", "acquire_lease", "snapshot", "append"]
        assert after == ["append", "append", "release_lease"]
