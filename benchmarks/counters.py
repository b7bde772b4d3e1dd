"""What a token and a tool call do, counted: `counters.py URL` prints it as JSON.

Counts do not depend on how busy the machine is, so that a test can hold on to them. They are taken by the profiler, of
a short answer and a long one: what the long one does more often is done for each token.
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


def named(code: Any) -> str:
    """What a function of Python, or one that is built in, is called here."""
    if not isinstance(code, str):
        # A name alone may be anybody's: the file tells `dumps` of json from others.
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


async def counts(do: Callable[[], Awaitable[dict[str, int]]]) -> dict[str, int]:
    """How often something is called while the work is done, beside what it says of itself."""
    await do()
    # Counted like everything else: whatever a collection calls.
    gc.collect()
    gc.disable()
    profile = cProfile.Profile()
    profile.enable()
    try:
        kinds = await do()
    finally:
        profile.disable()
        # What the end of the work did not free at once.
        garbage = gc.collect()
        gc.enable()
    calls: Counter[str] = Counter()
    for entry in cast("list[Any]", profile.getstats()):
        calls[named(entry.code)] += entry.callcount
    found = {group: sum(calls[name] for name in names) for group, names in WATCHED.items()}
    return {**kinds, **found, "calls": calls.total(), "garbage": garbage}


async def work(url: str, name: str, client_of: Callable[[str], Any] = ours.Client) -> dict[str, int]:
    """The counts of one work."""
    async with client_of(url) as client:
        return await counts(getattr(client, name))


async def main(base: str) -> dict[str, Any]:
    """All counts, by what is done and by how much of it."""
    tokens = {
        name: {count: await work(f"{base}/stream/{count}/1", name) for count in TOKENS}
        for name in ("stream", "three", "text", "sse", "sse_three", "logged")
    }
    tokens["bare"] = {count: await work(f"{base}/stream/{count}/1", "stream", bare.Client) for count in TOKENS}
    calls = {
        name: {count: await work(f"{base}/tools/{count}", name) for count in CALLS} for name in ("tools", "logged")
    }
    calls["bare"] = {count: await work(f"{base}/tools/{count}", "tools", bare.Client) for count in CALLS}
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
