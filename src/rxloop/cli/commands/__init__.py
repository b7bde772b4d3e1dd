"""Command table. Each module is imported when its command is called."""

from __future__ import annotations

from typing import NamedTuple


class _Command(NamedTuple):
    target: str
    """Module and object name."""
    help: str
    """First line of the command's help text, repeated here so that `rxloop --help` does not import the module."""


COMMANDS = {
    "demo": _Command("run:demo", "Run an agent that thinks aloud, without an API key."),
    "run": _Command("run:run", "Ask a model."),
    "chat": _Command("chat:chat", "Chat with a model."),
    "map": _Command("map:map_", "Run an agent for each line of a file, and resume interrupted batches."),
    "runs": _Command("inspect:runs", "List runs, newest first."),
    "show": _Command("inspect:show", "Show the recorded events of a run."),
    "replay": _Command("inspect:replay", "Replay a run with its live output."),
    "resume": _Command("run:resume", "Resume a run."),
    "fork": _Command("run:fork", "Start a new run with the first events of another run."),
    "diff": _Command("inspect:diff", "Show the first difference and the costs of two runs."),
    "eval": _Command("eval:eval_", "Run an experiment."),
    "stats": _Command("stats:stats", "Show statistics of runs and tools."),
    "graph": _Command("inspect:graph", "Render the thought graph of a run."),
    "export": _Command(
        "transfer:export", "Write a run as JSON lines or another file, or send its OpenTelemetry spans."
    ),
    "import": _Command("transfer:import_", "Import runs from a file."),
    "models": _Command("models:models", "List known models, their prices, and the state of API keys."),
    "keys": _Command("keys:keys", "Store API keys in a file that only you can read."),
    "strategies": _Command("models:strategies", "List reasoning strategies, or describe one of them."),
    "protocol": _Command("protocol:protocol", "List event kinds, or describe one of them."),
    "completion": _Command("completion:completion", "Print the completion script of a shell."),
    "skill": _Command("skill:skill", "Show the folder of the skill for coding agents, or copy it to a project."),
    "doctor": _Command("doctor:doctor", "Check the installation and its environment."),
    "new": _Command("new:new", "Create a project from a template."),
    "view": _Command("view:view", "Show recorded runs in a browser, and follow active ones."),
    "serve": _Command("serve:serve", "Serve agents over HTTP."),
    "worker": _Command("serve:worker", "Execute runs that servers have queued."),
    "mcp": _Command("mcp:mcp", "Serve tools to clients of the Model Context Protocol."),
}
"""Commands by name, in help order."""
