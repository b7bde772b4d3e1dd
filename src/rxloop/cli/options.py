"""The options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer

from rxloop.errors import ConfigurationError


class ThoughtLevel(StrEnum):
    """How much of the thoughts is shown."""

    none = "none"
    brief = "brief"
    all = "all"


Database = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="RXLOOP_DB", metavar="DATABASE", help="The database of runs: a file, or postgresql://..."
    ),
]
SessionDatabase = Annotated[
    str | None,
    typer.Option(
        "--session-db",
        envvar="RXLOOP_SESSION_DB",
        metavar="DATABASE",
        help="The address of the same Postgres past a PgBouncer, where --db goes through one.",
    ),
]
Version = Annotated[
    str | None,
    typer.Option(
        "--program-version",
        metavar="VERSION",
        help="Go on only with runs that the same version of your program starts.",
    ),
]
SkipCorrupt = Annotated[
    bool, typer.Option("--skip-corrupt", help="Leave out events of the run that cannot be read, and say which.")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run: the beginning or the end of its id, or 'last'.")]
Thoughts = Annotated[ThoughtLevel, typer.Option("--thoughts", help="How much of the thoughts to show.")]
Json = Annotated[bool, typer.Option("--json", help="Write the events as JSON, one a line.")]
Full = Annotated[
    bool,
    typer.Option(
        "--full", help="Include what is not public: hidden calls, metadata, system messages, answers, errors."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        envvar="RXLOOP_MODEL",
        metavar="MODEL",
        help="A model, such as zai:glm-4.7, openai:gpt-5 or ollama:qwen3.",
    ),
]
OtherModel = Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help="A model other than the run's.")]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="The endpoint of the model, without /chat/completions."),
]
Tools = Annotated[
    list[str] | None,
    typer.Option("--tools", metavar="MODULE:OBJECT", help="A function, a tool, or a list of them; may be repeated."),
]
MCP = Annotated[
    list[str] | None,
    typer.Option("--mcp", metavar="SERVER", help="An MCP server: a command, a URL or an mcp.json; may be repeated."),
]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent", metavar="MODULE:AGENT", help="An agent of yours, or a function without parameters that makes one."
    ),
]
Strategy = Annotated[
    str | None, typer.Option("--strategy", metavar="NAME", help="How to reason: see `rxloop strategies`.")
]
Context = Annotated[str | None, typer.Option("--context", metavar="ID", help="A conversation to go on with.")]
NoLog = Annotated[bool, typer.Option("--no-log", help="Keep nothing in the database.")]


def typed(ctx: typer.Context) -> list[str]:
    """List the options that somebody has typed; what the environment says is for all commands."""
    sources = {each.name: ctx.get_parameter_source(each.name) for each in ctx.command.params if each.name}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def as_text(given: str) -> str:
    """Read what was typed as UTF-8, whatever the terminal is said to use; other bytes become question marks."""
    return given.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def pairs(given: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Read the values of an option such as `--input ID=JSON`.

    Raises:
        ConfigurationError: One is not written like that.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        name, sign, value = as_text(text).partition("=")
        if not sign or not name:
            raise ConfigurationError(f"{option} {text!r}: write NAME=JSON")
        try:
            found[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            quoted = f"{name}={orjson.dumps(value).decode()}"
            raise ConfigurationError(
                f"{option} {text!r}: {value!r} is not JSON; a text is {option} '{quoted}'"
            ) from None
    return found
