"""Log calls per run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, Runtime
from rxloop.providers.script import Turn
from rxloop.testing import ScriptedModel
from support.run_checks import wait_until

_IGNORED = {"append_now", "store_folds"}
"""Optional calls without effect."""


def make_counting_class(log: type[EventLog], calls: list[str]) -> type[Any]:
    """Create a subclass that records method calls."""

    def record_call(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if name not in _IGNORED:
                calls.append(name)
            return getattr(super(counting_class, self), name)(*args, **options)

        return call

    names = [name for name, _ in inspect.getmembers(log, inspect.isfunction) if not name.startswith("_")]
    counting_class: type[Any] = type("Counted", (log,), {name: record_call(name) for name in names if name != "aclose"})
    return counting_class


async def test_run_reads_its_log_once_before_the_first_model_call() -> None:
    calls: list[str] = []
    log = make_counting_class(MemoryEventLog, calls)()

    def answer(request: ModelRequest) -> Turn:
        calls.append("MODEL")
        return "Fine."

    async with Runtime({"a": Agent(ScriptedModel(*[answer] * 3), thoughts=False)}, log=log) as runtime:

        async def run(**options: Any) -> tuple[list[str], list[str]]:
            calls.clear()
            record = await runtime.start("a", "Hi", **options)
            await wait_until(lambda: not runtime.is_executing(record.task_id))
            model = calls.index("MODEL")
            return calls[:model], calls[model + 1 :]

        first, after = await run()
        assert first == ["append", "watch_commands", "acquire_lease", "snapshot", "append"]
        assert after == ["append", "append", "release_lease"]
        # Earlier runs are checked too.
        assert (await run(context_id="c"))[0] == ["append", "list_conversation", "list_runs", *first[1:]]
        before, after = await run(context_id="c")
        assert before == [
            "append",
            "list_conversation",
            "list_runs",
            "watch_commands",
            "acquire_lease",
            "snapshot",
            "append",
        ]
        assert after == ["append", "append", "release_lease"]
