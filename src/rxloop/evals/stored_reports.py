"""Reports of experiments in the artifact store of their log, so that user interfaces can display scores."""

from __future__ import annotations

import logging
from functools import partial

from rxloop.errors import ArtifactError, ConfigurationError, EventLogError, UnknownArtifact
from rxloop.evals.case import METADATA_KEY
from rxloop.evals.report import Report
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.ids import make_id
from rxloop.support.threads import run_in_thread

log = logging.getLogger("rxloop")

_FILE = "report.json"
_CHUNK = 1 << 20
"""Maximum number of bytes in a chunk."""


def _make_context(name: str) -> str:
    # Conversations cannot have this key, so agents cannot read or replace reports.
    return f"{METADATA_KEY}\x1freport\x1f{name}"


async def store_report(event_log: EventLog, report: Report) -> None:
    """Store the latest report of an experiment. Logs without an artifact store keep no reports.

    Failures are logged, because the caller has the report.

    Args:
        event_log: Log of the experiment.
        report: Complete report.
    """
    store, context = event_log.artifacts, _make_context(report.name)
    if store is None:
        return
    data, key, now = report.to_json(), make_id(), report.created
    try:
        await store.create(
            context, _FILE, name=_FILE, media_type="application/json", override=True, key=f"{key}/0", now=now
        )
        for number, start in enumerate(range(0, len(data), _CHUNK), start=1):
            chunk, last = data[start : start + _CHUNK], start + _CHUNK >= len(data)
            await store.append(context, _FILE, chunk, version=None, last=last, key=f"{key}/{number}", now=now)
    except (ArtifactError, EventLogError) as error:
        log.warning("Cannot store the report of experiment %r: %s", report.name, error)


async def read_report(event_log: EventLog, name: str) -> Report | None:
    """Return the latest report of an experiment, or None if there is none.

    Args:
        event_log: Log of the experiment.
        name: Name of the experiment.

    Raises:
        EventLogError: The store is unavailable.
    """
    store = event_log.artifacts
    if store is None:
        return None
    try:
        data = await store.read(_make_context(name), _FILE)
        # Reports of large experiments would block the event loop.
        return await run_in_thread(partial(Report.from_json, data))
    except (UnknownArtifact, ConfigurationError):
        # Another process may be writing the report right now.
        return None
