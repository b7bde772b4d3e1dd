"""Frames that AG-UI clients get of a run."""

from __future__ import annotations

import orjson
from reactivex import concat, from_iterable, throw

from rxloop import Agent, MemoryEventLog
from rxloop.errors import EventLogError
from rxloop.server.agui.messages import Telling
from rxloop.server.agui.threads import agui_frames
from rxloop.testing import ScriptedModel


async def test_stream_whose_source_fails_ends_with_a_run_error() -> None:
    log = MemoryEventLog()
    result = await Agent(ScriptedModel("Hello."), log=log).run("Hi")
    events = list(await log.read(result.task_id))[:2]
    found: list[bytes] = []
    ends: list[str] = []
    failing = concat(from_iterable(events), throw(EventLogError("at 10.0.0.1")))

    failing.pipe(agui_frames(Telling("c", "r"))).subscribe(found.append, on_completed=lambda: ends.append("completed"))

    frames = [orjson.loads(line.removeprefix(b"data: ")) for line in b"".join(found).splitlines() if line]
    assert frames[0]["type"] == "RUN_STARTED"
    assert (frames[-1]["type"], frames[-1]["code"]) == ("RUN_ERROR", "log")
    assert "10.0.0.1" not in frames[-1]["message"]
    assert ends == ["completed"]
