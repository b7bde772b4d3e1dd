"""Frames that AG-UI clients get for a run."""

from __future__ import annotations

import orjson
from reactivex import concat, from_iterable, throw

from rxloop import Agent, MemoryEventLog
from rxloop.errors import EventLogError
from rxloop.server.agui.messages import StreamOptions
from rxloop.server.agui.threads import agui_frames
from rxloop.testing import ScriptedModel


async def test_stream_whose_source_fails_ends_with_a_run_error() -> None:
    log = MemoryEventLog()
    result = await Agent(ScriptedModel("Hello."), log=log).run("Hi")
    events = list(await log.read(result.task_id))[:2]
    sent: list[bytes] = []
    ends: list[str] = []
    failing = concat(from_iterable(events), throw(EventLogError("at 10.0.0.1")))

    failing.pipe(agui_frames(StreamOptions("c", "r"))).subscribe(
        sent.append, on_completed=lambda: ends.append("completed")
    )

    frames = [orjson.loads(line.removeprefix(b"data: ")) for line in b"".join(sent).splitlines() if line]
    assert frames[0]["type"] == "RUN_STARTED"
    assert frames[-1]["type"] == "RUN_ERROR"
    assert frames[-1]["code"] == "log"
    assert "10.0.0.1" not in frames[-1]["message"]
    assert ends == ["completed"]
