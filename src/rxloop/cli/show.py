"""`rxloop show` and `rxloop replay`: the stream of a run, as a record and as it was seen live."""

from __future__ import annotations

from typing import Annotated

import reactivex.operators as rx
import typer
from rich.text import Text

from rxloop.cli import options
from rxloop.cli.live_runs import show as write_live
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.store import find_run, first_event, opened
from rxloop.cli.terminal import running, write, write_json
from rxloop.cli.views import numbered
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event
from rxloop.recorded.follow import follow as following
from rxloop.recorded.replay import replay as replaying
from rxloop.thoughts.drawing import one_line


def show(
    run: options.RunId,
    thoughts: options.Thoughts = ThoughtLevel.all,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only what comes after this event.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until the attempt ends.")
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="With --follow, go on over pauses and attempts until the run is over.")
    ] = False,
    json: options.Json = False,
    full: options.Full = False,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Show what is on record of a run.

    A line for each event, with its number and the seconds since the attempt began.
    """
    if full and not json:
        raise ConfigurationError("--full changes what --json writes: give both")

    def comes_later(event: Event) -> bool:
        return event.seq > after

    async def main() -> None:
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            first = await first_event(log, record.task_id)
            if first is not None and not json and not after:
                ids = f"run {record.task_id}, conversation {record.context_id}\n"
                who = f"{one_line(record.agent_name)} with {one_line(first.model)}, {record.state}\n"
                write(Text(ids + who, "dim"))
            if follow or until_end:
                stream = following(log, record.task_id, until="end" if until_end else "attempt")
            else:
                stream = replaying(log, record.task_id, deltas=False)
            events = stream.pipe(rx.filter(comes_later))
            if json:
                async for event in events:
                    write_json(event, full=full)
            else:
                async for text in events.pipe(numbered(thoughts)):
                    write(text)

    running(main())


def replay(
    run: options.RunId,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="FACTOR", help="1 is the recorded pace; without it, all at once."),
    ] = None,
    until: Annotated[int | None, typer.Option("--until", metavar="SEQ", min=1, help="Stop after this event.")] = None,
    thoughts: options.Thoughts = ThoughtLevel.brief,
    json: options.Json = False,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Show a run once more as it was seen live.

    No model is asked, and no tool is called.
    """

    async def main() -> None:
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            events = replaying(log, record.task_id, speed=speed)
            await write_live(events if until is None else events.until(until), thoughts, json=json)

    running(main())
