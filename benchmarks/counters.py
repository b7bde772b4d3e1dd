"""Counters of operations per token and tool call. `counters.py URL` prints them as JSON.

Counters do not depend on the load of the machine, so tests can check them. A profiler counts calls for a short and a
long answer. The difference is caused by the additional tokens.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import bare
import ours
from cases import feature_cases

WATCHED = {
    "copies": {"model_construct", "__copy__", "__deepcopy__"},
    "validations": {"SchemaValidator.validate_python", "SchemaValidator.validate_json"},
    "serialisations": {"SchemaSerializer.to_json", "SchemaSerializer.to_python", "orjson.dumps", "json.dumps"},
    "tasks": {"BaseEventLoop.create_task"},
    "timers": {"BaseEventLoop.call_later", "BaseEventLoop.call_at"},
    "ids": {"uuid7", "uuid4", "posix.urandom", "nt.urandom"},
    "subscriptions": {"Observable.subscribe"},
    "locks": {"lock.acquire", "lock.__enter__", "RLock.acquire", "RLock.__enter__"},
}
TOKENS, CALLS = (96, 192), (4, 8, 12)


def get_counter_name(code: Any) -> str:
    """Return the counter name of a Python or built-in function."""
    if not isinstance(code, str):
        # The name may be ambiguous. The file distinguishes `dumps` of json from other functions.
        plain = {"model_construct", "__copy__", "__deepcopy__", "uuid7", "uuid4"}
        if code.co_name in plain:
            return code.co_name
        of_json = code.co_name == "dumps" and Path(code.co_filename).parent.name == "json"
        return "json.dumps" if of_json else code.co_qualname
    # "<method 'acquire' of '_thread.lock' objects>", "<built-in method orjson.dumps>"
    words = code.strip("<>").split()
    if words[0] == "method":
        return f"{words[3].strip(chr(39)).rsplit('.', 1)[-1]}.{words[1].strip(chr(39))}"
    return words[-1]


async def count_calls(do: Callable[[], Awaitable[dict[str, int]]]) -> dict[str, int]:
    """Count calls during a workload, in addition to the counts returned by the workload."""
    await do()
    # Disable the garbage collector, because its calls would also be counted.
    gc.collect()
    gc.disable()
    profile = cProfile.Profile()
    profile.enable()
    try:
        kinds = await do()
    finally:
        profile.disable()
        # Objects that were not freed immediately after the workload.
        garbage = gc.collect()
        gc.enable()
    calls: Counter[str] = Counter()
    for entry in cast("list[Any]", profile.getstats()):
        calls[get_counter_name(entry.code)] += entry.callcount
    found = {group: sum(calls[name] for name in names) for group, names in WATCHED.items()}
    return {**kinds, **found, "calls": calls.total(), "garbage": garbage}


async def count_bytecodes(do: Callable[[], Awaitable[object]]) -> int:
    """Count executed bytecodes during a workload. Unlike calls, they include the code within functions."""
    total = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal total
        if event == "opcode":
            total += 1
        else:
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return trace

    async def execute() -> None:
        await do()

    await do()
    # The garbage collector executes bytecodes of weak references.
    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        # Only new frames are traced.
        await asyncio.create_task(execute())
    finally:
        sys.settrace(None)
        gc.enable()
    return total


async def work(url: str, name: str, client_of: Callable[[str], Any] = ours.Client) -> dict[str, int]:
    """Return the counters of a workload."""
    async with client_of(url) as client:
        return await count_calls(getattr(client, name))


async def execute_calls(url: str, name: str, client_of: Callable[[str], Any] = ours.Client) -> dict[str, int]:
    """Return the counters of a workload with tool calls, including bytecodes."""
    async with client_of(url) as client:
        bytecodes = await count_bytecodes(getattr(client, name))
    return {**await work(url, name, client_of), "bytecodes": bytecodes}


async def main(base: str) -> dict[str, Any]:
    """Return all counters by workload and size."""
    tokens = {
        name: {count: await work(f"{base}/stream/{count}/1", name) for count in TOKENS}
        for name in ("stream", "three", "text", "sse", "sse_three", "logged")
    }
    tokens["bare"] = {count: await work(f"{base}/stream/{count}/1", "stream", bare.Client) for count in TOKENS}
    calls = {
        name: {count: await execute_calls(f"{base}/tools/{count}", name) for count in CALLS}
        for name in ("tools", "logged")
    }
    calls["bare"] = {count: await execute_calls(f"{base}/tools/{count}", "tools", bare.Client) for count in CALLS}
    features = {
        case.name: {
            "with": await work(f"{base}/{case.path}", case.work),
            "without": await work(f"{base}/{case.path}", case.against or case.work),
        }
        for case in feature_cases(quick=True)
    }
    return {"tokens": tokens, "calls": calls, "features": features}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1])), indent=1))
