"""The commands by their names; each module is imported when its command is called."""

from __future__ import annotations

from typing import NamedTuple


class _Command(NamedTuple):
    place: str
    """Module and object name."""
    help: str
    """First line of the command's help text, repeated here so that `rxloop --help` does not import the module."""


COMMANDS = {
    "run": _Command("run:run", "Ask a model."),
    "chat": _Command("run:chat", "Talk with a model."),
    "map": _Command("map:map_", "Ask for each line of a file, and go on where it was left."),
    "runs": _Command("inspect:runs", "List the runs, newest first."),
    "show": _Command("inspect:show", "Show what is on record of a run."),
    "replay": _Command("inspect:replay", "Show a run once more as it was seen live."),
    "resume": _Command("run:resume", "Go on with a run."),
    "fork": _Command("run:fork", "Begin a new run with a part of another one."),
    "diff": _Command("inspect:diff", "Show where two runs first differ, and what each cost."),
    "eval": _Command("eval:eval_", "Carry out an experiment."),
    "graph": _Command("inspect:graph", "Draw the thoughts of a run."),
    "export": _Command("transfer:export", "Write the events of a run as JSON, one a line."),
    "import": _Command("transfer:import_", "Take runs over from a file."),
    "models": _Command(
        "models:models", "List the models that can be named, what is known of them, and which keys are set."
    ),
    "strategies": _Command("models:strategies", "List the reasoning strategies, or show the stages of one."),
    "protocol": _Command("protocol:protocol", "List the kinds of events, or the fields of one."),
    "doctor": _Command("doctor:doctor", "Check that everything rxloop needs is installed and works."),
    "serve": _Command("serve:serve", "Serve agents over HTTP."),
    "worker": _Command("serve:worker", "Carry out the runs that servers start."),
    "mcp": _Command("mcp:mcp", "Serve tools to clients of the Model Context Protocol."),
}
"""Commands by name, in help order."""
