"""Recorded runs as tests: a model that answers as it did, and the events to compare with."""

from __future__ import annotations

import os

from rxloop.errors import ConfigurationError
from rxloop.operators.views.record import read_recording
from rxloop.protocol.events import Event
from rxloop.providers.script import ScriptedModel


def recorded(path: str | os.PathLike[str], *, task_id: str | None = None) -> ScriptedModel:
    """Make a model that answers as the models of a recorded run did; see `ScriptedModel.from_events`.

    So a run that went well once becomes a test, with no model and no key:

    Example:
        >>> await Agent(recorded("run.jsonl"), tools=tools).run("Weather?").pipe(op.compare("run.jsonl"))

    Args:
        path: The file that `op.record`, `rxloop run --json` or `rxloop export --full` made of the run.
        task_id: The run, where the file has a nested one as well; by default the outermost.

    Raises:
        ConfigurationError: The file cannot be read, or is not a recording of a run.
    """
    events = recorded_events(path)
    try:
        return ScriptedModel.from_events(events, task_id=task_id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{os.fspath(path)}: {error}") from error


def recorded_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read the events of a recorded run, in order, for views and folds.

    Args:
        path: The file, with the JSON of one event on each line.

    Raises:
        ConfigurationError: The file cannot be read, or a line of it is not an event.
    """
    return read_recording(path)
